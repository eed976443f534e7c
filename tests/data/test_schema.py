"""Any table a user may hand in: kinds, levels, bins, missing and unseen values, refusals."""

from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import Schema, SchemaError, SeesError, ShapeError, SupportError
from sees_torch.data import Column


def frame(values, name="c") -> pd.DataFrame:
    return pd.DataFrame({name: values})


def column(values, kind=None, **options) -> Column:
    kinds = None if kind is None else {"c": kind}
    return Schema.learn(frame(values), kinds, **options).columns[0]


def codes(source, target) -> list[int]:
    """Codes of a target column under the schema of a source column."""
    return Schema.learn(frame(source)).encode(frame(target)).codes[:, 0].tolist()


DAY = 86400.0
DATES = pd.to_datetime(["1970-01-02", "1970-01-03", "1970-01-02"])


@pytest.mark.parametrize(
    ("values", "kind", "levels"),
    [
        pytest.param([2, 1, 2], "categorical", (1.0, 2.0), id="few ints"),
        pytest.param(range(20), "categorical", tuple(map(float, range(20))), id="20 values"),
        pytest.param(range(21), "continuous", (), id="21 values"),
        pytest.param([0.5, 1.5], "categorical", (0.5, 1.5), id="few floats"),
        pytest.param([7.0, 7.0], "categorical", (7.0,), id="constant"),
        pytest.param([True, False], "categorical", (False, True), id="bool"),
        pytest.param(["b", "a"], "categorical", ("a", "b"), id="text"),
        pytest.param([str(i) for i in range(50)], "categorical", None, id="50 texts"),
        pytest.param(["1", "0"], "categorical", ("0", "1"), id="digits as text"),
        pytest.param(["", "a", " a"], "categorical", ("", " a", "a"), id="blank text"),
        pytest.param(pd.Categorical(range(40)), "categorical", None, id="40 int categories"),
        pytest.param(
            pd.Categorical(["b", "a"], ["b", "a", "z"]), "categorical", ("a", "b"), id="c"
        ),
        pytest.param(pd.Categorical([2, None, 1]), "categorical", (1.0, 2.0), id="int cat, NaN"),
        pytest.param(pd.Categorical([None, None]), "categorical", (), id="empty categorical"),
        pytest.param(DATES, "categorical", (DAY, 2 * DAY), id="few dates"),
        pytest.param(pd.date_range("2000", periods=21), "continuous", (), id="many dates"),
        pytest.param(pd.date_range("2000", periods=21, tz="UTC"), "continuous", (), id="zones"),
        pytest.param([1, None], "categorical", (1.0,), id="None among ints"),
        pytest.param(["a", np.nan, None, pd.NA, pd.NaT], "categorical", ("a",), id="every missing"),
        pytest.param([np.inf, 1.0], "categorical", (1.0, np.inf), id="infinity is a level"),
        pytest.param([np.nan] * 3, "categorical", (), id="all NaN"),
        pytest.param([None] * 3, "categorical", (), id="all None"),
        pytest.param(pd.array([1, None], "Int64"), "categorical", (1.0,), id="Int64"),
        pytest.param(pd.array([1.5, None], "Float64"), "categorical", (1.5,), id="Float64"),
        pytest.param(pd.array([True, None], "boolean"), "categorical", (True,), id="boolean"),
        pytest.param(pd.array(["a", None], "string"), "categorical", ("a",), id="string"),
        pytest.param(pd.array([1, 2], "int64[pyarrow]"), "categorical", (1.0, 2.0), id="arrow"),
        pytest.param([1, "a", 1], "categorical", (1, "a"), id="mixed"),
        pytest.param([(1, 2), (0, 1)], "categorical", ((0, 1), (1, 2)), id="tuples"),
        pytest.param([Decimal(2), Decimal(1)], "categorical", (Decimal(1), Decimal(2)), id="dec"),
        pytest.param(pd.arrays.SparseArray([0, 0, 1]), "categorical", (0.0, 1.0), id="sparse"),
        pytest.param(
            pd.Categorical(pd.date_range("2000", periods=40)),
            "categorical",
            None,
            id="40 date categories",
        ),
        pytest.param(
            [date(2000 + i, 1, 1) for i in range(40)],
            "continuous",
            (),
            id="date objects",
        ),
        pytest.param(
            pd.period_range("2000", periods=40, freq="D"),
            "continuous",
            (),
            id="periods",
        ),
        pytest.param(
            pd.to_timedelta(range(40), unit="D"),
            "continuous",
            (),
            id="durations",
        ),
    ],
)
def test_kind_follows_the_stated_rule(values, kind, levels):
    found = column(values)
    assert found.kind == kind
    if levels is not None:
        assert found.levels == levels
        assert [type(v) for v in found.levels] == [type(v) for v in levels]


@pytest.mark.parametrize(
    ("values", "kind"),
    [(range(50), "categorical"), ([0, 1, 0], "continuous"), ([True, False], "continuous")],
)
def test_kinds_override_the_rule(values, kind):
    found = column(values, kind)
    assert found.kind == kind
    assert found.seen_codes == (50 if kind == "categorical" else 2)


def test_kinds_by_position_for_arrays():
    schema = Schema.learn(np.arange(60.0).reshape(30, 2), {1: "categorical"})
    assert [c.kind for c in schema.columns] == ["continuous", "categorical"]
    assert schema.names == (0, 1)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"z": "categorical"}, r"does not have: \['z'\]. Its columns are \['c'\]"),
        ({"c": "ordinal"}, "takes 'categorical' or 'continuous', got {'c': 'ordinal'}"),
        ({"c": "continuous"}, "'c' holds text and cannot be continuous"),
        pytest.param("categorical", "kinds"),
        pytest.param(
            ["c"],
            "must be a mapping|column",
        ),
    ],
)
def test_wrong_kinds_are_refused(kinds, message):
    with pytest.raises(SchemaError, match=message):
        Schema.learn(frame(["a", "b"]), kinds)


@pytest.mark.parametrize("bins", [0, -1])
def test_senseless_bins_are_refused(bins):
    with pytest.raises(SeesError, match="bins"):
        column(range(30), bins=bins)


def test_schema_weights_may_be_an_array():
    assert column(range(30), weight=np.ones(30)) == column(range(30))


def test_schema_weights_of_another_length_are_refused():
    with pytest.raises(ShapeError, match="weight"):
        column(range(30), weight=torch.ones(7))


# Coding


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        pytest.param(["b", "a"], ["a", "b", None, "z"], [0, 1, 2, 3], id="text"),
        pytest.param([5, 3], [3.0, 5.0, np.nan, 4.0], [0, 1, 2, 3], id="int then float"),
        pytest.param([5, 3], pd.array([3, None, 9], "Int64"), [0, 2, 3], id="int then Int64"),
        pytest.param(pd.array([5, None], "Int64"), [5, 6], [0, 2], id="Int64 then int"),
        pytest.param([True, False], [0, 1, 2], [0, 1, 3], id="bool then 0/1"),
        pytest.param([0, 1], [True, False], [1, 0], id="0/1 then bool"),
        pytest.param([True, False], pd.array([True, None], "boolean"), [1, 2], id="bool, boolean"),
        pytest.param(pd.Categorical([3, 1]), [1, 3, 2], [0, 1, 3], id="int categories then int"),
        pytest.param([3, 1], pd.Categorical([1, None, 2]), [0, 2, 3], id="int then categories"),
        pytest.param(["a", "b"], pd.Categorical(["b"], ["z", "b"]), [1], id="other categories"),
        pytest.param(pd.array(["a"], "string"), ["a", "q"], [0, 2], id="string then object"),
        pytest.param([1, "1"], ["1", 1], [1, 0], id="mixed keeps 1 and '1' apart"),
        pytest.param([1, "a"], np.array([1.0, True, "a"], object), [0, 0, 1], id="1 == 1.0"),
        pytest.param(["a"], [np.nan, None, pd.NA, pd.NaT], [1] * 4, id="every missing is one code"),
        pytest.param(
            DATES, pd.to_datetime(["1970-01-03", None, "1999-01-01"]), [1, 2, 3], id="NaT"
        ),
        pytest.param([np.nan, np.nan], [1.0, np.nan], [1, 0], id="source all missing"),
        pytest.param([None, None], ["x", None], [1, 0], id="source all None, then text"),
        pytest.param([np.nan, np.nan], ["x", None], [1, 0], id="source all NaN, then text"),
        pytest.param(["a", "b"], [np.nan, np.nan], [2, 2], id="target all NaN under text"),
        pytest.param([1, 2], [None, None], [2, 2], id="target all None under numbers"),
        pytest.param([np.inf, 0.0], [np.inf, -np.inf, 0], [1, 3, 0], id="infinite level"),
        pytest.param(
            [True, False, None],
            [True, False],
            [1, 0],
            id="bool with None then bool",
        ),
        pytest.param(
            pd.Categorical([True, None, False]),
            [True, False],
            [1, 0],
            id="bool categories with NaN then bool",
        ),
        pytest.param(
            np.array([1, pd.NA], object),
            [1, 1],
            [0, 0],
            id="ints with pd.NA then ints",
        ),
        pytest.param(
            [2**53, 2**53 + 1],
            [2**53 + 1, 2**53],
            [1, 0],
            id="large ids",
        ),
        pytest.param([2**60, 1], [1, 2**60, 7, None], [0, 1, 3, 2], id="large and small ids"),
        pytest.param([1, 2], [1, 2**60], [0, 3], id="small ids, then a large one"),
        pytest.param([2**60, 1], [1.5, np.inf, 1.0], [3, 3, 0], id="large ids, then fractions"),
    ],
)
def test_levels_missing_and_unseen(source, target, expected):
    assert codes(source, target) == expected


def test_codes_leave_one_place_each_for_missing_and_unseen():
    found = column(["b", "a"])
    assert (found.seen_codes, found.missing, found.unseen, found.codes) == (2, 2, 3, 4)
    assert [found.describe(c) for c in range(4)] == ["a", "b", "missing", "unseen"]
    assert column([0.5, 2.0]).describe(1) == "2"
    assert column(np.arange(101.0)).describe(0) == "0 to 20"
    assert Schema.learn(pd.DataFrame({"a": [1, 2], "b": ["x", "x"]})).cardinalities == (4, 3)


def test_continuous_values_are_scaled_clamped_and_binned():
    schema = Schema.learn(frame(np.arange(101.0)))
    assert schema.columns[0].edges == (20.0, 40.0, 60.0, 80.0)
    rows = schema.encode(frame([0.0, 20.0, 20.5, 100.0, 150.0, -np.inf, np.inf, np.nan]))
    assert rows.codes[:, 0].tolist() == [0, 0, 1, 4, 4, 0, 4, 5]
    assert rows.values[:, 0].tolist() == [0.0, 0.2, 0.205, 1.0, 1.0, 0.0, 1.0, 0.0]
    assert rows.clamped[:, 0].tolist() == [False] * 4 + [True] * 3 + [False]


def test_infinite_source_values_do_not_set_the_range():
    found = column([np.inf, -np.inf, *range(30)])
    assert (found.kind, found.low, found.high) == ("continuous", 0.0, 29.0)
    assert all(np.isfinite(found.edges))
    values = Schema.learn(frame([np.inf, *range(30)])).encode(frame([np.inf, 3.0])).values
    assert values[:, 0].tolist() == [1.0, 3 / 29]


def test_a_range_beyond_float64_still_scales():
    source = frame(np.linspace(-1, 1, 30) * 1.7e308)
    values = Schema.learn(source).encode(source).values
    torch.testing.assert_close(values[:, 0], torch.linspace(0, 1, 30, dtype=torch.float64))


def test_far_dates_keep_their_order():
    days = np.array(["1600-01-01", "2000-01-01", "9999-12-31"], dtype="datetime64[s]")
    assert codes(days, days) == [0, 1, 2]


def test_dates_against_numbers_are_refused():
    with pytest.raises(SchemaError, match="date"):
        codes(DATES, [1, 2, 3])


def test_dates_are_described_as_dates():
    assert "1970-01-02" in column(DATES).describe(0)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 1e-9, 1e9])
def test_quantile_bins_of_weights_equal_those_of_repeats(scale):
    generator = np.random.default_rng(0)
    for trial in range(40):
        values = generator.normal(size=40).round(1 if trial % 2 else 12)
        times = generator.integers(1, 6, 40)
        bins = int(generator.integers(2, 12))
        weighted = column(values, "continuous", bins=bins, weight=torch.tensor(times * scale))
        assert weighted == column(values.repeat(times), "continuous", bins=bins)


def test_rows_of_weight_zero_teach_nothing():
    values = np.r_[np.arange(30.0), 1000.0]
    weighted = column(values, weight=torch.tensor([1.0] * 30 + [0.0]))
    assert weighted == column(values[:30])


def test_quantile_bins_hold_equal_shares_and_merge_where_values_repeat():
    generator = np.random.default_rng(1)
    values = generator.normal(size=1000)
    share = np.bincount(codes(values, values)) / 1000
    np.testing.assert_allclose(share, 0.2)
    mostly_zero = np.r_[np.zeros(900), np.arange(1, 101)]
    assert column(mostly_zero).edges == (0.0,)
    assert column([1.0] * 5, "continuous").edges == ()


# Tables


def test_frame_array_and_tensor_give_the_same_codes():
    generator = np.random.default_rng(2)
    array = np.c_[generator.integers(0, 3, 60), generator.normal(size=60)]
    tables = {
        "frame": pd.DataFrame(array, columns=["a", "b"]),
        "array": array,
        "objects": array.astype(object),
        "tensor": torch.tensor(array),
        "fortran": np.asfortranarray(array),
        "list": array.tolist(),
        "frame with its own index": pd.DataFrame(array, index=generator.permutation(60)),
    }
    expected = Schema.learn(array).encode(array)
    for name, table in tables.items():
        schema = Schema.learn(table)
        assert [c.kind for c in schema.columns] == ["categorical", "continuous"], name
        rows = schema.encode(table)
        assert torch.equal(rows.codes, expected.codes), name
        assert torch.equal(rows.values, expected.values), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_tensors_of_any_real_dtype(dtype):
    table = torch.tensor([[3, 0], [1, 1], [2, 0]]).to(dtype)
    schema = Schema.learn(table)
    assert schema.columns[0].levels == (1.0, 2.0, 3.0)
    assert schema.encode(table).codes.tolist() == [[2, 0], [0, 1], [1, 0]]
    assert Schema.learn(table > 0).columns[1].levels == (False, True)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(np.array([[1.0], [2.0]])[::-1], id="negative strides"),
        pytest.param(np.array([[2], [1]], dtype=">i4"), id="big-endian"),
        pytest.param(np.array([[2], [1]], dtype=np.longdouble), id="longdouble"),
    ],
)
def test_unusual_memory_layouts(table):
    assert Schema.learn(table).encode(table).codes[:, 0].tolist() == [1, 0]


def test_masked_cells_are_missing():
    table = np.ma.masked_equal(np.array([[1.0], [2.0], [9.0]]), 9.0)
    assert Schema.learn(table).columns[0].levels == (1.0, 2.0)


def test_columns_are_matched_by_name_in_any_order_and_by_position_without_names():
    source = pd.DataFrame({"a": [0, 1, 2], "b": ["x", "y", "x"]})
    schema = Schema.learn(source)
    expected = schema.encode(source).codes
    assert torch.equal(schema.encode(source[["b", "a"]]).codes, expected)
    assert torch.equal(schema.encode(source.to_numpy()).codes, expected)
    by_number = Schema.learn(source.set_axis([1, 0], axis=1))
    assert torch.equal(by_number.encode(source.set_axis([1, 0], axis=1)[[0, 1]]).codes, expected)
    assert torch.equal(Schema.learn(source.to_numpy()).encode(source).codes, expected)


def test_names_that_print_alike_stay_apart():
    source = pd.DataFrame([[0, 5], [1, 6]], columns=[2.0, "2.0"])
    assert Schema.learn(source).encode(source).codes.tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (pd.DataFrame({"a": [1]}), r"lacks \['b'\]. Give source and target the same"),
        (pd.DataFrame({"a": [1], "b": [1], "z": [1]}), r"has \['z'\], which source does not have"),
        (pd.DataFrame({"a": [1], "B": [1]}), r"lacks \['b'\] and has \['B'\]"),
        (pd.DataFrame([[1, 1]], columns=["a", "a"]), "duplicate column names: a"),
        (pd.DataFrame([[1, 1]], columns=["b", "b"]), "target has duplicate column names: b"),
        (np.ones((2, 3)), "has 3 columns, source has 2"),
        (torch.ones(2, 1), "has 1 columns, source has 2"),
    ],
)
def test_unequal_columns_are_refused(target, message):
    schema = Schema.learn(pd.DataFrame({"a": [0, 1], "b": [0, 1]}))
    with pytest.raises(SchemaError, match=message):
        schema.encode(target)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (["a", "b"], [1, 2], "'c' is numeric in target but text in source"),
        ([1, 2], ["a", "b"], "'c' is numeric in source but text in target"),
        ([1, 2], ["1", "2"], "Convert one of them so that equal values compare equal"),
        ([True, False], ["True", "False"], "numeric in source but text in target"),
        (range(30), ["a", "b"], "numeric in source but text in target"),
        (DATES, ["1970-01-02", "x"], "numeric in source but text in target"),
    ],
)
def test_text_against_numbers_is_refused(source, target, message):
    with pytest.raises(SchemaError, match=message):
        codes(source, target)


@pytest.mark.parametrize(
    "cell", [[1], {"k": 1}, {1}, np.arange(2)], ids=["list", "dict", "set", "array"]
)
def test_unhashable_cells_are_refused(cell):
    with pytest.raises(SchemaError, match=r"'c' of source holds values that cannot be compared"):
        Schema.learn(frame([cell, cell]))
    with pytest.raises(SchemaError, match=r"column 'c' of target .* drop the column"):
        codes(["a"], [cell])


class Plain:
    """Cells without order that print alike."""

    def __repr__(self) -> str:
        return "plain"


def test_cells_without_order_are_levels():
    values = [Plain(), Plain()]
    assert len(column(values).levels) == 2


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (np.ones(3), ShapeError, r"got shape \(3,\). Reshape a single feature to \(n, 1\)"),
        (pd.Series([1, 2]), ShapeError, "one row per example and one column per feature"),
        (np.ones((2, 2, 2)), ShapeError, r"got shape \(2, 2, 2\)"),
        (torch.tensor(1.0), ShapeError, r"got shape \(\)"),
        (None, ShapeError, "must be a table"),
        ({"a": [1]}, ShapeError, "must be a table"),
        (np.ones((3, 0)), SchemaError, "no columns"),
        (pd.DataFrame(index=range(3)), SchemaError, "no columns"),
        (np.ones((0, 3)), SupportError, "source is empty"),
        (pd.DataFrame({"a": []}), SupportError, "source is empty"),
        (torch.eye(2).to_sparse(), SchemaError, r"sparse tensor: make it dense with \.to_dense"),
        (torch.ones(2, 2, dtype=torch.complex64), SchemaError, "complex: give real numbers"),
        pytest.param(
            np.ones((2, 2), complex),
            SchemaError,
            "complex",
        ),
        pytest.param(
            [[1, 2], [1]],
            SeesError,
            "row",
        ),
    ],
)
def test_what_is_no_table_is_refused(table, error, message):
    with pytest.raises(error, match=message):
        Schema.learn(table)


def test_ten_thousand_levels():
    names = np.array([f"level {i}" for i in range(10_000)])
    shuffled = np.random.default_rng(3).permutation(10_000)
    found = column(names[shuffled])
    assert found.seen_codes == 10_000
    assert codes(names, names[shuffled]) == np.argsort(np.argsort(names))[shuffled].tolist()


def test_encoding_leaves_the_table_alone():
    table = pd.DataFrame({"a": [1.0, None], "b": ["x", None], "c": pd.Categorical(["u", None])})
    before = table.copy(deep=True)
    array = np.array([[1.0, np.nan], [2.0, 3.0]])
    kept = array.copy()
    Schema.learn(table).encode(table)
    Schema.learn(array).encode(array).values.fill_(7.0)
    pd.testing.assert_frame_equal(table, before)
    np.testing.assert_array_equal(array, kept)


def test_row_hashes_follow_named_columns():
    table = pd.DataFrame({"a": [0, 1, 2, 0], "b": [1, 0, 1, 1], "c": np.linspace(0, 1, 4)})
    schema, turned = Schema.learn(table), Schema.learn(table[["c", "b", "a"]])
    hashes = schema.row_hash(schema.encode(table))
    assert torch.equal(turned.row_hash(turned.encode(table)), hashes)
    assert torch.equal(schema.row_hash(schema.encode(table[::-1])), hashes.flip(0))
    assert len(hashes.unique()) == 4
