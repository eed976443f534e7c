"""`Source` and `Target`: the two samples, validated once, as tensors on one device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sees_torch.data.labels import read_labels, resolve_classes
from sees_torch.data.probabilities import proba_columns, read_proba
from sees_torch.data.schema import Kind, Rows, Schema
from sees_torch.data.tables import Name
from sees_torch.errors import SchemaError, SeesError, ShapeError, SupportError


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
        classes: Sequence[Any] | None = None,
        kinds: Mapping[Name, Kind] | None = None,
        weight: Any = None,
        schema: Schema | None = None,
    ) -> None:
        if schema is not None and kinds is not None:
            raise SeesError("give kinds or schema, not both: a schema fixes the kinds.")
        count_hint = None if weight is None else _read_count(weight, None, "source_weight")
        if schema is None:
            _require_equal_length(features, count_hint, "source", "source_weight")
            schema = Schema.learn(features, kinds, weight=count_hint)
        self.schema = schema
        self.rows = self.schema.encode(features, "source")
        device = self.rows.codes.device
        column = read_labels(labels)
        if len(column) != len(self.rows):
            raise ShapeError(f"labels has {len(column)} entries, source has {len(self.rows)} rows.")
        names = proba_columns(proba)
        if names is not None and classes is not None and set(names) == set(classes):
            proba = proba[list(classes)]
        matrix = read_proba(proba, len(self.rows), "source_proba", device)
        self.classes = resolve_classes(column, matrix.shape[1], classes, names)
        self.proba = self.posterior = matrix
        self.labels = column.positions(self.classes).to(device)
        self.count = _read_count(weight, self.rows, "source_weight")

    def with_posterior(self, posterior: Tensor) -> Source:
        """The same sample with another p(y|x)."""
        other = copy.copy(self)
        other.posterior = posterior
        return other


class Target(_Sample):
    """The unlabelled target sample, coded as its source was.

    Args:
        features: (m, d) DataFrame, ndarray or Tensor with the source's columns.
        proba: (m, L) the model's probabilities, columns as in the source.
        source: the sample to compare with.
        weight: (m,) row multiplicities.
    """

    def __init__(self, features: Any, proba: Any, source: Source, *, weight: Any = None) -> None:
        self.schema = source.schema
        self.classes = source.classes
        self.rows = self.schema.encode(features, "target")
        if not len(self.rows):
            raise SupportError("target is empty: at least one row is needed.")
        if self.rows.codes.device != source.rows.codes.device:
            raise SeesError(
                f"source is on {source.rows.codes.device}, target on {self.rows.codes.device}: "
                "move them to one device."
            )
        names = proba_columns(proba)
        if names is not None and set(names) == set(self.classes):
            proba = proba[list(self.classes)]
        matrix = read_proba(proba, len(self.rows), "target_proba", self.rows.codes.device)
        if matrix.shape[1] != len(self.classes):
            raise ShapeError(
                f"target_proba has {matrix.shape[1]} columns, source_proba has {len(self.classes)}:"
                " both need one column per class, in the same order."
            )
        self.proba = self.posterior = matrix
        self.count = _read_count(weight, self.rows, "target_weight")

    def with_posterior(self, posterior: Tensor) -> Target:
        """The same sample with another p(y|x)."""
        other = copy.copy(self)
        other.posterior = posterior
        return other

    def treatments(self) -> tuple[str, ...]:
        """What was done to values that the source never showed, in words."""
        notes = []
        for j, column in enumerate(self.schema.columns):
            codes = self.rows.codes[:, j]
            unseen = float(self.mass[codes == column.unseen].sum())
            if unseen > 0:
                notes.append(
                    f"{column.name}: {unseen:.2%} of the target has levels unknown to the source"
                )
            clamped = float(self.mass[self.rows.clamped[:, j]].sum())
            if clamped > 0:
                notes.append(
                    f"{column.name}: {clamped:.2%} of the target lies outside "
                    f"{column.low:g} to {column.high:g} and was clamped to it"
                )
            if column.seen_codes == 0:
                notes.append(f"{column.name}: empty in the source, so it cannot explain a shift")
        return tuple(notes)


def _require_equal_length(features: Any, count: Tensor | None, what: str, weight: str) -> None:
    if count is not None and len(features) != len(count):
        raise ShapeError(f"{weight} has {len(count)} entries, {what} has {len(features)} rows.")


def _read_count(weight: Any, rows: Rows | None, what: str) -> Tensor:
    if weight is None:
        assert rows is not None
        return torch.ones(len(rows), dtype=torch.float64, device=rows.codes.device)
    try:
        count = torch.as_tensor(
            weight.to_numpy() if hasattr(weight, "to_numpy") else weight, dtype=torch.float64
        )
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{what} must be one number per row: {error}.") from None
    if count.ndim != 1 or (rows is not None and len(count) != len(rows)):
        expected = "(n,)" if rows is None else f"({len(rows)},)"
        raise ShapeError(f"{what} must have shape {expected}, got {tuple(count.shape)}.")
    if not bool((count.isfinite() & (count >= 0)).all()) or not float(count.sum()) > 0:
        raise SeesError(f"{what} must be non-negative, finite and not all zero.")
    return count if rows is None else count.to(rows.codes.device)
