"""What a column means, learnt once on the source and applied unchanged to every later table.

A column is *continuous* when it is numeric (dates included) with more than `max_levels` distinct
values in the source, and *categorical* otherwise; booleans, text and pandas categoricals are always
categorical. `kinds` overrides the rule per column.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sees_torch.data.arrays import as_numbers
from sees_torch.data.columns import Column, Kind, encode_column, learn_column
from sees_torch.data.counting import content_hash, hash_codes
from sees_torch.data.tables import Name, RawColumn, RawTable, is_frame, read_table
from sees_torch.data.whole import WholeTable
from sees_torch.errors import SchemaError, ShapeError, SupportError

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

    @classmethod
    def coded(cls, codes: Tensor) -> Rows:
        """Rows without continuous columns: their values are zeros that take no memory."""
        zero = torch.zeros((1, 1), dtype=torch.float64, device=codes.device)
        return cls(codes, zero.expand(codes.shape), zero.bool().expand(codes.shape))

    @classmethod
    def cat(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of the parts, one after the other."""
        codes = torch.cat([part.codes for part in parts])
        if all(part.plain for part in parts):
            return cls.coded(codes)
        return cls(
            codes,
            torch.cat([part.values for part in parts]),
            torch.cat([part.clamped for part in parts]),
        )

    @property
    def plain(self) -> bool:
        """There are no continuous columns, and the values are zeros that take no memory."""
        return self.values.stride(0) == 0

    def __len__(self) -> int:
        return len(self.codes)

    def to(self, device: torch.device) -> Rows:
        return Rows(self.codes.to(device), self.values.to(device), self.clamped.to(device))

    def __getitem__(self, index: Tensor) -> Rows:
        if self.plain:
            return Rows.coded(self.codes.index_select(0, index))
        return Rows(
            *(part.index_select(0, index) for part in (self.codes, self.values, self.clamped))
        )


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

        >>> import numpy as np
        >>> Schema.learn(np.array([[0.0, 1.5], [1.0, 2.5]])).columns[0].levels
        (0.0, 1.0)
        """
        whole = WholeTable.of(source)
        table = read_table(source if whole is None else source[:1], "source")
        if not table.columns:
            raise SchemaError("source has no columns: at least one feature is needed.")
        if not table.rows:
            raise SupportError("source is empty: at least one labelled row is needed.")
        if bins < 1 or max_levels < 0:
            raise SchemaError(
                f"bins must be at least 1 and max_levels 0, got {bins}, {max_levels}."
            )
        if weight is not None:
            rows = table.rows if whole is None else len(whole.table)
            weight = as_numbers(weight, "weight", table.device)
            if weight.shape != (rows,):
                raise ShapeError(f"weight must have shape ({rows},), got {tuple(weight.shape)}.")
        kinds = check_kinds(kinds, [column.name for column in table.columns])
        parts: Iterable[tuple[RawColumn, Tensor | None]] = ((raw, weight) for raw in table.columns)
        if whole is not None:
            parts = zip(whole.columns(), whole.counts(weight), strict=True)
        columns = tuple(
            learn_column(raw, kinds.get(raw.name), max_levels, bins, mass) for raw, mass in parts
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
        names = [zlib.crc32(repr(name).encode()) for name in self.names]
        salt = torch.tensor(names, device=rows.codes.device)
        total = hash_codes(rows.codes, self.cardinalities, salt)
        kept = [j for j, continuous in enumerate(self.continuous) if continuous]
        return total + content_hash(rows.values[:, kept], salt=salt[kept]) if kept else total

    def encode(self, data: Any, what: str = "target") -> Rows:
        """Any table with these columns as coded rows; named columns are matched by name.

        Levels that the source never had become *unseen*; numbers outside the source range are
        clamped to it. Both are marked in what comes back and reported by the estimate.
        """
        whole = WholeTable.of(data)
        if whole is not None and whole.table.shape[1] == len(self.columns):
            return self._looked_up(whole, what)
        table = read_table(data, what)
        if not table.rows:
            raise SupportError(f"{what} is empty: at least one row is needed.")
        shape, device = (table.rows, len(self.columns)), table.device
        codes = torch.empty(shape, dtype=torch.int64, device=device)
        rows = Rows.coded(codes)
        if any(self.continuous):
            rows = Rows(
                codes, torch.zeros_like(codes, dtype=torch.float64), codes.new_zeros(shape) > 0
            )
        for j, raw in enumerate(self._aligned(table, what)):
            codes[:, j], value, outside = encode_column(self.columns[j], raw, what)
            if value is not None and outside is not None:
                rows.values[:, j], rows.clamped[:, j] = value, outside
        return rows

    def _looked_up(self, whole: WholeTable, what: str) -> Rows:
        """The same by asking once what becomes of every number."""
        pairs = zip(self.columns, whole.columns(), strict=True)
        codes, values, clamped = zip(*(encode_column(*pair, what) for pair in pairs), strict=True)
        rows = Rows.coded(whole.looked_up(torch.stack(codes)))
        if not any(self.continuous):
            return rows
        zero = torch.zeros(whole.span, dtype=torch.float64, device=whole.table.device)
        scaled = torch.stack([zero if value is None else value for value in values])
        outside = torch.stack([zero > 0 if flag is None else flag for flag in clamped])
        return Rows(rows.codes, whole.looked_up(scaled), whole.looked_up(outside))

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


def check_kinds(kinds: Mapping[Name, Kind] | None, names: Sequence[Name]) -> dict[Name, Kind]:
    """Kinds by column name, all of them known."""
    if kinds is not None and not isinstance(kinds, Mapping):
        raise SchemaError(
            f"kinds must be a mapping from column to kind, got {type(kinds).__name__}."
        )
    given = dict(kinds or {})
    unknown = [name for name in given if name not in names]
    if unknown:
        raise SchemaError(
            f"kinds names columns that source does not have: {unknown}. Its columns are "
            f"{list(names)}."
        )
    wrong = {k: v for k, v in given.items() if v not in ("categorical", "continuous")}
    if wrong:
        raise SchemaError(f"kinds takes 'categorical' or 'continuous', got {wrong}.")
    return given
