"""Synthetic and resampled shifts: the truth that they state is the truth of what they draw."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world

from sees_torch import (
    SchemaError,
    SeesError,
    SupportError,
    make_sparse_joint_shift,
    resample_shift,
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def key_rows(pair, frame, labels):
    """(levels of the shifted features ..., label) of every row."""
    columns = [frame[name] for name in pair.features]
    return list(zip(*columns, labels, strict=True)) if columns else [(y,) for y in labels]


class TestSynthetic:
    @pytest.mark.parametrize("classes", [2, 3])
    @pytest.mark.parametrize("shifted", [0, 1, [2, 0]])
    def test_exact_laws(self, shifted, classes):
        """Every row once per label, p_t = w p_s, w a function of the named features and label."""
        pair = exact_world(1, features=4, levels=[2, 3, 2, 1], classes=classes, shifted=shifted)
        assert len(pair.source) == 2 * 3 * 2 * classes
        pd.testing.assert_frame_equal(pair.source, pair.target)
        np.testing.assert_array_equal(pair.labels, pair.target_labels)
        for mass in (pair.source_weight, pair.target_weight):
            assert abs(mass.sum() - 1) < 1e-12
            assert mass.min() > 0
        np.testing.assert_allclose(
            pair.source_weight * pair.weights, pair.target_weight, rtol=1e-12
        )
        keys = key_rows(pair, pair.source, pair.labels)
        np.testing.assert_allclose(pair.weights, [pair.weight_table[key] for key in keys])
        assert len(pair.weight_table) == len(set(keys))

    def test_features_are_independent_given_the_label(self):
        pair = exact_world(2, features=3, classes=2)
        mass = pair.source_weight.reshape(3, 3, 3, 2)
        given = mass / mass.sum(axis=(0, 1, 2))
        margins = [given.sum(axis=tuple({0, 1, 2} - {j})) for j in range(3)]
        by_product = np.einsum("ay,by,cy->abcy", *margins)
        np.testing.assert_allclose(given, by_product, rtol=1e-12)

    def test_probabilities_are_bayes_rule_of_the_source(self):
        pair = exact_world(2, features=3, classes=3)
        joint = pair.source_weight.reshape(-1, 3)
        posterior = (joint / joint.sum(axis=1, keepdims=True)).repeat(3, axis=0)
        np.testing.assert_allclose(pair.source_proba, posterior, rtol=1e-10)

    def test_exact_gap_by_brute_force(self):
        for seed, classes in product(range(5), (2, 4)):
            pair = exact_world(seed, features=3, classes=classes, shifted=2)
            right = pair.source_proba.argmax(axis=1) == pair.labels
            gap = (pair.target_weight - pair.source_weight) @ right
            assert abs(pair.population_gap - gap) < 1e-12
            assert abs(pair.realised_gap - gap) < 1e-12

    def test_draws_share_the_exact_worlds_truth(self):
        """Same generator, same world: tables and gap equal, whether drawn or enumerated."""
        exact = exact_world(3, features=4, shifted=[1, 2])
        drawn = drawn_world(3, 100, 50, features=4, shifted=[1, 2])
        assert drawn.weight_table == exact.weight_table
        assert drawn.population_gap == exact.population_gap
        assert drawn.source_weight is None
        assert (len(drawn.source), len(drawn.target)) == (100, 50)

    def test_draws_follow_the_laws(self):
        """Every cell's share within 4 standard errors, of both samples and the realised gap."""
        rows = 40_000
        exact = exact_world(4, features=3, levels=2, classes=2, shifted=[2, 0])
        drawn = drawn_world(4, rows, rows, features=3, levels=2, classes=2, shifted=[2, 0])
        for frame, labels, law in (
            (drawn.source, drawn.labels, exact.source_weight),
            (drawn.target, drawn.target_labels, exact.target_weight),
        ):
            cell = frame.to_numpy() @ [8, 4, 2] + labels
            share = np.bincount(cell, minlength=16) / rows
            error = np.sqrt(law * (1 - law) / rows)
            assert np.abs((share - law) / error).max() < 4
        error = np.sqrt(2 * 0.25 / rows)
        assert abs(drawn.realised_gap - drawn.population_gap) < 4 * error
        keys = key_rows(drawn, drawn.source, drawn.labels)
        np.testing.assert_array_equal(drawn.weights, [drawn.weight_table[key] for key in keys])
        assert abs(drawn.weights.mean() - 1) < 4 * drawn.weights.std() / np.sqrt(rows)

    def test_the_gap_of_a_large_world_is_a_monte_carlo_mean(self):
        """12 features of 3 levels cannot be enumerated: within 4 standard errors of a draw."""
        pair = drawn_world(5, 100_000, 100_000, features=12)
        # Two drawn samples of 100,000 and 2^18 rows of the mean: all three vary.
        spread = np.sqrt(2 * 0.25 / 100_000 + (pair.weights - 1).var() / 2**18)
        assert abs(pair.realised_gap - pair.population_gap) < 4 * spread

    def test_no_strength_is_no_shift(self):
        pair = exact_world(0, features=3, strength=0.0)
        np.testing.assert_allclose(pair.weights, 1.0, rtol=1e-12)
        assert abs(pair.population_gap) < 1e-15

    def test_strength_is_the_spread_of_log_weights(self):
        tilt = exact_world(0, features=2, levels=40, shifted=2, strength=1.0)
        logs = np.log(list(tilt.weight_table.values()))
        # 3,200 normal draws: the standard error of their spread is 1 / sqrt(6400).
        assert abs(logs.std() - 1) < 4 / 80
        double = exact_world(0, features=2, levels=40, shifted=2, strength=2.0)
        apart = np.log(list(double.weight_table.values())) - 2 * logs
        assert np.ptp(apart) < 1e-10

    def test_features_may_move_alone(self):
        """The same weight under every label, so p(y | shifted features) stays."""
        pair = exact_world(3, features=3, classes=3, shifted=[0, 2], with_labels=False)
        by_cell = {}
        for *cell, label in pair.weight_table:
            by_cell.setdefault(tuple(cell), []).append(pair.weight_table[(*cell, label)])
        assert len(by_cell) == 9
        assert all(len(weights) == 3 and np.ptp(weights) < 1e-12 for weights in by_cell.values())
        assert np.ptp([weights[0] for weights in by_cell.values()]) > 0.1
        np.testing.assert_allclose(
            pair.source_weight * pair.weights, pair.target_weight, rtol=1e-12
        )
        right = pair.source_proba.argmax(axis=1) == pair.labels
        gap = (pair.target_weight - pair.source_weight) @ right
        assert abs(pair.population_gap - gap) < 1e-12

    def test_quality_blunts_and_sharpens(self):
        blind = exact_world(0, features=3, classes=3, quality=0.0)
        np.testing.assert_allclose(blind.source_proba, 1 / 3, rtol=1e-12)
        plain, sharp = (exact_world(0, features=3, classes=3, quality=q) for q in (1.0, 50.0))
        np.testing.assert_array_equal(
            plain.source_proba.argmax(axis=1), sharp.source_proba.argmax(axis=1)
        )
        logs = np.log(plain.source_proba)
        odds = 2 * (logs - logs[:, :1])
        twice = np.log(exact_world(0, features=3, classes=3, quality=2.0).source_proba)
        np.testing.assert_allclose(twice - twice[:, :1], odds, atol=1e-10)
        assert sharp.source_proba.max(axis=1).mean() > 0.95

    def test_the_generator_decides_and_the_default_is_fixed(self):
        one, other = make_sparse_joint_shift(50, 50), make_sparse_joint_shift(50, 50)
        pd.testing.assert_frame_equal(one.source, other.source)
        np.testing.assert_array_equal(one.target_labels, other.target_labels)
        assert one.weight_table == other.weight_table
        assert make_sparse_joint_shift(50, 50, generator=generator(1)).weight_table != (
            one.weight_table
        )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"levels": [2, 2]}, "one level count per feature"),
            ({"levels": 0}, "one level count per feature"),
            ({"classes": 1}, "two classes"),
            ({"n": 0}, "some rows"),
            ({"m": 0}, "some rows"),
            ({"shifted": [0, 0]}, "different positions 0 to 7"),
            ({"shifted": [8]}, "different positions 0 to 7"),
            ({"shifted": 9}, "different positions 0 to 7"),
            ({"features": 20, "exact": True, "n": 10}, "at most 200000 different rows"),
        ],
        ids=str,
    )
    def test_refusals(self, options, message):
        with pytest.raises(SeesError, match=message):
            make_sparse_joint_shift(**options)


STATES, CHURN = ("CA", "NY", "TX"), ("no", "yes")
FLAT_SOURCE = dict(zip(product(STATES, CHURN), (0.3, 0.1, 0.15, 0.15, 0.2, 0.1), strict=True))
FLAT_TARGET = dict(zip(product(STATES, CHURN), (0.1, 0.2, 0.3, 0.1, 0.0, 0.3), strict=True))
NESTED_SOURCE = {s: {y: FLAT_SOURCE[s, y] for y in CHURN} for s in STATES}


@pytest.fixture(scope="module")
def customers():
    rng = np.random.default_rng(0)
    rows = 3000
    churn = rng.choice(CHURN, rows)
    return pd.DataFrame(
        {
            "id": np.arange(rows),
            "state": rng.choice(STATES, rows),
            "score": rng.normal(size=rows) + (churn == "yes"),
            "churn": churn,
        }
    )


def by_score(table):
    """A finished model: P(yes) by the score."""
    return 1 / (1 + np.exp(0.5 - table["score"].to_numpy()))


def draw(frame, source_law=FLAT_SOURCE, target_law=FLAT_TARGET, **options):
    settings = {"n": 800, "m": 600, "model": by_score, **options}
    return resample_shift(frame, "churn", ["state"], source_law, target_law, **settings)


class TestResampling:
    def test_weights_are_the_ratio_of_the_laws(self, customers):
        pair = draw(customers)
        ratio = {cell: FLAT_TARGET[cell] / FLAT_SOURCE[cell] for cell in FLAT_SOURCE}
        assert pair.weight_table == pytest.approx(ratio)
        keys = key_rows(pair, pair.source, pair.labels)
        np.testing.assert_allclose(pair.weights, [ratio[key] for key in keys])
        assert pair.features == ("state",)
        assert pair.classes == ("no", "yes")
        assert (len(pair.source), len(pair.target)) == (800, 600)
        assert "churn" not in pair.source
        assert list(pair.source.index) == list(range(800))

    def test_probabilities_and_labels_belong_to_their_rows(self, customers):
        pair = draw(customers)
        for frame, labels, proba in (
            (pair.source, pair.labels, pair.source_proba),
            (pair.target, pair.target_labels, pair.target_proba),
        ):
            original = customers.iloc[frame["id"]]
            np.testing.assert_array_equal(original["churn"], labels)
            np.testing.assert_array_equal(original["score"], frame["score"])
            np.testing.assert_allclose(proba[:, 1], by_score(original), rtol=1e-12)
            np.testing.assert_allclose(proba.sum(axis=1), 1.0)

    @pytest.mark.parametrize("order", ["split-first", "draw-first"])
    def test_rows_are_shared_between_parts_only_draw_first(self, customers, order):
        trained = []

        def fit(features, labels):
            np.testing.assert_array_equal(customers["churn"].iloc[features["id"]], labels)
            trained.append(set(features["id"]))
            assert len(features) == 800
            return by_score

        pair = draw(customers, model=None, fit=fit, order=order)
        parts = [set(pair.source["id"]), set(pair.target["id"]), *trained]
        shared = [bool(parts[i] & parts[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        assert shared == [order == "draw-first"] * 3

    def test_draws_follow_the_laws(self, customers):
        rows = 20_000
        pair = draw(customers, n=rows, m=rows)
        for frame, labels, law in (
            (pair.source, pair.labels, FLAT_SOURCE),
            (pair.target, pair.target_labels, FLAT_TARGET),
        ):
            count = pd.Series(key_rows(pair, frame, labels)).value_counts()
            for cell, p in law.items():
                error = max(np.sqrt(p * (1 - p) / rows), 1e-12)
                assert abs(count.get(cell, 0) / rows - p) <= 4 * error
        # Within a cell rows are alike: the largest cell's rows are used evenly.
        here = (pair.source["state"] == "CA") & (pair.labels == "no")
        count = pair.source["id"][here].value_counts()
        expected = count.sum() / len(count)
        assert count.max() < expected + 6 * np.sqrt(expected)

    @pytest.mark.parametrize("order", ["split-first", "draw-first"])
    def test_population_gap(self, customers, order):
        """Cells by the laws; inside a cell all rows, the model being finished."""
        pair = draw(customers, order=order)
        right = (by_score(customers) > 0.5) == (customers["churn"] == "yes")
        inside = right.groupby([customers["state"], customers["churn"]]).mean()
        gap = sum((FLAT_TARGET[cell] - FLAT_SOURCE[cell]) * inside[cell] for cell in FLAT_SOURCE)
        assert abs(pair.population_gap - gap) < 1e-12
        assert abs(pair.realised_gap - gap) < 4 * np.sqrt(0.25 / 800 + 0.25 / 600)

    def test_population_gap_leaves_the_classifiers_rows_out(self, customers):
        pair = draw(customers, model=None, fit=lambda x, y: by_score)
        assert draw(customers).population_gap != pair.population_gap
        assert abs(draw(customers).population_gap - pair.population_gap) < 0.05

    def test_nested_and_unnormalised_laws(self, customers):
        flat = draw(customers)
        scaled = {cell: 70 * p for cell, p in FLAT_SOURCE.items()}
        for law in (NESTED_SOURCE, scaled):
            pair = draw(customers, source_law=law)
            assert pair.weight_table == pytest.approx(flat.weight_table)
            pd.testing.assert_frame_equal(pair.source, flat.source)

    def test_two_features_and_none(self, customers):
        frame = customers.assign(old=customers["score"] > 0)
        law = {state: {old: dict.fromkeys(CHURN, 1.0) for old in (False, True)} for state in STATES}
        pair = resample_shift(
            frame, "churn", ["state", "old"], law, law, n=100, m=100, model=by_score
        )
        assert set(pair.weight_table.values()) == {1.0}
        assert abs(pair.population_gap) < 1e-12
        labels = resample_shift(
            frame, "churn", [], {"no": 3, "yes": 1}, {"no": 1, "yes": 1}, n=50, m=50, model=by_score
        )
        assert labels.weight_table == pytest.approx({("no",): 2 / 3, ("yes",): 2.0})

    def test_a_classifier_declares_its_classes(self, customers):
        class Backwards:
            classes_ = np.array(["yes", "no"])

            def predict_proba(self, table):
                p = by_score(table)
                return np.stack([p, 1 - p], axis=1)

        pair, plain = draw(customers, model=Backwards()), draw(customers)
        assert pair.classes == ("yes", "no")
        assert abs(pair.population_gap - plain.population_gap) < 1e-12
        np.testing.assert_allclose(pair.source_proba[:, ::-1], plain.source_proba)

    def test_the_generator_decides(self, customers):
        one, same = (draw(customers, generator=generator(1)) for _ in range(2))
        pd.testing.assert_frame_equal(one.source, same.source)
        assert not one.source.equals(draw(customers, generator=generator(2)).source)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"model": None}, SeesError, "either fit"),
            ({"fit": lambda x, y: by_score}, SeesError, "either fit"),
            ({"order": "first"}, SeesError, "split-first"),
            ({"source_law": {("CA", "no", 1): 1.0}}, SeesError, "levels of the 1 features"),
            ({"source_law": {"no": 1.0}}, SeesError, "levels of the 1 features"),
            ({"source_law": {}}, SeesError, "levels of the 1 features"),
            ({"source_law": {("CA", "no"): -1.0, ("CA", "yes"): 2.0}}, SeesError, "probability"),
            ({"source_law": {("CA", "no"): 0.0}}, SeesError, "probability"),
            (
                {"source_law": {("CA", "no"): 1.0}, "target_law": {("CA", "yes"): 1.0}},
                SupportError,
                r"cells that the source law lacks: \[\('CA', 'yes'\)\]",
            ),
            (
                {"target_law": {("Texas", "yes"): 1.0}},
                SupportError,
                r"no rows with \['state', 'churn'\] = \('Texas', 'yes'\).*spelling",
            ),
        ],
        ids=range(10),
    )
    def test_refusals(self, customers, options, error, message):
        with pytest.raises(error, match=message):
            draw(customers, **options)

    def test_missing_columns(self, customers):
        with pytest.raises(SchemaError, match=r"no columns \['churned', 'country'\]"):
            resample_shift(
                customers, "churned", ["country"], FLAT_SOURCE, FLAT_TARGET, model=by_score
            )
