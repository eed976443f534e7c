"""Weight functions as torch modules: rows they have seen, rows they have not, and their state."""

import copy

import numpy as np
import pytest
import torch
from worlds import drawn_world, exact_world, mixed_frame, samples

from sees_torch import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    BasisWeights,
    ConstantWeights,
    FeatureBasis,
    KnownWeights,
    NoShift,
    SchemaError,
    SEESc,
    SEESd,
    SEESem,
    SeesError,
    ShapeError,
    Source,
    SupportError,
    TableWeights,
    Target,
    estimate_shift,
)
from sees_torch.weights import OddsWeights, WeightFunction

METHODS = {
    "sees-em": SEESem(sparsity=1),
    "sees-d": SEESd(1),
    "sees-d soft": SEESd(2, soft=True),
    "sees-d unconstrained": SEESd(1, constrained=False),
    "sees-c": SEESc(),
    "sees-c intercept": SEESc(intercept=True),
    "sees-c refit": SEESc(eta=1e-2, refit=True),
    "bbse": BBSE(),
    "mlls": MLLS(),
    "kliep": KLIEP(centres=15, widths=(1.0,)),
    "dlu": DLU(),
    "cbpe": CBPE(),
    "none": NoShift(),
}
PAIR = drawn_world(1, 200, 150, features=3, classes=3)


def fresh(function, source):
    """An untrained module of the same shape, as a reader of a saved state would build it."""
    schema, classes = function.schema, function.classes
    if isinstance(function, ConstantWeights):
        return ConstantWeights(schema, classes, torch.zeros_like(function.weight))
    if isinstance(function, TableWeights):
        return TableWeights(
            schema,
            classes,
            function.features,
            torch.zeros_like(function.cells()),
            torch.zeros_like(function.weight),
            torch.zeros_like(function.fallback),
        )
    if type(function) is BasisWeights and isinstance(function.basis, FeatureBasis):
        empty = torch.zeros_like(function.coefficient), torch.zeros_like(function.intercept)
        return BasisWeights(schema, classes, FeatureBasis(source), *empty)
    other = copy.deepcopy(function)
    for buffer in other.buffers():
        buffer.zero_()
    return other


@pytest.mark.parametrize("name", METHODS)
def test_report_weights_are_exactly_the_functions(name):
    report = estimate_shift(**PAIR.inputs(), method=METHODS[name], confidence=None)
    assert torch.equal(report.weights, report.weight_function(PAIR.source, PAIR.labels))
    assert report.weights.shape == (200,)
    assert report.weights.dtype == torch.float64
    again = estimate_shift(**PAIR.inputs(), method=METHODS[name], confidence=None)
    assert torch.equal(report.weights, again.weights)


def test_report_weights_of_known_weights():
    report = estimate_shift(**PAIR.inputs(), method=KnownWeights(PAIR.weights))
    np.testing.assert_array_equal(report.weights, PAIR.weights)
    table = KnownWeights(PAIR.weight_table, PAIR.features)
    report = estimate_shift(**PAIR.inputs(), method=table)
    np.testing.assert_allclose(report.weights, PAIR.weights, rtol=1e-15)
    assert torch.equal(report.weights, report.weight_function(PAIR.source, PAIR.labels))
    again = estimate_shift(**PAIR.inputs(), method=KnownWeights(report.weight_function))
    assert torch.equal(again.weights, report.weights)


@pytest.mark.parametrize("name", METHODS)
def test_frames_arrays_and_tensors_weigh_the_same(name):
    source, target = samples(PAIR)
    function = METHODS[name].match(source, target).weight_function
    rows, labels = PAIR.target, PAIR.target_labels
    weights = function(rows, labels)
    assert weights.shape == (150,)
    assert torch.equal(function(rows.to_numpy(), labels), weights)
    assert torch.equal(function(torch.tensor(rows.to_numpy()), torch.tensor(labels)), weights)
    assert torch.equal(function(rows[["x2", "x0", "x1"]], labels.tolist()), weights)
    table = function.table(target.rows)
    assert table.shape == (150, 3)
    by_label = table.gather(1, torch.tensor(labels)[:, None]).squeeze(1)
    assert torch.equal(by_label, weights)
    assert torch.equal(function(rows.iloc[:1], labels[:1]), weights[:1])


@pytest.mark.parametrize(
    "name", ["sees-d", "sees-d soft", "sees-c", "sees-c intercept", "bbse", "kliep", "dlu"]
)
def test_state_survives_a_round_trip_into_a_fresh_module(name, tmp_path):
    source, target = samples(PAIR)
    function = METHODS[name].match(source, target).weight_function
    torch.save(function.state_dict(), tmp_path / "weights.pt")
    other = fresh(function, source)
    expected = function(PAIR.target, PAIR.target_labels)
    assert not torch.equal(other(PAIR.target, PAIR.target_labels), expected)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other(PAIR.target, PAIR.target_labels), expected)


@pytest.mark.parametrize("name", METHODS)
def test_to_float32_changes_the_type_and_nothing_else(name):
    source, target = samples(PAIR)
    function = METHODS[name].match(source, target).weight_function
    expected = function(PAIR.target, PAIR.target_labels)
    single = copy.deepcopy(function).to(torch.float32)(PAIR.target, PAIR.target_labels)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)
    assert not list(function.parameters())


class TestUnseen:
    def test_a_cell_that_the_source_never_showed_weighs_the_labels_average(self):
        source, target = samples(exact_world(0, features=3, classes=3))
        function = SEESd(1).match(source, target).weight_function
        strange = exact_world(0, features=3, classes=3).source.iloc[:3].assign(x0=9)
        labels = np.arange(3)
        weights = source.mass * function.of_rows(source.rows, source.labels)
        share = torch.bincount(source.labels, source.mass)
        average = torch.bincount(source.labels, weights) / share
        torch.testing.assert_close(function(strange, labels), average, rtol=1e-12, atol=0)
        assert torch.equal(function(strange, labels), function.fallback)

    def test_a_pair_that_the_source_never_showed_in_a_known_cell_weighs_zero(self):
        frame = PAIR.source.assign(x1=np.where(PAIR.labels == 2, 0, PAIR.source["x1"]))
        source = Source(frame, PAIR.labels, PAIR.source_proba)
        target = Target(PAIR.target, PAIR.target_proba, source)
        ranking = SEESd(1).match(source, target).ranking
        assert len(ranking.subsets) == 3
        known = KnownWeights({(0, 0): 2.0, (1, 0): 0.5, (1, 1): 1.5}, ("x1",))
        function = known.match(source, target).weight_function
        rows = frame.iloc[:4].assign(x1=[0, 0, 1, 1])
        np.testing.assert_array_equal(function(rows, [0, 2, 1, 2]), [2.0, 0.0, 1.5, 0.0])

    def test_basis_weights_use_the_features_average(self):
        source, target = samples(PAIR)
        function = SEESc(intercept=True).match(source, target).weight_function
        rows = PAIR.source.iloc[:2]
        strange = function.table(source.schema.encode(rows.assign(x0=9)))
        owner = torch.tensor(function.basis.owners)
        phi = function.basis(source.schema.encode(rows))
        mean = function.basis(source.rows).mean(dim=0)
        phi = torch.where(owner == 0, mean, phi)
        torch.testing.assert_close(
            strange, phi @ function.coefficient + function.intercept, rtol=1e-12, atol=1e-14
        )

    @pytest.mark.parametrize("method", [SEESd(1), SEESc(), DLU(), KLIEP(centres=5, widths=(1.0,))])
    def test_missing_values_and_text_columns(self, method):
        rng = np.random.default_rng(0)
        frame, later = mixed_frame(rng, 120), mixed_frame(rng, 100)
        source = Source(frame, rng.choice(["no", "yes"], 120), rng.random(120))
        target = Target(later, rng.random(100), source)
        function = method.match(source, target).weight_function
        odd = frame.iloc[:4].assign(town=["Nowhere", None, "Bern", "Chur"], age=[np.nan, 1e9, 0, 1])
        weights = function(odd, ["no", "yes", "no", "yes"])
        assert bool(weights.isfinite().all())
        assert bool((weights >= 0).all())


class TestRefusals:
    function = BBSE().match(*samples(PAIR)).weight_function

    def test_labels_and_rows_of_different_length(self):
        with pytest.raises(ShapeError, match="labels has 3 entries, features has 200 rows"):
            self.function(PAIR.source, [0, 1, 2])

    def test_unknown_label(self):
        with pytest.raises(SchemaError, match="7, not among the classes"):
            self.function(PAIR.source, np.full(200, 7))

    def test_other_columns(self):
        with pytest.raises(SchemaError, match="lacks"):
            self.function(PAIR.source.rename(columns={"x0": "z"}), PAIR.labels)

    def test_row_weights_know_their_rows_only(self):
        source, target = samples(PAIR)
        match = KnownWeights(PAIR.weights).match(source, target)
        with pytest.raises(SupportError, match="200 source rows only, got 150"):
            match.weight_function(PAIR.target, PAIR.target_labels)
        with pytest.raises(SupportError, match="estimator='ipw'"):
            match.weight_function.table(source.rows)

    def test_known_weights(self):
        source, target = samples(PAIR)
        with pytest.raises(SeesError, match="one number per source row"):
            KnownWeights(np.ones(3)).match(source, target)
        with pytest.raises(SeesError, match="has no columns"):
            KnownWeights({(0, 0): 1.0}, ("z",)).match(source, target)
        with pytest.raises(SeesError, match="key"):
            KnownWeights({(0, 0, 0): 1.0}, ("x0",)).match(source, target)
        other = Source(PAIR.source[["x0"]], PAIR.labels, PAIR.source_proba)
        with pytest.raises(SeesError, match="another schema"):
            KnownWeights(self.function).match(other, target)

    def test_a_subclass_must_say_how(self):
        source, _ = samples(PAIR)
        with pytest.raises(TypeError, match="must implement table"):
            WeightFunction(source.schema, source.classes).table(source.rows)

    def test_a_subclass_needs_no_buffers(self):
        class Twice(WeightFunction):
            def table(self, rows):
                return torch.full((len(rows), 3), 2.0)

        source, _ = samples(PAIR)
        weights = Twice(source.schema, source.classes)(PAIR.source, PAIR.labels)
        assert weights.tolist() == [2.0] * 200


def test_table_weights_list_their_cells():
    source, target = samples(exact_world(1, features=5, shifted=[3, 1]))
    function = SEESd(2).match(source, target).weight_function
    assert function.features == (1, 3)
    cells = function.cells()
    assert sorted(map(tuple, cells.tolist())) == [(a, b) for a in range(3) for b in range(3)]
    rows = source.rows
    for cell, weight in zip(cells, function.weight, strict=True):
        here = (rows.codes[:, [1, 3]] == cell).all(dim=1)
        assert torch.equal(function.table(rows)[here], weight.expand(int(here.sum()), -1))


def test_odds_weights_do_not_depend_on_the_label():
    source, target = samples(PAIR)
    function = DLU().match(source, target).weight_function
    assert isinstance(function, OddsWeights)
    table = function.table(source.rows)
    assert torch.equal(table, table[:, :1].expand(-1, 3))
    assert bool((table > 0).all())
