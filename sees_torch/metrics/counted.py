"""Counted rows as states: what both samples of a shift are made of, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sees_torch.data import Rows, Schema, Source, Target
from sees_torch.data.arrays import read_count
from sees_torch.data.labels import read_classes, read_labels
from sees_torch.data.probabilities import by_class, of_second_class, read_proba
from sees_torch.data.streams import Counted, Tally
from sees_torch.data.treatments import treatments
from sees_torch.errors import SeesError, ShapeError, SupportError
from sees_torch.matching.match import whole_number
from sees_torch.metrics.states import RowMetric

FEW_ROWS = 2**14
"""So many rows are not worth merging."""
NAMES = ("source", "target")


class CountedRows(RowMetric):
    """Rows of a source (labelled) and a target (label -1), merged as they grow.

    Rows that differ in nothing are one row with a count. When either sample has more than
    `max_rows` distinct rows, `Tally` rounds probabilities and then thins rows out; `kept` says of
    each row which part of its like was kept, so that any two states can be joined.
    """

    def __init__(
        self,
        schema: Schema,
        classes: Any,
        max_rows: int,
        precision: int | None,
        also: object = None,
        **metric_kwargs: Any,
    ) -> None:
        super().__init__(**metric_kwargs)
        if not isinstance(schema, Schema):
            raise SeesError(
                f"schema is a {type(schema).__name__}: learn one with Schema.learn(features)."
            )
        self.schema, self.classes = schema, read_classes(classes)
        self.max_rows = whole_number(max_rows, "max_rows")
        if not self.max_rows:
            raise SeesError("max_rows must be at least 1, got 0.")
        self.precision = None if precision is None else whole_number(precision, "precision")
        if self.precision is not None and not 1 <= self.precision <= 51:
            raise SeesError(f"precision must be None or 1 to 51 bits, got {precision!r}.")
        width = len(schema.columns)
        self.add_rows("codes", (width,), torch.int64)
        if any(schema.continuous):
            self.add_rows("values", (width,), torch.float64)
            self.add_rows("clamped", (width,), torch.bool)
        self.add_rows("labels", (), torch.int64)
        self.add_rows("proba", (len(self.classes),), torch.float64)
        self.add_rows("count", (), torch.float64)
        self.add_rows("kept", (), torch.int64)
        self.add_state("rounding", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="max")
        made_for = (schema, self.classes, self.max_rows, self.precision, also)
        self.add_state("made_for", _fingerprint(made_for), dist_reduce_fx=_common)
        self.codes: list[Tensor]
        self.rounding: Tensor
        self.made_for: Tensor

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the rows of another metric with the same schema, classes and bounds."""
        other = incoming_state if isinstance(incoming_state, dict) else incoming_state.metric_state
        self._check_like(other.get("made_for"))
        super().merge_state(incoming_state)
        self._merge()

    def _add(self, proba: Any, labels: Any, features: Any, weight: Any) -> None:
        """Count one batch, of the source if it has labels."""
        what, device = "target" if labels is None else "source", self.rows_device
        rows = self.schema.encode(features, what).to(device)
        proba, _ = by_class(proba, self.classes, self.classes)
        matrix = read_proba(proba, len(rows), "proba", device).detach()
        if matrix.shape[1] != len(self.classes):
            raise ShapeError(
                f"proba has {matrix.shape[1]} columns, there are {len(self.classes)} classes "
                f"{list(self.classes)}: give one column per class, in this order."
            )
        count = read_count(weight, len(rows), "weight", empty=True).detach().to(device)
        positions = torch.full((len(rows),), -1, dtype=torch.int64, device=device)
        if labels is not None:
            positions = read_labels(labels).positions(self.classes).to(device)
        if len(positions) != len(rows):
            raise ShapeError(f"labels has {len(positions)} entries, features has {len(rows)} rows.")
        matrix = of_second_class(proba, matrix, self.classes)
        fresh = Counted(rows, positions, matrix, count, 1, 0.0)
        held = sum(map(len, self.codes)) + len(rows)
        self._tabulate(fresh)
        self._extend(fresh)
        if held > max(2 * len(self.codes[0]), min(FEW_ROWS, self.max_rows)):
            self._merge()

    def _tabulate(self, part: Counted) -> None:
        """Add a batch to states that are sums, where there are any."""

    def _extend(self, part: Counted) -> None:
        """Rows behind those that are there; lists are not changed, others may hold them too."""
        parts = {"codes": part.rows.codes, "labels": part.labels, "proba": part.proba}
        parts |= {"count": part.count, "kept": torch.full_like(part.labels, part.kept)}
        if any(self.schema.continuous):
            parts |= {"values": part.rows.values, "clamped": part.rows.clamped}
        for name, more in parts.items():
            setattr(self, name, [*getattr(self, name), more])

    def _merge(self) -> None:
        """Equal rows as one, in as much memory as `max_rows` allows."""
        both = self._counted()
        for name in self._no_rows:
            setattr(self, name, [])
        for place, part in enumerate(both):
            if part is not None:
                self._extend(part)
                self.rounding = self.rounding.index_fill(
                    0, torch.tensor(place, device=self.device), part.rounding
                )
        # One part: the next merge waits until the rows have doubled.
        for name in self._no_rows:
            setattr(self, name, [self.rows(name)])

    def _counted(self) -> tuple[Counted | None, Counted | None]:
        """The distinct rows of source and target."""
        labels = self.rows("labels")
        source, target = (
            self._tallied(where.nonzero().squeeze(1), float(rounding))
            for where, rounding in zip((labels >= 0, labels < 0), self.rounding, strict=True)
        )
        return source, target

    def _tallied(self, index: Tensor, rounding: float) -> Counted | None:
        tally = Tally(self.schema, self.precision, self.max_rows)
        for part in self._parts(index, rounding):
            tally.merge(part)
        return tally.counted()

    def _parts(self, index: Tensor, rounding: float) -> Iterator[Counted]:
        """Some of the rows, those together of which an equal part was kept."""
        codes, kept = self.rows("codes"), self.rows("kept")[index]
        rows = Rows.coded(codes)
        if any(self.schema.continuous):
            rows = Rows(codes, self.rows("values"), self.rows("clamped"))
        labels, proba, count = (self.rows(name) for name in ("labels", "proba", "count"))
        for share in kept.unique().tolist():
            some = index[kept == share]
            yield Counted(rows[some], labels[some], proba[some], count[some], share, rounding)

    def _samples(self) -> tuple[Source, Target]:
        """Both samples; that of all processes, if states are synchronised."""
        self._check_like(self.made_for)
        source, target = Source.__new__(Source), Target.__new__(Target)
        source.proba_names = None
        for sample, part, what in zip((source, target), self._counted(), NAMES, strict=True):
            if part is None or not len(part.rows):
                call = "(proba, labels, features)" if what == "source" else "(proba, features=...)"
                raise SupportError(f"there are no {what} rows yet: call update{call} first.")
            sample.schema, sample.classes = self.schema, self.classes
            sample.rows, sample.labels, sample.count = part.rows, part.labels, part.count
            sample.proba = sample.posterior = part.proba
            sample.notes = part.notes(what)
        target.notes += treatments(target, source)
        if len(source.labels.unique()) < 2:
            raise SupportError("the source must show at least two classes.")
        return source, target

    def _check_like(self, other: Any) -> None:
        default = self._defaults["made_for"]
        if other is not None and other.tolist() != torch.as_tensor(default).tolist():
            raise SeesError(
                "the states to be joined are of metrics with another schema, classes, max_rows or "
                "precision (of tables: method or metric): make all of them with the same."
            )


def _fingerprint(settings: object) -> Tensor:
    """(32,) bits: equal for equal settings, in every process.

    MetricCollection shares states that are close to each other, and bits are close only if equal.
    """
    word = zlib.crc32(repr(settings).encode())
    return torch.tensor([word >> place & 1 for place in range(32)])


def _common(stacked: Tensor) -> Tensor:
    """What all agree on, -1 where they do not: `compute` refuses that, in every process."""
    return torch.where((stacked == stacked[0]).all(dim=0), stacked[0], -1)
