"""Numbers of any common container as float64 tensors; what cannot be one is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sees_torch.errors import SchemaError, SeesError, ShapeError


def as_array(data: Any, what: str) -> np.ndarray:
    """A native numpy array; masked entries become missing, ragged lists are refused."""
    if isinstance(data, np.ma.MaskedArray):
        missing = np.ma.getmaskarray(data)
        values = np.asarray(data).astype(object)
        values[missing] = None
        return values
    try:
        array = np.asarray(data)
    except ValueError:
        raise ShapeError(
            f"{what} has rows of different lengths: give a rectangular array."
        ) from None
    if array.dtype.kind == "c":
        raise SchemaError(f"{what} is complex: give real numbers.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_numbers(data: Any, what: str, device: torch.device | None = None) -> Tensor:
    """A dense float64 tensor, NaN for missing; text is refused."""
    if isinstance(data, Tensor):
        if data.layout is not torch.strided:
            raise SchemaError(f"{what} is a sparse tensor: make it dense with .to_dense().")
        if data.is_complex():
            raise SchemaError(f"{what} is complex: give real numbers.")
        return data.to(device=device, dtype=torch.float64)
    if hasattr(data, "to_numpy"):
        try:
            array = data.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            array = data.to_numpy()
    else:
        array = as_array(data, what)
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise SchemaError(
                f"{what} is not numeric: it holds {_first_text(array)!r}. Give plain numbers, with "
                "a decimal point and no percent signs."
            ) from None
    # A copy: the user's memory may be read-only or strided backwards, which torch refuses.
    return torch.from_numpy(np.array(array, dtype=np.float64, order="C")).to(device=device)


def _first_text(array: np.ndarray) -> Any:
    """The first entry that is no number."""
    for entry in array.ravel().tolist():
        try:
            float(entry)
        except (TypeError, ValueError):
            return entry
    return array.dtype.name


def read_count(weight: Any, rows: int, what: str, *, empty: bool = False) -> Tensor:
    """(n,) row multiplicities, checked; ones when none are given. All may be zero if `empty`."""
    if weight is None:
        return torch.ones(rows, dtype=torch.float64)
    count = as_numbers(weight, what)
    if count.shape != (rows,):
        raise ShapeError(f"{what} must have shape ({rows},), got {tuple(count.shape)}.")
    some = empty or float(count.sum()) > 0
    if not bool((count.isfinite() & (count >= 0)).all()) or not some:
        raise SeesError(f"{what} must be non-negative, finite and not all zero.")
    return count


def take_rows(table: Any, index: Tensor) -> Any:
    """Some rows of a table of any kind."""
    if isinstance(table, Tensor):
        return table[index.to(table.device)]
    if hasattr(table, "iloc"):
        return table.iloc[index.cpu().numpy()]
    return as_array(table, "table")[index.cpu().numpy()]
