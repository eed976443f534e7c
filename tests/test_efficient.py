"""The efficient gap: unbiased whatever weights and p(y|x) were, and of the variance it states."""

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world, samples

from sees_torch import KnownWeights, SEESc, SEESem, SeesError, estimate_shift
from sees_torch.contributions import weighted_mean
from sees_torch.efficient import efficient_values, variance
from sees_torch.gap import estimate_gap, row_values, target_posterior
from sees_torch.weight_cells import cells_of


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def wild(table, seed):
    """Any positive weights on the same cells."""
    rng = np.random.default_rng(seed)
    return {key: float(rng.lognormal()) for key in table}


def function_of(pair, source, target, table=None):
    table = pair.weight_table if table is None else table
    return KnownWeights(table, pair.features).match(source, target).weight_function


POSTERIORS = {
    "right": lambda p, rng: p,
    "sharp": lambda p, rng: (2 * p.log() + torch.arange(p.shape[1])).softmax(dim=1),
    "blunt": lambda p, rng: (0.4 * p.log()).softmax(dim=1),
    "random": lambda p, rng: tensor(rng.dirichlet(np.ones(p.shape[1]), len(p) // p.shape[1])),
}


def distorted(name, source, target):
    """Both samples of an exact world with another p(y|x), the same for equal features."""
    posterior = POSTERIORS[name](source.posterior, np.random.default_rng(0))
    if len(posterior) != len(source):
        posterior = posterior.repeat_interleave(posterior.shape[1], dim=0)
    return source.with_posterior(posterior), target.with_posterior(posterior)


class TestPopulations:
    @pytest.mark.parametrize("posterior", POSTERIORS)
    @pytest.mark.parametrize("shifted", [0, 1])
    @pytest.mark.parametrize("classes", [2, 3])
    def test_any_weights_and_any_posterior_give_the_gap(self, classes, shifted, posterior):
        for seed in range(4):
            pair = exact_world(seed, features=4, classes=classes, shifted=shifted)
            source, target = distorted(posterior, *samples(pair))
            for table in (None, wild(pair.weight_table, seed)):
                function = function_of(pair, source, target, table)
                for metric in ("accuracy", "log_loss", "brier"):
                    values = row_values(source, target, metric).own.numpy()
                    truth = (pair.target_weight - pair.source_weight) @ values
                    gap = float(estimate_gap(source, target, function, metric, "eff").gap)
                    assert abs(gap - truth) < 1e-6

    def test_other_estimators_do_not_forgive_that_much(self):
        """The test above would be empty if wild weights hardly mattered."""
        pair = exact_world(1, features=4, classes=2)
        source, target = distorted("sharp", *samples(pair))
        function = function_of(pair, source, target, wild(pair.weight_table, 0))
        for estimator in ("ipw", "self-normalised", "plugin", "dr"):
            gap = float(estimate_gap(source, target, function, "accuracy", estimator).gap)
            assert abs(gap - pair.population_gap) > 0.01

    def test_two_features(self):
        for seed in range(3):
            pair = exact_world(seed, features=5, classes=2, shifted=[1, 3])
            source, target = samples(pair)
            function = function_of(pair, source, target, wild(pair.weight_table, seed))
            gap = float(estimate_gap(source, target, function, "accuracy", "eff").gap)
            assert abs(gap - pair.population_gap) < 1e-5

    def test_cells_that_the_source_never_visits_count_by_their_weights(self):
        """The true ones, so that the metric is exact; elsewhere any weights will do."""
        for seed in range(3):
            pair = exact_world(seed, features=4, classes=2, shifted=[0])
            source, target = samples(pair)
            lost = source.rows.codes[:, 0] == 2
            source = source.with_count(torch.where(lost, 0.0, source.count))
            table = wild(pair.weight_table, seed)
            table |= {key: w for key, w in pair.weight_table.items() if key[0] == 2}
            function = function_of(pair, source, target, table)
            truth = pair.target_weight @ row_values(source, target, "accuracy").own.numpy()
            found = estimate_gap(source, target, function, "accuracy", "eff")
            assert float(found.target_value) == pytest.approx(truth, abs=1e-6)

    def test_cells_on_the_wrong_features_do_not_give_the_gap(self):
        pair = exact_world(1, features=4, classes=2, shifted=[0])
        source, target = samples(pair)
        ones = {(level, label): 1.0 for level in range(3) for label in range(2)}
        function = KnownWeights(ones, ("x2",)).match(source, target).weight_function
        gap = float(estimate_gap(source, target, function, "accuracy", "eff").gap)
        assert abs(gap - pair.population_gap) > 1e-3

    def test_losses_and_expectations_agree_in_every_cell(self):
        """l - M sums to zero over the source rows of each (cell, label): that is all it takes."""
        pair = exact_world(2, features=4, classes=3)
        source, target = distorted("blunt", *samples(pair))
        function = function_of(pair, source, target, wild(pair.weight_table, 2))
        values = row_values(source, target, "accuracy")
        cells = cells_of(function, source, target)
        found = efficient_values(source, target, cells, values)
        weight = function.of_rows(source.rows, source.labels)
        miss = (found.source_part[0] / weight * source.mass).numpy()
        place = cells.source.numpy() * 3 + source.labels.numpy()
        np.testing.assert_allclose(np.bincount(place, miss), 0.0, atol=1e-8)
        assert float(found.unresolved.abs().max()) < 1e-6

    def test_labels_that_cannot_be_told_apart_stay_unresolved(self):
        pair = exact_world(0, features=3, classes=2)
        source, target = samples(pair)
        flat = torch.full_like(source.posterior, 0.5)
        source, target = source.with_posterior(flat), target.with_posterior(flat)
        values = row_values(source, target, "accuracy")
        blind = efficient_values(
            source, target, cells_of(function_of(pair, source, target), source, target), values
        )
        assert float(blind.unresolved.abs().max()) > 0.1
        assert float(blind.condition.max()) > 1e3


def test_a_weight_that_was_fitted_as_zero_does_not_run_away():
    """Surely negative rows in a cell whose negatives were given no weight, though they have some.

    Nothing shifted, so the gap is within its noise of zero: 0.01 is five standard errors.
    """
    rng = np.random.default_rng(0)
    rows = 5000

    def side():
        x, y = rng.integers(0, 2, rows), rng.integers(0, 2, rows)
        p = 1 / (1 + np.exp(-(8 * y - 4 + rng.normal(scale=3, size=rows))))
        return pd.DataFrame({"x": x, "z": rng.integers(0, 3, rows)}), y, p

    (source, labels, p), (target, _, q) = side(), side()
    table = {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 0.0, (1, 1): 2.0}
    report = estimate_shift(
        source,
        labels,
        target,
        source_proba=p,
        target_proba=q,
        method=KnownWeights(table, ("x",)),
        estimator="eff",
        confidence=None,
    )
    assert abs(report.gap) < 0.01


class TestVariance:
    """Multinomial draws of a population as multiplicities of its rows, all in one batch."""

    n, m, draws = 2400, 1600, 3000
    pair = exact_world(3, features=3, classes=2, shifted=[0])

    def drawn(self, source, target):
        rng = np.random.default_rng(0)
        here = rng.multinomial(self.n, self.pair.source_weight, self.draws)
        there = rng.multinomial(self.m, self.pair.target_weight, self.draws)
        return tensor(here), tensor(there)

    def sized(self):
        """The population as if it were samples of n and m rows."""
        source, target = samples(self.pair)
        source, target = (
            sample.with_count(size * sample.mass)
            for sample, size in ((source, self.n), (target, self.m))
        )
        return source, target

    def test_v_is_the_variance_of_the_estimate(self):
        source, target = self.sized()
        values = row_values(source, target, "accuracy")
        cells = cells_of(function_of(self.pair, source, target), source, target)
        sizes = float(self.n), float(self.m)
        stated = variance(source, target, cells, values, sizes)
        here, there = self.drawn(source, target)
        gaps = efficient_values(source, target, cells, values, here, there, sizes).gap
        # lambda is estimated from the same rows: a bias of second order, far below the error.
        assert abs(float(gaps.mean()) - self.pair.population_gap) < 0.2 * stated**0.5
        # The variance of 3,000 draws has a relative standard error of sqrt(2 / 3000) = 2.6 %.
        assert abs(float(gaps.var()) / stated - 1) < 0.11

    def test_the_mean_stays_right_under_wrong_weights_and_posterior(self):
        source, target = distorted("sharp", *self.sized())
        values = row_values(source, target, "accuracy")
        function = function_of(self.pair, source, target, wild(self.pair.weight_table, 1))
        here, there = self.drawn(source, target)
        cells = cells_of(function, source, target)
        sizes = float(self.n), float(self.m)
        gaps = efficient_values(source, target, cells, values, here, there, sizes).gap
        bias = float(gaps.mean()) - self.pair.population_gap
        # The ridge for small cells costs a little; a point is a third of a standard deviation.
        assert abs(bias) < 4 * float(gaps.std()) / self.draws**0.5 + 0.01
        posterior = target_posterior(function.table(target.rows), target.posterior)
        plugin = float(weighted_mean((posterior * values.target).sum(dim=1), target.count))
        before = float(source.mean(values.own))
        assert abs(plugin - before - self.pair.population_gap) > 0.05

    def test_no_estimator_with_the_true_weights_varies_less(self):
        source, target = self.sized()
        values = row_values(source, target, "accuracy")
        function = function_of(self.pair, source, target)
        here, there = self.drawn(source, target)
        cells = cells_of(function, source, target)
        sizes = float(self.n), float(self.m)
        least = efficient_values(source, target, cells, values, here, there, sizes).gap.var()
        before = weighted_mean(values.own.expand_as(here), here)
        weight = function.of_rows(source.rows, source.labels)
        ipw = weighted_mean((weight * values.own).expand_as(here), here) - before
        assert float(least) < 0.97 * float(ipw.var())

    def test_batches_equal_a_loop(self):
        source, target = self.sized()
        values = row_values(source, target, "log_loss")
        cells = cells_of(function_of(self.pair, source, target), source, target)
        here, there = (counts[:4] for counts in self.drawn(source, target))
        sizes = float(self.n), float(self.m)
        many = efficient_values(source, target, cells, values, here, there, sizes)
        for b in range(4):
            one = efficient_values(
                source.with_count(here[b]), target.with_count(there[b]), cells, values, sizes=sizes
            )
            torch.testing.assert_close(many.gap[b], one.gap[0], rtol=0, atol=1e-12)
            torch.testing.assert_close(many.condition[b], one.condition[0])

    @pytest.mark.slow
    def test_reports_of_drawn_samples_vary_as_they_state(self):
        """Weights estimated anew from every draw; V does not know of their error and need not."""
        gaps, errors = [], []
        rng = np.random.default_rng(1)
        world = exact_world(3, features=4, classes=2, shifted=[0])
        for _ in range(150):
            here = rng.choice(len(world.source), 500, p=world.source_weight)
            there = rng.choice(len(world.source), 500, p=world.target_weight)
            report = estimate_shift(
                world.source.iloc[here],
                world.labels[here],
                world.target.iloc[there],
                source_proba=world.source_proba[here],
                target_proba=world.target_proba[there],
                method=SEESem(features=("x0",), shrinkage=10.0),
                replicates=0,
            )
            gaps.append(report.gap)
            errors.append(report.standard_errors[0])
        spread = np.std(gaps)
        # A spread of 150 draws is known to 1 / sqrt(300) = 6 %.
        assert abs(np.mean(errors) / spread - 1) < 0.25
        assert abs(np.mean(gaps) - world.population_gap) < 4 * spread / 150**0.5 + 0.005


@pytest.fixture(scope="module")
def report():
    """On 1,500 source and 1,200 target rows."""
    pair = drawn_world(4, 1500, 1200, features=4, classes=2)
    return estimate_shift(
        **pair.inputs(), method=SEESem(features=("x0",), shrinkage=10.0), replicates=0
    )


class TestSampleSizes:
    def test_four_times_the_rows_halve_the_error(self, report):
        now = report.expected_error(1500, 1200)
        assert now == pytest.approx(report.standard_errors[0], rel=1e-9)
        # The ridge is in rows of this sample, the error in rows of the planned one.
        assert report.expected_error(6000, 4800) == pytest.approx(now / 2, rel=0.02)

    def test_more_rows_of_either_sample_help(self, report):
        now = report.expected_error(1500, 1200)
        assert report.expected_error(15_000, 1200) < now
        assert report.expected_error(1500, 12_000) < now

    def test_rows_needed_reach_the_half_width(self, report):
        half_width = 1.5 * report.standard_errors[0]
        needed = report.rows_needed(half_width)
        grown = needed["both"] / 1200
        error = report.expected_error(1500 * grown, needed["both"])
        assert 1.95996 * error == pytest.approx(half_width, rel=0.02)
        if np.isfinite(needed["target_rows"]):
            error = report.expected_error(1500, needed["target_rows"])
            assert 1.95996 * error <= half_width
        assert needed["target_rows"] > needed["both"] > 1200

    def test_a_precision_that_the_source_rules_out_needs_infinitely_many(self, report):
        assert report.rows_needed(1e-4)["target_rows"] == np.inf
        assert np.isfinite(report.rows_needed(1e-2)["both"])

    @pytest.mark.parametrize("wrong", [{"half_width": 0.0}, {"half_width": 0.1, "confidence": 1.0}])
    def test_refusals(self, report, wrong):
        with pytest.raises(SeesError, match="half_width must be positive"):
            report.rows_needed(**wrong)


def test_basis_weights_have_no_cells():
    source, target = samples(drawn_world(0, 200, 200, features=3))
    function = SEESc(tolerance=1e-6).match(source, target).weight_function
    with pytest.raises(SeesError, match=r"estimator 'eff' needs weights that are a table .* 'dr'"):
        estimate_gap(source, target, function, "accuracy", "eff")
