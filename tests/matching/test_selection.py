"""The choice between hypotheses: the rule, its evidence and folds, and refits of dense ones."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worlds import drawn_world, exact_world, samples

from sees_torch import Auto, NoShift, SEESc, SEESem, Source, Target, make_sparse_joint_shift
from sees_torch.matching import auto, search
from sees_torch.matching.basis_resamples import Stack
from sees_torch.matching.batch import Batch
from sees_torch.matching.candidate import Candidate
from sees_torch.matching.cells import fit_cells, fit_shares
from sees_torch.matching.choice import Choice
from sees_torch.matching.covariates_only import CovariatesOnly
from sees_torch.matching.search import Search
from sees_torch.matching.sees_em import label_weights
from sees_torch.matching.selection import (
    DEALS,
    FOLDS,
    LEAST_RATIO,
    TIE,
    Evidence,
    Folds,
    Ratios,
    misfit,
    simplest,
)
from sees_torch.statistics.products import MEMORY
from sees_torch.statistics.subsets import subsets_of


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


PENALISED = [SEESc(eta=1e-2), SEESc(eta=5e-2, intercept=True), CovariatesOnly()]


def stack_of(method, source, target, match):
    labels = not isinstance(method, CovariatesOnly)
    intercept = getattr(method, "intercept", False)
    return Stack.of(source, target, match.weight_function, labels=labels, intercept=intercept)


class TestSimplest:
    rank = torch.tensor([0, 1, 1, 2])
    even = torch.full((4, 4), 0.1, dtype=torch.float64)

    @pytest.mark.parametrize(
        ("score", "chosen"),
        [
            ([0.0, 0.5, 0.4, 0.6], 1),  # Within 1.5 errors of the best, and simpler.
            ([0.0, 0.4, 0.5, 0.6], 2),  # Of equal rank the higher score.
            ([0.0, 0.44, 0.3, 0.6], 3),  # 1.6 errors behind is clearly behind.
            ([0.46, 0.5, 0.4, 0.6], 0),
            ([0.9, 0.5, 0.4, 0.6], 0),  # The simplest is the best.
            ([0.0, 0.5, 0.9, 0.6], 2),
            ([-9.0, -0.5, -0.4, -0.6], 2),
        ],
        ids=str,
    )
    def test_the_rule(self, score, chosen):
        assert int(simplest(tensor(score), self.even, self.rank)) == chosen

    def test_scores_come_in_batches(self):
        scores = tensor([[0.0, 0.5, 0.4, 0.6], [0.9, 0.5, 0.4, 0.6], [0.0, 0.4, 0.3, 0.6]])
        together = simplest(scores.expand(2, 3, 4), self.even, self.rank)
        assert together.tolist() == [[1, 0, 3]] * 2

    def test_the_error_is_that_of_the_difference_to_the_best(self):
        error = torch.zeros(4, 4, dtype=torch.float64)
        error[1, 2] = error[2, 1] = 9.0
        score = tensor([0.4, 0.5, 0.5, 0.6])
        assert int(simplest(score, error, self.rank)) == 3
        error[3, 1] = error[1, 3] = 0.1
        assert int(simplest(score, error, self.rank)) == 1

    def test_what_is_chosen_is_clearly_ahead_of_the_simplest_itself(self):
        """That a complex hypothesis rules out the simplest says nothing for one between them."""
        score = tensor([0.0, 0.5, 0.4, 0.6])
        error = self.even.clone()
        error[0, 1] = error[1, 0] = 0.34
        assert int(simplest(score, error, self.rank)) == 0
        error[0, 1] = error[1, 0] = 0.33
        assert int(simplest(score, error, self.rank)) == 1
        assert int(simplest(score, error, self.rank + 1)) == 1  # Where there is no simplest one.

    def test_the_limit_counts_standard_errors(self):
        score = tensor([0.0, 0.35, 0.0, 0.6])
        assert int(simplest(score, self.even, self.rank, limit=2.4)) == 3
        assert int(simplest(score, self.even, self.rank, limit=2.6)) == 1

    def test_a_small_part_of_what_is_explained_is_no_evidence(self):
        """However clear: with many rows it may be p(y|x), which is never quite right."""
        sure = self.even / 1000
        assert int(simplest(tensor([0.0, 0.59, 0.3, 0.6]), sure, self.rank)) == 1
        assert int(simplest(tensor([0.0, 0.58, 0.3, 0.6]), sure, self.rank)) == 3

    def test_without_noise_only_ties_are_close(self):
        nothing = torch.zeros(4, 4, dtype=torch.float64)
        score = tensor([0.6 - TIE / 2, 0.6 - 3 * TIE, 0.0, 0.6])
        assert int(simplest(score, nothing, self.rank)) == 0
        assert int(simplest(score - tensor([1.0, 0, 0, 0]), nothing, self.rank)) == 3


class TestPassedOver:
    """Only what could not be chosen is passed over; a small gain is no reason to doubt."""

    @pytest.mark.parametrize(
        ("score", "eligible", "passed_over"),
        [
            ([0.0, 0.59, 0.3, 0.6], [True, True, True, True], False),
            ([0.0, 0.59, 0.3, 0.6], [True, True, True, False], True),
            ([0.0, 0.5999, 0.3, 0.6], [True, True, True, False], False),
        ],
    )
    def test_the_rule(self, score, eligible, passed_over):
        candidates = tuple(
            Candidate("", NoShift(), (), rank) for rank in TestSimplest.rank.tolist()
        )
        evidence = SimpleNamespace(
            score=lambda: tensor(score), standard_errors=TestSimplest.even / 1000
        )
        choice = Choice.make(candidates, evidence, torch.tensor(eligible))
        assert choice.chosen == 1
        assert choice.passed_over == passed_over


class TestEvidence:
    pair = drawn_world(0, 300, 200, features=3)
    parameters = np.array([0.0, 1.0, 2.5, 7.0])

    def evidence(self, rng):
        """Random ratios of four hypotheses in two families, some below the floor."""
        source, target = samples(self.pair)
        source = source.with_count(tensor(rng.integers(1, 4, 300)))
        target = target.with_count(tensor(rng.integers(1, 4, 200)))
        here, there = rng.lognormal(0, 1, (4, 300)), rng.lognormal(0, 1, (4, 200))
        here[:, :5], there[:, :5] = 1e-9, 0.0
        there = np.maximum(there, LEAST_RATIO)
        logs = np.log(there)
        cost = tensor(self.parameters)
        ratios = [
            Ratios(tensor(here[part]), tensor(logs[part]), cost[part])
            for part in (slice(3), slice(3, 4))
        ]
        here = np.maximum(here, LEAST_RATIO)
        return Evidence.of(source, target, ratios), here, there

    def score_by_hand(self, here, there, u, v):
        on_target = np.average(np.log(there), axis=1, weights=v)
        return on_target - np.log(np.average(here, axis=1, weights=u))

    def test_score_equals_the_formula(self):
        found, here, there = self.evidence(np.random.default_rng(0))
        u, v = found.source_count.numpy(), found.target_count.numpy()
        cost = self.parameters * (1 / u.sum() + 1 / v.sum())
        by_hand = self.score_by_hand(here, there, u, v) - cost
        np.testing.assert_allclose(found.score(), by_hand, rtol=1e-12)

    def test_score_under_other_multiplicities_equals_recomputation(self):
        rng = np.random.default_rng(1)
        found, here, there = self.evidence(rng)
        u, v = rng.poisson(1.0, (6, 300)), rng.poisson(1.0, (6, 200))
        scores = found.score(tensor(u), tensor(v))
        assert scores.shape == (6, 4)
        for b in range(6):
            by_hand = self.score_by_hand(here, there, u[b], v[b]) - found.cost.numpy()
            np.testing.assert_allclose(scores[b], by_hand, rtol=1e-12)

    def test_standard_errors_equal_the_paired_formula(self):
        found, here, there = self.evidence(np.random.default_rng(2))
        u, v = found.source_count.numpy(), found.target_count.numpy()
        scaled = here / np.average(here, axis=1, weights=u)[:, None]

        def mean_variance(values, count):
            centred = values - np.average(values, weights=count)
            return count @ centred**2 / count.sum() ** 2

        errors = found.standard_errors
        for i in range(4):
            for j in range(4):
                square = mean_variance(np.log(there[i]) - np.log(there[j]), v)
                square += mean_variance(scaled[i] - scaled[j], u)
                np.testing.assert_allclose(errors[i, j], square**0.5, rtol=1e-9, atol=1e-9)

    def test_standard_errors_are_those_of_repeated_draws(self):
        """Fixed ratios, 400 draws of both samples: spread within 4 standard errors of it."""
        world = exact_world(1, features=3, levels=2)
        source, target = samples(world)
        rng = np.random.default_rng(3)
        ratio = rng.lognormal(0, 0.5, (2, len(source)))
        mean = ratio @ world.source_weight
        ratio = ratio / mean[:, None]
        found = Evidence.of(source, target, [Ratios.of(*2 * [tensor(ratio)], torch.zeros(2))])
        u = rng.multinomial(500, world.source_weight, 400)
        v = rng.multinomial(300, world.target_weight, 400)
        scores = found.score(tensor(u), tensor(v))
        spread = float((scores[:, 0] - scores[:, 1]).std())
        sample = Evidence(
            found.on_source,
            found.on_target,
            found.cost,
            500 * source.mass,
            300 * target.mass,
            False,
        )
        # The spread of 400 draws has a relative standard error of 1 / sqrt(800).
        assert abs(spread / float(sample.standard_errors[0, 1]) - 1) < 4 / 800**0.5

    @pytest.mark.parametrize(("n", "m"), [(500, 500), (200, 1000), (1000, 200)])
    def test_the_cost_is_twice_what_chance_gains(self, n, m):
        """Without shift: as much is gained on the rows of the fit as is lost on others."""
        gained, parameters = [], []
        for seed in range(25):
            pair = drawn_world(seed, n, m, features=3, levels=(2, 8, 25), shifted=0, strength=0.0)
            names = replace(pair, source=pair.source.astype(str), target=pair.target.astype(str))
            found = Search(*samples(names), MEMORY)
            found.add_tables(1)
            evidence = found._evidence()
            parameters.append(evidence.cost * n * m / (n + m))
            gained.append((evidence.score() + evidence.cost) * n * m / (n + m))
        expected = torch.stack(parameters).mean(dim=0) / 2
        mean, spread = torch.stack(gained).mean(dim=0), torch.stack(gained).std(dim=0)
        assert expected[-1] > 8 * expected[0]
        assert ((mean - expected).abs() < 4 * spread / 5).all()

    def test_a_strong_prior_leaves_the_shares_of_cells_and_of_labels(self):
        """Of 3 cells and 3 classes: 2 + 2 numbers; a weak one leaves 3 times 3 - 1."""
        pair = drawn_world(0, 4000, 4000, features=3, levels=3, classes=3)
        batch = Batch.of(*samples(pair))
        labels = label_weights(batch).weight[:, :, 0]
        subset = subsets_of([(0,)], batch.sizes, batch.codes.device)
        for strength, expected in ((1e9, 4.0), (1e-6, 8.0)):
            found = fit_cells(batch, subset, strength, labels, few_rows=0.0)
            assert float(found.parameters) == pytest.approx(expected, abs=1e-3)
        assert float(fit_shares(batch, subset).parameters) == 2
        assert float(label_weights(batch).parameters) == 2

    def test_populations_have_no_standard_error_and_no_cost(self):
        source, target = samples(exact_world(0, features=2))
        ones = torch.ones(2, len(source), dtype=torch.float64)
        ratios = Ratios.of(ones, ones * tensor([[1.0], [2.0]]), tensor([0.0, 3.0]))
        found = Evidence.of(source, target, [ratios])
        assert found.standard_errors.abs().max() == 0
        np.testing.assert_allclose(found.score(), [0.0, np.log(2)], atol=1e-12)


def few_rows(rng, rows):
    """Two features of three levels, and a score that does not follow from them."""
    features, score = rng.integers(0, 3, (rows, 2)), rng.normal(size=rows)
    proba = 1 / (1 + np.exp(-score))
    return features, proba, (rng.random(rows) < proba).astype(int)


def both(rng, n=300, m=240):
    x, p, y = few_rows(rng, n)
    z, q, _ = few_rows(rng, m)
    source = Source(x, y, p)
    return source, Target(z, q, source)


class TestFolds:
    def test_are_balanced(self):
        pair = drawn_world(0, 503, 402, features=3)
        source, target = samples(pair)
        folds = Folds.deal(source, target)
        for share, sample in ((folds.source, source), (folds.target, target)):
            for deal in share.split(FOLDS, dim=1):
                torch.testing.assert_close(deal.sum(dim=1), torch.ones_like(sample.count))
                held, expected = sample.count @ deal, sample.total / FOLDS
                assert float((held - expected).square().sum() / expected) < 23  # One in 10,000.

    def test_training_and_held_out_rows_share_nothing(self):
        source, target = samples(drawn_world(0, 500, 400, features=6))
        folds = Folds.deal(source, target)
        number = FOLDS * DEALS
        here, there = folds.training(source, target)
        assert (here.shape, there.shape) == ((number, 500), (number, 400))
        for training, share, sample in (
            (here, folds.source, source),
            (there, folds.target, target),
        ):
            torch.testing.assert_close(
                training + (share.T * sample.count), sample.count.expand(number, -1)
            )
        ratio = torch.arange(1.0, number + 1).double()
        found = folds.held_out(ratio[:, None, None].expand(number, 2, 900))
        whole = folds.source.amax(dim=1) == 1  # Equal rows share several folds.
        assert int(whole.sum()) > 100
        expected = folds.source @ ratio / DEALS
        torch.testing.assert_close(found.here[:, whole], expected[whole].expand(2, -1))
        expected = folds.target @ ratio.log() / DEALS
        torch.testing.assert_close(found.there, expected.expand(2, -1))
        assert found.parameters.tolist() == [0, 0]  # Rows are new to the ratios: nothing to charge.

    def test_deals_differ_and_many_rows_need_one(self, monkeypatch):
        source, target = samples(drawn_world(0, 500, 400, features=6))
        deals = Folds.deal(source, target).source.split(FOLDS, dim=1)
        assert len(deals) == DEALS
        together = (deals[0] * deals[1]).sum() / source.total
        assert abs(float(together) - 1 / FOLDS) < 0.06  # As often in the same fold as by chance.
        monkeypatch.setattr("sees_torch.matching.selection.ONE_DEAL_ROWS", 400)
        torch.testing.assert_close(Folds.deal(source, target).source, deals[0])

    def test_follow_their_rows(self):
        """Any order of the rows of either sample, though features do not tell them apart."""
        rng = np.random.default_rng(0)
        x, p, y = few_rows(rng, 300)
        z, q, _ = few_rows(rng, 240)
        here, there = rng.permutation(300), rng.permutation(240)
        source = Source(x, y, p)
        folds = Folds.deal(source, Target(z, q, source))
        moved = Source(x[here], y[here], p[here])
        again = Folds.deal(moved, Target(z[there], q[there], moved))
        assert torch.equal(again.source, folds.source[here])
        assert torch.equal(again.target, folds.target[there])

    def test_do_not_depend_on_the_order_of_columns(self):
        pair = drawn_world(1, 300, 300, features=4)
        order = ["x2", "x0", "x3", "x1"]
        folds = Folds.deal(*samples(pair))
        moved = replace(pair, source=pair.source[order], target=pair.target[order])
        again = Folds.deal(*samples(moved))
        assert torch.equal(again.source, folds.source)
        assert torch.equal(again.target, folds.target)

    def test_do_not_depend_on_the_order_of_classes(self):
        pair = drawn_world(5, 700, 600, features=4, classes=3)
        order = [2, 0, 1]
        moved = replace(
            pair,
            classes=tuple(order),
            source_proba=pair.source_proba[:, order],
            target_proba=pair.target_proba[:, order],
        )
        folds, again = Folds.deal(*samples(pair)), Folds.deal(*samples(moved))
        assert torch.equal(again.source, folds.source)
        assert torch.equal(again.target, folds.target)

    def test_merged_rows_are_dealt_like_single_ones(self):
        pair = drawn_world(2, 600, 500, features=3)
        merged, of_source, of_target = merge(pair)
        single, counted = Folds.deal(*samples(pair)), Folds.deal(*samples(merged))
        for share, few, owner, count in (
            (single.source, counted.source, of_source, merged.source_weight),
            (single.target, counted.target, of_target, merged.target_weight),
        ):
            received = torch.zeros_like(few).index_add(0, torch.tensor(owner), share)
            torch.testing.assert_close(received, few * tensor(count)[:, None], rtol=0, atol=1e-9)

    def test_merged_rows_have_the_same_score(self):
        pair = drawn_world(2, 600, 500, features=3)
        found = [SEESem(1).match(*samples(p)).choice.evidence for p in (pair, merge(pair)[0])]
        torch.testing.assert_close(found[0].score(), found[1].score(), rtol=0, atol=1e-6)
        torch.testing.assert_close(
            found[0].standard_errors, found[1].standard_errors, rtol=0.1, atol=1e-6
        )

    def test_of_equal_rows_differ_as_much_as_of_others(self):
        """Held-out rows must be new: of a hundred equal ones a fold gets 20 +- 4, not 20."""
        rng = np.random.default_rng(3)
        x = np.repeat(np.arange(20), 100)
        source = Source(
            x[:, None], rng.integers(0, 2, 2000), np.full(2000, 0.5), kinds={0: "categorical"}
        )
        target = Target(x[:, None], np.full(2000, 0.5), source)
        share = Folds.deal(source, target).target
        held = torch.zeros(20, FOLDS * DEALS, dtype=torch.float64).index_add(
            0, torch.tensor(x), share
        )
        # 80 degrees of freedom: chi-squared of independent draws is 80 +- 13.
        assert float(((held - 20).square() / 20).sum()) > 80 - 4 * 13


def merge(pair):
    """Equal rows of both samples merged, and the merged row of every old one."""

    def distinct(table):
        _, first, of_row, count = np.unique(
            table, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        return first, of_row.reshape(-1), count.astype(float)

    first, of_source, count = distinct(np.c_[pair.source, pair.labels])
    kept, of_target, target_count = distinct(pair.target.to_numpy())
    merged = replace(
        pair,
        source=pair.source.iloc[first],
        labels=pair.labels[first],
        source_proba=pair.source_proba[first],
        source_weight=count,
        target=pair.target.iloc[kept],
        target_proba=pair.target_proba[kept],
        target_labels=pair.target_labels[kept],
        target_weight=target_count,
    )
    return merged, of_source, of_target


class TestSamples:
    """Simple truths on drawn samples; one wrong answer in ten is within the rule's error rate."""

    @pytest.mark.parametrize(
        ("features", "rows"), [(4, 3000), (7, 800)], ids=["few distinct rows", "many"]
    )
    @pytest.mark.parametrize(
        ("options", "truth"),
        [({"strength": 0.0}, "nothing"), ({"shifted": 0}, "labels only")],
        ids=["no shift", "label shift"],
    )
    def test_simple_truths_are_kept_simple(self, options, truth, features, rows):
        found = []
        for seed in range(5):
            pair = drawn_world(seed, rows, rows, features=features, **options)
            found.append(SEESem().match(*samples(pair)).choice.candidate.words)
        # Label shifts of some seeds are too small to be told from none.
        simple = {"nothing", truth}
        assert sum(words in simple for words in found) >= 4, found
        assert found.count(truth) >= 3, found

    def test_many_more_target_than_source_rows_raise_no_alarm(self):
        """Target likelihood alone would take the source's noise for a shift."""
        found = []
        for seed in range(4):
            pair = drawn_world(seed, 300, 2400, features=6, strength=0.0)
            found.append(SEESem().match(*samples(pair)).choice.candidate.words)
        assert found.count("nothing") >= 3, found

    def test_dense_hypotheses_do_not_win_by_richness(self):
        found = []
        for seed in range(3):
            pair = drawn_world(seed, 800, 800, features=8, strength=0.0)
            found.append(Auto().match(*samples(pair)).choice.candidate.words)
        assert found == ["nothing"] * 3


class TestRefits:
    pair = drawn_world(5, 300, 250, features=4, classes=2)

    @pytest.mark.parametrize(
        "method",
        [
            SEESc(eta=1e-3, tolerance=1e-11),
            SEESc(eta=1e-2, intercept=True, tolerance=1e-11),
            SEESc(eta=3e-3, refit=True, tolerance=1e-11),
            CovariatesOnly(tolerance=1e-11),
        ],
        ids=["paper", "intercept", "refit", "covariates"],
    )
    def test_equal_matches_on_the_resamples(self, method):
        source, target = samples(self.pair)
        rng = np.random.default_rng(0)
        here, there = tensor(rng.integers(1, 4, (2, 300))), tensor(rng.integers(1, 4, (2, 250)))
        match = method.match(source, target)
        on_source, on_target = method.refits(source, target, match, here, there)
        for b in range(2):
            again = method.match(source.with_count(here[b]), target.with_count(there[b]))
            assert again.features == match.features
            for table, sample in ((on_source, source), (on_target, target)):
                expected = again.weight_function.table(sample.rows)
                torch.testing.assert_close(table[b], expected, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("method", PENALISED, ids=["paper", "intercept", "covariates"])
    def test_one_step_errs_in_second_order(self, method):
        """Half the perturbation, a quarter of the error, and far less than the move itself."""
        pair = drawn_world(5, 700, 600, features=4, classes=2)
        source, target = samples(pair)
        match = replace(method, tolerance=1e-12).match(source, target)
        stack = stack_of(method, source, target, match)
        rng = np.random.default_rng(1)
        tilt = [tensor(rng.normal(size=(1, n)).clip(-3, 3)) for n in (700, 600)]

        def moved(size):
            counts = [1 + size * t for t in tilt]
            full = stack.weights(stack.solve([method.eta], *counts, 1e-13)[0])[0]
            quick = stack.weights(stack.one_step(method.eta, *counts))[0]
            start = stack.weights(stack.value[None])[0]
            return float((quick - full).abs().max()), float((full - start).abs().max())

        (error, _), (half, move) = moved(0.04), moved(0.02)
        assert 3.3 < error / half < 4.8
        assert half < 0.1 * move

    @pytest.mark.parametrize("method", PENALISED, ids=["paper", "intercept", "covariates"])
    def test_influence_is_the_slope_of_a_solve(self, method):
        """Any number made from the weights follows a small tilt of the rows, solved anew."""
        pair = drawn_world(5, 500, 400, features=4, classes=2)
        source, target = samples(pair)
        method = replace(method, tolerance=1e-12)
        match = method.match(source, target)
        stack = stack_of(method, source, target, match)
        rng = np.random.default_rng(1)
        slopes = [tensor(rng.normal(size=(n, 2))) for n in (500, 400)]
        tilt = [tensor(rng.normal(size=n).clip(-3, 3)) for n in (500, 400)]

        def number(size):
            counts = [(1 + size * t)[None] for t in tilt]
            tables = stack.weights(stack.solve([method.eta], *counts, 1e-13)[0])
            return sum(float((s * table[0]).sum()) for s, table in zip(slopes, tables, strict=True))

        found = method.influence(source, target, match, *slopes)
        expected = sum(float((f * (t - t.mean())).mean()) for f, t in zip(found, tilt, strict=True))
        assert (number(1e-3) - number(-1e-3)) / 2e-3 == pytest.approx(expected, rel=2e-3)

    def test_one_step_far_away_stays_possible(self):
        """Of twelve rows a resample may hold one alone: no weight below zero, none without end."""
        pair = drawn_world(5, 12, 12, features=4, classes=2)
        source, target = samples(pair)
        method = SEESc(eta=1e-3, tolerance=1e-12)
        match = method.match(source, target)
        one = torch.eye(12, dtype=torch.float64)
        here, there = one.repeat_interleave(12, dim=0), one.repeat(12, 1)
        for table in method.replicate(source, target, match, here, there):
            assert float(table.min()) >= 0
            assert float(table.max()) < 1e3

    def test_one_step_without_a_perturbation_stays(self):
        source, target = samples(self.pair)
        method = SEESc(eta=1e-2, tolerance=1e-12)
        match = method.match(source, target)
        on_source, on_target = method.replicate(
            source, target, match, source.count[None], target.count[None]
        )
        for table, sample in ((on_source, source), (on_target, target)):
            expected = match.weight_function.table(sample.rows)
            torch.testing.assert_close(table[0], expected, rtol=0, atol=1e-6)


class TestMisfit:
    """What a ratio leaves unexplained, in units of what chance would."""

    def samples(self, seed):
        pair = drawn_world(seed=seed, n=3000, m=3000)
        return pair, *samples(pair)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_true_ratio_leaves_nothing(self, seed):
        pair, source, target = self.samples(seed)
        weight = torch.ones(len(target), 2, dtype=torch.float64)
        for (level, label), value in pair.weight_table.items():
            at = torch.tensor(pair.target["x0"].to_numpy() == level)
            weight[at, label] = value
        ratio = (target.posterior * weight).sum(dim=1)
        assert misfit(source, target, ratio) < 1

    @pytest.mark.parametrize("seed", range(5))
    def test_no_ratio_leaves_the_shift(self, seed):
        _, source, target = self.samples(seed)
        assert misfit(source, target, torch.ones_like(target.count)) > 1.5

    @pytest.mark.parametrize(("strength", "left"), [(0.0, False), (1.0, True)])
    def test_what_is_small_stays_so_however_many_rows_show_it(self, strength, left):
        """Each row as if it were fifty: what is chance here is then beyond all chance."""
        pair = drawn_world(seed=1, n=20_000, m=20_000, strength=strength)
        many = np.full(20_000, 50.0)
        source = Source(pair.source, pair.labels, pair.source_proba, weight=many)
        target = Target(pair.target, pair.target_proba, source, weight=many)
        assert (misfit(source, target, torch.ones_like(target.count)) > 1) == left


@pytest.mark.parametrize("method", [Auto(), SEESem(1)])
def test_of_very_many_rows_a_part_tells_which_features_are_worth_a_look(method, monkeypatch):
    """Fewer feature sets are compared on all rows, the shifted one among them."""
    source, target = samples(make_sparse_joint_shift(3000, 3000, features=6))
    whole = method.match(source, target)
    monkeypatch.setattr(search, "SCREENED", 800)
    monkeypatch.setattr(auto, "SCREENED", 800)
    part = method.match(source, target)
    assert part.features == whole.features == (0,)
    sizes = Counter(len(candidate.features) for candidate in part.choice.candidates)
    # With and without the label; one number of features alone has the label.
    assert sizes[1] == search.CONTENDERS * (1 if method == SEESem(1) else 2)
    torch.testing.assert_close(part.weight_function.weight, whole.weight_function.weight)
