"""SEES-em: exact populations come back, whatever the classifier knows of the shifted features."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world, row_weights, samples, shifted_by, unshifted

from sees_torch import (
    Auto,
    ConstantWeights,
    IdentificationError,
    SchemaError,
    SEESem,
    SeesError,
    Source,
    SupportWarning,
    TableWeights,
    Target,
    estimate_shift,
)
from sees_torch.matching.batch import Batch
from sees_torch.matching.cells import fit_cells
from sees_torch.matching.sees_em import CellShares
from sees_torch.statistics.subsets import subsets_of

EXACT = 1e-4
"""Pseudo-rows of 1e-9 in cells that may hold 1e-5 of the population."""


def names(match, source):
    return tuple(source.schema.names[j] for j in match.features)


def words(match):
    return match.choice.candidate.words


def cell_table(match, source, column, level):
    """(L,) weights of a row whose `column` has this level."""
    row = int(np.flatnonzero(column == level)[0])
    return match.weight_function.table(source.rows)[row].numpy()


class TestPopulations:
    @pytest.mark.parametrize("shifted", [0, 1, 2])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_known_features_give_the_true_table(self, classes, shifted):
        for seed in range(3):
            d = max(3, 2 * shifted + 1)
            chosen = np.random.default_rng(seed).choice(d, shifted, replace=False).tolist()
            pair = exact_world(seed, features=d, classes=classes, shifted=chosen)
            source, target = samples(pair)
            match = SEESem(features=pair.features).match(source, target)
            assert set(names(match, source)) == set(pair.features)
            np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=EXACT)
            assert match.unseen_mass == 0
            assert abs(float(source.mean(torch.tensor(row_weights(match, source)))) - 1) < 1e-7

    @pytest.mark.parametrize(("shifted", "features"), [(1, 4), (2, 5)])
    @pytest.mark.parametrize("classes", [2, 3])
    def test_the_shifted_features_are_found(self, classes, shifted, features):
        for seed in range(2):
            chosen = np.random.default_rng(seed).choice(features, shifted, replace=False).tolist()
            pair = exact_world(seed, features=features, classes=classes, shifted=chosen)
            source, target = samples(pair)
            match = SEESem().match(source, target)
            assert set(names(match, source)) == set(pair.features)
            assert words(match) == "labels and features"
            np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=EXACT)

    @pytest.mark.parametrize("method", [SEESem(), Auto()], ids=["sees-em", "auto"])
    def test_no_shift_is_nothing(self, method):
        for seed, classes in ((0, 2), (1, 3)):
            source, target = unshifted(exact_world(seed, features=4, classes=classes))
            match = method.match(source, target)
            assert words(match) == "nothing"
            assert match.features == ()
            assert (row_weights(match, source) == 1).all()

    @pytest.mark.parametrize("method", [SEESem(), Auto()], ids=["sees-em", "auto"])
    def test_label_shift_is_labels_only(self, method):
        pair = exact_world(1, features=4, classes=3, shifted=0)
        source, target = samples(pair)
        match = method.match(source, target)
        assert words(match) == "labels only"
        assert isinstance(match.weight_function, ConstantWeights)
        np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=1e-7)

    @pytest.mark.parametrize("method", [SEESem(), Auto()], ids=["sees-em", "auto"])
    def test_features_that_move_alone_are_said_to_move_alone(self, method):
        pair = exact_world(2, features=4, classes=3, shifted=[2], with_labels=False)
        source, target = samples(pair)
        match = method.match(source, target)
        assert words(match) == "features, not labels"
        assert names(match, source) == ("x2",)
        np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=1e-7)

    def test_of_a_given_size_the_true_subset_wins(self):
        pair = exact_world(0, features=5, classes=3, shifted=[3, 1])
        source, target = samples(pair)
        for size in (0, 1, 2, 3):
            match = SEESem(sparsity=size).match(source, target)
            listed = {c.features for c in match.choice.candidates}
            assert {len(features) for features in listed} == {size}
            assert len(match.choice.candidates) == [1, 5, 10, 10][size]
            assert len(match.features) == size
            if size == 2:
                np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=EXACT)
            if size >= 2:
                assert {"x1", "x3"} <= set(names(match, source))


class TestBlindClassifier:
    """p(y|x) that ignores the shifted feature: offsets calibrate it inside every cell."""

    before = np.array([[0.24, 0.08], [0.15, 0.15], [0.24, 0.14]])
    after = np.array([[0.09, 0.12], [0.18, 0.12], [0.16, 0.33]])

    def world(self, proba_without):
        """x0 with the laws above, x1 and x2 given the label alone; p(y|x) from some of them."""
        given = [np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]]), np.array([[0.7, 0.3], [0.4, 0.6]])]
        grid = np.stack(np.meshgrid(*map(np.arange, (3, 3, 2, 2)), indexing="ij"), -1)
        x0, x1, x2, y = grid.reshape(-1, 4).T
        rest = given[0][y, x1] * given[1][y, x2]
        frame = pd.DataFrame({"x0": x0, "x1": x1, "x2": x2})
        source_mass, target_mass = self.before[x0, y] * rest, self.after[x0, y] * rest
        seen = ["one", *(c for c in frame if c not in proba_without)]
        keyed = frame.assign(one=1, y=y, mass=source_mass)
        joint = np.stack(
            [
                keyed.assign(own=keyed["mass"] * (keyed["y"] == label))
                .groupby(seen)["own"]
                .transform("sum")
                for label in (0, 1)
            ],
            axis=1,
        )
        proba = joint / joint.sum(axis=1, keepdims=True)
        source = Source(frame, y, proba, weight=source_mass)
        return source, Target(frame, proba, source, weight=target_mass), (self.after / self.before)

    @pytest.mark.parametrize("blind_to", [(), ("x0",), ("x0", "x1")], ids=str)
    def test_weights_are_right_all_the_same(self, blind_to):
        source, target, truth = self.world(blind_to)
        match = SEESem(features=("x0",)).match(source, target)
        own = truth[source.rows.codes[:, 0], source.labels]
        np.testing.assert_allclose(row_weights(match, source), own, atol=1e-6)

    @pytest.mark.parametrize("blind_to", [(), ("x0",)], ids=str)
    def test_the_feature_is_found_all_the_same(self, blind_to):
        source, target, truth = self.world(blind_to)
        match = SEESem().match(source, target)
        assert names(match, source) == ("x0",)
        own = truth[source.rows.codes[:, 0], source.labels]
        np.testing.assert_allclose(row_weights(match, source), own, atol=1e-6)

    def test_a_constant_classifier_is_bent_by_no_one(self):
        """Nothing can tell the labels apart: shares stay at the source's, the prior's centre."""
        source, target, _ = self.world(("x0", "x1", "x2"))
        match = SEESem(features=("x0",)).match(source, target)
        ratio = (self.after.sum(axis=1) / self.before.sum(axis=1))[source.rows.codes[:, 0]]
        # A flat likelihood: rounding of 1e-16 against pseudo-rows of 1e-12.
        np.testing.assert_allclose(row_weights(match, source), ratio, atol=1e-2)


class TestSupport:
    def test_target_cells_that_the_source_never_shows_are_reported(self):
        """Half of one level's target mass lies in a pair of levels without source rows."""
        pair = exact_world(0, features=4, classes=2, shifted=[0, 1])
        gone = (pair.source["x0"] == 0) & (pair.source["x1"] == 2)
        source_weight = np.where(gone, 0.0, pair.source_weight)
        cut = replace(pair, source_weight=source_weight / source_weight.sum())
        source, target = samples(cut)
        lost = pair.target_weight[gone].sum()
        with pytest.warns(SupportWarning, match="where the source never was"):
            match = SEESem(features=("x0", "x1")).match(source, target)
        assert match.unseen_mass == pytest.approx(lost, abs=1e-12)
        function = match.weight_function
        assert isinstance(function, TableWeights)
        assert len(function.keys) == 8
        everywhere = function.table(source.rows).numpy()
        fallback = SEESem(features=()).match(source, target).weight_function.weight
        np.testing.assert_allclose(everywhere[gone], np.tile(fallback, (gone.sum(), 1)))
        kept = ~gone.to_numpy()
        scale = (1 - lost) / source_weight.sum()
        own = row_weights(match, source)[kept]
        np.testing.assert_allclose(own * scale, pair.weights[kept], atol=EXACT)

    def test_a_level_without_target_rows_weighs_nothing(self):
        pair = exact_world(1, features=3, classes=3)
        here = (pair.source["x0"] != 1).to_numpy()
        source, target = shifted_by(pair, pair.weights * here)
        match = SEESem(features=("x0",)).match(source, target)
        own = row_weights(match, source)
        assert own[~here].max() < 1e-6
        truth = pair.weights / (pair.target_weight[here].sum())
        np.testing.assert_allclose(own[here], truth[here], atol=EXACT)

    def test_an_absent_class_weighs_nothing_in_its_cell(self):
        pair = exact_world(2, features=4, classes=3)
        gone = ((pair.source["x0"] == 0) & (pair.labels == 1)).to_numpy()
        before, after = (np.where(gone, 0, w) for w in (pair.source_weight, pair.target_weight))
        cut = replace(pair, source_weight=before / before.sum(), target_weight=after / after.sum())
        source, target = samples(cut)
        match = SEESem(features=("x0",)).match(source, target)
        table = cell_table(match, source, pair.source["x0"], 0)
        assert table[1] == 0
        own = row_weights(match, source)[~gone]
        truth = pair.weights[~gone] * before.sum() / after.sum()
        np.testing.assert_allclose(own, truth, atol=EXACT)

    def test_a_cell_with_a_single_class_keeps_it(self):
        """No label can be inferred there: the weight is that of the cell."""
        pair = exact_world(3, features=3, classes=2)
        gone = ((pair.source["x0"] == 2) & (pair.labels == 0)).to_numpy()
        weight = np.where(gone, 0.0, pair.source_weight)
        cut = replace(pair, source_weight=weight / weight.sum())
        source, target = samples(cut)
        match = SEESem(features=("x0",)).match(source, target)
        cell = (pair.source["x0"] == 2).to_numpy()
        ratio = pair.target_weight[cell].sum() / cut.source_weight[cell].sum()
        expected = [0.0, ratio]
        np.testing.assert_allclose(
            cell_table(match, source, pair.source["x0"], 2), expected, atol=1e-6
        )


@pytest.fixture(scope="module")
def expected():
    """Weights and best score of the sample that is permuted and merged below."""
    source, target = samples(TestInvariance.pair)
    match = SEESem().match(source, target)
    assert names(match, source) == ("x0",)
    return row_weights(match, source), match.choice.evidence.score().max()


class TestInvariance:
    pair = drawn_world(5, 500, 400, features=4, classes=3)

    def test_rows_may_be_permuted(self, expected):
        own, score = expected
        rng = np.random.default_rng(0)
        here, there = rng.permutation(500), rng.permutation(400)
        p = self.pair
        moved = replace(
            p,
            source=p.source.iloc[here],
            labels=p.labels[here],
            source_proba=p.source_proba[here],
            target=p.target.iloc[there],
            target_proba=p.target_proba[there],
        )
        source, target = samples(moved)
        match = SEESem().match(source, target)
        np.testing.assert_allclose(row_weights(match, source), own[here], atol=1e-7)
        torch.testing.assert_close(match.choice.evidence.score().max(), score, rtol=0, atol=1e-9)

    def test_columns_may_be_permuted(self, expected):
        own, score = expected
        order = ["x3", "x0", "x2", "x1"]
        moved = replace(self.pair, source=self.pair.source[order], target=self.pair.target[order])
        source, target = samples(moved)
        match = SEESem().match(source, target)
        assert names(match, source) == ("x0",)
        np.testing.assert_allclose(row_weights(match, source), own, atol=1e-7)
        torch.testing.assert_close(match.choice.evidence.score().max(), score, rtol=0, atol=1e-9)

    def test_classes_may_be_permuted(self, expected):
        own, _ = expected
        order = [2, 0, 1]
        moved = replace(
            self.pair,
            classes=tuple(order),
            source_proba=self.pair.source_proba[:, order],
            target_proba=self.pair.target_proba[:, order],
        )
        source, target = samples(moved)
        match = SEESem().match(source, target)
        assert names(match, source) == ("x0",)
        np.testing.assert_allclose(row_weights(match, source), own, atol=1e-7)

    def test_equal_rows_may_be_merged(self, expected):
        own, _ = expected
        p = self.pair
        rows = p.source.assign(label=p.labels)
        first, of_row, count = first_rows(rows)
        first_target, _, count_target = first_rows(p.target)
        merged = replace(
            p,
            source=p.source.iloc[first],
            labels=p.labels[first],
            source_proba=p.source_proba[first],
            source_weight=count,
            target=p.target.iloc[first_target],
            target_proba=p.target_proba[first_target],
            target_weight=count_target,
        )
        assert len(first) < 300
        source, target = samples(merged)
        match = SEESem().match(source, target)
        assert names(match, source) == ("x0",)
        np.testing.assert_allclose(row_weights(match, source)[of_row], own, atol=1e-7)

    def test_memory_does_not_change_the_answer(self, expected):
        own, _ = expected
        source, target = samples(self.pair)
        match = SEESem(memory_budget=1).match(source, target)
        np.testing.assert_allclose(row_weights(match, source), own, atol=1e-12)

    def test_order_and_repetition_of_named_features_do_not_matter(self):
        source, target = samples(self.pair)
        one = SEESem(features=("x0", "x2")).match(source, target)
        other = SEESem(features=["x2", "x0", "x2"]).match(source, target)
        assert one.features == other.features == (0, 2)
        np.testing.assert_array_equal(row_weights(one, source), row_weights(other, source))


def first_rows(frame):
    """First row of every distinct one, the group of each row, and how many there are."""
    _, first, of_row, count = np.unique(
        frame.to_numpy(), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    return first, of_row.reshape(-1), count.astype(float)


class TestFewRows:
    pair = drawn_world(1, 400, 300, features=3, classes=3, levels=[4, 3, 3])

    @pytest.mark.parametrize("members", [(), (0,), (1, 2)])
    def test_the_induced_ratio_averages_one_over_the_source(self, members):
        """With p(y|x) calibrated inside the cells, E_s[sum_y p w] = 1 to rounding."""
        source, target = samples(self.pair)
        rng = np.random.default_rng(0)
        counts = [torch.tensor(rng.poisson(1.0, (3, n))).double() for n in (400, 300)]
        batch = Batch.of(source, target, *counts)
        subset = subsets_of([members], batch.sizes, batch.codes.device)
        fitted = fit_cells(batch, subset, 10.0)
        ratio = fitted.ratio(batch)[:, 0, :400]
        mean = (ratio * counts[0]).sum(dim=1) / counts[0].sum(dim=1)
        np.testing.assert_allclose(mean, 1.0, atol=1e-12)

    def test_more_shrinkage_is_nearer_to_label_shift(self):
        source, target = samples(self.pair)
        label_shift = SEESem(features=()).match(source, target).weight_function.weight.numpy()

        def distance(shrinkage):
            match = SEESem(features=("x0",), shrinkage=shrinkage).match(source, target)
            table = match.weight_function.table(source.rows).numpy()
            odds = np.log(table / label_shift)
            return np.abs(odds - odds.mean(axis=1, keepdims=True)).mean()

        far = [distance(shrinkage) for shrinkage in (1.0, 30.0, 1000.0, 1e6)]
        assert far == sorted(far, reverse=True)
        assert far[0] > 0.1
        assert far[-1] < 1e-3

    def test_resamples_equal_matches_on_them(self):
        source, target = samples(self.pair)
        method = SEESem(features=("x0",), shrinkage=7.0)
        match = method.match(source, target)
        rng = np.random.default_rng(1)
        here, there = (torch.tensor(1 + rng.poisson(1.0, (4, n))).double() for n in (400, 300))
        on_source, on_target = method.replicate(source, target, match, here, there)
        for b in range(4):
            again = method.match(source.with_count(here[b]), target.with_count(there[b]))
            function = again.weight_function
            for table, sample in ((on_source, source), (on_target, target)):
                torch.testing.assert_close(table[b], function.table(sample.rows), rtol=0, atol=1e-6)

    def test_cell_shares_weigh_cells_alike_for_all_labels(self):
        source, target = samples(self.pair)
        match = CellShares(("x0",)).match(source, target)
        here = self.pair.source["x0"].value_counts() / 400
        there = self.pair.target["x0"].value_counts()
        # One row of the source's shares smooths the target's.
        ratio = (there + here) / 301 / here
        expected = self.pair.source["x0"].map(ratio)
        np.testing.assert_allclose(row_weights(match, source), expected, rtol=1e-12)


class TestKnownLabels:
    def test_labels_of_a_whole_cell_decide_its_shares(self):
        """The labels of one level are turned round, against what the features say of them."""
        pair = exact_world(4, features=4, classes=2, shifted=[0])
        source, unlabelled = samples(pair)
        cell = (pair.target["x0"] == 1).to_numpy()
        labels = np.where(cell, 1 - pair.target_labels, -1).astype(float)
        labels[labels < 0] = np.nan
        target = Target(
            pair.target, pair.target_proba, source, weight=pair.target_weight, labels=labels
        )
        plain, told = (SEESem(features=("x0",)).match(source, t) for t in (unlabelled, target))
        mass = pair.target_weight[cell]
        share = np.array([mass[labels[cell] == y].sum() for y in (0, 1)])
        before = np.array([pair.source_weight[cell & (pair.labels == y)].sum() for y in (0, 1)])
        table = cell_table(told, source, pair.source["x0"], 1)
        np.testing.assert_allclose(table, share / before, atol=1e-5)
        for level in (0, 2):
            tables = [cell_table(m, source, pair.source["x0"], level) for m in (plain, told)]
            np.testing.assert_allclose(tables[0], tables[1], atol=EXACT)

    def test_every_label_moves_its_share(self):
        pair = drawn_world(2, 2000, 600, features=4, classes=2, shifted=[0])
        source, _ = samples(pair)
        rows = np.flatnonzero(pair.target["x0"] == 0)

        def share(label, known):
            labels = np.full(600, np.nan)
            labels[rows[:known]] = label
            target = Target(pair.target, pair.target_proba, source, labels=labels)
            match = SEESem(features=("x0",), shrinkage=1.0).match(source, target)
            table = cell_table(match, source, pair.source["x0"], 0)
            before = np.bincount(pair.labels[pair.source["x0"] == 0], minlength=2)
            return (table * before / (table @ before))[1]

        up, down = ([share(label, k) for k in (0, 20, 40, 80)] for label in (1, 0))
        assert (np.diff(up) > 1e-3).all()
        assert (np.diff(down) < -1e-3).all()

    def test_true_labels_help(self):
        """With every label known the weights are the ratios of counts, nearer to the truth."""
        pair = drawn_world(3, 20_000, 400, features=4, levels=2, classes=2, quality=0.3)
        source, _ = samples(pair)
        target = Target(pair.target, pair.target_proba, source, labels=pair.target_labels)
        match = SEESem(features=("x0",), shrinkage=1e-6).match(source, target)
        for level in (0, 1):
            counts = [
                np.bincount(y[frame["x0"] == level], minlength=2) / len(y)
                for frame, y in ((pair.source, pair.labels), (pair.target, pair.target_labels))
            ]
            table = cell_table(match, source, pair.source["x0"], level)
            np.testing.assert_allclose(table, counts[1] / counts[0], rtol=5e-3)

    def test_known_labels_enter_the_search(self):
        """Labels that contradict the source's law inside one feature's cells reveal it."""
        pair = drawn_world(0, 800, 800, features=7, strength=0.0, classes=2)
        source, _ = samples(pair)
        labels = np.where(pair.target["x2"] == 0, 1, pair.target_labels)
        target = Target(pair.target, pair.target_proba, source, labels=labels)
        match = SEESem().match(source, target)
        assert names(match, source) == ("x2",)


class TestRefusals:
    source, target = samples(exact_world(0, features=2))

    def test_more_features_than_there_are(self):
        with pytest.raises(IdentificationError, match="sparsity=3 but there are 2 features"):
            SEESem(sparsity=3).match(self.source, self.target)

    def test_unknown_features(self):
        with pytest.raises(SchemaError, match=r"no columns \['age'\]"):
            SEESem(features=("x0", "age")).match(self.source, self.target)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sparsity": -1}, "sparsity must be a whole number"),
            ({"sparsity": "one"}, "sparsity must be a whole number"),
            ({"sparsity": 1.0}, "sparsity must be a whole number"),
            ({"shrinkage": 0}, "shrinkage must be 'auto' or positive"),
            ({"shrinkage": -1.0}, "shrinkage must be 'auto' or positive"),
            ({"shrinkage": float("nan")}, "shrinkage must be 'auto' or positive"),
            ({"shrinkage": float("inf")}, "shrinkage must be 'auto' or positive"),
            ({"shrinkage": "strong"}, "shrinkage must be 'auto' or positive"),
            ({"memory_budget": 0}, "memory_budget must be positive"),
        ],
        ids=str,
    )
    def test_settings(self, options, message):
        with pytest.raises(SeesError, match=message):
            SEESem(**options).match(self.source, self.target)


def test_a_shrinkage_that_is_given_is_kept_by_the_search():
    source, target = samples(drawn_world(0, 800, 800, features=4))
    weights = []
    for shrinkage in (3.0, 300.0):
        searched = SEESem(sparsity=1, shrinkage=shrinkage).match(source, target)
        names = tuple(source.schema.names[j] for j in searched.features)
        told = SEESem(features=names, shrinkage=shrinkage).match(source, target)
        assert row_weights(searched, source) == pytest.approx(row_weights(told, source))
        weights.append(row_weights(searched, source))
    assert abs(weights[0] - weights[1]).max() > 1e-3


def test_a_search_may_end_with_more_features_than_a_sparse_shift_has():
    pair = drawn_world(seed=0, n=3000, m=3000, features=10, levels=2, shifted=5)
    report = estimate_shift(**pair.inputs(), method=SEESem(), replicates=20)
    assert len(report.shifted_features) == 4
    assert set(report.shifted_features) <= set(pair.features)
    assert report.status == "weak"
    assert any("4 features or more moved" in reason for reason in report.reasons)
