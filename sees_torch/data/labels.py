"""Labels of any hashable kind as positions in an explicit order of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.arrays import as_array
from sees_torch.data.columns import FEW_CODES
from sees_torch.errors import SchemaError, ShapeError, SupportError


@dataclass(frozen=True)
class Labels:
    """A label column: its distinct values, and which of them every row has."""

    values: tuple[Any, ...]
    of_row: Tensor

    def __len__(self) -> int:
        return len(self.of_row)

    def where(self, kept: Tensor) -> Labels:
        """The labels of some rows; values that none of them has are forgotten."""
        if bool(kept.all()):
            return self
        used, of_row = torch.unique(self.of_row[kept], return_inverse=True)
        return Labels(tuple(self.values[place] for place in used.tolist()), of_row)

    def positions(self, classes: Sequence[Any], what: str = "labels") -> Tensor:
        """(n,) int64 positions in `classes`; a label that is not among them is refused."""
        place = {value: position for position, value in enumerate(classes)}
        strangers = [repr(value) for value in self.values if value not in place]
        if strangers:
            raise SchemaError(
                f"{what} holds {', '.join(strangers[:5])}, not among the classes {list(classes)}. "
                "Give `classes` with every class, in the order of the probability columns."
            )
        table = torch.tensor([place[value] for value in self.values], dtype=torch.int64)
        return table.to(self.of_row.device)[self.of_row]


def read_labels(labels: Any, what: str = "labels") -> Labels:
    """A label column of any accepted type; missing entries are refused."""
    if labels is None:
        raise SupportError(f"{what} is None: the source must be labelled, one class per row.")
    column = _read_column(labels, what)
    if not len(column):
        raise SupportError(f"{what} is empty: at least one labelled source row is needed.")
    absent = int(_missing(column).sum())
    if absent:
        raise SchemaError(
            f"{what} has {absent} missing entries. Drop those rows, the source must be labelled."
        )
    return column


def read_some_labels(labels: Any, classes: Sequence[Any], what: str) -> Tensor:
    """(m,) int64 positions in `classes`, -1 where an entry is missing (None or NaN)."""
    column = _read_column(labels, what)
    known = ~_missing(column)
    positions = torch.full_like(column.of_row, -1)
    if bool(known.any()):
        positions[known] = column.where(known).positions(classes, what)
    return positions


def _missing(column: Labels) -> Tensor:
    """(n,) bool, entries that are None or NaN."""
    gone = [place for place, value in enumerate(column.values) if value is None or value != value]
    if not gone:
        return torch.zeros_like(column.of_row, dtype=torch.bool)
    return torch.isin(column.of_row, torch.tensor(gone, device=column.of_row.device))


def _read_column(labels: Any, what: str) -> Labels:
    if isinstance(labels, Tensor):
        column = _as_column(labels.detach(), what)
        distinct, of_row = _ranked(column)
        values = tuple(distinct.tolist())
    else:
        values, of_row = _factorize(labels, what)
    return Labels(values, of_row)


def _ranked(column: Tensor) -> tuple[Tensor, Tensor]:
    """The different values, ascending, and the place of every row's among them."""
    if column.dtype in (torch.int32, torch.int64) and len(column):
        low, high = (int(bound) for bound in column.aminmax())
        if high - low < FEW_CODES:
            # Whole numbers in a small range: counting them is faster than sorting.
            place = column.to(torch.int64) - low
            seen = torch.bincount(place) > 0
            return seen.nonzero().squeeze(1) + low, (seen.cumsum(0) - 1)[place]
    return torch.unique(column, return_inverse=True)


def _factorize(labels: Any, what: str) -> tuple[tuple[Any, ...], Tensor]:
    if hasattr(labels, "to_numpy"):
        numeric = (
            getattr(labels.dtype, "kind", "O") in "fiub" if hasattr(labels, "dtype") else False
        )
        # As objects dates stay dates; a plain conversion would make them whole numbers.
        array = labels.to_numpy() if numeric else np.asarray(labels.astype(object))
    else:
        array = as_array(labels, what)
    column = _as_column(array, what)
    if column.dtype.kind in "fiub":
        uniques, inverse = np.unique(column, return_inverse=True)
        return tuple(uniques.tolist()), torch.from_numpy(inverse.astype(np.int64))
    import pandas as pd

    if column.dtype.kind in "Mm":
        column = pd.Series(column).astype(object).to_numpy()
    try:
        inverse, uniques = pd.factorize(column.astype(object), use_na_sentinel=False)
    except TypeError as error:
        raise SchemaError(f"{what} must be hashable: {error}.") from None
    values = tuple(None if pd.isna(value) else value for value in uniques)
    return values, torch.from_numpy(np.asarray(inverse, dtype=np.int64))


def _as_column(array: Any, what: str) -> Any:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ShapeError(
            f"{what} must be one class per row, shape (n,); got shape {tuple(array.shape)}. "
            "Turn one-hot labels into class names or numbers first."
        )
    return array


def read_classes(classes: Any) -> tuple[Any, ...]:
    """The order of classes as the user gave it: a list, tuple, array, index or tensor."""
    if isinstance(classes, Tensor):
        classes = classes.tolist()
    if isinstance(classes, (set, frozenset, str, bytes)) or not hasattr(classes, "__iter__"):
        raise SchemaError(
            f"classes must be a list in the order of the probability columns, got {classes!r}."
        )
    order = tuple(v.item() if isinstance(v, np.generic) else v for v in classes)
    try:
        distinct = len(set(order))
    except TypeError as error:
        raise SchemaError(f"classes must be hashable: {error}.") from None
    if distinct != len(order) or distinct < 2:
        raise SchemaError(f"classes must be two or more different values, got {list(order)}.")
    return order


def resolve_classes(
    labels: Labels,
    columns: int,
    classes: tuple[Any, ...] | None,
    column_names: Sequence[Any] | None,
    part: bool = False,
) -> tuple[Any, ...]:
    """The order of the probability columns.

    Given by `classes`, else by the names of the probability columns, else by the sorted labels
    when there are exactly as many of them as columns. Anything else is ambiguous and refused.
    `part` of a sample may show a single class.
    """
    if classes is not None:
        order = classes
    elif column_names is not None and set(labels.values) <= set(column_names):
        order = tuple(column_names)
    elif column_names is not None:
        raise SchemaError(
            f"the probability columns {list(column_names)} do not name the classes "
            f"{list(labels.values)}. Rename them, or give `classes` in their order."
        )
    else:
        order = _sorted(labels.values)
    if len(labels.values) < 2 and not part:
        raise SupportError(
            f"labels holds a single class, {labels.values[0]!r}: the labelled source must show at "
            "least two, or nothing can be said about the others."
        )
    if len(order) != columns:
        raise ShapeError(
            f"there are {columns} probability columns but {len(order)} classes {list(order)}. "
            "Give `classes` with one entry per probability column, in their order."
        )
    return order


def _sorted(values: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(values))
    except TypeError:
        raise SchemaError(
            f"labels mixes types that have no order ({sorted({type(v).__name__ for v in values})})."
            " Give `classes` in the order of the probability columns."
        ) from None
