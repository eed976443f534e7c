"""What a first pass over batches learns: the schema and the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.arrays import read_count, take_rows
from sees_torch.data.columns import Kind, distinct_numbers, learn_column
from sees_torch.data.counting import hash_columns
from sees_torch.data.labels import Labels, read_labels, resolve_classes
from sees_torch.data.probabilities import proba_columns
from sees_torch.data.schema import BINS, MAX_LEVELS, Schema, check_kinds
from sees_torch.data.tables import Name, RawColumn, read_table
from sees_torch.errors import SchemaError, ShapeError, SupportError

SAMPLE = 200_000
"""Rows that bin edges are learnt from; up to so many they are exact."""
WITNESS = 1e-15
"""Weight of values that must be known but not shift the bin edges."""


@dataclass
class _ColumnDraft:
    """What has been seen of a column: its symbols, or some of its numbers.

    `every` number is remembered when the column is categorical whatever it holds.
    """

    name: Name
    every: bool = False
    symbols: dict[Any, None] = field(default_factory=dict)
    numbers: list[Tensor] = field(default_factory=list)
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    empty_numbers: bool = False
    boolean: bool = False
    dated: bool = False
    declared: bool = False

    def add(self, raw: RawColumn, sampled: Tensor) -> None:
        """Look at one more part; `sampled` are the rows that are remembered."""
        if raw.numbers is None:
            self.numbers.append(torch.full((len(sampled),), torch.nan, dtype=torch.float64))
        else:
            self.numbers.append(raw.numbers[sampled].cpu())
        if raw.all_missing():
            self.empty_numbers |= raw.numbers is not None
            return
        known = bool(self.symbols) or len(self.seen) > 0
        text = raw.numbers is None
        if known and (bool(self.symbols) != text or (not text and self.dated != raw.dated)):
            raise SchemaError(
                f"column {self.name!r} holds text, numbers or dates, by batch. Convert it so that "
                "every batch holds the same."
            )
        self.boolean = raw.boolean and (self.boolean or not known)
        self.dated, self.declared = raw.dated, self.declared or raw.declared_categorical
        if raw.numbers is None:
            self.symbols.update(dict.fromkeys(raw.symbols))
        else:
            self._witness(distinct_numbers(raw.numbers))

    def _witness(self, numbers: Tensor) -> None:
        """Few values are all remembered; of many, the smallest and the largest."""
        seen = torch.cat([self.seen, numbers.cpu()]).unique()
        if len(seen) > 2 * MAX_LEVELS and not (self.every or self.declared):
            seen = torch.cat([seen[:MAX_LEVELS], seen[-MAX_LEVELS:]])
        self.seen = seen

    def merge(self, other: _ColumnDraft) -> None:
        if other.symbols:
            places = torch.arange(len(other.symbols))
            self.add(RawColumn(self.name, None, tuple(other.symbols), places), places[:0])
        if len(other.seen):
            raw = RawColumn(
                self.name,
                other.seen,
                declared_categorical=other.declared,
                boolean=other.boolean,
                dated=other.dated,
            )
            self.add(raw, torch.zeros(0, dtype=torch.int64))
        self.empty_numbers |= other.empty_numbers
        self.numbers += other.numbers

    def raw(self, weight: Tensor) -> tuple[RawColumn, Tensor | None]:
        """All that is known as one column, with the weight of every entry."""
        if self.symbols or not (self.empty_numbers or len(self.seen)):
            places = torch.arange(len(self.symbols))
            return RawColumn(self.name, None, tuple(self.symbols), places, self.declared), None
        column = RawColumn(
            self.name,
            torch.cat([*self.numbers, self.seen]),
            declared_categorical=self.declared,
            boolean=self.boolean,
            dated=self.dated,
        )
        return column, torch.cat([weight, torch.full_like(self.seen, WITNESS)])


class SchemaDraft:
    """Learns a schema batch by batch.

    Levels and ranges are those of all rows; bin edges are exact up to SAMPLE rows, and those of a
    random half, quarter, ... of them beyond.
    """

    def __init__(self, kinds: Mapping[Name, Kind] | None = None) -> None:
        self.kinds = kinds
        self.columns: list[_ColumnDraft] | None = None
        self.named = False
        self.rows = 0
        self.step = 1
        self.places: list[Tensor] = []
        self.weights: list[Tensor] = []

    def add(self, features: Any, weight: Tensor | None = None) -> None:
        """Look at one more batch; rows of weight zero do not count."""
        table = read_table(features, "source")
        names = [column.name for column in table.columns]
        if self.columns is None:
            if not names:
                raise SchemaError("source has no columns: at least one feature is needed.")
            self._start(names, table.named)
        assert self.columns is not None
        given = {column.name: column for column in table.columns}
        if set(given) != {column.name for column in self.columns}:
            raise SchemaError(
                f"a batch of source has the columns {names}, the first one had "
                f"{[column.name for column in self.columns]}."
            )
        places = torch.arange(self.rows, self.rows + table.rows)
        sampled = self._drawn(places).nonzero().squeeze(1)
        for column in self.columns:
            column.add(given[column.name], sampled)
        self.rows += table.rows
        self.places.append(places[sampled])
        self.weights.append(
            torch.ones(len(sampled), dtype=torch.float64)
            if weight is None
            else weight[sampled].cpu()
        )
        self._thin()

    def merge(self, other: SchemaDraft) -> None:
        """Add what another process has seen."""
        if other.columns is None:
            return
        if self.columns is None:
            self._start([column.name for column in other.columns], other.named)
        assert self.columns is not None
        seen = {column.name: column for column in other.columns}
        names = [column.name for column in self.columns]
        if set(seen) != set(names):
            raise SchemaError(f"one process has the columns {list(seen)}, another one {names}.")
        while self.step != other.step:
            (self if self.step < other.step else other)._halve()
        for column in self.columns:
            column.merge(seen[column.name])
        self.rows += other.rows
        self.places += other.places
        self.weights += other.weights
        self._thin()

    def _start(self, names: list[Name], named: bool) -> None:
        kinds = check_kinds(self.kinds, names)
        self.columns = [_ColumnDraft(name, kinds.get(name) == "categorical") for name in names]
        self.named = named

    def _drawn(self, places: Tensor) -> Tensor:
        """(n,) bool, the rows at these places that are remembered, as if drawn at random."""
        return hash_columns([places, torch.zeros_like(places)]).remainder(self.step) == 0

    def _thin(self) -> None:
        while sum(map(len, self.places)) > SAMPLE:
            self._halve()

    def _halve(self) -> None:
        self.step *= 2
        places = torch.cat(self.places)
        kept = self._drawn(places)
        self.places, self.weights = [places[kept]], [torch.cat(self.weights)[kept]]
        for column in self.columns or ():
            column.numbers = [torch.cat(column.numbers)[kept]]

    def schema(self) -> Schema:
        """What all batches have shown."""
        if self.columns is None or not self.rows:
            raise SupportError("source is empty: at least one labelled row is needed.")
        kinds = check_kinds(self.kinds, [column.name for column in self.columns])
        learnt = []
        for column in self.columns:
            raw, weight = column.raw(torch.cat(self.weights))
            kind = kinds.get(column.name)
            learnt.append(learn_column(raw, kind, MAX_LEVELS, BINS, weight))
        return Schema(tuple(learnt), self.named)


class SourceDraft:
    """Learns the schema and the classes of a labelled sample batch by batch."""

    def __init__(self, kinds: Mapping[Name, Kind] | None = None) -> None:
        self.features = SchemaDraft(kinds)
        self.labels: dict[Any, None] = {}
        self.proba: dict[tuple[int, tuple[Any, ...] | None], None] = {}

    def add(self, features: Any, labels: Any, proba: Any, weight: Any) -> None:
        """Look at one more batch; probabilities are None when a model is to give them."""
        column = read_labels(labels)
        count = None if weight is None else read_count(weight, len(column), "weight", empty=True)
        if count is not None and not bool((count > 0).all()):
            kept = (count > 0).nonzero().squeeze(1)
            features, column = take_rows(features, kept), column.where(count > 0)
            count = count[kept]
        if not len(column):
            return
        self.features.add(features, count)
        self.labels.update(dict.fromkeys(column.values))
        if proba is not None:
            shape = np.shape(proba)
            width = shape[1] if len(shape) == 2 and shape[1] > 1 else 2
            self.proba[width, proba_columns(proba)] = None

    def merge(self, other: SourceDraft) -> None:
        """Add what another process has seen."""
        self.features.merge(other.features)
        self.labels.update(other.labels)
        self.proba.update(other.proba)

    def classes(self, order: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """The order of the probability columns, by the rules of `Source`."""
        labels = Labels(tuple(self.labels), torch.arange(len(self.labels)))
        widths = {width for width, _ in self.proba}
        names = list(dict.fromkeys(found for _, found in self.proba))
        # Frames may hold their columns in any order if these name the classes.
        known = [set(found) for found in names if found is not None]
        alike = len(known) == len(names) and all(k == known[0] >= set(labels.values) for k in known)
        if len(widths) > 1 or (len(names) > 1 and not alike):
            raise ShapeError(
                f"batches have different probability columns: {[list(key) for key in self.proba]}."
            )
        return resolve_classes(labels, widths.pop(), order, names[0])
