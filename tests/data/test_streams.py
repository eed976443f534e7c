"""Samples in batches: the same rows, schema and estimates as in memory, within bounded memory."""

import datetime
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sees_torch import SchemaError, SeesError, ShapeError, Source, SupportError, Target
from sees_torch import estimate_shift as estimate
from sees_torch.data import drafts
from sees_torch.data.drafts import SchemaDraft
from sees_torch.data.schema import Schema
from sees_torch.data.streams import Tally, round_proba

ROWS = 300


def mixed(rng: np.random.Generator, rows: int, shift: float = 0.0) -> pd.DataFrame:
    """Text, whole numbers, continuous numbers, dates, flags, gaps and categories."""
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 60, rows), unit="D")
    flag = rng.choice([True, False, None], rows, p=[0.4 + shift, 0.5 - shift, 0.1])
    return pd.DataFrame(
        {
            "town": rng.choice(["Bern", "Genf", None], rows, p=[0.5 + shift, 0.4 - shift, 0.1]),
            "size": rng.integers(0, 4, rows),
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(40, 10, rows)),
            "day": days,
            "member": rng.random(rows) < 0.3,
            "flag": flag,
            "colour": pd.Categorical(rng.choice(["red", "blue"], rows), ["blue", "red", "none"]),
            "grade": pd.Categorical(rng.integers(0, 30, rows)),
            "birth": rng.choice([datetime.date(2000, 1, 1), datetime.date(2001, 1, 1)], rows),
        }
    )


def world(seed: int, rows: int = ROWS, shift: float = 0.0):
    """A mixed table with labels that depend on it, and a model's probabilities."""
    rng = np.random.default_rng(seed)
    table = mixed(rng, rows, shift)
    score = 1.5 * (table["town"] == "Bern") + (table["size"] > 1) - 1.2
    labels = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    proba = 1 / (1 + np.exp(-score.to_numpy() - rng.choice([-0.5, 0.5], rows)))
    return table, labels, proba


def cut(size: int, *columns) -> list[tuple]:
    """The columns in batches of so many rows."""
    starts = range(0, len(columns[0]), size)
    return [
        tuple(c.iloc[i : i + size] if hasattr(c, "iloc") else c[i : i + size] for c in columns)
        for i in starts
    ]


def counted(sample) -> Counter:
    """How often every row comes, to 12 digits."""
    rows = sample.rows
    parts = (rows.codes, rows.values, rows.clamped, sample.labels[:, None], sample.proba)
    table = torch.cat([part.double() for part in parts], dim=1).tolist()
    total: Counter = Counter()
    for row, count in zip(table, sample.count.tolist(), strict=True):
        total[tuple(round(value, 12) for value in row)] += count
    return total


def assert_same_report(one, other) -> None:
    assert one.gap == pytest.approx(other.gap, abs=1e-12)
    assert one.interval == pytest.approx(other.interval, abs=1e-12)
    assert one.status == other.status
    assert one.shifted_features == other.shifted_features
    assert one.notes == other.notes


# The same as in memory


@pytest.fixture(scope="module")
def pair():
    return world(0), world(1, 250, shift=0.3)


@pytest.fixture(scope="module")
def in_memory(pair):
    (table, labels, proba), (moved, _, moved_proba) = pair
    source = Source(table, labels, proba)
    target = Target(moved, moved_proba, source)
    reports = {m: estimate(source, target=target, method=m, replicates=20) for m in METHODS}
    return source, target, reports


METHODS = ("auto", "mlls", "sees-em", "cbpe")


@pytest.mark.parametrize("size", [7, ROWS])
def test_a_stream_is_the_sample(pair, in_memory, size):
    (table, labels, proba), (moved, _, moved_proba) = pair
    source = Source.from_batches(cut(size, table, labels, proba))
    target = Target.from_batches(cut(size, moved, moved_proba), source)
    whole, other, reports = in_memory
    assert source.schema == whole.schema
    assert source.classes == whole.classes
    assert any(source.schema.continuous)
    assert counted(source) == counted(whole)
    assert counted(target) == counted(other)
    for method in METHODS if size == 7 else METHODS[:1]:
        found = estimate(source, target=target, method=method, replicates=20)
        assert_same_report(found, reports[method])


def test_a_stream_of_single_rows_is_the_sample(pair):
    (table, labels, proba), (moved, _, moved_proba) = pair
    few, there = slice(80), slice(40)
    source = Source.from_batches(cut(1, table[few], labels[few], proba[few]))
    target = Target.from_batches(cut(1, moved[there], moved_proba[there]), source)
    whole = Source(table[few], labels[few], proba[few])
    other = Target(moved[there], moved_proba[there], whole)
    assert source.schema == whole.schema
    assert counted(source) == counted(whole)
    assert counted(target) == counted(other)
    options = {"method": "mlls", "replicates": 20}
    assert_same_report(
        estimate(source, target=target, **options), estimate(whole, target=other, **options)
    )


def test_a_target_of_which_some_labels_are_known(pair, in_memory):
    moved, truth, moved_proba = pair[1]
    source = in_memory[0]
    known = np.where(np.arange(len(truth)) % 4 == 0, truth, None)
    streamed = Target.from_batches(cut(7, moved, known, moved_proba), source, labelled=True)
    whole = Target(moved, moved_proba, source, labels=known)
    assert counted(streamed) == counted(whole)
    assert streamed.labelled == whole.labelled == 63
    options = {"method": "sees-em", "replicates": 20}
    found, expected = (estimate(source, target=each, **options) for each in (streamed, whole))
    assert_same_report(found, expected)
    with pytest.raises(SeesError, match="cbpe cannot use target_labels"):
        estimate(source, target=streamed, method="cbpe")


def test_the_front_door_says_the_same_as_ready_samples(pair, in_memory):
    (table, labels, proba), (moved, _, moved_proba) = pair
    found = estimate(
        table, labels, moved, source_proba=proba, target_proba=moved_proba, replicates=20
    )
    assert_same_report(found, in_memory[2]["auto"])


def test_neither_the_order_of_rows_nor_of_batches_matters(pair, in_memory):
    (table, labels, proba), (moved, _, moved_proba) = pair
    rng = np.random.default_rng(3)
    here, there = rng.permutation(len(table)), rng.permutation(len(moved))
    batches = cut(31, table.iloc[here], labels[here], proba[here])[::-1]
    source = Source.from_batches(batches)
    target = Target.from_batches(cut(17, moved.iloc[there], moved_proba[there])[::-1], source)
    assert source.schema == in_memory[0].schema
    plain = Source.from_batches(cut(7, table, labels, proba))
    for name in ("labels", "proba", "count"):
        assert torch.equal(getattr(source, name), getattr(plain, name))
    assert torch.equal(source.rows.codes, plain.rows.codes)
    assert_same_report(estimate(source, target=target, replicates=20), in_memory[2]["auto"])


@pytest.mark.parametrize("rows", [100, 101, 1000])
@pytest.mark.parametrize("size", [10, 1000])
def test_bin_edges_are_exact(rows, size):
    """Also where a quantile falls on a row: what is remembered of the range does not move it."""
    table = pd.DataFrame({"x": np.random.default_rng(rows).normal(size=rows)})
    draft = SchemaDraft()
    for (batch,) in cut(size, table):
        draft.add(batch)
    assert draft.schema() == Schema.learn(table)
    assert len(draft.schema().columns[0].edges) == 4


def learnt(*batches, kinds=None) -> Schema:
    draft = SchemaDraft(kinds)
    for batch in batches:
        draft.add(batch)
    return draft.schema()


@pytest.mark.parametrize(
    "column",
    [
        pytest.param([None, None, "b", "a"], id="text after gaps"),
        pytest.param([np.nan, np.nan, 3.0, 2.0], id="numbers after gaps"),
        pytest.param([None, None, True, False], id="flags after gaps"),
        pytest.param([1.0, 2.0, np.nan, np.nan], id="gaps at the end"),
        pytest.param([None] * 4, id="nothing"),
        pytest.param([np.nan] * 4, id="no number"),
        pytest.param(pd.to_datetime([None, None, "2024-01-01", "2024-01-02"]), id="dates"),
        pytest.param(pd.Categorical([None, None, 5, 7]), id="categories"),
        pytest.param([0, 0, 1, 10**6], id="a level in the last batch"),
        pytest.param([2**60, 2**60 + 1, 2**60, 2**60 + 2], id="large whole numbers"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_columns_that_differ_by_batch(column, size):
    table = pd.DataFrame({"x": column, "y": [1, 2, 3, 4]})
    assert learnt(*[batch for (batch,) in cut(size, table)]) == Schema.learn(table)


@pytest.mark.parametrize("kind", ["categorical", "continuous"])
def test_kinds_are_heeded(kind):
    table = pd.DataFrame({"x": np.random.default_rng(0).permutation(100) / 7, "y": [0, 1] * 50})
    kinds = {"x": kind, "y": kind}
    found = learnt(*[batch for (batch,) in cut(9, table)], kinds=kinds)
    assert found == Schema.learn(table, kinds)
    assert {column.kind for column in found.columns} == {kind}


def test_a_level_and_a_class_that_only_the_last_batch_shows():
    table = pd.DataFrame({"x": ["a"] * 8 + ["z"]})
    labels = np.array([0, 1] * 4 + [2])
    proba = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    source = Source.from_batches(cut(4, table, labels, proba))
    assert source.classes == (0, 1, 2)
    assert source.schema.columns[0].levels == ("a", "z")
    assert counted(source) == counted(Source(table, labels, proba))


@pytest.mark.parametrize("classes", [["no", "yes"], ["yes", "no"]])
def test_classes_may_be_given(pair, classes):
    table, labels, proba = pair[0]
    both = np.stack([1 - proba, proba], axis=1)
    source = Source.from_batches(cut(50, table, labels, both), classes=classes)
    assert source.classes == tuple(classes)
    assert counted(source) == counted(Source(table, labels, both, classes=classes))


def test_whole_weights_are_counted():
    table, labels, proba = world(4)
    weight = np.random.default_rng(5).integers(1, 4, ROWS)
    kinds = {"age": "categorical", "day": "categorical"}
    source = Source.from_batches(cut(11, table, labels, proba, weight), kinds=kinds, weighted=True)
    whole = Source(table, labels, proba, weight=weight, kinds=kinds)
    assert float(source.total) == weight.sum()
    assert source.schema == whole.schema
    assert counted(source) == counted(whole)
    target = Target.from_batches(cut(11, table, proba, weight), source, weighted=True)
    assert counted(target) == counted(Target(table, proba, source, weight=weight))


def test_weights_count_for_bin_edges_and_levels_as_in_memory():
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"x": rng.normal(size=200), "y": [0] * 199 + [1]})
    labels, proba = np.array([0, 1] * 100), np.full(200, 0.5)
    weight = np.where(table["x"] > 0, 5.0, 1.0)
    weight[-1] = 0.0
    source = Source.from_batches(cut(50, table, labels, proba, weight), weighted=True)
    assert source.schema == Source(table, labels, proba, weight=weight).schema


def test_a_batch_may_weigh_nothing():
    batch = ([[0], [1]], [0, 1], [0.2, 0.9])
    source = Source.from_batches([(*batch, [1, 2]), (*batch, [0, 0])], weighted=True)
    assert sorted(source.count.tolist()) == [1.0, 2.0]


def test_weights_are_checked():
    batch = ([[0], [1]], [0, 1], [0.5, 0.5], [1, -1])
    with pytest.raises(SeesError, match="non-negative"):
        Source.from_batches([batch], weighted=True)


def test_progress_is_told_of_every_row():
    told: list[int] = []
    batch = ([[0], [1]], [0, 1], [0.2, 0.9])
    Source.from_batches([batch] * 3, progress=told.append)
    assert told == [2, 4, 6, 2, 4, 6]


# Models


class Softmax(torch.nn.Module):
    """Notes whether it was asked in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2, dtype=torch.float64)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.layer(x)).softmax(dim=1)


@pytest.fixture
def module() -> Softmax:
    torch.manual_seed(0)
    return Softmax()


def test_a_loader_and_a_module(module):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (200, 3), generator=generator).double()
    y = torch.randint(0, 2, (200,), generator=generator)
    source = Source.from_batches(
        DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), module
    )
    target = Target.from_batches(DataLoader(TensorDataset(x[:90]), batch_size=32), source, module)
    again = Target.from_batches(DataLoader(x[:90], batch_size=32), source, module)
    assert module.training
    assert not source.proba.requires_grad
    proba = module.eval()(x).detach()
    whole = Source(x, y, proba)
    assert source.schema == whole.schema
    assert counted(source) == counted(whole)
    assert counted(target) == counted(again) == counted(Target(x[:90], proba[:90], whole))


def test_a_callable_sees_every_batch():
    table, labels, _ = world(7)

    def model(batch):
        return np.where(batch["town"] == "Bern", 0.75, 0.25)

    source = Source.from_batches(cut(40, table, labels), model)
    assert counted(source) == counted(Source(table, labels, model(table)))
    target = Target.from_batches(cut(40, table), source, model)
    assert counted(target) == counted(Target(table, model(table), source))


def test_a_module_gets_named_columns_in_the_order_of_the_source(module):
    table = pd.DataFrame(np.random.default_rng(0).integers(0, 3, (60, 3)), columns=list("abc"))
    source = Source.from_batches(cut(20, table, np.array([0, 1] * 30)), module)
    target = Target.from_batches(cut(20, table), source, module)
    turned = Target.from_batches(cut(20, table[["c", "a", "b"]]), source, module)
    assert counted(turned) == counted(target)


class Backwards:
    """A classifier whose classes do not sort into its columns."""

    classes_ = np.array(["yes", "no", "maybe"])

    def predict_proba(self, batch):
        return np.tile([0.5, 0.3, 0.2], (len(batch), 1))


def test_a_classifier_names_its_classes():
    table = np.array([[0], [1]] * 10)
    source = Source.from_batches(cut(5, table, np.array(["yes", "no"] * 10)), Backwards())
    assert source.classes == ("yes", "no", "maybe")


# Probability frames


def named(order: str, rows: int = 8) -> pd.DataFrame:
    proba = np.random.default_rng(0).dirichlet(np.ones(3), rows)
    return pd.DataFrame(proba, columns=list("abc"))[list(order)].copy()


TABLE = pd.DataFrame({"x": [0, 1, 2, 3, 0, 1, 2, 3]})
LETTERS = list("abcabcab")


@pytest.mark.parametrize("order", ["abc", "bca"])
def test_named_probability_columns_are_the_classes(order):
    source = Source.from_batches([(TABLE, LETTERS, named(order))] * 2)
    assert source.classes == tuple(order)
    assert counted(source) == counted(Source(TABLE, LETTERS, named(order), weight=[2] * 8))
    target = Target.from_batches([(TABLE, named("cab")), (TABLE, named("bac"))], source)
    assert counted(target) == counted(Target(TABLE, named(order), source, weight=[2] * 8))


@pytest.mark.parametrize("classes", [None, ["a", "b", "c"]])
def test_named_probability_columns_may_change_their_order(classes):
    batches = [(TABLE, LETTERS, named("abc")), (TABLE, LETTERS, named("cab"))]
    source = Source.from_batches(batches, classes=classes)
    assert counted(source) == counted(Source(TABLE, LETTERS, named("abc"), weight=[2] * 8))


def test_probability_columns_of_other_names_by_batch_are_refused():
    other = named("abc").set_axis(list("abd"), axis=1)
    with pytest.raises(ShapeError, match="different probability columns"):
        Source.from_batches([(TABLE, LETTERS, named("abc")), (TABLE, LETTERS, other)])


def test_a_target_frame_of_other_names_is_refused():
    source = Source.from_batches([(TABLE, LETTERS, named("abc"))])
    with pytest.raises(SchemaError, match="do not name the classes"):
        Target.from_batches([(TABLE, named("abc").set_axis(list("xyz"), axis=1))], source)


# Refused


@pytest.mark.parametrize("given", [{}, {"classes": [0, 1]}, {"schema": True}])
def test_a_generator_is_refused_where_two_passes_are_needed(given):
    batch = ([[0.0], [1.0]], [0, 1], [0.2, 0.9])
    if "schema" in given:
        given = {"schema": Schema.learn(batch[0])}
    with pytest.raises(SeesError, match=r"only once.*give schema and classes"):
        Source.from_batches((batch for _ in range(2)), **given)


def test_a_generator_is_enough_with_schema_and_classes(pair):
    (table, labels, proba), (moved, _, moved_proba) = pair
    whole = Source(table, labels, proba)
    source = Source.from_batches(
        iter(cut(20, table, labels, proba)), schema=whole.schema, classes=whole.classes
    )
    assert counted(source) == counted(whole)
    target = Target.from_batches(iter(cut(20, moved, moved_proba)), source)
    assert counted(target) == counted(Target(moved, moved_proba, whole))


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (
            [([[0]], [0])],
            ShapeError,
            r"source must be a tuple \(features, labels, proba\); got 2 entries",
        ),
        ([([[0]], [0], [0.5], [1], [1])], ShapeError, "got 5 entries"),
        ([pd.DataFrame({"x": [0]})], ShapeError, "got .*DataFrame"),
        ([torch.zeros(3, 3)], ShapeError, "got .*Tensor"),
        ([], SupportError, "source is empty"),
        ([([[0], [1]], [0, 0], [0.5, 0.5])], SupportError, "single class"),
        ([([[0], [1]], [0, 1], [0.5, 1.5])], SeesError, r"probabilities lie in \[0, 1\]"),
        ([([[0], [1]], [0, 1, 0], [0.5, 0.5])], ShapeError, "labels has 3 entries"),
        ([([[0], [1]], [0, None], [0.5, 0.5])], SchemaError, "missing"),
        ([([[0], [1]], [0, 1], [0.5, 0.5], [1, 1])], ShapeError, "needs weighted=True"),
        (5, SeesError, "batches must be an iterable of tuples, got int"),
        ([([[0], [1]], [0, 1], np.eye(3)[:2])], ShapeError, "3 probability columns but 2 classes"),
        (
            [([[0], [1]], [0, 1], np.eye(2)), ([[0], [1]], [0, 1], np.eye(3)[:2])],
            ShapeError,
            "different probability columns",
        ),
        (
            [([[0], [1]], [0, 1], [0.5, 0.5]), ([[0, 0], [1, 1]], [0, 1], [0.5, 0.5])],
            SchemaError,
            "a batch of source has the columns",
        ),
    ],
)
def test_batches_that_are_refused(batches, error, message):
    with pytest.raises(error, match=message):
        Source.from_batches(batches)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([([[0]],)], ShapeError, r"target must be a tuple \(features, proba\); got 1 entries"),
        ([([[0]], [0.5], [1], [1])], ShapeError, "got 4 entries"),
        ([], SupportError, "target is empty"),
        ([([[0]], [[0.2, 0.3, 0.5]])], ShapeError, "target_proba has 3 columns"),
    ],
)
def test_target_batches_that_are_refused(batches, error, message):
    source = Source.from_batches([([[0], [1]], [0, 1], [0.5, 0.6])])
    with pytest.raises(error, match=message):
        Target.from_batches(batches, source)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["a", "b"], [1, 2]),
        ([1, 2], ["a", "b"]),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), [1, 2]),
        ([1, 2], pd.to_datetime(["2024-01-01", "2024-01-02"])),
    ],
)
def test_text_numbers_and_dates_by_batch_are_refused(first, second):
    batches = [(pd.DataFrame({"x": x}), [0, 1], [0.2, 0.9]) for x in (first, second)]
    with pytest.raises(SchemaError, match=r"'x' holds text, numbers or dates, by batch"):
        Source.from_batches(batches)


def test_a_class_of_the_second_pass_that_the_first_did_not_show_is_refused():
    class Growing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield ([[0], [1]], [0, self.passes], [0.2, 0.9])

    with pytest.raises(SchemaError, match="holds 2, not among the classes"):
        Source.from_batches(Growing())


def test_drafts_of_processes_with_other_columns_are_refused():
    one, other = SchemaDraft(), SchemaDraft()
    one.add(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    other.add(pd.DataFrame({"a": [1, 2], "c": [3, 4]}))
    with pytest.raises(SchemaError, match="columns"):
        one.merge(other)


def test_drafts_of_processes_are_matched_by_name():
    table = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    one, other = SchemaDraft(), SchemaDraft()
    one.add(table)
    other.add(table[["b", "a"]])
    one.merge(other)
    assert one.schema() == Schema.learn(table)


# Bounded memory


def plain_schema(levels: int) -> Schema:
    return Schema.learn(np.arange(levels)[:, None].astype(str))


def fed(tally: Tally, n: int, batch: int, seed: int = 0, weight=None, classes: int = 2):
    """n rows, all different in their probabilities, and the most that the tally ever held."""
    rng = np.random.default_rng(seed)
    schema, most = tally.schema, 0
    proba = torch.tensor(rng.dirichlet(np.ones(classes), n))
    x, y = rng.integers(0, 4, (n, 1)).astype(str), torch.tensor(rng.integers(0, 2, n))
    for i in range(0, n, batch):
        part = slice(i, i + batch)
        rows = schema.encode(x[part])
        count = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight[part]
        tally.add(rows, y[part], proba[part], count)
        held = [tally._kept, *tally._fresh] if tally._kept else tally._fresh
        most = max(most, sum(len(part[0]) for part in held))
    return proba, most


@pytest.mark.parametrize("precision", [None, 8, 2])
@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_the_tally_is_bounded(precision, batch):
    tally = Tally(plain_schema(4), precision, max_rows=50)
    _, most = fed(tally, 500 if batch == 1 else 3000, batch)
    assert most <= 2 * 50 + batch
    found = tally.counted()
    assert len(found.rows) <= 50
    assert found.kept & (found.kept - 1) == 0


def test_few_distinct_rows_are_neither_rounded_nor_thinned():
    schema = plain_schema(4)
    tally = Tally(schema, 8, max_rows=8)
    rows, labels = schema.encode(np.array([["0"], ["1"]] * 50)), torch.tensor([0, 1] * 50)
    proba = torch.tensor([[1 / 3, 2 / 3], [0.1, 0.9]] * 50, dtype=torch.float64)
    for _ in range(10):
        tally.add(rows, labels, proba, torch.ones(100).double())
    found = tally.counted()
    assert found.count.tolist() == [500.0, 500.0]
    assert sorted(found.proba[:, 0].tolist()) == [0.1, 1 / 3]
    assert (found.kept, found.rounding, found.notes("source")) == (1, 0.0, ())


def test_rounding_comes_before_thinning():
    tally = Tally(plain_schema(4), 2, max_rows=1000)
    proba, _ = fed(tally, 3000, 100)
    found = tally.counted()
    assert found.kept == 1
    assert float(found.count.sum()) == 3000
    assert 0 < found.rounding <= 2**-2
    mean = (found.proba * found.count[:, None]).sum(dim=0) / 3000
    # Rounding errors of 3000 rows, each at most 2^-3 of a probability, hardly add up.
    torch.testing.assert_close(mean, proba.mean(dim=0), atol=0.01, rtol=0)
    (note,) = found.notes("target")
    assert note.startswith("target: probabilities were rounded, by")


def test_thinning_halves_the_rows_and_says_so():
    tally = Tally(plain_schema(4), None, max_rows=1000)
    fed(tally, 4100, 4100)
    found = tally.counted()
    assert found.kept == 8
    assert abs(float(found.count.sum()) - 4100 / 8) <= 1
    (note,) = found.notes("source")
    assert note.startswith("source: one of every 8 rows was kept, 51")


def test_thinning_counts_copies_as_rows():
    """3 and 4 copies of 400 rows: 1400 in all, of which half stay."""
    schema = plain_schema(4)
    tally = Tally(schema, None, max_rows=399)
    proba = torch.rand(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    count = torch.tensor([3.0, 4.0] * 200, dtype=torch.float64)
    rows = schema.encode(np.array([["0"]] * 400))
    tally.add(rows, torch.zeros(400).long(), torch.cat([proba, 1 - proba], dim=1), count)
    while tally.step == 1:
        tally.counted()
    total = float(tally.counted().count.sum())
    assert abs(total - 1400 / tally.step) <= 1


def test_thinning_is_deterministic_and_leaves_the_order_of_rows_alone():
    found = []
    for order in (slice(None), slice(None, None, -1)):
        schema = plain_schema(4)
        tally = Tally(schema, None, max_rows=100)
        rng = np.random.default_rng(0)
        x, p = rng.integers(0, 4, (150, 1)).astype(str)[order], rng.random(150)[order].copy()
        proba = torch.tensor(np.stack([p, 1 - p], axis=1))
        tally.add(schema.encode(x), torch.zeros(150).long(), proba, torch.ones(150).double())
        found.append(tally.counted())
    assert torch.equal(found[0].proba, found[1].proba)
    assert torch.equal(found[0].count, found[1].count)
    assert float(found[0].count.sum()) == 75


@pytest.mark.parametrize("period", [2, 8])
def test_rows_in_a_regular_pattern_are_thinned_fairly(period):
    """Labels that alternate keep their shares: every second row is not every second to come."""
    n = 8000
    schema = plain_schema(4)
    tally = Tally(schema, None, max_rows=500)
    p = torch.rand(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = (torch.arange(n) % period == 0).long()
    for i in range(0, n, 100):
        rows = schema.encode(np.array([["0"]] * 100))
        proba = torch.cat([p, 1 - p], dim=1)[i : i + 100]
        tally.add(rows, labels[i : i + 100], proba, torch.ones(100).double())
    found = tally.counted()
    total = float(found.count.sum())
    share, expected = float(found.count[found.labels == 1].sum()) / total, 1 / period
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / total)


def test_weights_that_are_no_whole_numbers_cannot_be_thinned():
    tally = Tally(plain_schema(4), None, max_rows=100)
    with pytest.raises(SeesError, match=r"more than 100 distinct rows.*no whole numbers"):
        fed(tally, 1000, 100, weight=torch.full((1000,), 0.5, dtype=torch.float64))


def test_weights_that_are_no_whole_numbers_may_be_rounded():
    tally = Tally(plain_schema(4), 1, max_rows=500)
    fed(tally, 3000, 100, weight=torch.full((3000,), 0.5, dtype=torch.float64))
    assert float(tally.counted().count.sum()) == pytest.approx(1500)


@pytest.mark.parametrize("steps", [(1, 1), (1, 4), (4, 1)])
def test_tallies_of_processes_are_added(steps):
    parts = []
    for place, step in enumerate(steps):
        tally = Tally(plain_schema(4), None, max_rows=300)
        fed(tally, 280 * step, 280 * step, seed=place)
        parts.append(tally.counted())
    assert tuple(part.kept for part in parts) == steps
    total = Tally(plain_schema(4), None, max_rows=2000)
    for part in parts:
        total.merge(part)
    found = total.counted()
    assert found.kept == max(steps)
    assert abs(float(found.count.sum()) - 280 * sum(steps) / max(steps)) <= len(steps) + 1


# Rounding of probabilities


def awkward(classes: int) -> torch.Tensor:
    """Random rows, ties, zeros and ones, denormals and rows that hardly differ from a tie."""
    generator = torch.Generator().manual_seed(classes)
    drawn = torch.rand(20_000 // classes, classes, generator=generator, dtype=torch.float64) ** 4
    rows = [drawn / drawn.sum(dim=1, keepdim=True)]
    sure = torch.eye(classes, dtype=torch.float64)
    rows.append(sure)
    tiny = sure.clone()
    tiny[:, 0] = tiny[:, 0].clamp_min(5e-324)
    rows.append(tiny)
    rows.append(torch.full((1, classes), 1 / classes, dtype=torch.float64))
    close = torch.full((1, classes), 1 / classes, dtype=torch.float64)
    close[0, -1] += 1e-13
    close[0, 0] -= 1e-13
    rows.append(close)
    return torch.cat(rows)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("bits", [1, 4, 8, 20])
def test_rounded_probabilities(classes, bits):
    proba = awkward(classes)
    rounded = round_proba(proba, bits)
    assert bool((rounded >= 0).all())
    torch.testing.assert_close(rounded.sum(dim=1), torch.ones(len(proba)).double())
    assert torch.equal(rounded.argmax(dim=1), proba.argmax(dim=1))
    largest = torch.zeros_like(proba).scatter(1, proba.argmax(dim=1, keepdim=True), 1.0).bool()
    change = (rounded - proba).abs()
    # Denormals have fewer bits: they round to a multiple of the smallest normal number.
    allowed = 2.0 ** -(bits + 1) * proba + 2.3e-308
    assert bool((change <= allowed)[~largest].all())
    # The largest makes up for the others, so it moves by at most what they hold.
    others = (proba * ~largest).sum(dim=1)
    assert bool((change[largest] <= 2.0 ** -(bits + 1) * others + 1e-12).all())
    assert torch.equal(round_proba(rounded, bits), rounded)


def test_rounding_merges_rows_that_hardly_differ():
    p = 0.3 + torch.linspace(0, 1e-6, 100, dtype=torch.float64)
    rounded = round_proba(torch.stack([p, 1 - p], dim=1), 8)
    assert len(rounded.unique(dim=0)) == 1


# Estimates from bounded memory


def test_a_thinned_stream_estimates_the_same():
    """60,000 rows of which 4,000 are kept: within four of the thinned one's standard errors."""

    def stream(seed: int, share: float):
        rng = np.random.default_rng(seed)
        y = (rng.random(60_000) < share).astype(int)
        x = np.stack([rng.random(60_000) < 0.3 + 0.4 * y, rng.random(60_000) < 0.5], axis=1)
        p = np.clip(0.25 + 0.5 * y + rng.normal(0, 0.2, 60_000), 0.01, 0.99)
        return x.astype(int), y, p

    x, y, p = stream(0, 0.4)
    tx, _, tp = stream(1, 0.6)
    reports = []
    for bounds in ({}, {"max_rows": 4000, "precision": None}):
        source = Source.from_batches(cut(5000, x, y, p), **bounds)
        target = Target.from_batches(cut(5000, tx, tp), source, **bounds)
        reports.append(
            estimate(source, target=target, method="mlls", metric="log_loss", replicates=0)
        )
    full, thinned = reports
    assert len(thinned.source) <= 4000 < len(full.source)
    assert sum("one of every 16 rows was kept" in note for note in thinned.notes) == 2
    assert not any("kept" in note for note in full.notes)
    (low, high), error = thinned.interval, thinned.standard_errors[0]
    assert abs(thinned.gap - full.gap) < 4 * error
    assert high - low > 2 * (full.interval[1] - full.interval[0])
    for before, after in zip(
        full.target_label_distribution.values(),
        thinned.target_label_distribution.values(),
        strict=True,
    ):
        assert before == pytest.approx(after, abs=0.06)


def test_a_rounded_stream_estimates_the_same_and_says_so():
    rng = np.random.default_rng(2)
    y, x = rng.integers(0, 2, 6000), rng.integers(0, 3, (6000, 2))
    p = np.clip(0.25 + 0.5 * y + rng.normal(0, 0.2, 6000), 0.01, 0.99)
    full = Source.from_batches(cut(500, x, y, p))
    rounded = Source.from_batches(cut(500, x, y, p), max_rows=5000)
    assert len(rounded) <= 5000 < len(full)
    assert float(rounded.total) == 6000
    reports = [
        estimate(s, target=Target.from_batches(cut(500, x, p), s), method="mlls", replicates=0)
        for s in (full, rounded)
    ]
    assert reports[1].gap == pytest.approx(reports[0].gap, abs=1e-3)
    assert reports[1].source_value == pytest.approx(reports[0].source_value, abs=1e-12)
    assert any("probabilities were rounded" in note for note in reports[1].notes)


# The schema beyond the sample of rows


@pytest.mark.parametrize("batch", [17, 500])
def test_levels_and_ranges_are_exact_beyond_the_sample(monkeypatch, batch):
    monkeypatch.setattr(drafts, "SAMPLE", 500)
    rng = np.random.default_rng(0)
    n = 6_000
    table = pd.DataFrame({"x": rng.normal(size=n), "y": rng.integers(0, 3, n)})
    table["town"] = rng.choice(["a", "b"], n)
    table.loc[n - 1, ["y", "town"]] = [99, "z"]
    table.loc[3_456, "x"] = 50.0
    table.loc[3_457, "x"] = -50.0
    draft = SchemaDraft()
    for (part,) in cut(batch, table):
        draft.add(part)
        assert all(sum(map(len, column.numbers)) <= 500 + 1 for column in draft.columns)
    found, exact = draft.schema(), Schema.learn(table)
    assert found.columns[1:] == exact.columns[1:]
    x, y = found.columns[0], exact.columns[0]
    assert (x.kind, x.low, x.high) == (y.kind, y.low, y.high) == ("continuous", -50.0, 50.0)
    # The share below a quantile of 375 rows: 4 standard errors of at most 0.025.
    ranks = np.searchsorted(np.sort(table["x"]), x.edges) / n
    np.testing.assert_allclose(ranks, [0.2, 0.4, 0.6, 0.8], atol=0.1)


def test_drafts_of_processes_are_one_draft(monkeypatch):
    monkeypatch.setattr(drafts, "SAMPLE", 100_000)
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"x": rng.normal(size=1000), "y": rng.choice(["a", "b", None], 1000)})
    parts = [SchemaDraft(), SchemaDraft(), SchemaDraft()]
    for place, (batch,) in enumerate(cut(100, table)):
        parts[place % 2].add(batch)
    for part in parts[1:]:
        parts[0].merge(part)
    assert parts[0].schema() == Schema.learn(table)
    empty = SchemaDraft()
    empty.merge(parts[0])
    assert empty.schema() == Schema.learn(table)
