"""What a column means, learnt once on the source and applied unchanged to every later table.

A column is *continuous* when it is numeric (dates included) with more than `max_levels` distinct
values in the source, and *categorical* otherwise; booleans, text and pandas categoricals are always
categorical. `kinds` overrides the rule per column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.tables import Name, RawColumn, RawTable, read_table
from sees_torch.errors import SchemaError, SupportError

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
            return f"{level:g}" if isinstance(level, float) else str(level)
        low = self.low if code == 0 else self.edges[code - 1]
        high = self.high if code == len(self.edges) else self.edges[code]
        return f"{low:.4g} to {high:.4g}"


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
        weight: Tensor | None = None,
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

    def encode(self, data: Any, what: str = "target") -> Rows:
        """Any table with these columns as coded rows; named columns are matched by name.

        Levels that the source never had become *unseen*; numbers outside the source range are
        clamped to it. Both are marked in what comes back and reported by the estimate.
        """
        table = read_table(data, what)
        coded = [
            _encode_column(column, raw, what)
            for column, raw in zip(self.columns, self._aligned(table, what), strict=True)
        ]
        codes, values, clamped = (
            torch.stack(part, dim=1).to(table.device) for part in zip(*coded, strict=True)
        )
        return Rows(codes, values, clamped)

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
    if raw.numbers is None:
        if kind == "continuous":
            raise SchemaError(
                f"column {raw.name!r} holds text and cannot be continuous. Convert it to numbers "
                "or leave it categorical."
            )
        assert raw.symbols is not None
        present = {value for value in raw.symbols if value is not None}
        ordered = sorted(present, key=lambda value: (type(value).__name__, str(value), value))
        return Column(raw.name, "categorical", False, tuple(ordered))
    finite = raw.numbers.isfinite()
    distinct = raw.numbers[~raw.numbers.isnan()].unique()
    if kind is None:
        fixed = raw.boolean or raw.declared_categorical
        kind = "categorical" if fixed or len(distinct) <= max_levels else "continuous"
    if kind == "continuous" and bool(finite.any()):
        numbers = raw.numbers[finite]
        mass = torch.ones_like(numbers) if weight is None else weight.to(numbers)[finite]
        edges = _quantiles(numbers, mass, bins)
        low, high = float(numbers.min()), float(numbers.max())
        return Column(raw.name, "continuous", True, edges=edges, low=low, high=high)
    levels = tuple(bool(v) if raw.boolean else v for v in distinct.tolist())
    return Column(raw.name, "categorical", True, levels)


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
    if (raw.numbers is None) == column.numeric and not raw.all_missing() and column.seen_codes:
        numeric, text = ("source", what) if column.numeric else (what, "source")
        raise SchemaError(
            f"column {raw.name!r} is numeric in {numeric} but text in {text}. "
            "Convert one of them so that equal values compare equal."
        )
    if column.kind == "categorical":
        codes = _level_codes(column, raw)
        return codes, torch.zeros(len(codes), dtype=torch.float64), torch.zeros_like(codes).bool()
    assert raw.numbers is not None or raw.all_missing()
    if raw.numbers is None:
        assert raw.symbols is not None
        numbers = torch.full((len(raw.symbols),), math.nan, dtype=torch.float64)
    else:
        numbers = raw.numbers
    missing = numbers.isnan()
    edges = torch.tensor(column.edges, dtype=torch.float64, device=numbers.device)
    codes = torch.bucketize(numbers, edges).masked_fill(missing, column.missing)
    span = (column.high - column.low) or 1.0
    scaled = ((numbers - column.low) / span).masked_fill(missing, 0.0)
    clamped = ((numbers < column.low) | (numbers > column.high)) & ~missing
    return codes, scaled.clamp(0.0, 1.0), clamped


def _level_codes(column: Column, raw: RawColumn) -> Tensor:
    if raw.numbers is not None and column.numeric and column.levels:
        levels = torch.tensor(
            [float(v) for v in column.levels], dtype=torch.float64, device=raw.numbers.device
        )
        place = torch.searchsorted(levels, raw.numbers).clamp_max(len(levels) - 1)
        codes = torch.where(levels[place] == raw.numbers, place, column.unseen)
        return codes.masked_fill(raw.numbers.isnan(), column.missing)
    if raw.numbers is not None:
        # A source column without any level: whatever is present is unseen.
        absent = raw.numbers.isnan()
        return torch.where(absent, column.missing, column.unseen)
    assert raw.symbols is not None
    place_of = {level: code for code, level in enumerate(column.levels)}
    place_of[None] = column.missing
    import pandas as pd

    # Look every distinct value up once: rows can be many, levels are few.
    inverse, distinct = pd.factorize(raw.symbols, use_na_sentinel=False)
    table = np.array(
        [place_of.get(_plain(value), column.unseen) for value in distinct], dtype=np.int64
    )
    return torch.from_numpy(table[inverse])


def _plain(value: Any) -> Any:
    """None for any missing value, the value otherwise."""
    return None if value is None or value != value else value
