"""Labels of every kind, the order of classes, row multiplicities, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import SchemaError, SeesError, ShapeError, Source, SupportError, Target
from sees_torch.data.labels import read_labels
from sees_torch.data.samples import is_population

POSITIONS = np.array([0, 1, 1, 0, 1])
FEATURES = np.array([[0.0], [1.0], [0.0], [1.0], [2.0]])
PROBA = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3], [0.1, 0.9]])


def source(labels=POSITIONS, proba=PROBA, **options) -> Source:
    return Source(FEATURES, labels, proba, **options)


def of(first, second, dtype=None) -> np.ndarray:
    """The label column with these two classes."""
    return np.array([first, second], dtype=dtype)[POSITIONS]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        pytest.param(POSITIONS, (0, 1), id="int"),
        pytest.param(POSITIONS.astype(np.uint8), (0, 1), id="uint8"),
        pytest.param(POSITIONS.astype(">i8"), (0, 1), id="big-endian"),
        pytest.param(POSITIONS.tolist(), (0, 1), id="list"),
        pytest.param(tuple(POSITIONS.tolist()), (0, 1), id="tuple"),
        pytest.param(of(-1, 1), (-1, 1), id="-1 and 1"),
        pytest.param(of(1, 2), (1, 2), id="1 and 2"),
        pytest.param(of(2, 10), (2, 10), id="2 and 10, not by text"),
        pytest.param(of(0.5, 1.5), (0.5, 1.5), id="float"),
        pytest.param(POSITIONS.astype(np.float16), (0.0, 1.0), id="float16"),
        pytest.param(of(False, True), (False, True), id="bool"),
        pytest.param(of("no", "yes"), ("no", "yes"), id="text"),
        pytest.param(of("no", "yes", object), ("no", "yes"), id="object text"),
        pytest.param(of(b"no", b"yes"), (b"no", b"yes"), id="bytes"),
        pytest.param(of("10", "9"), ("10", "9"), id="digits as text"),
        pytest.param(of(0, 1, object), (0, 1), id="object ints"),
        pytest.param(pd.Series(POSITIONS, index=[9, 7, 5, 3, 1]), (0, 1), id="series"),
        pytest.param(pd.Series(POSITIONS, dtype="Int64"), (0, 1), id="Int64"),
        pytest.param(pd.Series(of(False, True), dtype="boolean"), (False, True), id="boolean"),
        pytest.param(pd.Series(of("no", "yes"), dtype="string"), ("no", "yes"), id="string"),
        pytest.param(pd.Series(POSITIONS, dtype="int64[pyarrow]"), (0, 1), id="arrow"),
        pytest.param(pd.DataFrame({"y": POSITIONS}), (0, 1), id="one-column frame"),
        pytest.param(POSITIONS[:, None], (0, 1), id="(n, 1)"),
        pytest.param(pd.Categorical.from_codes(POSITIONS, ["a", "b"]), ("a", "b"), id="category"),
        pytest.param(pd.Categorical.from_codes(POSITIONS, [3, 5]), (3, 5), id="int category"),
        pytest.param(pd.array(of("no", "yes"), dtype="string"), ("no", "yes"), id="string array"),
        pytest.param(pd.Index(of("no", "yes")), ("no", "yes"), id="index"),
        pytest.param(
            pd.Series(pd.Categorical.from_codes(POSITIONS, ["a", "b", "unused"])),
            ("a", "b"),
            id="unused category",
        ),
        pytest.param(torch.tensor(POSITIONS), (0, 1), id="tensor"),
        pytest.param(torch.tensor(POSITIONS)[:, None], (0, 1), id="(n, 1) tensor"),
        pytest.param(torch.tensor(POSITIONS).bool(), (False, True), id="bool tensor"),
        pytest.param(torch.tensor(POSITIONS).half(), (0.0, 1.0), id="half tensor"),
        pytest.param(torch.tensor(of(-1, 1)), (-1, 1), id="-1 and 1 tensor"),
    ],
)
def test_labels_of_every_kind(labels, classes):
    found = source(labels)
    assert found.classes == classes
    assert [type(c) for c in found.classes] == [type(c) for c in classes]
    assert found.labels.tolist() == POSITIONS.tolist()
    assert found.labels.dtype == torch.int64


def test_unordered_categories_sort_by_value_not_by_declaration():
    declared = pd.Series(pd.Categorical.from_codes(POSITIONS, ["yes", "no"]))
    assert source(declared).classes == ("no", "yes")
    assert source(declared, classes=["yes", "no"]).labels.tolist() == POSITIONS.tolist()


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (None, SupportError, "labels is None: the source must be labelled"),
        (np.int64(1), ShapeError, r"shape \(n,\); got shape \(\)"),
        (torch.tensor(1), ShapeError, r"got shape \(\)"),
        ("yes", ShapeError, r"got shape \(\)"),
        (np.eye(2)[POSITIONS], ShapeError, "Turn one-hot labels into class names"),
        (POSITIONS[:-1], ShapeError, "labels has 4 entries, source has 5 rows"),
        (np.r_[POSITIONS, 0], ShapeError, "labels has 6 entries, source has 5 rows"),
        ([], SupportError, "labels is empty"),
        (np.zeros(5, int), SupportError, "single class, 0: the labelled source must show"),
        (["a"] * 5, SupportError, "single class, 'a'"),
        ([0.0, np.nan, 1.0, 1.0, np.nan], SchemaError, "2 missing entries. Drop those rows"),
        (["a", None, "b", "b", "a"], SchemaError, "1 missing entries"),
        (["a", np.nan, "b", pd.NA, pd.NaT], SchemaError, "3 missing entries"),
        (pd.Series([0, None, 1, 1, 0], dtype="Int64"), SchemaError, "1 missing entries"),
        (pd.Series(["a", None, "b", "b", "a"], dtype="string"), SchemaError, "1 missing"),
        (
            pd.Series(pd.Categorical.from_codes([0, -1, 1, -1, 0], ["a", "b"])),
            SchemaError,
            "2 missing",
        ),
        (pd.Series(pd.to_datetime(["2000", None, "2001", "2001", "2001"])), SchemaError, "1 miss"),
        (torch.tensor([0.0, 1.0, torch.nan, 1.0, 0.0]), SchemaError, "1 missing entries"),
        ([0, 1, 2, 0, 1], ShapeError, r"2 probability columns but 3 classes \[0, 1, 2\]"),
        ([0, "b", 0, "b", 0], SchemaError, r"no order \(\['int', 'str'\]\). Give `classes`"),
        (pd.Series([[1], [2], [1], [2], [1]]), SchemaError, "labels must be hashable"),
        pytest.param(
            np.ma.masked_array(POSITIONS, [1, 0, 0, 0, 0]),
            SchemaError,
            "1 missing entries",
        ),
    ],
)
def test_labels_that_are_refused(labels, error, message):
    with pytest.raises(error, match=message):
        source(np.array(labels, object) if isinstance(labels, list) else labels)


def test_missing_labels_are_counted_and_named():
    with pytest.raises(SchemaError, match="train_y has 2 missing entries"):
        read_labels(np.array([1, None, np.nan, 2], dtype=object), "train_y")


# Order of classes


def named(columns, proba=PROBA) -> pd.DataFrame:
    """A probability frame with its own memory, columns in the given order."""
    return pd.DataFrame({name: proba[:, "ab".index(name)].copy() for name in columns})


def test_sorted_labels_are_the_default_order():
    found = source(of("b", "a"), PROBA[:, ::-1].copy())
    assert found.classes == ("a", "b")
    assert found.labels.tolist() == (1 - POSITIONS).tolist()
    torch.testing.assert_close(found.proba, torch.tensor(PROBA[:, ::-1].copy()))


def test_explicit_classes_are_the_order_of_the_columns():
    found = source(of("a", "b"), PROBA[:, ::-1].copy(), classes=["b", "a"])
    assert found.classes == ("b", "a")
    assert found.labels.tolist() == (1 - POSITIONS).tolist()
    right = found.proba.gather(1, found.labels[:, None]).squeeze(1)
    assert right.tolist() == PROBA[np.arange(5), POSITIONS].tolist()


@pytest.mark.parametrize("classes", [np.array([0, 1]), pd.Index([0, 1]), (0.0, 1.0), [False, True]])
def test_classes_may_be_any_sequence_of_equal_values(classes):
    found = source(classes=classes)
    assert found.labels.tolist() == POSITIONS.tolist()
    assert not any(isinstance(c, np.generic) for c in found.classes)


def test_classes_may_include_one_that_the_source_never_shows():
    found = source(proba=np.c_[PROBA * 0.9, np.full(5, 0.1)], classes=[0, 1, 2])
    assert found.classes == (0, 1, 2)
    assert found.proba.shape == (5, 3)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_probability_frames_name_their_classes_in_any_order(order):
    found = source(of("a", "b"), named(order))
    assert found.classes == tuple(order)
    right = found.proba.gather(1, found.labels[:, None]).squeeze(1)
    assert right.tolist() == PROBA[np.arange(5), POSITIONS].tolist()


@pytest.mark.parametrize(
    ("source_order", "target_order", "classes"),
    [
        ("ab", "ab", None),
        ("ba", "ba", None),
        pytest.param("ab", "ba", None),
        pytest.param("ba", "ab", None),
        pytest.param("ba", "ba", "ab"),
    ],
)
def test_target_frames_follow_the_classes_of_the_source(source_order, target_order, classes):
    """pandas reverses two columns by a negative stride, which torch.tensor refuses."""
    order = None if classes is None else list(classes)
    found = source(of("a", "b"), named(source_order), classes=order)
    target = Target(FEATURES, named(target_order), found)
    assert found.classes == tuple(classes or source_order)
    assert torch.equal(target.proba, found.proba)


def test_three_classes_in_any_order():
    proba = np.c_[PROBA * 0.5, np.full(5, 0.5)]
    table = pd.DataFrame(proba, columns=["x", "y", "z"])
    found = source(["x", "y", "z", "x", "y"], table[["z", "x", "y"]])
    target = Target(FEATURES, table[["y", "z", "x"]], found)
    assert found.classes == ("z", "x", "y")
    assert torch.equal(target.proba, found.proba)
    again = source(["x", "y", "z", "x", "y"], table, classes=["y", "x", "z"])
    assert torch.equal(again.proba, torch.tensor(proba[:, [1, 0, 2]]))


@pytest.mark.parametrize(
    ("labels", "proba", "classes", "error", "message"),
    [
        pytest.param(of("a", "b"), PROBA, ["a", "c"], SchemaError, "holds 'b', not among", id="c"),
        pytest.param(POSITIONS, PROBA, ["0", "1"], SchemaError, "holds 0, 1, not among", id="text"),
        pytest.param(POSITIONS, PROBA, [0, 0], SchemaError, "two or more different", id="doubled"),
        pytest.param(POSITIONS, PROBA, [0], SchemaError, "two or more different", id="one"),
        pytest.param(POSITIONS, PROBA, [0, 1, 2], ShapeError, "2 probability col.* 3", id="three"),
        pytest.param(
            of("a", "b"),
            named("ab").set_axis(["x", "y"], axis=1),
            None,
            SchemaError,
            r"columns \['x', 'y'\] do not name the classes \['a', 'b'\]. Rename them",
            id="frame of other names",
        ),
        pytest.param(
            POSITIONS,
            named("ab").set_axis(["0", "1"], axis=1),
            None,
            SchemaError,
            r"columns \['0', '1'\] do not name the classes \[0, 1\]",
            id="frame of digits as text",
        ),
        pytest.param(
            POSITIONS,
            np.c_[PROBA, np.zeros(5)],
            None,
            ShapeError,
            r"3 probability columns but 2 classes \[0, 1\]. Give `classes`",
            id="a column too many",
        ),
        pytest.param(
            [0, 1, 2, 0, 1], PROBA[:, 1], None, ShapeError, "2 probability.* 3 classes", id="(n,)"
        ),
        pytest.param(
            POSITIONS,
            PROBA,
            2,
            SchemaError,
            "classes",
            id="a number",
        ),
        pytest.param(
            POSITIONS,
            PROBA,
            [[0], [1]],
            SchemaError,
            "classes",
            id="unhashable",
        ),
        pytest.param(
            of("a", "b"),
            PROBA,
            {"a", "b"},
            SchemaError,
            "classes",
            id="a set",
        ),
        pytest.param(
            of("a", "b"),
            pd.DataFrame(np.full((5, 3), 1 / 3), columns=["a", "b", "b"]),
            None,
            SchemaError,
            "duplicate|twice|different",
            id="doubled columns",
        ),
    ],
)
def test_ambiguous_class_orders_are_refused(labels, proba, classes, error, message):
    with pytest.raises(error, match=message):
        source(labels, proba, classes=classes)


def test_classes_may_be_a_tensor():
    assert source(classes=torch.tensor([0, 1])).classes == (0, 1)


@pytest.mark.parametrize("proba", [named("a"), named("a")["a"]], ids=["frame", "series"])
def test_a_single_column_named_after_the_first_class_is_not_the_second(proba):
    try:
        found = source(of("a", "b"), proba)
    except SeesError:
        return
    torch.testing.assert_close(found.proba, torch.tensor(PROBA))


def test_target_frames_are_matched_by_the_names_of_the_source():
    found = source(POSITIONS, named("ab"), classes=[0, 1])
    assert torch.equal(Target(FEATURES, named("ba"), found).proba, found.proba)
    with pytest.raises(SchemaError, match="name them alike"):
        Target(FEATURES, named("ab").set_axis(["x", "y"], axis=1), found)
    by_class = source(of("a", "b"), named("ab"))
    with pytest.raises(SchemaError, match=r"\['x', 'y'\] do not name the classes \['a', 'b'\]"):
        Target(FEATURES, named("ab").set_axis(["x", "y"], axis=1), by_class)


def test_an_unnamed_column_in_a_frame_is_the_second_class():
    """pd.DataFrame(p) calls its only column 0, which is a class too when labels are 0 and 1."""
    try:
        found = source(proba=pd.DataFrame(PROBA[:, 1]))
    except SeesError:
        return
    torch.testing.assert_close(found.proba, torch.tensor(PROBA))


# Probabilities and multiplicities


def test_two_classes_take_one_column_for_the_second():
    both = source().proba
    for single in (PROBA[:, 1], PROBA[:, 1:], PROBA[:, 1].tolist(), pd.Series(PROBA[:, 1])):
        torch.testing.assert_close(source(proba=single).proba, both, rtol=0, atol=1e-15)


def test_target_width_must_equal_the_source():
    with pytest.raises(ShapeError, match="target_proba has 3 columns, source_proba has 2"):
        Target(FEATURES, np.full((5, 3), 1 / 3), source())


def test_empty_target_is_refused():
    with pytest.raises(SupportError, match="target is empty: at least one row"):
        Target(FEATURES[:0], PROBA[:0], source())


def test_kinds_and_schema_exclude_each_other():
    with pytest.raises(SeesError, match="kinds or schema, not both"):
        source(kinds={0: "categorical"}, schema=source().schema)


def test_a_given_schema_codes_the_source():
    again = Source(FEATURES[:2], [0, 1], PROBA[:2], schema=source().schema)
    assert again.schema.columns[0].levels == (0.0, 1.0, 2.0)


def test_means_and_masses_count_rows_by_their_multiplicity():
    weight = np.array([2.0, 0.0, 0.5, 1.0, 1.5])
    found = source(weight=weight)
    assert found.total == 5.0
    assert found.mass.tolist() == (weight / 5).tolist()
    assert found.mean(torch.arange(5.0)) == np.average(np.arange(5), weights=weight)
    per_class = found.mean(found.proba)
    np.testing.assert_allclose(per_class, np.average(PROBA, axis=0, weights=weight))
    assert found.predictions.tolist() == PROBA.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    "weight",
    [
        np.array([1, 0, 2, 1, 1]),
        [1, 0, 2, 1, 1],
        torch.tensor([1, 0, 2, 1, 1]),
        torch.tensor([1, 0, 2, 1, 1]).half(),
        np.array([True, False, True, True, True]),
    ],
    ids=["ints", "list", "tensor", "half", "bool"],
)
def test_multiplicities_of_any_number_type(weight):
    expected = torch.as_tensor(np.asarray(weight), dtype=torch.float64)
    found = source(weight=weight)
    assert torch.equal(found.count, expected)
    assert torch.equal(Target(FEATURES, PROBA, found, weight=weight).count, expected)


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(pd.Series([1, 0, 2, 1, 1]), id="series"),
        pytest.param(np.array([1, 0, 2, 1, 1], object), id="objects"),
        pytest.param(np.array([1.0, 1, 2, 0, 1])[::-1], id="negative stride"),
    ],
)
def test_multiplicities_from_pandas_and_odd_arrays(weight):
    torch.set_warn_always(True)
    try:
        assert source(weight=weight).count.tolist() == [1, 0, 2, 1, 1]
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        ([1, 1, -1, 1, 1], SeesError, "must be non-negative, finite and not all zero"),
        ([1, np.nan, 1, 1, 1], SeesError, "must be non-negative, finite"),
        ([1, np.inf, 1, 1, 1], SeesError, "must be non-negative, finite"),
        ([0, 0, 0, 0, 0], SeesError, "not all zero"),
        ([1, 1, 1, 1], ShapeError, "4"),
        (np.ones((5, 1)), ShapeError, r"\(5, 1\)"),
        (2.0, ShapeError, r"got \(\)"),
        (["a"] * 5, SchemaError, "is not numeric"),
        ([None] * 5, SeesError, "must be non-negative, finite"),
    ],
)
def test_senseless_multiplicities_are_refused(weight, error, message):
    with pytest.raises(error, match=f"source_weight.*{message}"):
        source(weight=weight)
    with pytest.raises(error, match=f"target_weight.*{message}"):
        Target(FEATURES, PROBA, source(), weight=weight)


def test_a_class_without_mass_does_not_count():
    with pytest.raises(SupportError, match="single class"):
        source(weight=1.0 - POSITIONS)


def test_treatments_name_what_the_source_never_showed():
    table = pd.DataFrame({"town": ["a", "b"] * 20, "age": np.arange(40.0), "gone": [np.nan] * 40})
    found = Source(table, [0, 1] * 20, np.full((40, 2), 0.5))
    moved = table.assign(town=["a", "z"] * 20, age=np.arange(40.0) + 20)
    assert Target(table, np.full((40, 2), 0.5), found).notes == (
        "gone: empty in the source, so it cannot explain a shift",
    )
    notes = Target(moved, np.full((40, 2), 0.5), found).notes
    assert notes[0] == "town: 50.00% of the target has levels unknown to the source"
    assert notes[1] == "age: 50.00% of the target lies outside 0 to 39 and was clamped to it"
    weighted = Target(moved, np.full((40, 2), 0.5), found, weight=[1.0, 0.0] * 20)
    assert not any("town" in note for note in weighted.notes)


def test_treatments_name_cells_that_are_missing_only_in_the_target():
    table = pd.DataFrame({"town": ["a", "b"] * 20})
    found = Source(table, [0, 1] * 20, np.full((40, 2), 0.5))
    notes = Target(table.where(table == "a"), np.full((40, 2), 0.5), found).notes
    assert any("town" in note and "missing" in note for note in notes)


def test_another_posterior_leaves_the_sample_alone():
    found = source()
    other = found.with_posterior(found.proba.flip(1))
    assert torch.equal(found.posterior, found.proba)
    assert torch.equal(other.posterior, found.proba.flip(1))
    assert torch.equal(other.proba, found.proba)


def test_other_multiplicities_leave_the_sample_alone():
    found = source()
    other = found.with_count(2 * found.count)
    assert torch.equal(found.count, torch.ones(5).double())
    assert torch.equal(other.count, 2 * torch.ones(5).double())
    assert torch.equal(other.labels, found.labels)
    assert float(other.total) == 10


# Labels of the target


def target(labels, known: Source) -> Target:
    return Target(
        np.arange(len(labels))[:, None] % 2, np.full((len(labels), 2), 0.5), known, labels=labels
    )


@pytest.mark.parametrize(
    "labels",
    [
        ["b", None, "a", float("nan")],
        np.array(["b", None, "a", None], dtype=object),
        pd.Series(["b", None, "a", None]),
        pd.Series(["b", None, "a", None], dtype="category"),
        pd.Series(["b", pd.NA, "a", pd.NA], dtype="string"),
    ],
    ids=["list", "objects", "series", "category", "string"],
)
def test_target_labels_may_be_missing(labels):
    assert target(labels, source(of("a", "b"))).labels.tolist() == [1, -1, 0, -1]


@pytest.mark.parametrize("labels", [[1.0, np.nan, 0.0], torch.tensor([1.0, torch.nan, 0.0])])
def test_target_labels_may_be_numbers_with_gaps(labels):
    assert target(labels, source()).labels.tolist() == [1, -1, 0]


def test_without_target_labels_none_is_known():
    plain = Target(np.zeros((3, 1)), np.full((3, 2), 0.5), source())
    assert plain.labels.tolist() == [-1, -1, -1]
    assert target([None, None, None], source()).labels.tolist() == [-1, -1, -1]


def test_target_labels_follow_the_order_of_the_classes():
    turned = source(of("a", "b"), PROBA[:, ::-1].copy(), classes=["b", "a"])
    assert target(["b", None, "a"], turned).labels.tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (["c", None, "a"], SchemaError, "target_labels holds 'c', not among the classes"),
        (np.eye(3), ShapeError, "target_labels"),
    ],
)
def test_target_labels_that_are_refused(labels, error, message):
    with pytest.raises(error, match=message):
        target(labels, source(of("a", "b")))


def test_target_labels_of_another_length_are_refused():
    with pytest.raises(ShapeError, match="target_labels has 2 entries, target has 3 rows"):
        Target(np.zeros((3, 1)), np.full((3, 2), 0.5), source(), labels=[0, 1])


@pytest.mark.parametrize(
    ("weight", "population"),
    [(None, False), ([2.0] * 5, False), ([0.2] * 5, True), ([1.0, 1.0, 1.0, 1.0, 0.0], False)],
    ids=["rows", "repeated", "probabilities", "a row that does not count"],
)
def test_a_population_is_told_from_rows_by_its_multiplicities(weight, population):
    here = source(weight=weight)
    there = Target(np.zeros((3, 1)), np.full((3, 2), 0.5), here)
    assert is_population(here, there) is population
