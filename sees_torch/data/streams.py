"""Samples that come in batches: counted rows, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sees_torch.data.merging import equal_rows
from sees_torch.data.probabilities import predict
from sees_torch.data.schema import Rows, Schema
from sees_torch.errors import SeesError, ShapeError

PRECISION = 8
"""Bits of a probability that are kept when rows that hardly differ must be counted together."""
MAX_ROWS = 300_000
"""Distinct rows of a sample that are kept in memory."""
Part = tuple[Rows, Tensor, Tensor, Tensor]
"""Rows, labels, probabilities, multiplicities."""
Progress = Callable[[int], None]
"""Told how many rows have been read."""


@dataclass(frozen=True)
class Counted:
    """Distinct rows of a stream.

    Attributes:
        rows: coded; labels (n,), -1 where there is none; proba (n, L); count (n,).
        kept: one of so many rows was kept.
        rounding: largest change of a probability.
    """

    rows: Rows
    labels: Tensor
    proba: Tensor
    count: Tensor
    kept: int
    rounding: float

    def notes(self, what: str) -> tuple[str, ...]:
        """What was done to fit into memory, in words."""
        notes = []
        if self.rounding > 0:
            notes.append(f"{what}: probabilities were rounded, by {self.rounding:.1g} at most")
        if self.kept > 1:
            notes.append(
                f"{what}: one of every {self.kept} rows was kept, {float(self.count.sum()):.0f} in "
                "all, since more distinct rows than max_rows came"
            )
        return tuple(notes)


@dataclass
class Tally:
    """Counts the rows of a stream.

    Equal rows are merged as they come. When more than `max_rows` distinct ones are left, their
    probabilities are rounded to `precision` bits. If that is not enough, every second row is
    dropped, in an order that depends on their content as if at random: memory stays bounded, and
    the sample is a smaller one.
    """

    schema: Schema
    precision: int | None = PRECISION
    max_rows: int = MAX_ROWS
    step: int = 1
    rounds: bool = False
    rounding: float = 0.0
    _kept: Part | None = None
    _fresh: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise SeesError(f"max_rows must be at least 1, got {self.max_rows}.")
        if self.precision is not None and not 1 <= self.precision <= 51:
            raise SeesError(f"precision must be 1 to 51 bits, or None; got {self.precision}.")

    def add(self, rows: Rows, labels: Tensor, proba: Tensor, count: Tensor) -> None:
        """Count one more batch."""
        short = replace(rows, codes=rows.codes.to(self._small()))
        self._fresh.append((short, labels, self._rounded(proba), count))
        if sum(len(part[0]) for part in self._fresh) > self.max_rows:
            self._take_in()

    def merge(self, other: Counted) -> None:
        """Add what another process has counted."""
        self._take_in()
        self.rounding = max(self.rounding, other.rounding)
        if other.rounding > 0:
            self._round()
        rows = replace(other.rows, codes=other.rows.codes.to(self._small()))
        part, kept = (rows, other.labels, self._rounded(other.proba), other.count), other.kept
        while kept < self.step:
            part, kept = self._halved(part), 2 * kept
        while self.step < kept:
            self._halve()
        self._join([part])

    def counted(self) -> Counted | None:
        """The distinct rows so far, in an order that depends on their content only."""
        self._take_in()
        if self._kept is None:
            return None
        rows, labels, proba, count = self._kept
        rows = replace(rows, codes=rows.codes.to(torch.int64))
        return Counted(rows, labels, proba, count, self.step, self.rounding)

    def _small(self) -> torch.dtype:
        """The smallest type that holds every code: rows are many."""
        return torch.int16 if max(self.schema.cardinalities) < 2**15 else torch.int64

    def _take_in(self) -> None:
        """Thin what came as what is kept was thinned, and join the two."""
        if not self._fresh:
            return
        part, self._fresh = self._merged(self._fresh), []
        step = 1
        while step < self.step:
            part, step = self._halved(part), 2 * step
        self._join([part])

    def _join(self, parts: list[Part]) -> None:
        self._kept = self._merged([*([] if self._kept is None else [self._kept]), *parts])
        if len(self._kept[0]) > self.max_rows and self.precision is not None:
            self._round()
        while len(self._kept[0]) > self.max_rows:
            self._halve()

    def _rounded(self, proba: Tensor) -> Tensor:
        if not self.rounds or self.precision is None:
            return proba
        rounded = round_proba(proba, self.precision)
        self.rounding = max(self.rounding, float((rounded - proba).abs().max()))
        return rounded

    def _round(self) -> None:
        """Round what is there, and from now on what comes."""
        if self.rounds:
            return
        self.rounds = True
        if self._kept is not None:
            rows, labels, proba, count = self._kept
            self._kept = self._merged([(rows, labels, self._rounded(proba), count)])

    def _halve(self) -> None:
        self.step *= 2
        if self._kept is not None:
            self._kept = self._halved(self._kept)

    def _merged(self, parts: list[Part]) -> Part:
        """Equal rows as one, in an order that depends on their content only."""
        rows = Rows.cat([part[0] for part in parts])
        labels, proba, count = (
            torch.cat(column) for column in zip(*(part[1:] for part in parts), strict=True)
        )
        groups = equal_rows(self.schema, rows, labels, proba).counted(count)
        first = groups.first
        return rows[first], labels[first], proba[first], groups.sum(count)

    def _halved(self, part: Part) -> Part:
        """Every second row."""
        rows, labels, proba, count = part
        if not torch.equal(count, count.round()):
            raise SeesError(
                f"there are more than {self.max_rows} distinct rows, and their weights are no "
                "whole numbers: raise max_rows, or leave the weights out."
            )
        end = count.cumsum(0)
        left = (end / 2).floor() - ((end - count) / 2).floor()
        kept = (left > 0).nonzero().squeeze(1)
        return rows[kept], labels[kept], proba[kept], left[kept]


def round_proba(proba: Tensor, bits: int) -> Tensor:
    """Probabilities to so many significant bits; the largest makes up for the others.

    A row whose prediction would change stays as it is.
    """
    drop = 52 - bits
    whole = proba.contiguous().view(torch.int64)
    short = (((whole + (1 << (drop - 1))) >> drop) << drop).view(torch.float64)
    place = proba.argmax(dim=1, keepdim=True)
    rest = short.scatter(1, place, 0.0).sum(dim=1, keepdim=True)
    rounded = short.scatter(1, place, 1 - rest)
    same = (rounded.argmax(dim=1, keepdim=True) == place) & (rest < 1)
    return torch.where(same, rounded, proba)


class BatchReader:
    """Batches as tuples of one form, the model's probabilities filled in.

    Args:
        batches: tuples (features, labels, proba) of a source, (features, proba) of a target or,
            if some labels are known, as of a source.
        model: instead of proba.
        logits: it returns logits.
        weighted: every tuple ends with the multiplicities of its rows.
        progress: told how many rows have been read.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        model: Any,
        logits: bool,
        weighted: bool,
        progress: Progress | None,
    ) -> None:
        if not isinstance(batches, Iterable):
            raise SeesError(f"batches must be an iterable of tuples, got {type(batches).__name__}.")
        self.batches, self.model, self.logits = batches, model, logits
        self.weighted, self.progress = weighted, progress

    def check_twice(self) -> None:
        """Refuse what can be read only once."""
        if iter(self.batches) is self.batches:
            raise SeesError(
                "a generator can be read only once, and the schema and the classes are learnt in "
                "a first pass: give schema and classes, or something that can be read again, such "
                "as a list, a DataLoader or a `TableFile`."
            )

    def source(self, schema: Schema | None, once: bool = False) -> Iterator[tuple[Any, ...]]:
        """(features, labels, proba, weight); with `once` the model is asked for one batch only."""
        asked = False
        for features, labels, *rest, weight in self._read(2, "source"):
            proba = rest[0] if rest else None
            if self.model is not None and not (once and asked):
                proba, asked = self._predicted(features, schema, "source"), True
            yield features, labels, proba, weight

    def target(self, schema: Schema, labelled: bool = False) -> Iterator[tuple[Any, ...]]:
        """(features, labels, proba, weight), labels None unless rows come with labels."""
        for features, *rest, weight in self._read(1 + labelled, "target"):
            labels = rest.pop(0) if labelled else None
            proba = rest[0] if rest else self._predicted(features, schema, "target")
            yield features, labels, proba, weight

    def _predicted(self, features: Any, schema: Schema | None, what: str) -> Any:
        aligned = features if schema is None else schema.align(features, what)
        return predict(self.model, aligned, what, logits=self.logits)

    def _read(self, parts: int, what: str) -> Iterator[list[Any]]:
        """The entries of every batch and its weight, None if there is none."""
        wanted = parts + (self.model is None) + self.weighted
        read = 0
        for batch in self.batches:
            entries = [batch] if wanted == 1 and not isinstance(batch, (tuple, list)) else batch
            if not isinstance(entries, (tuple, list)) or len(entries) != wanted:
                got = len(entries) if isinstance(entries, (tuple, list)) else type(entries).__name__
                names = ["features", "labels"][:parts]
                names += ["proba"] * (self.model is None) + ["weight"] * self.weighted
                raise ShapeError(
                    f"every batch of {what} must be a tuple ({', '.join(names)}); got {got} "
                    "entries. A weight at the end needs weighted=True."
                )
            yield [*entries] if self.weighted else [*entries, None]
            read += len(entries[0])
            if self.progress is not None:
                self.progress(read)
