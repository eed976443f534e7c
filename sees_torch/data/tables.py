"""User tables (DataFrame, ndarray, Tensor) as named columns.

A column is either numeric, a float64 tensor with NaN for missing, or symbolic, a list of distinct
values and the place of every row's value in it. pandas is imported only when a table needs it.
"""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.arrays import as_array, as_numbers
from sees_torch.errors import SchemaError, ShapeError

Name = Hashable
EXACT = 2**53
"""Whole numbers beyond this are not exact in float64 and stay symbols."""


@dataclass(frozen=True)
class RawColumn:
    """One column as the user gave it, with `numbers`, or with `symbols` and their `places`.

    Dates are numbers, in seconds since 1970, and marked `dated`. The place of a missing symbol is
    one past the last.
    """

    name: Name
    numbers: Tensor | None = None
    symbols: tuple[Any, ...] = ()
    places: Tensor | None = None
    declared_categorical: bool = False
    boolean: bool = False
    dated: bool = False

    def all_missing(self) -> bool:
        if self.numbers is not None:
            return bool(self.numbers.isnan().all())
        assert self.places is not None
        return bool((self.places == len(self.symbols)).all())


@dataclass(frozen=True)
class RawTable:
    """Columns of one length; `named` tells names of the user from mere positions."""

    columns: tuple[RawColumn, ...]
    named: bool
    rows: int
    device: torch.device


def is_frame(data: Any) -> bool:
    """Whether `data` is a pandas DataFrame, without importing pandas for it."""
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def read_table(data: Any, what: str) -> RawTable:
    """The columns of a DataFrame, ndarray or Tensor; `what` names it in errors."""
    if is_frame(data):
        return _read_frame(data, what, named=True)
    if isinstance(data, Tensor):
        _require_two_dimensions(data.ndim, tuple(data.shape), what)
        values = as_numbers(data.detach(), what)
        boolean = data.dtype == torch.bool
        columns = tuple(
            RawColumn(name=j, numbers=values[:, j].contiguous(), boolean=boolean)
            for j in range(values.shape[1])
        )
        return RawTable(columns, False, len(data), data.device)
    array = as_array(data, what)
    _require_two_dimensions(array.ndim, array.shape, what)
    if array.dtype.kind == "b":
        return read_table(torch.from_numpy(array.copy()), what)
    if array.dtype.kind == "f":
        return read_table(as_numbers(array, what), what)
    import pandas as pd

    return _read_frame(pd.DataFrame(array).infer_objects(), what, named=False)


def _require_two_dimensions(ndim: int, shape: tuple[int, ...], what: str) -> None:
    if ndim != 2:
        raise ShapeError(
            f"{what} must be a table with one row per example and one column per feature; "
            f"got shape {shape}. Reshape a single feature to (n, 1)."
        )


def _read_frame(frame: Any, what: str, named: bool) -> RawTable:
    doubled = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
    if doubled:
        raise SchemaError(
            f"{what} has duplicate column names: {', '.join(doubled)}. Rename or drop them, "
            "columns are matched by name."
        )
    names = list(frame.columns)
    columns = tuple(_read_series(frame.iloc[:, j], names[j], what) for j in range(len(names)))
    return RawTable(columns, named, len(frame), torch.device("cpu"))


def _read_series(series: Any, name: Any, what: str) -> RawColumn:
    import pandas as pd

    declared = isinstance(series.dtype, pd.CategoricalDtype)
    if declared:
        series = series.astype(object).infer_objects()
    if pd.api.types.is_complex_dtype(series.dtype):
        raise SchemaError(f"column {name!r} of {what} is complex: give real numbers.")
    if isinstance(series.dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return RawColumn(name, _seconds(series), declared_categorical=declared, dated=True)
    if pd.api.types.is_timedelta64_dtype(series.dtype):
        return RawColumn(
            name, as_numbers(series.dt.total_seconds(), what), declared_categorical=declared
        )
    if pd.api.types.is_bool_dtype(series.dtype):
        return RawColumn(
            name, as_numbers(series, what), declared_categorical=declared, boolean=True
        )
    if pd.api.types.is_numeric_dtype(series.dtype) and not _beyond_exact(series):
        return RawColumn(name, as_numbers(series, what), declared_categorical=declared)
    return _read_objects(series, name, what, declared)


def _read_objects(series: Any, name: Any, what: str, declared: bool) -> RawColumn:
    """A column of Python objects: flags, numbers or dates with gaps, else symbols."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(series.to_numpy(dtype=object))
    except TypeError as error:
        raise SchemaError(
            f"column {name!r} of {what} holds values that cannot be compared ({error}). "
            "Turn them into strings or numbers, or drop the column."
        ) from None
    values = tuple(distinct)
    places = torch.from_numpy(np.where(codes < 0, len(values), codes).astype(np.int64))

    def looked_up(numbers: Any) -> Tensor:
        return torch.tensor([*numbers, np.nan], dtype=torch.float64)[places]

    if values and all(isinstance(value, (bool, np.bool_)) for value in values):
        flags = looked_up(map(float, values))
        return RawColumn(name, flags, declared_categorical=declared, boolean=True)
    if values and all(_is_exact_number(value) for value in values):
        return RawColumn(name, looked_up(map(float, values)), declared_categorical=declared)
    if values and all(type(value) is datetime.date for value in values):
        days = _seconds(pd.Series(pd.array(list(values), dtype="datetime64[s]")))
        return RawColumn(name, looked_up(days), declared_categorical=declared, dated=True)
    return RawColumn(name, None, values, places, declared)


def _is_exact_number(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        return False
    return not isinstance(value, numbers.Integral) or abs(int(value)) <= EXACT


def _beyond_exact(series: Any) -> bool:
    import pandas as pd

    if not pd.api.types.is_integer_dtype(series.dtype) or series.isna().all():
        return False
    return max(abs(int(series.min())), abs(int(series.max()))) > EXACT


def _seconds(series: Any) -> Tensor:
    """Seconds since 1970, NaN for missing, whatever the resolution or the time zone."""
    if getattr(series.dtype, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    stamps = series.to_numpy().astype("datetime64[us]")
    seconds = stamps.astype(np.int64) / 1e6
    return torch.from_numpy(np.where(np.isnat(stamps), np.nan, seconds))
