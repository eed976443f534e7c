"""The verdict: worlds in which the data cannot decide are never called identified."""

import numpy as np
import pandas as pd
import pytest
from worlds import drawn_world, exact_world

from sees_torch import KnownWeights, SEESd, SEESem, SupportWarning, estimate_shift
from sees_torch.identifiability import FEW_LABELS_OTHERWISE

SEARCHES = {"auto": "auto", "sees-em": SEESem(sparsity=1), "sees-d": SEESd(1)}


def bayes(law):
    """(cells, 2) joint law of a cell and the label to p(second label | cell)."""
    return law[:, 1] / law.sum(axis=1)


def two_bernoullis(py, first, second):
    """(2, 2, 2) law of x0, x1 and the label; x0 and x1 independent given it."""
    y = np.array([1 - py, py])
    x0, x1 = (np.array([1 - np.array(p), p]) for p in (first, second))
    return np.einsum("y,ay,by->aby", y, x0, x1)


# The world of the paper's proof of Theorem 2: x0 shifts with the label, x1 given the label stays.
BEFORE = two_bernoullis(0.5, [0.7, 0.1], [0.6, 0.2])
AFTER = two_bernoullis(0.6, [0.5, 0.5], [0.6, 0.2])


def as_inputs(before, after, shape, n=None, m=None, seed=0):
    """Arguments of estimate_shift for two laws over cells of `shape` and a binary label.

    Populations without n, else draws; the classifier is the source's Bayes rule.
    """
    cells, labels = np.divmod(np.arange(before.size), 2)
    features = np.stack(np.unravel_index(cells, shape), axis=1)
    frame = pd.DataFrame(features, columns=[f"x{j}" for j in range(len(shape))])
    before, after = before.reshape(-1), after.reshape(-1)
    proba = bayes(before.reshape(-1, 2))[cells]
    if n is None:
        return {
            "source": frame,
            "labels": labels,
            "target": frame,
            "source_proba": proba,
            "target_proba": proba,
            "source_weight": before,
            "target_weight": after,
            "calibrate": False,
        }
    rng = np.random.default_rng(seed)
    here, there = rng.choice(len(before), n, p=before), rng.choice(len(after), m, p=after)
    return {
        "source": frame.iloc[here],
        "labels": labels[here],
        "target": frame.iloc[there],
        "source_proba": proba[here],
        "target_proba": proba[there],
        "replicates": 50,
    }


def true_gap(before, after):
    proba = bayes(before.reshape(-1, 2))
    right = np.stack([proba <= 0.5, proba > 0.5], axis=1)
    return float(((after - before).reshape(-1, 2) * right).sum())


class TestTwoFeaturesThatFitAlike:
    """d = 2: whatever x0 does with the label, x1 can do as well."""

    def test_both_explain_the_target_exactly(self):
        """q = 1/3 in both cells of x1 gives the same p_t(x), and another gap."""
        rival = BEFORE * (
            np.array([2, 1]) / 3 / BEFORE.sum(axis=0) * AFTER.sum(axis=(0, 2))[:, None]
        )
        np.testing.assert_allclose(rival.sum(axis=2), AFTER.sum(axis=2), atol=1e-12)
        assert abs(true_gap(BEFORE, AFTER) - true_gap(BEFORE, rival)) > 0.1

    @pytest.mark.parametrize("method", SEARCHES.values(), ids=SEARCHES.keys())
    def test_is_not_identified_in_the_population(self, method):
        report = estimate_shift(**as_inputs(BEFORE, AFTER, (2, 2)), method=method)
        assert report.status == "not_identified"

    @pytest.mark.parametrize("method", SEARCHES.values(), ids=SEARCHES.keys())
    @pytest.mark.parametrize("seed", [0, 1])
    def test_is_not_identified_in_samples(self, method, seed):
        given = as_inputs(BEFORE, AFTER, (2, 2), 2000, 2000, seed)
        assert estimate_shift(**given, method=method).status != "identified"

    def test_the_rival_and_its_gap_are_shown(self):
        report = estimate_shift(**as_inputs(BEFORE, AFTER, (2, 2), 2000, 2000))
        table = report.hypotheses()
        shown = {row.features: row for row in table.itertuples() if row.chosen or row.rival}
        assert set(shown) == {("x0",), ("x1",)}
        truth = true_gap(BEFORE, AFTER)
        assert abs(shown["x0",].gap - truth) < 4 * shown["x0",].error
        assert abs(shown["x1",].gap - truth) > 0.1
        assert table["chosen"].sum() == 1
        said = " ".join(report.reasons)
        assert "1 other feature set(s) explain the target as well" in said
        assert "about the same gap" not in said  # They are 17 points apart.
        rival = next(row for row in shown.values() if row.rival)
        assert f"one with the gap {100 * rival.gap:+.1f} points" in said

    def test_a_loss_is_said_in_its_own_units(self):
        given = as_inputs(BEFORE, AFTER, (2, 2), 2000, 2000)
        said = " ".join(estimate_shift(**given, metric="log_loss").reasons)
        assert "one with the gap" in said
        assert "points" not in said

    def test_ties_are_not_behind(self):
        table = estimate_shift(**as_inputs(BEFORE, AFTER, (2, 2))).hypotheses()
        assert table["behind"][table["rival"] | table["chosen"]].max() < 1e-3


class TestLabelsThatCannotBeToldApart:
    """Given x0, all other features have the same law under both labels."""

    before = np.array([[0.2, 0.1], [0.1, 0.2], [0.2, 0.2]])
    turned = np.array([[0.1, 0.2], [0.25, 0.05], [0.05, 0.35]])
    moved = np.array([[0.05, 0.15], [0.3, 0.1], [0.1, 0.3]])

    def inputs(self, after, seed, n=2500):
        rng = np.random.default_rng(seed)
        noise = ["a", "b", "c", "d", "e"]

        def draw(law):
            cell = rng.choice(6, n, p=law.reshape(-1))
            frame = pd.DataFrame(rng.integers(0, 4, (n, len(noise))), columns=noise)
            return frame.assign(x0=cell // 2), cell % 2

        (source, labels), (target, _) = draw(self.before), draw(after)
        proba = bayes(self.before)
        return {
            "source": source,
            "labels": labels,
            "target": target,
            "source_proba": proba[source["x0"]],
            "target_proba": proba[target["x0"]],
            "replicates": 50,
        }

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_a_shift_that_leaves_no_trace_is_not_ruled_out(self, seed):
        """p_t(x) = p_s(x), though labels turned round and accuracy fell by 40 points."""
        np.testing.assert_allclose(self.turned.sum(axis=1), self.before.sum(axis=1))
        assert true_gap(self.before, self.turned) < -0.3
        assert estimate_shift(**self.inputs(self.turned, seed)).status != "identified"

    @pytest.mark.parametrize("method", SEARCHES.values(), ids=SEARCHES.keys())
    def test_a_shift_of_the_feature_that_is_seen(self, method):
        report = estimate_shift(**self.inputs(self.moved, 0), method=method)
        assert report.status != "identified"

    def test_features_that_are_named_are_not_identified_either(self):
        report = estimate_shift(
            **self.inputs(self.moved, 0), method=SEESem(features=("x0",), shrinkage=10.0)
        )
        assert report.status != "identified"

    def test_a_blind_classifier(self):
        """The model itself says the same of every row."""
        pair = drawn_world(0, 500, 500, features=4, quality=0.0)
        report = estimate_shift(**pair.inputs(), replicates=50)
        assert report.status != "identified"


class TestTooManyFeatures:
    @pytest.mark.parametrize(("features", "named"), [(3, 2), (2, 2), (1, 1), (5, 3)])
    def test_more_than_half_are_never_identified(self, features, named):
        pair = drawn_world(1, 1000, 1000, features=features, levels=2)
        names = tuple(f"x{j}" for j in range(named))
        for method in (SEESem(features=names, shrinkage=10.0), SEESem(sparsity=named)):
            report = estimate_shift(**pair.inputs(), method=method, replicates=20)
            assert report.status == "not_identified"
            assert f"{named} of {features} features would have shifted" in report.reasons[0]
            assert np.isfinite(report.gap)

    def test_half_may_be(self):
        pair = drawn_world(1, 2000, 2000, features=4, shifted=2, quality=1.0)
        report = estimate_shift(
            **pair.inputs(), method=SEESem(features=("x0", "x1"), shrinkage=10.0), replicates=0
        )
        assert report.status != "not_identified"


class TestCleanWorlds:
    @pytest.mark.parametrize("seed", [0, 2])
    def test_samples_are_identified(self, seed):
        pair = drawn_world(seed, 2000, 2000, features=6)
        report = estimate_shift(**pair.inputs(), replicates=100)
        assert report.shifted_features == ("x0",)
        assert (report.status, report.reasons) == ("identified", ())
        assert not report.hypotheses()["rival"].any()

    @pytest.mark.parametrize("method", SEARCHES.values(), ids=SEARCHES.keys())
    def test_populations_are_identified(self, method):
        pair = exact_world(0, features=5)
        report = estimate_shift(**pair.inputs(), method=method, calibrate=False)
        assert report.shifted_features == ("x0",)
        assert (report.status, report.reasons) == ("identified", ())

    def test_known_weights_are_taken_at_their_word(self):
        pair = drawn_world(0, 1000, 1000, features=4)
        known = KnownWeights(pair.weight_table, pair.features)
        assert estimate_shift(**pair.inputs(), method=known).status == "identified"

    def test_methods_that_compare_nothing_are_weak_at_best(self):
        pair = drawn_world(0, 1000, 1000, features=4)
        for method in ("mlls", "sees-c", "dlu", SEESem(features=("x0",), shrinkage=10.0)):
            report = estimate_shift(**pair.inputs(), method=method, replicates=20)
            assert report.status == "weak"
            assert "compares no hypotheses" in report.reasons[0]


class TestOtherReasons:
    def test_a_duplicated_column_is_a_rival_with_the_same_gap(self):
        pair = drawn_world(0, 1500, 1500, features=4)
        given = pair.inputs()
        for part in ("source", "target"):
            given[part] = given[part].assign(copy=given[part]["x0"])
        report = estimate_shift(**given, replicates=50)
        table = report.hypotheses()
        assert set(table["features"][table["chosen"] | table["rival"]]) >= {("x0",), ("copy",)}
        assert report.status == "weak"
        assert any("about the same gap" in reason for reason in report.reasons)

    def test_target_rows_where_the_source_never_was(self):
        pair = drawn_world(0, 1500, 1500, features=4)
        given = pair.inputs()
        for share, status in ((0.1, "weak"), (0.4, "not_identified")):
            target = pair.target.copy()
            target.loc[: int(share * 1500) - 1, "x0"] = 7
            with pytest.warns(SupportWarning):
                report = estimate_shift(
                    **{**given, "target": target},
                    method=SEESem(features=("x0",), shrinkage=10.0),
                    replicates=20,
                )
            assert report.status == status
            assert any("where the source never was" in reason for reason in report.reasons)

    def test_few_rows_are_worth_few_labels(self):
        pair = drawn_world(1, 30, 30, features=4, levels=2, quality=0.3)
        report = estimate_shift(
            **pair.inputs(), method=SEESem(features=("x0",), shrinkage=10.0), replicates=50
        )
        assert report.diagnostics["label_equivalent"] < 100
        assert any("labelled target rows" in reason for reason in report.reasons)

    def test_label_equivalent_is_the_variance_of_a_labelled_mean(self):
        """Known weights of one: the error of n rows is worth the rows that give the same."""
        pair = drawn_world(3, 1000, 1000, features=4)
        report = estimate_shift(**pair.inputs(), method=SEESem(features=()), replicates=0)
        weight = report.weights.numpy()
        right = pair.source_proba.argmax(axis=1) == pair.labels
        mean = np.average(right, weights=weight)
        spread = mean * (1 - mean)
        worth = spread / report.standard_errors[0] ** 2
        assert report.diagnostics["label_equivalent"] == pytest.approx(worth, rel=1e-9)


class TestUnseenShifts:
    """An answer that names no feature is doubted where the shift of one would be known badly."""

    def quiet(self, rows):
        return drawn_world(3, rows, rows, features=4, shifted=0, strength=0.0).inputs()

    def test_power_is_what_the_worst_feature_would_leave(self):
        inputs = self.quiet(400)
        report = estimate_shift(**inputs, confidence=None)
        assert report.hypothesis == "nothing"
        right = (report.source.predictions == report.source.labels).double()
        spread = float(right.mean() * (1 - right.mean()))
        errors = {
            name: estimate_shift(
                **inputs, method=SEESem(features=(name,), shrinkage=10.0), replicates=0
            ).analytic_errors[0]
            for name in inputs["source"]
        }
        worst = max(errors, key=errors.get)
        power = report.diagnostics["power"]
        assert power == pytest.approx(spread / errors[worst] ** 2, rel=1e-6)
        assert power < FEW_LABELS_OTHERWISE
        assert report.status == "weak"
        assert any(f"{worst} may have shifted with the label unseen" in r for r in report.reasons)

    def test_more_rows_would_have_shown_it(self):
        report = estimate_shift(**self.quiet(6000), confidence=None)
        assert report.diagnostics["power"] > FEW_LABELS_OTHERWISE
        assert report.status == "identified"

    def test_an_answer_that_names_a_feature_needs_no_such_doubt(self):
        report = estimate_shift(**drawn_world(0, 2000, 2000).inputs(), confidence=None)
        assert report.shifted_features
        assert "power" not in report.diagnostics


class TestPassedOver:
    def test_the_best_hypothesis_cannot_tell_labels_apart(self):
        """Two labels alike given the shifted feature: whatever is chosen instead is no answer."""
        from experiments.verdict import twin_labels

        pair = twin_labels(6)(200, 4000)
        report = estimate_shift(**pair.inputs(), confidence=0.9, replicates=50)
        assert report.status == "not_identified"
        assert any("standard errors better" in reason for reason in report.reasons)


def test_a_rate_stays_possible():
    pair = drawn_world(39, 600, 600, features=3, shifted=2, levels=2)
    for replicates in (0, 50):
        report = estimate_shift(**pair.inputs(), replicates=replicates)
        low, high = report.interval
        assert min(report.gap, -report.source_value) <= low <= report.gap <= high
        assert high <= max(report.gap, 1 - report.source_value)


def test_levels_that_the_source_never_showed():
    pair = drawn_world(0, 3000, 3000, features=4)
    target = pair.target.copy()
    target.loc[: len(target) // 8, "x1"] = 77
    report = estimate_shift(**{**pair.inputs(), "target": target})
    assert report.status != "identified"
    assert any("never showed" in reason for reason in report.reasons)


@pytest.mark.parametrize("seed", range(2))
def test_the_verdict_is_the_same_at_any_confidence(seed):
    given = drawn_world(seed=seed, n=400, m=400).inputs()
    verdicts = {
        (report.status, report.reasons)
        for report in (estimate_shift(**given, confidence=c) for c in (0.5, 0.9, 0.999))
    }
    assert len(verdicts) == 1
