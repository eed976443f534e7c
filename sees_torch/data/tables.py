"""User tables (DataFrame, ndarray, Tensor) as named columns.

A column is either numeric, a float64 tensor with NaN for missing, or symbolic, an object array with
None for missing. pandas is imported only when a table needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sees_torch.errors import SchemaError, ShapeError

Name = str | int


@dataclass(frozen=True)
class RawColumn:
    """One column as the user gave it; exactly one of `numbers` and `symbols` is set."""

    name: Name
    numbers: Tensor | None = None
    symbols: np.ndarray | None = None
    declared_categorical: bool = False
    boolean: bool = False

    def all_missing(self) -> bool:
        if self.numbers is not None:
            return bool(self.numbers.isnan().all())
        assert self.symbols is not None
        return all(value is None for value in self.symbols)


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
        if data.is_complex():
            raise SchemaError(f"{what} is complex: give real features.")
        boolean = data.dtype == torch.bool
        numbers = data.detach().to(torch.float64)
        columns = tuple(
            RawColumn(name=j, numbers=numbers[:, j].contiguous(), boolean=boolean)
            for j in range(numbers.shape[1])
        )
        return RawTable(columns, False, len(data), data.device)
    array = np.asarray(data)
    _require_two_dimensions(array.ndim, array.shape, what)
    if array.dtype.kind in "fiub":
        return read_table(torch.tensor(array), what)
    import pandas as pd

    return _read_frame(pd.DataFrame(array).infer_objects(), what, named=False)


def _require_two_dimensions(ndim: int, shape: tuple[int, ...], what: str) -> None:
    if ndim != 2:
        raise ShapeError(
            f"{what} must be a table with one row per example and one column per feature; "
            f"got shape {shape}. Reshape a single feature to (n, 1)."
        )


def _read_frame(frame: Any, what: str, named: bool) -> RawTable:
    names = list(frame.columns)
    doubled = sorted({str(name) for name in names if names.count(name) > 1})
    if doubled:
        raise SchemaError(
            f"{what} has duplicate column names: {', '.join(doubled)}. Rename or drop them, "
            "columns are matched by name."
        )
    columns = tuple(_read_series(frame.iloc[:, j], names[j], what) for j in range(len(names)))
    return RawTable(columns, named, len(frame), torch.device("cpu"))


def _read_series(series: Any, name: Any, what: str) -> RawColumn:
    import pandas as pd

    name = name if isinstance(name, (str, int)) else str(name)
    categorical = isinstance(series.dtype, pd.CategoricalDtype)
    if categorical:
        series = series.astype(series.cat.categories.dtype if not series.isna().any() else object)
    if pd.api.types.is_object_dtype(series.dtype):
        series = series.infer_objects()
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        # Seconds since the epoch keep order and distance, which is all a continuous column needs.
        missing = series.isna().to_numpy()
        seconds = series.to_numpy(dtype="datetime64[ns]").astype(np.int64) / 1e9
        return RawColumn(name, numbers=torch.from_numpy(np.where(missing, np.nan, seconds)))
    if pd.api.types.is_bool_dtype(series.dtype) or pd.api.types.is_numeric_dtype(series.dtype):
        numbers = torch.from_numpy(series.to_numpy(dtype=np.float64, na_value=np.nan).copy())
        boolean = bool(pd.api.types.is_bool_dtype(series.dtype))
        return RawColumn(name, numbers=numbers, declared_categorical=categorical, boolean=boolean)
    values = series.to_numpy(dtype=object)
    symbols = values.copy()
    symbols[pd.isna(series).to_numpy()] = None
    try:
        set(symbols)
    except TypeError as error:
        raise SchemaError(
            f"column {name!r} of {what} holds values that cannot be compared ({error}). "
            "Turn them into strings or numbers, or drop the column."
        ) from None
    return RawColumn(name, symbols=symbols, declared_categorical=categorical)


def as_rows(data: Any, index: np.ndarray) -> Any:
    """Rows `index` of a table of any accepted type, in the same type."""
    if is_frame(data):
        return data.iloc[index]
    if isinstance(data, Tensor):
        return data[torch.from_numpy(np.ascontiguousarray(index)).to(data.device)]
    return np.asarray(data)[index]
