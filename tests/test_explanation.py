"""What moved: shares of every cell, and a split of the gap that adds up."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world, samples

from sees_torch import KnownWeights, SEESem, SeesError, estimate_shift
from sees_torch.explanation import JointLaw
from sees_torch.gap import row_values


def explained(pair, table=None, features=None, **options):
    """The report of an exact world under known weights: nothing is estimated."""
    known = KnownWeights(table or pair.weight_table, features or pair.features)
    return estimate_shift(**pair.inputs(), method=known, calibrate=False, **options)


def renamed(pair, name):
    """The same world, its shifted feature x0 under another name."""
    return replace(
        pair,
        source=pair.source.rename(columns={"x0": name}),
        target=pair.target.rename(columns={"x0": name}),
        features=(name,),
    )


def law_of(pair):
    source, target = samples(pair)
    function = KnownWeights(pair.weight_table, pair.features).match(source, target).weight_function
    return JointLaw.of(source, function, row_values(source, target, "accuracy").own)


class TestAttribution:
    @pytest.mark.parametrize("shifted", [0, 1, [2, 0]])
    @pytest.mark.parametrize("classes", [2, 3])
    def test_adds_up_to_the_gap_of_a_population(self, classes, shifted):
        for seed in range(3):
            pair = exact_world(seed, features=4, classes=classes, shifted=shifted)
            parts = explained(pair).attribution()
            assert set(parts) == {*pair.features, "label", "rest"}
            assert abs(parts["rest"]) < 1e-9
            assert sum(parts.values()) == pytest.approx(pair.population_gap, abs=1e-12)

    @pytest.mark.parametrize("metric", ["log_loss", "brier"])
    def test_adds_up_for_any_mean_over_rows(self, metric):
        pair = exact_world(1, features=3, classes=3, shifted=2)
        report = explained(pair, metric=metric)
        parts = report.attribution()
        assert abs(parts.pop("rest")) < 1e-9
        assert sum(parts.values()) == pytest.approx(report.gap, abs=1e-9)

    def test_on_samples_the_rest_is_the_difference(self):
        pair = drawn_world(3, 1500, 1500, features=4)
        report = estimate_shift(
            **pair.inputs(), method=SEESem(features=("x0",), shrinkage=10.0), replicates=0
        )
        parts = report.attribution()
        assert sum(parts.values()) == pytest.approx(report.gap, abs=1e-12)
        assert abs(parts["rest"]) < 3 * report.standard_errors[0]

    def test_labels_alone_take_all_of_a_label_shift(self):
        pair = exact_world(1, features=3, classes=3, shifted=0)
        parts = explained(pair).attribution()
        assert parts["label"] == pytest.approx(pair.population_gap, abs=1e-9)

    def test_a_feature_that_does_not_move_gets_nothing(self):
        """x1 is independent of x0 and the label, and its law is the same in both."""
        before = np.array([[0.3, 0.1], [0.2, 0.4]])
        after = np.array([[0.1, 0.4], [0.4, 0.1]])
        x0, x1, y = (part.ravel() for part in np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij"))
        share = np.array([0.3, 0.7])[x1]
        frame = pd.DataFrame({"x0": x0, "x1": x1})
        ratio = after / before
        proba = np.where(x0 == 1, 0.8, 0.3)
        report = estimate_shift(
            frame,
            y,
            frame,
            source_proba=proba,
            target_proba=proba,
            source_weight=before[x0, y] * share,
            target_weight=after[x0, y] * share,
            method=KnownWeights(
                {(a, b, c): ratio[a, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)},
                ("x0", "x1"),
            ),
            estimator="ipw",
            calibrate=False,
        )
        parts = report.attribution()
        assert abs(parts["x1"]) < 1e-12
        assert abs(parts["x0"]) > 0.01
        assert abs(parts["label"]) > 0.01

    def test_copies_share_alike(self):
        """The game does not see which of two equal columns moved."""
        pair = exact_world(0, features=3, classes=2)
        given = pair.inputs()
        for part in ("source", "target"):
            given[part] = given[part].assign(copy=given[part]["x0"])
        table = {(a, a, y): pair.weight_table[a, y] for a in range(3) for y in range(2)}
        known = KnownWeights(table, ("x0", "copy"))
        report = estimate_shift(**given, method=known, estimator="ipw", calibrate=False)
        parts = report.attribution()
        assert parts["x0"] == pytest.approx(parts["copy"], abs=1e-12)
        alone = explained(pair, estimator="ipw").attribution()
        assert abs(parts["x0"]) > 1e-4
        assert sum(parts.values()) == pytest.approx(sum(alone.values()), abs=1e-9)

    def test_shapley_values_by_enumerating_orders(self):
        law = law_of(exact_world(5, features=4, classes=2, shifted=[0, 2]))
        shares = law.shapley()
        total = dict.fromkeys(law.names, 0.0)
        orders = list(permutations(range(3)))
        for order in orders:
            for place, player in enumerate(order):
                before = law.shift(tuple(sorted(order[:place])))
                after = law.shift(tuple(sorted(order[: place + 1])))
                total[law.names[player]] += (after - before) / len(orders)
        assert shares == pytest.approx(total, abs=1e-12)

    def test_moving_one_axis_is_the_metric_reweighted_by_its_margin(self):
        pair = exact_world(2, features=3, classes=2)
        law = law_of(pair)
        right = pair.source_proba.argmax(axis=1) == pair.labels
        level = pair.source["x0"].to_numpy()
        margins = [np.bincount(level, mass) for mass in (pair.source_weight, pair.target_weight)]
        by_hand = pair.source_weight @ (right * (margins[1] / margins[0])[level])
        assert law.shift((0,)) == pytest.approx(by_hand, abs=1e-12)
        assert law.shift((0, 1)) == pytest.approx(pair.target_weight @ right, abs=1e-12)
        assert law.shift(()) == pytest.approx(pair.source_weight @ right, abs=1e-12)

    @pytest.mark.parametrize("name", ["label", "rest"])
    def test_a_feature_may_have_the_name_of_a_part(self, name):
        pair = exact_world(1, features=3, classes=2)
        parts = explained(renamed(pair, name)).attribution()
        plain = explained(pair).attribution()
        assert len(parts) == 3
        assert sorted(parts.values()) == pytest.approx(sorted(plain.values()), abs=1e-12)

    def test_metrics_that_are_no_mean_over_rows_are_refused(self):
        pair = drawn_world(0, 300, 300, features=3)
        report = estimate_shift(
            **pair.inputs(),
            method=SEESem(features=("x0",), shrinkage=10.0),
            metric="f1",
            replicates=0,
        )
        with pytest.raises(SeesError, match="f1 is no mean over rows"):
            report.attribution()


class TestCells:
    def test_are_the_laws_of_the_population(self):
        pair = exact_world(1, features=4, classes=3, shifted=[2, 0])
        cells = explained(pair).cells()
        assert len(cells) == 3 * 3 * 3
        assert cells["source_share"].sum() == pytest.approx(1, abs=1e-12)
        assert cells["target_share"].sum() == pytest.approx(1, abs=1e-12)
        keyed = pair.source.assign(y=pair.labels, s=pair.source_weight, t=pair.target_weight)
        truth = keyed.groupby(["x0", "x2", "y"])[["s", "t"]].sum()
        for row in cells.to_dict("records"):
            expected = truth.loc[int(row["x0"]), int(row["x2"]), row["label"]]
            assert row["source_share"] == pytest.approx(expected["s"], abs=1e-12)
            assert row["target_share"] == pytest.approx(expected["t"], abs=1e-9)
            assert row["weight"] == pytest.approx(expected["t"] / expected["s"], rel=1e-6)
            assert row["change"] == pytest.approx(
                row["target_share"] - row["source_share"], abs=1e-15
            )
        assert (np.diff(cells["change"].abs()) <= 0).all()

    def test_shares_sum_to_one_on_samples(self):
        pair = drawn_world(2, 500, 400, features=4, classes=3, levels=[5, 3, 3, 3])
        report = estimate_shift(
            **pair.inputs(), method=SEESem(features=("x0", "x1"), shrinkage=10.0), replicates=0
        )
        cells = report.cells()
        for column in ("source_share", "target_share"):
            assert cells[column].sum() == pytest.approx(1, abs=1e-9)
        present = pair.source.assign(y=pair.labels).groupby(["x0", "x1", "y"]).ngroups
        assert len(cells) == present

    def test_label_shift_has_one_row_per_label(self):
        pair = exact_world(0, features=3, classes=3, shifted=0)
        cells = explained(pair).cells()
        assert sorted(cells["label"]) == [0, 1, 2]
        assert "x0" not in cells.columns
        by_label = np.bincount(pair.labels, pair.target_weight)
        np.testing.assert_allclose(cells.set_index("label")["target_share"].sort_index(), by_label)

    @pytest.mark.parametrize("name", ["label", "weight", "source_share"])
    def test_a_feature_may_have_the_name_of_a_column(self, name):
        pair = exact_world(1, features=3, classes=2)
        cells, plain = explained(renamed(pair, name)).cells(), explained(pair).cells()
        assert cells.shape == plain.shape
        np.testing.assert_array_equal(cells.to_numpy(), plain.to_numpy())

    def test_levels_read_as_the_user_wrote_them(self):
        pair = drawn_world(0, 400, 400, features=3)
        given = pair.inputs()
        towns = np.array(["Bern", "Chur", "Genf"])
        for part in ("source", "target"):
            given[part] = given[part].assign(x0=towns[given[part]["x0"]])
        names = np.array(["no", "yes"])
        given |= {"labels": names[pair.labels], "classes": ["no", "yes"]}
        report = estimate_shift(
            **given, method=SEESem(features=("x0",), shrinkage=10.0), replicates=0
        )
        cells = report.cells()
        assert set(cells["x0"]) == set(towns)
        assert set(cells["label"]) == set(names)


@pytest.mark.parametrize("explain", ["attribution", "cells"])
def test_basis_weights_have_no_cells_to_explain(explain):
    pair = drawn_world(0, 200, 200, features=3)
    report = estimate_shift(**pair.inputs(), method="sees-c", replicates=0)
    with pytest.raises(
        SeesError, match=r"cell by cell; BasisWeights are not\. Look at .*importance"
    ):
        getattr(report, explain)()


def test_shares_follow_multiplicities():
    pair = drawn_world(1, 300, 300, features=3)
    rng = np.random.default_rng(0)
    count = rng.integers(1, 4, 300)
    rows = np.repeat(np.arange(300), count)
    given = {**pair.inputs(), "method": SEESem(features=("x0",), shrinkage=5.0), "replicates": 0}
    counted = estimate_shift(**{**given, "source_weight": count.astype(float)})
    repeated = estimate_shift(
        **{
            **given,
            "source": pair.source.iloc[rows],
            "labels": pair.labels[rows],
            "source_proba": pair.source_proba[rows],
        }
    )
    left, right = (r.cells().set_index(["x0", "label"]).sort_index() for r in (counted, repeated))
    pd.testing.assert_frame_equal(left, right, atol=1e-6)
    assert torch.allclose(counted.weights[rows], repeated.weights, atol=1e-6)
