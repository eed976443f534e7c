"""Files cut into chunks: by file, by number of rows, or by time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sees_torch.data.files import TableFile
from sees_torch.errors import SchemaError, SeesError, SeesWarning

if TYPE_CHECKING:
    import pandas as pd

Every = Literal["day", "week", "month"]
PERIODS = {"day": "D", "week": "W", "month": "M"}
MOST_EMPTY = 1000
"""More empty periods than this mean that a date is wrong."""


@dataclass(frozen=True)
class Chunk:
    """Rows that are estimated together; an empty chunk has no columns either."""

    name: str
    features: pd.DataFrame
    proba: Any
    """None where a model gives them."""


def file_chunks(files: Sequence[TableFile]) -> Iterator[Chunk]:
    """Every file a chunk, under the file's name."""
    for file in files:
        yield _joined(file.path.name, list(_batches(file)))


def row_chunks(files: Sequence[TableFile], rows: int) -> Iterator[Chunk]:
    """So many rows a chunk, the last one of a file what is left; named file[first:end]."""
    if rows < 1:
        raise SeesError(f"a chunk needs at least one row, got {rows}.")
    for file in files:
        kept: list[tuple[Any, Any]] = []
        start = size = 0
        for features, proba in _batches(file):
            at = 0
            while at < len(features):
                end = min(len(features), at + rows - size)
                kept.append((features.iloc[at:end], proba[at:end]))
                size, at = size + end - at, end
                if size == rows:
                    yield _joined(f"{file.path.name}[{start}:{start + rows}]", kept)
                    kept, start, size = [], start + rows, 0
        if kept or not start:
            yield _joined(f"{file.path.name}[{start}:{start + size}]", kept)


def time_chunks(files: Sequence[TableFile], column: str, every: Every) -> Iterator[Chunk]:
    """A chunk a day, week or month, in the order of time, over all files together.

    A period without rows between others is an empty chunk: that, too, is worth knowing. Rows
    without a date belong nowhere; their number is warned of.
    """
    found: dict[Any, list[tuple[Any, Any]]] = {}
    undated = 0
    for file in files:
        if column not in file.columns:
            raise SchemaError(f"{file.path} has no column {column!r}; it has {file.columns}.")
        for features, proba in _batches(file):
            period = _periods(features[column], every, file)
            undated += int(period.isna().sum())
            rest = features.drop(columns=column)
            for one, places in period.groupby(period).indices.items():
                part = rest.iloc[places]
                shares = proba.iloc[places] if hasattr(proba, "iloc") else proba[places]
                found.setdefault(one, []).append((part, shares))
    if undated:
        warnings.warn(
            f"{undated} rows have no {column!r} and are left out.", SeesWarning, stacklevel=2
        )
    if not found:
        raise SeesError(f"no row has a time in column {column!r}.")
    first, last = min(found), max(found)
    between = (last - first).n + 1
    if between - len(found) > MOST_EMPTY:
        raise SeesError(
            f"{between - len(found)} of the {every}s between {first} and {last} have no rows: "
            f"check the dates in {column!r}, or take longer periods."
        )
    for step in range(between):
        yield _joined(str(first + step), found.get(first + step, []))


def _periods(column: pd.Series[Any], every: Every, file: TableFile) -> pd.Series[Any]:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        raise SchemaError(
            f"column {column.name!r} of {file.path} holds numbers, not dates: write them as "
            "2024-05-31."
        )
    try:
        # One format: a guess could differ from file to file.
        times = pd.to_datetime(column, format="ISO8601")
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"column {column.name!r} of {file.path} holds no dates like 2024-05-31: {error}"
        ) from None
    if times.dt.tz is not None:
        times = times.dt.tz_localize(None)
    return times.dt.to_period(PERIODS[every])


def _batches(file: TableFile) -> Iterator[tuple[Any, Any]]:
    """Features and probabilities; these have no columns where the file has none."""
    import numpy as np

    for features, *proba in file:
        yield features, proba[0] if proba else np.empty((len(features), 0))


def _joined(name: str, parts: list[tuple[Any, Any]]) -> Chunk:
    import numpy as np
    import pandas as pd

    if not parts:
        return Chunk(name, pd.DataFrame(), np.empty(0))
    features = pd.concat([part for part, _ in parts], ignore_index=True)
    proba = np.concatenate([np.asarray(proba) for _, proba in parts])
    return Chunk(name, features, proba if proba.ndim == 1 or proba.shape[1] else None)
