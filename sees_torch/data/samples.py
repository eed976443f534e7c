"""`Source` and `Target`: the two samples, validated once, as tensors on one device."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sees_torch.data.arrays import read_count
from sees_torch.data.columns import Kind
from sees_torch.data.drafts import SourceDraft
from sees_torch.data.labels import (
    read_classes,
    read_labels,
    read_some_labels,
    resolve_classes,
)
from sees_torch.data.probabilities import (
    by_class,
    model_classes,
    of_second_class,
    proba_columns,
    read_proba,
)
from sees_torch.data.ranks import exchange
from sees_torch.data.sample import Sample
from sees_torch.data.schema import Schema
from sees_torch.data.streams import (
    MAX_ROWS,
    PRECISION,
    BatchReader,
    Counted,
    Progress,
    Tally,
)
from sees_torch.data.tables import Name
from sees_torch.data.treatments import treatments
from sees_torch.errors import SeesError, ShapeError, SupportError


class Source(Sample):
    """The labelled source sample, held out from the model's training.

    Args:
        features: (n, d) DataFrame, ndarray or Tensor.
        labels: (n,) class of every row.
        proba: (n, L) the model's probabilities, or (n,) for the second of two classes.
        classes: order of the probability columns, needed unless the labels sort into it.
        kinds: {column: "categorical" | "continuous"} where the rule of `Schema` should not decide.
        weight: (n,) row multiplicities.
        schema: a schema learnt earlier, instead of learning one from `features`.
        part: these rows are part of a sample and may be of one class, or of no weight; needs
            `classes`.
    """

    def __init__(
        self,
        features: Any,
        labels: Any,
        proba: Any,
        *,
        classes: Any = None,
        kinds: Mapping[Name, Kind] | None = None,
        weight: Any = None,
        schema: Schema | None = None,
        part: bool = False,
    ) -> None:
        if schema is not None and kinds is not None:
            raise SeesError("give kinds or schema, not both: a schema fixes the kinds.")
        self.schema = schema or learn_schema(features, kinds, weight)
        self.rows = self.schema.encode(features, "source")
        device = self.rows.codes.device
        self.count = read_count(weight, len(self.rows), "source_weight", empty=part).to(device)
        column = read_labels(labels)
        if len(column) != len(self.rows):
            raise ShapeError(f"labels has {len(column)} entries, source has {len(self.rows)} rows.")
        order = None if classes is None else read_classes(classes)
        proba, self.proba_names = by_class(proba, order, None)
        matrix = read_proba(proba, len(self.rows), "source_proba", device)
        counted = column.where((self.count > 0).to(column.of_row.device))
        names = proba_columns(proba)
        self.classes = resolve_classes(counted, matrix.shape[1], order, names, part)
        self.proba = self.posterior = of_second_class(proba, matrix, self.classes)
        self.labels = column.positions(self.classes).to(device)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Any],
        model: Any = None,
        *,
        classes: Any = None,
        kinds: Mapping[Name, Kind] | None = None,
        schema: Schema | None = None,
        weighted: bool = False,
        logits: bool = False,
        precision: int | None = PRECISION,
        max_rows: int = MAX_ROWS,
        distributed: bool = False,
        progress: Progress | None = None,
    ) -> Source:
        """A source that need not fit into memory: only its distinct rows are kept, with counts.

        Args:
            batches: tuples (features, labels, proba): a list, a DataLoader, a `TableFile`. They
                are read twice unless schema and classes are given.
            model: instead of the third entry of every tuple, as in `estimate_shift`, with `logits`.
            classes, kinds, schema: as in `Source`.
            weighted: every tuple has one entry more, the multiplicities of its rows.
            precision: when there are more than `max_rows` distinct rows, probabilities are rounded
                to so many significant bits, so that rows that hardly differ count as one; None
                never rounds. Predictions do not change.
            max_rows: distinct rows to keep; if rounding is not enough, every second one is
                dropped. The report says so.
            distributed: every process of the default group of torch.distributed reads batches of
                its own, and all get the sample of all rows.
            progress: called with the number of rows read.

        >>> batches = [([[0], [1]], [0, 1], [0.2, 0.9]), ([[0], [1]], [0, 1], [0.2, 0.9])]
        >>> Source.from_batches(batches).count.tolist()
        [2.0, 2.0]
        """
        if classes is None and model is not None:
            classes = model_classes(model)
        order = None if classes is None else read_classes(classes)
        read = BatchReader(batches, model, logits, weighted, progress)
        if schema is None or order is None:
            read.check_twice()

            def first_pass() -> SourceDraft:
                draft = SourceDraft(kinds)
                for features, labels, proba, weight in read.source(None, once=True):
                    draft.add(features, labels, proba, weight)
                return draft

            drafts = exchange(first_pass) if distributed else [first_pass()]
            for other in drafts[1:]:
                drafts[0].merge(other)
            schema = schema or drafts[0].features.schema()
            order = drafts[0].classes(order)
        source = cls.__new__(cls)
        source.schema, source.classes, source.proba_names = schema, order, None

        def second_pass() -> Counted | None:
            tally = Tally(schema, precision, max_rows)
            for features, labels, proba, weight in read.source(schema):
                part = cls(
                    features, labels, proba, classes=order, weight=weight, schema=schema, part=True
                )
                source.proba_names = part.proba_names
                tally.add(part.rows, part.labels, part.proba, part.count)
            return tally.counted()

        source._take(second_pass, precision, max_rows, distributed, "source")
        if len(source.labels.unique()) < 2:
            raise SupportError("the source must show at least two classes.")
        return source


class Target(Sample):
    """The unlabelled target sample, coded as its source was.

    Args:
        features: (m, d) DataFrame, ndarray or Tensor with the source's columns.
        proba: (m, L) the model's probabilities, columns as in the source.
        source: the sample to compare with.
        weight: (m,) row multiplicities.
        labels: (m,) class of the rows whose label is known; None or NaN where it is not.
        part: these rows are part of a sample and may be of no weight.
    """

    labelled: float = 0.0
    """Labelled rows, multiplicities included."""

    def __init__(
        self,
        features: Any,
        proba: Any,
        source: Source,
        *,
        weight: Any = None,
        labels: Any = None,
        part: bool = False,
    ) -> None:
        self.schema = source.schema
        self.classes = source.classes
        self.rows = self.schema.encode(features, "target")
        device = self.rows.codes.device
        if device != source.rows.codes.device:
            raise SeesError(
                f"source is on {source.rows.codes.device}, target on {device}: move them to one "
                "device."
            )
        self.count = read_count(weight, len(self.rows), "target_weight", empty=part).to(device)
        proba, _ = by_class(proba, self.classes, source.proba_names)
        matrix = read_proba(proba, len(self.rows), "target_proba", device)
        if matrix.shape[1] != len(self.classes):
            raise ShapeError(
                f"target_proba has {matrix.shape[1]} columns, source_proba has {len(self.classes)}:"
                " both need one column per class, in the same order."
            )
        self.proba = self.posterior = of_second_class(proba, matrix, self.classes)
        self.labels = torch.full((len(self.rows),), -1, dtype=torch.int64, device=device)
        if labels is not None:
            self.labels = read_some_labels(labels, self.classes, "target_labels").to(device)
            if len(self.labels) != len(self.rows):
                raise ShapeError(
                    f"target_labels has {len(self.labels)} entries, target has {len(self.rows)} "
                    "rows: give one per row, None or NaN where the label is not known."
                )
            self.labelled = float(self.count[self.labels >= 0].sum())
        self.notes = () if part else treatments(self, source)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Any],
        source: Source,
        model: Any = None,
        *,
        labelled: bool = False,
        weighted: bool = False,
        logits: bool = False,
        precision: int | None = PRECISION,
        max_rows: int = MAX_ROWS,
        distributed: bool = False,
        progress: Progress | None = None,
    ) -> Target:
        """A target that need not fit into memory: only its distinct rows are kept, with counts.

        Args:
            batches: tuples (features, proba), read once.
            source: the sample to compare with.
            model: instead of the last entry of every tuple.
            labelled: every tuple is (features, labels, proba), labels missing where unknown.
            weighted, logits, precision, max_rows, distributed, progress: as in
                `Source.from_batches`.
        """
        target = cls.__new__(cls)
        target.schema, target.classes = source.schema, source.classes

        read = BatchReader(batches, model, logits, weighted, progress)

        def one_pass() -> Counted | None:
            tally = Tally(source.schema, precision, max_rows)
            for features, labels, proba, weight in read.target(source.schema, labelled):
                part = cls(features, proba, source, weight=weight, labels=labels, part=True)
                tally.add(part.rows, part.labels, part.proba, part.count)
            return tally.counted()

        target._take(one_pass, precision, max_rows, distributed, "target")
        if labelled:
            target.labelled = float(target.count[target.labels >= 0].sum())
        target.notes += treatments(target, source)
        return target

    def without_labels(self) -> Target:
        """The same rows, no label known."""
        other = copy.copy(self)
        other.labels, other.labelled = torch.full_like(self.labels, -1), 0.0
        return other

    def select(self, index: Tensor, count: Tensor) -> Target:
        """Some of the rows, with other multiplicities."""
        other = super().select(index, count)
        if self.labelled:
            other.labelled = float(count[other.labels >= 0].sum())
        return other

    def unseen_mass(self, source: Source) -> float:
        """Share of the target in rows with a level, in any feature, that the source never shows."""
        inside = torch.ones_like(self.count, dtype=torch.bool)
        for j, column in enumerate(self.schema.columns):
            seen = torch.bincount(source.rows.codes[:, j], source.count, minlength=column.codes) > 0
            inside &= seen[self.rows.codes[:, j]] | torch.tensor(column.kind == "continuous") & (
                self.rows.codes[:, j] < column.seen_codes
            )
        return float(self.mass[~inside].sum())


def is_population(source: Source, target: Target) -> bool:
    """Multiplicities that average below one are probabilities: there is no sampling noise."""

    def below(sample: Sample) -> bool:
        rows = float((sample.count > 0).sum())
        return not sample.sampled and float(sample.total) < (1 - 1e-9) * rows

    return below(source) or below(target)


def learn_schema(features: Any, kinds: Mapping[Name, Kind] | None, weight: Any) -> Schema:
    """The schema of the source's features, rows of multiplicity zero left out."""
    if weight is None:
        return Schema.learn(features, kinds)
    count = read_count(weight, len(features), "source_weight")
    device = features.device if isinstance(features, Tensor) else count.device
    return Schema.learn(features, kinds, weight=count.to(device))
