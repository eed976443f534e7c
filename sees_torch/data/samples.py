"""`Source` and `Target`: the two samples, validated once, as tensors on one device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from sees_torch.data.arrays import as_numbers
from sees_torch.data.columns import Kind
from sees_torch.data.labels import (
    read_classes,
    read_labels,
    read_some_labels,
    resolve_classes,
)
from sees_torch.data.probabilities import proba_columns, read_proba
from sees_torch.data.schema import Rows, Schema
from sees_torch.data.tables import Name, is_frame
from sees_torch.errors import SchemaError, SeesError, ShapeError

Sample = TypeVar("Sample", bound="_Sample")


class _Sample:
    """Rows, probabilities and multiplicities of one sample."""

    rows: Rows
    schema: Schema
    classes: tuple[Any, ...]
    proba: Tensor
    """(n, L) what the model says: predictions and metrics are read from it."""
    posterior: Tensor
    """(n, L) p(y|x) as the methods use it: `proba`, calibrated if asked."""
    count: Tensor
    """(n,) row multiplicities."""

    @property
    def total(self) -> Tensor:
        return self.count.sum()

    @property
    def mass(self) -> Tensor:
        """(n,) multiplicities that sum to one."""
        return self.count / self.total

    @property
    def predictions(self) -> Tensor:
        """(n,) most probable class, the first one where several tie."""
        return self.proba.argmax(dim=1)

    def __len__(self) -> int:
        return len(self.rows)

    def mean(self, per_row: Tensor) -> Tensor:
        """Mean over the rows of a (n, ...) tensor, multiplicities included."""
        return torch.tensordot(self.mass.to(per_row.dtype), per_row, dims=1)

    def with_posterior(self: Sample, posterior: Tensor) -> Sample:
        """The same sample with another p(y|x)."""
        other = copy.copy(self)
        other.posterior = posterior
        return other

    def with_count(self: Sample, count: Tensor) -> Sample:
        """The same rows with other multiplicities."""
        other = copy.copy(self)
        other.count = count
        return other


class Source(_Sample):
    """The labelled source sample, held out from the model's training.

    Args:
        features: (n, d) DataFrame, ndarray or Tensor.
        labels: (n,) class of every row.
        proba: (n, L) the model's probabilities, or (n,) for the second of two classes.
        classes: order of the probability columns, needed unless the labels sort into it.
        kinds: {column: "categorical" | "continuous"} where the rule of `Schema` should not decide.
        weight: (n,) row multiplicities.
        schema: a schema learnt earlier, instead of learning one from `features`.
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
    ) -> None:
        if schema is not None and kinds is not None:
            raise SeesError("give kinds or schema, not both: a schema fixes the kinds.")
        self.schema = schema or learn_schema(features, kinds, weight)
        self.rows = self.schema.encode(features, "source")
        device = self.rows.codes.device
        self.count = read_count(weight, len(self.rows), "source_weight").to(device)
        column = read_labels(labels)
        if len(column) != len(self.rows):
            raise ShapeError(f"labels has {len(column)} entries, source has {len(self.rows)} rows.")
        order = None if classes is None else read_classes(classes)
        proba, self.proba_names = _by_class(proba, order, None)
        matrix = read_proba(proba, len(self.rows), "source_proba", device)
        counted = column.where((self.count > 0).to(column.of_row.device))
        names = proba_columns(proba)
        self.classes = resolve_classes(counted, matrix.shape[1], order, names)
        self.proba = self.posterior = _of_second_class(proba, matrix, self.classes)
        self.labels = column.positions(self.classes).to(device)


class Target(_Sample):
    """The unlabelled target sample, coded as its source was.

    Args:
        features: (m, d) DataFrame, ndarray or Tensor with the source's columns.
        proba: (m, L) the model's probabilities, columns as in the source.
        source: the sample to compare with.
        weight: (m,) row multiplicities.
        labels: (m,) class of the rows whose label is known; None or NaN where it is not.
    """

    labels: Tensor
    """(m,) position of the known label, -1 where it is not known."""

    def __init__(
        self,
        features: Any,
        proba: Any,
        source: Source,
        *,
        weight: Any = None,
        labels: Any = None,
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
        self.count = read_count(weight, len(self.rows), "target_weight").to(device)
        proba, _ = _by_class(proba, self.classes, source.proba_names)
        matrix = read_proba(proba, len(self.rows), "target_proba", device)
        if matrix.shape[1] != len(self.classes):
            raise ShapeError(
                f"target_proba has {matrix.shape[1]} columns, source_proba has {len(self.classes)}:"
                " both need one column per class, in the same order."
            )
        self.proba = self.posterior = _of_second_class(proba, matrix, self.classes)
        self.labels = torch.full((len(self.rows),), -1, dtype=torch.int64, device=device)
        if labels is not None:
            self.labels = read_some_labels(labels, self.classes, "target_labels").to(device)
            if len(self.labels) != len(self.rows):
                raise ShapeError(
                    f"target_labels has {len(self.labels)} entries, target has {len(self.rows)} "
                    "rows: give one per row, None or NaN where the label is not known."
                )
        self._notes = _treatments(self, source)

    def unseen_mass(self, source: Source) -> float:
        """Share of the target in rows with a level, in any feature, that the source never shows."""
        inside = torch.ones_like(self.count, dtype=torch.bool)
        for j, column in enumerate(self.schema.columns):
            seen = torch.bincount(source.rows.codes[:, j], source.count, minlength=column.codes) > 0
            inside &= seen[self.rows.codes[:, j]] | torch.tensor(column.kind == "continuous") & (
                self.rows.codes[:, j] < column.seen_codes
            )
        return float(self.mass[~inside].sum())

    def treatments(self) -> tuple[str, ...]:
        """What was done to values that the source never showed, in words."""
        return self._notes


def is_population(source: Source, target: Target) -> bool:
    """Multiplicities that average below one are probabilities: there is no sampling noise."""

    def below(sample: _Sample) -> bool:
        rows = float((sample.count > 0).sum())
        return float(sample.total) < (1 - 1e-9) * rows

    return below(source) or below(target)


def learn_schema(features: Any, kinds: Mapping[Name, Kind] | None, weight: Any) -> Schema:
    """The schema of the source's features, rows of multiplicity zero left out."""
    if weight is None:
        return Schema.learn(features, kinds)
    count = read_count(weight, len(features), "source_weight")
    device = features.device if isinstance(features, Tensor) else count.device
    return Schema.learn(features, kinds, weight=count.to(device))


def read_count(weight: Any, rows: int, what: str) -> Tensor:
    """(n,) row multiplicities, checked; ones when none are given."""
    if weight is None:
        return torch.ones(rows, dtype=torch.float64)
    count = as_numbers(weight, what)
    if count.shape != (rows,):
        raise ShapeError(f"{what} must have shape ({rows},), got {tuple(count.shape)}.")
    if not bool((count.isfinite() & (count >= 0)).all()) or not float(count.sum()) > 0:
        raise SeesError(f"{what} must be non-negative, finite and not all zero.")
    return count


def _by_class(
    proba: Any, classes: tuple[Any, ...] | None, known: tuple[Any, ...] | None
) -> tuple[Any, tuple[Any, ...] | None]:
    """A probability frame with its columns in order, and the names of its columns.

    Columns are put in the order of the classes where they name them, else in that of the names
    `known` from the source; a frame with other names than the source's is refused.
    """
    names = proba_columns(proba)
    if names is None:
        return proba, None
    if classes is not None and set(names) == set(classes):
        return proba[list(classes)], classes
    if known is not None and set(known) != set(classes or ()):
        if set(names) != set(known):
            raise SchemaError(
                f"target_proba has the columns {list(names)}, source_proba has {list(known)}: "
                "name them alike."
            )
        return proba[list(known)], known
    if known is not None:
        raise SchemaError(
            f"the columns of target_proba {list(names)} do not name the classes {list(known)}."
        )
    return proba, names


def _of_second_class(proba: Any, matrix: Tensor, classes: tuple[Any, ...]) -> Tensor:
    """A single column named after the first class is its probability, else the second's.

    Only text is a name: pandas calls a nameless column 0, which may be a class.
    """
    if is_frame(proba):
        name = proba.columns[0] if proba.shape[1] == 1 else None
    else:
        name = None if isinstance(proba, Tensor) else getattr(proba, "name", None)
    return matrix.flip(1) if isinstance(name, str) and name == classes[0] else matrix


def _treatments(target: Target, source: Source) -> tuple[str, ...]:
    notes = []
    for j, column in enumerate(target.schema.columns):
        codes = target.rows.codes[:, j]
        unseen = float(target.mass[codes == column.unseen].sum())
        if unseen > 0:
            notes.append(
                f"{column.name}: {unseen:.2%} of the target has levels unknown to the source"
            )
        missing = float(target.mass[codes == column.missing].sum())
        if missing > 0 and not float(source.mass[source.rows.codes[:, j] == column.missing].sum()):
            notes.append(
                f"{column.name}: {missing:.2%} of the target is missing, nothing in the source is"
            )
        clamped = float(target.mass[target.rows.clamped[:, j]].sum())
        if clamped > 0:
            notes.append(
                f"{column.name}: {clamped:.2%} of the target lies outside "
                f"{column.show(column.low)} to {column.show(column.high)} and was clamped to it"
            )
        if column.seen_codes == 0:
            notes.append(f"{column.name}: empty in the source, so it cannot explain a shift")
    return tuple(notes)
