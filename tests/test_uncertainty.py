"""Intervals and standard errors: where they come from, what they hold, what moves them."""

import numpy as np
import pytest
import torch
from worlds import drawn_world, exact_world, samples

from sees_torch import KLIEP, MLLS, KnownWeights, SEESc, SEESd, SEESem, SeesError, estimate_shift
from sees_torch.calibration import Calibration, _Folds, _minimum, fold_shares
from sees_torch.contributions import mean_variance
from sees_torch.gap import estimate_gap, own_estimator, row_values
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.match import quietly
from sees_torch.uncertainty import (
    Replicates,
    RowErrors,
    analytic_error,
    bootstrap,
    normal_interval,
)

KNOWN = SEESem(features=("x0",), shrinkage=10.0)
PAIR = drawn_world(1, 1200, 1000, features=5)
PROBA = "source_proba", "target_proba"


def go(method=KNOWN, pair=PAIR, **options):
    return estimate_shift(**{**pair.inputs(), "method": method, "replicates": 100, **options})


@pytest.fixture(scope="module")
def chosen():
    """The full search, with 100 replicates."""
    return go("auto")


@pytest.fixture(scope="module")
def plain():
    return go()


class TestBootstrap:
    def test_the_interval_holds_the_estimate(self, chosen, plain):
        for report in (chosen, plain, go("mlls"), go("sees-c"), go(metric="log_loss")):
            low, high = report.interval
            assert report.interval_source == "bootstrap"
            assert low <= report.gap <= high
            assert high - low == pytest.approx(4 * report.standard_errors[0], rel=0.4)

    def test_more_confidence_is_wider(self, plain):
        wide, narrow = go(confidence=0.99).interval, go(confidence=0.5).interval
        assert wide[0] < plain.interval[0] < narrow[0] < narrow[1] < plain.interval[1] < wide[1]

    def test_four_times_the_rows_halve_the_error(self):
        few, many = (
            go(pair=drawn_world(1, n, n, features=5), replicates=200).standard_errors[0]
            for n in (800, 3200)
        )
        # Each error is known to 1 / sqrt(400) = 5 %; the worlds' draws differ by more.
        assert 1.5 < few / many < 2.7

    def test_is_the_same_every_time(self, chosen):
        again = go("auto")
        assert again.interval == chosen.interval
        assert again.standard_errors == chosen.standard_errors
        assert again.selection == chosen.selection

    def test_the_generator_decides(self, plain):
        one, same, other = (
            go(generator=torch.Generator().manual_seed(seed)).interval for seed in (7, 7, 8)
        )
        assert one == same
        assert one != other
        assert one != plain.interval

    def test_neither_uses_nor_moves_the_global_generator(self, plain):
        torch.manual_seed(3)
        state = torch.get_rng_state()
        assert go().interval == plain.interval
        assert torch.equal(torch.get_rng_state(), state)

    def test_memory_changes_the_draws_but_not_their_law(self):
        """One replicate at a time against all at once: 400 each, within 4 standard errors."""
        errors, means = [], []
        for memory in (1, None):
            report = go(replicates=400, memory_budget=memory)
            errors.append(report.standard_errors[0])
            means.append(sum(report.interval) / 2)
        assert abs(errors[0] / errors[1] - 1) < 4 / 400**0.5
        assert abs(means[0] - means[1]) < 4 * errors[0] / 100**0.5

    def test_draws_are_poisson_copies_of_the_rows(self):
        """Labels only, so that the gap is simple: replicates equal the estimate on copied rows."""
        pair = drawn_world(2, 300, 250, features=3, shifted=0)
        source, target = samples(pair)
        method = SEESem(features=())
        match = method.match(source, target)
        values = row_values(source, target, "accuracy")
        gap = estimate_gap(source, target, match.weight_function, "accuracy", "ipw")
        found = bootstrap(
            source,
            target,
            Hypotheses(source, target, match, method),
            [values],
            [gap],
            [None],
            replicates=4,
            generator=torch.Generator().manual_seed(5),
        )
        generator = torch.Generator().manual_seed(5)
        here, there = (
            torch.poisson(torch.ones(4, n, dtype=torch.float64), generator=generator)
            for n in (300, 250)
        )
        for b in range(4):
            weight = method.replicate(source, target, match, here[b : b + 1], there[b : b + 1])[0]
            own = weight[0].gather(1, source.labels[:, None]).squeeze(1)
            by_hand = (here[b] * (own - 1) * values.own).sum() / here[b].sum()
            assert float(found.gaps[b, 0]) == pytest.approx(float(by_hand), abs=1e-9)

    @pytest.mark.parametrize(
        ("method", "estimator"),
        [
            pytest.param(MLLS(), "plugin", marks=pytest.mark.slow),
            (MLLS(), "ipw"),
            (SEESem(features=("x1",), shrinkage=10.0), "self-normalised"),
            (SEESc(eta=0.01), "plugin"),
        ],
        ids=lambda value: value if isinstance(value, str) else value.name,
    )
    def test_a_resample_is_calibrated_anew(self, method, estimator):
        """Against resamples that are calibrated and matched from scratch, with the same folds."""
        source, target = samples(drawn_world(4, 600, 600, features=4, shifted=0))
        share = fold_shares(source)

        def estimated(source, target):
            folds = _Folds.of(source, share, tied=False)
            fitted = Calibration(folds.models(_minimum(folds)), share)
            source, target = fitted.source(source), fitted.target(target)
            match = quietly(method, source, target)
            gap = estimate_gap(source, target, match.weight_function, "accuracy", estimator)
            return source, target, match, gap, fitted

        *given, match, gap, fitted = estimated(source, target)
        found = {
            calibration: bootstrap(
                *given,
                Hypotheses(*given, match, method),
                [row_values(*given, "accuracy")],
                [gap],
                [None],
                replicates=30,
                calibration=calibration,
                generator=torch.Generator().manual_seed(2),
            ).gaps[:, 0]
            for calibration in (fitted, None)
        }
        generator = torch.Generator().manual_seed(2)
        every = torch.arange(600)
        resamples = [
            torch.poisson(sample.count.expand(30, -1), generator=generator)
            for sample in (source, target)
        ]
        anew = [
            estimated(source.select(every, here), target.select(every, there))[3].gap
            for here, there in zip(*resamples, strict=True)
        ]
        off = [float((gaps - torch.stack(anew)).square().mean()) for gaps in found.values()]
        assert off[0] < 0.5 * off[1]

    @pytest.mark.parametrize("method", ["auto", "mlls", "sees-c"])
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_modes_without_gradients_change_nothing(self, method, mode):
        """Intervals follow the calibration by a gradient of their own."""
        given = {"method": method, "estimator": "auto" if method == "auto" else "plugin"}
        given["replicates"] = 20
        expected = go(**given)
        with mode():
            proba = {name: torch.as_tensor(PAIR.inputs()[name]) + 0 for name in PROBA}
            assert go(**given, **proba).interval == expected.interval

    def test_metrics_that_are_no_mean_over_rows_have_intervals(self):
        report = go(metric=["accuracy", "f1", "auroc", "log_loss"])
        for (low, high), gap, error in zip(
            report.intervals, report.gaps, report.standard_errors, strict=True
        ):
            assert low <= float(gap.gap) <= high
            assert 0 < error < 0.2
        assert [error is None for error in report.analytic_errors] == [False, True, True, False]

    def test_every_metric_is_resampled_as_if_alone(self, plain):
        together = go(metric=["log_loss", "accuracy"])
        assert together.intervals[1] == pytest.approx(plain.interval, abs=1e-12)

    def test_the_error_of_nothing_is_that_of_a_shift_too_small_to_see(self):
        pair = drawn_world(0, 1000, 1000, features=6, strength=0.0)
        report = go("auto", pair)
        assert report.hypothesis == "nothing"
        assert report.gap == 0
        low, high = report.interval
        assert low < 0 < high
        assert high - low > 0.002


class TestSelection:
    def test_frequencies_sum_to_one_and_the_choice_leads(self, chosen):
        shares = list(chosen.selection.values())
        assert sum(shares) == pytest.approx(1, abs=1e-12)
        assert shares == sorted(shares, reverse=True)
        assert next(iter(chosen.selection)) == chosen.shifted_features
        assert chosen.diagnostics["stability"] == shares[0]

    def test_features_that_are_given_are_not_chosen(self, plain):
        assert plain.selection == {}
        assert "stability" not in plain.diagnostics

    def test_the_choice_widens_the_interval_when_features_compete(self):
        """A shift of x0 that is barely seen: resamples disagree, and say so."""
        pair = drawn_world(1, 1000, 1000, features=5, strength=0.5)
        report = go("auto", pair)
        assert len(report.selection) > 1
        assert sum(report.selection.values()) == pytest.approx(1, abs=1e-12)

    def test_counts_by_hand(self):
        found = Replicates(torch.zeros(5, 1), torch.tensor([2, 0, 2, 2, 0]))
        assert found.frequency() == {0: 0.4, 2: 0.6}


class TestAnalytic:
    def test_no_replicates_give_the_analytic_interval(self):
        report = go(replicates=0)
        assert report.interval_source == "analytic"
        error = report.standard_errors[0]
        assert error == report.analytic_errors[0]
        reach = 1.959964 * error
        assert report.interval == pytest.approx((report.gap - reach, report.gap + reach), abs=1e-8)
        assert report.interval == normal_interval(report.gap, error, 0.95)

    @pytest.mark.parametrize(
        "method",
        [KNOWN, SEESem(features=()), SEESc(), SEESc(eta="auto"), SEESc(eta=0.01, refit=True)],
        ids=["feature", "labels", "basis", "eta", "refit"],
    )
    def test_agrees_with_the_bootstrap_where_all_is_well(self, method):
        pair = drawn_world(2, 3000, 3000, features=6)
        report = go(method, pair, replicates=200)
        assert report.standard_errors[0] == pytest.approx(report.analytic_errors[0], rel=0.25)

    @pytest.mark.parametrize("estimator", ["ipw", "self-normalised", "plugin"])
    def test_of_basis_weights_agrees_under_every_estimator(self, estimator):
        pair = drawn_world(2, 3000, 3000, features=6)
        report = go(SEESc(), pair, replicates=200, estimator=estimator)
        assert report.standard_errors[0] == pytest.approx(report.analytic_errors[0], rel=0.25)

    @pytest.mark.parametrize("worlds", [24, pytest.param(80, marks=pytest.mark.slow)])
    def test_of_basis_weights_is_that_of_new_samples(self, worlds):
        """To 2.5 standard errors: 1 / sqrt(2n) for the root mean square of n such ratios."""
        errors, known = [], []
        for seed in range(worlds):
            pair = drawn_world(seed, 600, 600, features=6)
            found = go(SEESc(), pair, replicates=0)
            given = go(KnownWeights(found.weight_function), pair, replicates=0, estimator="dr")
            missed = found.gap - pair.population_gap
            errors.append(missed / found.standard_errors[0])
            known.append(missed / given.standard_errors[0])
        slack = 2.5 / (2 * worlds) ** 0.5
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(1, abs=slack)
        assert np.sqrt(np.mean(np.square(known))) > 1.2  # The weights have errors too.

    @pytest.mark.parametrize("worlds", [40, pytest.param(150, marks=pytest.mark.slow)])
    def test_two_gaps_of_the_same_rows_differ_by_as_much_as_new_samples_do(self, worlds):
        """What their errors have in common is known: to 2.5 standard errors of a variance."""
        methods, ratios, apart = (SEESem(features=("x0",)), SEESc(eta=0.01)), [], []
        for seed in range(worlds):
            pair = drawn_world(seed, 800, 800, features=6)
            source, target = samples(pair)
            values = row_values(source, target, "accuracy")
            gaps, rows = [], []
            for method in methods:
                match = quietly(method, source, target)
                function, own = match.weight_function, own_estimator(match)
                gap = estimate_gap(source, target, function, "accuracy", own)
                gaps.append(float(gap.gap))
                rows.append(RowErrors.of(source, target, method, match, gap, values))
            difference = RowErrors.mixed([(1.0, rows[0]), (-1.0, rows[1])])
            first, second = (each.error(source, target) ** 2 for each in rows)
            shared = rows[0].covariance(rows[1], source, target)
            variance = difference.error(source, target) ** 2
            assert variance == pytest.approx(first + second - 2 * shared, rel=1e-9)
            assert shared > 0
            ratios.append((gaps[0] - gaps[1]) ** 2 / variance)
            apart.append((gaps[0] - gaps[1]) ** 2 / (first + second))
        assert np.mean(ratios) == pytest.approx(1, abs=2.5 * (2 / worlds) ** 0.5)
        assert np.mean(apart) < 0.6  # As much is not to be had from errors that share nothing.

    def test_weighted_estimators_by_hand(self):
        pair = drawn_world(2, 400, 300, features=3)
        source, target = samples(pair)
        known = KnownWeights(pair.weight_table, pair.features)
        match = known.match(source, target)
        values = row_values(source, target, "accuracy")
        own, w = values.own.numpy(), pair.weights
        gap = estimate_gap(source, target, match.weight_function, "accuracy", "ipw")
        error = analytic_error(source, target, known, match, gap, values)
        assert error == pytest.approx(((w - 1) * own).std() / 20, rel=1e-9)

    def test_the_variance_of_a_mean_counts_multiplicities(self):
        rng = np.random.default_rng(0)
        value, count = rng.normal(size=50), rng.integers(1, 5, 50)
        copies = np.repeat(value, count)
        found = mean_variance(torch.tensor(value), torch.tensor(count).double())
        assert float(found) == pytest.approx(copies.var() / len(copies), rel=1e-12)

    def test_tables_without_resamples_fall_back_to_it(self):
        report = go(SEESd(1))
        assert report.interval_source == "analytic"
        assert report.interval[0] < report.gap < report.interval[1]

    def test_nothing_is_as_uncertain_as_labels_only(self):
        """With few rows a small shift of the labels goes unseen: both errors are that of `eff`."""
        given = drawn_world(0, 900, 300, features=3).inputs()
        given |= {"target": given["source"][:300], "target_proba": given["source_proba"][:300]}
        given |= {name: given[name][300:] for name in ("source", "labels", "source_proba")}
        found, labels = (
            estimate_shift(**given, method=method, replicates=0)
            for method in ("auto", SEESem(features=()))
        )
        assert found.hypothesis == "nothing"
        assert not found.match.choice.averaged
        assert found.interval_source == "analytic"
        assert found.standard_errors == pytest.approx(labels.standard_errors)
        low, high = found.interval
        assert low < 0 < high


class TestNone:
    @pytest.mark.parametrize(
        ("method", "why"),
        [
            ("none", "assumes that nothing shifted"),
            (KLIEP(centres=15, widths=(0.5, 1.0)), "error of the weights of kliep is not known"),
            ("dlu", "error of the weights of dlu is not known"),
        ],
        ids=["none", "kliep", "dlu"],
    )
    def test_methods_without_an_interval_say_why(self, method, why):
        report = go(method, drawn_world(0, 300, 300, features=3))
        assert report.interval is None
        assert report.standard_errors == (None,)
        assert report.interval_source.startswith("none: ")
        assert why in report.interval_source

    @pytest.mark.parametrize("method", ["auto", KNOWN, SEESd(1)], ids=["auto", "known", "sees-d"])
    def test_populations_have_no_sampling_error(self, method):
        report = go(method, exact_world(0, features=4))
        assert report.interval is None
        assert "describe a population" in report.interval_source

    def test_not_asked_for(self):
        report = go(confidence=None)
        assert report.interval is None
        assert report.interval_source == "not asked for"
        assert report.to_dict()["interval"] is None

    def test_tables_under_an_estimator_that_is_not_theirs(self):
        report = go(KNOWN, replicates=0, estimator="dr")
        assert report.interval is None
        assert "does not know that of the weights" in report.interval_source


class TestMultiplicities:
    def test_rows_that_count_nothing_are_as_if_absent(self):
        """A mask is no population: half of the rows switched off, or left out."""
        pair = drawn_world(4, 800, 800, features=4)
        kept = np.arange(800) % 2 == 0
        masked = go(pair=pair, source_weight=kept.astype(float), target_weight=kept.astype(float))
        given = {
            "source": pair.source[kept],
            "labels": pair.labels[kept],
            "source_proba": pair.source_proba[kept],
            "target": pair.target[kept],
            "target_proba": pair.target_proba[kept],
        }
        cut = go(pair=pair, **given)
        assert masked.gap == pytest.approx(cut.gap, abs=1e-6)
        assert masked.interval_source == cut.interval_source == "bootstrap"
        assert masked.standard_errors[0] == pytest.approx(cut.standard_errors[0], rel=0.4)
        assert masked.analytic_errors[0] == pytest.approx(cut.analytic_errors[0], rel=1e-6)

    def test_weights_that_average_one_are_rows_whatever_their_last_bit(self):
        rng = np.random.default_rng(0)
        for _ in range(5):
            weight = rng.uniform(0.5, 1.5, 1200)
            weight = weight * (1200 / weight.sum()) * (1 - 1e-15)
            assert go(source_weight=weight, replicates=5).interval_source == "bootstrap"

    def test_copies_count_as_rows(self):
        pair = drawn_world(4, 500, 500, features=4)
        count = np.random.default_rng(1).integers(1, 4, 500)
        rows = np.repeat(np.arange(500), count)
        counted = go(pair=pair, source_weight=count.astype(float))
        copied = go(
            pair=pair,
            source=pair.source.iloc[rows],
            labels=pair.labels[rows],
            source_proba=pair.source_proba[rows],
        )
        assert counted.gap == pytest.approx(copied.gap, abs=1e-6)
        assert counted.analytic_errors[0] == pytest.approx(copied.analytic_errors[0], rel=1e-4)
        # Two bootstraps of 100: each error is known to 7 %.
        assert counted.standard_errors[0] == pytest.approx(copied.standard_errors[0], rel=0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 1}, "replicates must be 0 .* or at least 2"),
        ({"replicates": -1}, "replicates must be a whole number"),
        ({"replicates": 2.5}, "replicates must be a whole number"),
        ({"confidence": 0.0}, "confidence must lie between 0 and 1"),
        ({"confidence": 95}, "confidence must lie between 0 and 1"),
    ],
    ids=str,
)
def test_refusals(options, message):
    with pytest.raises(SeesError, match=message):
        go(**options)
