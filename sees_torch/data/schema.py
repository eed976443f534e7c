"""What a column means, learnt once on the source and applied unchanged to every later table.

A column is *continuous* when it is numeric (dates included) with more than `max_levels` distinct
values in the source, and *categorical* otherwise; booleans, text and pandas categoricals are always
categorical. `kinds` overrides the rule per column.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.arrays import as_numbers
from sees_torch.data.counting import content_hash
from sees_torch.data.tables import Name, RawColumn, RawTable, is_frame, read_table
from sees_torch.errors import SchemaError, ShapeError, SupportError

Kind = Literal["categorical", "continuous"]
MAX_LEVELS = 20
BINS = 5


@dataclass(frozen=True)
class Rows:
    """Coded rows.

    Attributes:
        codes: (n, d) int64, the level of a categorical or the quantile bin of a continuous column,
            then one code for missing and one for unseen.
        values: (n, d) float64, continuous columns scaled to [0, 1] by the source range and clamped;
            0 where missing and in categorical columns.
        clamped: (n, d) bool, values that lay outside the source range.
    """

    codes: Tensor
    values: Tensor
    clamped: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def to(self, device: torch.device) -> Rows:
        return Rows(self.codes.to(device), self.values.to(device), self.clamped.to(device))

    def __getitem__(self, index: Tensor) -> Rows:
        return Rows(self.codes[index], self.values[index], self.clamped[index])


@dataclass(frozen=True)
class Column:
    """How one column is coded: its levels, or its range and inner bin edges."""

    name: Name
    kind: Kind
    numeric: bool
    levels: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 1.0
    dated: bool = False

    @property
    def seen_codes(self) -> int:
        """Number of ordinary levels or bins; the missing code, then the unseen code, follow."""
        return len(self.levels) if self.kind == "categorical" else len(self.edges) + 1

    @property
    def missing(self) -> int:
        return self.seen_codes

    @property
    def unseen(self) -> int:
        return self.seen_codes + 1

    @property
    def codes(self) -> int:
        return self.seen_codes + 2

    def describe(self, code: int) -> str:
        """The level or bin as a person would write it."""
        if code == self.missing:
            return "missing"
        if code == self.unseen:
            return "unseen"
        if self.kind == "categorical":
            level = self.levels[code]
            return self.show(level) if isinstance(level, float) else str(level)
        low = self.low if code == 0 else self.edges[code - 1]
        high = self.high if code == len(self.edges) else self.edges[code]
        return f"{self.show(low)} to {self.show(high)}"

    def show(self, number: float) -> str:
        """A value of a numeric column as a person would write it."""
        if self.dated:
            return str(np.datetime64(int(number), "s")).replace("T00:00:00", "")
        return f"{number:g}" if self.kind == "categorical" else f"{number:.4g}"


@dataclass(frozen=True)
class Schema:
    """The columns of a source sample: names, kinds, levels, ranges and bins."""

    columns: tuple[Column, ...]
    named: bool

    @classmethod
    def learn(
        cls,
        source: Any,
        kinds: Mapping[Name, Kind] | None = None,
        *,
        max_levels: int = MAX_LEVELS,
        bins: int = BINS,
        weight: Any = None,
    ) -> Schema:
        """The schema of a table.

        Args:
            source: DataFrame, ndarray or Tensor, one row per example.
            kinds: kind by column name (or position), where the rule should not decide.
            max_levels: numeric columns with more distinct values than this are continuous.
            bins: number of quantile bins of a continuous column.
            weight: (n,) row multiplicities, for the quantiles.

        >>> Schema.learn(np.array([[0.0, 1.5], [1.0, 2.5]])).columns[0].levels
        (0.0, 1.0)
        """
        table = read_table(source, "source")
        if not table.columns:
            raise SchemaError("source has no columns: at least one feature is needed.")
        if not table.rows:
            raise SupportError("source is empty: at least one labelled row is needed.")
        if kinds is not None and not isinstance(kinds, Mapping):
            raise SchemaError(
                f"kinds must be a mapping from column to kind, got {type(kinds).__name__}."
            )
        if bins < 1 or max_levels < 0:
            raise SchemaError(
                f"bins must be at least 1 and max_levels 0, got {bins}, {max_levels}."
            )
        if weight is not None:
            weight = as_numbers(weight, "weight", table.device)
            if weight.shape != (table.rows,):
                shape = tuple(weight.shape)
                raise ShapeError(f"weight must have shape ({table.rows},), got {shape}.")
        kinds = dict(kinds or {})
        unknown = [name for name in kinds if name not in {c.name for c in table.columns}]
        if unknown:
            raise SchemaError(
                f"kinds names columns that source does not have: {unknown}. "
                f"Its columns are {[c.name for c in table.columns]}."
            )
        wrong = {k: v for k, v in kinds.items() if v not in ("categorical", "continuous")}
        if wrong:
            raise SchemaError(f"kinds takes 'categorical' or 'continuous', got {wrong}.")
        columns = tuple(
            _learn_column(column, kinds.get(column.name), max_levels, bins, weight)
            for column in table.columns
        )
        return cls(columns, table.named)

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Codes per column, missing and unseen included."""
        return tuple(column.codes for column in self.columns)

    @property
    def continuous(self) -> tuple[bool, ...]:
        return tuple(column.kind == "continuous" for column in self.columns)

    def row_hash(self, rows: Rows) -> Tensor:
        """(n,) int64 hash of every row's content, whatever the order of rows and named columns."""
        salt = [zlib.crc32(repr(name).encode()) for name in self.names]
        return content_hash(
            rows.codes, rows.values, salt=torch.tensor(salt, device=rows.codes.device)
        )

    def encode(self, data: Any, what: str = "target") -> Rows:
        """Any table with these columns as coded rows; named columns are matched by name.

        Levels that the source never had become *unseen*; numbers outside the source range are
        clamped to it. Both are marked in what comes back and reported by the estimate.
        """
        table = read_table(data, what)
        if not table.rows:
            raise SupportError(f"{what} is empty: at least one row is needed.")
        coded = [
            _encode_column(column, raw, what)
            for column, raw in zip(self.columns, self._aligned(table, what), strict=True)
        ]
        codes, values, clamped = (torch.stack(part, dim=1) for part in zip(*coded, strict=True))
        return Rows(codes, values, clamped)

    def align(self, data: Any, what: str = "target") -> Any:
        """The same table with named columns in this schema's order, for models that count them."""
        if not (self.named and is_frame(data)):
            return data
        self._aligned(read_table(data.iloc[:0], what), what)
        return data[list(self.names)]

    def _aligned(self, table: RawTable, what: str) -> Sequence[RawColumn]:
        """The table's columns in this schema's order."""
        if not (self.named and table.named):
            if len(table.columns) != len(self.columns):
                raise SchemaError(
                    f"{what} has {len(table.columns)} columns, source has {len(self.columns)}: "
                    f"give the same features in the same order."
                )
            return table.columns
        given = {column.name: column for column in table.columns}
        absent = [name for name in self.names if name not in given]
        surplus = [name for name in given if name not in set(self.names)]
        if absent or surplus:
            parts = []
            if absent:
                parts.append(f"lacks {absent}")
            if surplus:
                parts.append(f"has {surplus}, which source does not have")
            raise SchemaError(
                f"{what} {' and '.join(parts)}. Give source and target the same feature columns "
                "(the label belongs in `labels`, probabilities in `source_proba`)."
            )
        return [given[name] for name in self.names]


def _learn_column(
    raw: RawColumn, kind: Kind | None, max_levels: int, bins: int, weight: Tensor | None
) -> Column:
    """How to code a column; rows of multiplicity zero do not count."""
    if raw.numbers is None:
        if kind == "continuous":
            raise SchemaError(
                f"column {raw.name!r} holds text and cannot be continuous. Convert it to numbers "
                "or leave it categorical."
            )
        assert raw.symbols is not None
        counted = raw.symbols if weight is None else raw.symbols[(weight > 0).cpu().numpy()]
        present = {value for value in counted if value is not None}
        ordered = sorted(present, key=lambda value: (type(value).__name__, str(value), repr(value)))
        return Column(raw.name, "categorical", False, tuple(ordered))
    mass = torch.ones_like(raw.numbers) if weight is None else weight.to(raw.numbers)
    counted_numbers = raw.numbers[mass > 0]
    distinct = counted_numbers[~counted_numbers.isnan()].unique()
    if kind is None:
        fixed = raw.boolean or raw.declared_categorical
        kind = "categorical" if fixed or len(distinct) <= max_levels else "continuous"
    finite = raw.numbers.isfinite() & (mass > 0)
    if kind == "continuous" and bool(finite.any()):
        numbers = raw.numbers[finite]
        edges = _quantiles(numbers, mass[finite], bins)
        low, high = float(numbers.min()), float(numbers.max())
        return Column(raw.name, kind, True, edges=edges, low=low, high=high, dated=raw.dated)
    levels = tuple(bool(v) if raw.boolean else v for v in distinct.tolist())
    return Column(raw.name, "categorical", True, levels, dated=raw.dated)


def _quantiles(numbers: Tensor, mass: Tensor, bins: int) -> tuple[float, ...]:
    """Inner edges of `bins` bins of equal mass; fewer where values repeat."""
    ordered, order = numbers.sort()
    share = mass[order].cumsum(0)
    wanted = torch.arange(1, bins, dtype=share.dtype, device=share.device) / bins * share[-1]
    # The tolerance makes a row of multiplicity two and two equal rows give the same edge.
    at = torch.searchsorted(share, wanted * (1 - 1e-12)).clamp_max(len(ordered) - 1)
    inner = ordered[at].unique()
    return tuple(inner[inner < ordered[-1]].tolist())


def _encode_column(column: Column, raw: RawColumn, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scaled values and clamped flags of one column, (n,) each."""
    if column.seen_codes and not raw.all_missing():
        raw = _comparable(column, raw, what)
    if column.kind == "categorical":
        codes = _level_codes(column, raw)
        return codes, torch.zeros_like(codes, dtype=torch.float64), torch.zeros_like(codes).bool()
    if raw.numbers is None:
        assert raw.symbols is not None
        numbers = torch.full((len(raw.symbols),), math.nan, dtype=torch.float64)
    else:
        numbers = raw.numbers
    missing = numbers.isnan()
    edges = torch.tensor(column.edges, dtype=torch.float64, device=numbers.device)
    codes = torch.bucketize(numbers, edges).masked_fill(missing, column.missing)
    # Halved before subtracting, so that a range over all of float64 does not overflow.
    span = (column.high / 2 - column.low / 2) or 1.0
    scaled = ((numbers / 2 - column.low / 2) / span).masked_fill(missing, 0.0)
    clamped = ((numbers < column.low) | (numbers > column.high)) & ~missing
    return codes, scaled.clamp(0.0, 1.0), clamped


def _comparable(column: Column, raw: RawColumn, what: str) -> RawColumn:
    """The column in the source's form, or an error where values cannot be compared."""
    if column.numeric and raw.numbers is not None:
        if column.dated != raw.dated:
            dates, other = ("source", what) if column.dated else (what, "source")
            raise SchemaError(
                f"column {raw.name!r} holds dates in {dates} but numbers in {other}. "
                "Convert one of them so that equal values compare equal."
            )
        return raw
    if raw.numbers is None and not column.numeric:
        return raw
    # Whole numbers too large for float64 are symbols, which numbers can still join.
    if raw.numbers is not None and all(isinstance(v, int) for v in column.levels):
        values = [int(v) if v.is_integer() else v for v in raw.numbers.tolist()]
        symbols = np.array([None if v != v else v for v in values], dtype=object)
        return RawColumn(raw.name, symbols=symbols)
    if raw.symbols is not None and all(v is None or isinstance(v, int) for v in raw.symbols):
        floats = [math.nan if v is None else float(v) for v in raw.symbols]
        return RawColumn(raw.name, numbers=torch.tensor(floats, dtype=torch.float64))
    numeric, text = ("source", what) if column.numeric else (what, "source")
    raise SchemaError(
        f"column {raw.name!r} is numeric in {numeric} but text in {text}. "
        "Convert one of them so that equal values compare equal."
    )


def _level_codes(column: Column, raw: RawColumn) -> Tensor:
    if raw.numbers is not None:
        missing = raw.numbers.isnan()
        if not column.levels or not column.numeric:
            # No level to compare numbers with: whatever is present is unseen.
            return torch.where(missing, column.missing, column.unseen)
        levels = torch.tensor(
            [float(v) for v in column.levels], dtype=torch.float64, device=raw.numbers.device
        )
        place = torch.searchsorted(levels, raw.numbers).clamp_max(len(levels) - 1)
        codes = torch.where(levels[place] == raw.numbers, place, column.unseen)
        return codes.masked_fill(missing, column.missing)
    assert raw.symbols is not None
    place_of = {level: code for code, level in enumerate(column.levels)}
    place_of[None] = column.missing
    return torch.tensor([place_of.get(value, column.unseen) for value in raw.symbols])
