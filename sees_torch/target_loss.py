"""The loss on the target as an nn.Module, for training loops.

Weights come from a report, or are fitted to every batch by a method. They are worth what a report's
status says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sees_torch.data import Rows, Schema, Source, Target
from sees_torch.data.labels import read_labels
from sees_torch.data.probabilities import check_width, read_proba, two_columns
from sees_torch.errors import SchemaError, SeesError, ShapeError
from sees_torch.estimation import Estimation
from sees_torch.gap import ROW_METRICS, RowMetric
from sees_torch.matching import Method
from sees_torch.report import ShiftReport
from sees_torch.training import function_of
from sees_torch.weights import WeightFunction, copied

BatchMean = Literal["ipw", "self-normalised"]
LOSSES = tuple(name for name in ROW_METRICS if name != "accuracy")
"""Accuracy has no gradient."""


class TargetLoss(nn.Module):
    """The loss that a network is estimated to have on the target, from labelled source rows.

    mean w l over a batch (`ipw`, whose mean over batches is the whole sample's), or
    sum w l / sum w (`self-normalised`: steadier, with a bias that falls with the batch size).

    Weights of a report are the same for every batch; the module has its own copy of them, in its
    state and moved with it. A method is fitted to what every call brings, unlabelled target rows
    included: take batches of a few hundred rows or more.

    Args:
        shift: a report, its weight function, or a method by name or as a configured object.
        loss: "log_loss", "brier", or a function of (outputs as given, labels as class positions)
            that returns one value per row, such as `nn.CrossEntropyLoss(reduction="none")`.
        logits: the network's outputs are logits; for the named losses, and for a method.
        estimator: "ipw" or "self-normalised".
        clip: largest weight of a row.
        detach_weights: no gradient through the weights. A network that can move them lowers this
            loss by moving weight onto easy rows. If False, the weights of a method, or of a report
            on probabilities with a graph, carry their exact gradient.
        calibrate: for a method, as in `estimate_shift`.
        schema, classes: for a method, how features are coded and the order of the outputs; by
            default learnt from every batch.

    >>> from sees_torch import estimate_shift, make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> report = estimate_shift(**pair.inputs(), metric="log_loss", estimator="ipw", replicates=0)
    >>> here, there = torch.tensor(pair.source_proba), torch.tensor(pair.target_proba)
    >>> value = TargetLoss(report)(here, pair.labels, pair.source)
    >>> abs(float(value) - report.target_value) < 1e-9
    True
    >>> again = TargetLoss("auto")(here, pair.labels, pair.source, there, pair.target)
    >>> abs(float(value - again)) < 1e-9
    True
    """

    def __init__(
        self,
        shift: ShiftReport | WeightFunction | Method | str,
        loss: str | RowMetric = "log_loss",
        *,
        logits: bool = False,
        estimator: BatchMean = "ipw",
        clip: float | None = None,
        detach_weights: bool = True,
        calibrate: bool | Literal["vector", "temperature"] = True,
        schema: Schema | None = None,
        classes: Any = None,
    ) -> None:
        super().__init__()
        if loss not in LOSSES and not callable(loss):
            raise SeesError(f"loss takes {', '.join(LOSSES)} or a per-row function, got {loss!r}.")
        if estimator not in get_args(BatchMean):
            raise SeesError(f"estimator takes 'ipw' or 'self-normalised', got {estimator!r}.")
        if clip is not None and not clip > 0:
            raise SeesError(f"clip, the largest weight, must be positive, got {clip!r}.")
        self.loss, self.logits, self.estimator = loss, logits, estimator
        self.clip, self.detach_weights = clip, detach_weights
        self.weight_function: WeightFunction | None = None
        self.fit: _Fit | None = None
        if isinstance(shift, (str, Method)):
            estimation = Estimation.checked(shift, "log_loss", "auto", None, calibrate, 0, None)
            self.fit = _Fit(estimation, schema, classes)
        else:
            self.weight_function = copied(function_of(shift), detach=detach_weights)

    def update(self, shift: ShiftReport | WeightFunction) -> None:
        """Take the weights of a newer report, on the device where this loss is."""
        old = self._function()
        function = copied(function_of(shift), detach=self.detach_weights)
        if function.classes != old.classes:
            raise SchemaError(
                f"the new weights are for the classes {list(function.classes)}, this loss is for "
                f"{list(old.classes)}."
            )
        held = next(old.buffers(), None)
        self.weight_function = function if held is None else function.to(held.device)

    def encode(self, features: Any) -> Rows:
        """A table as coded rows, to be indexed by a tensor: coding once saves time per batch."""
        return self._function().schema.encode(features, "features")

    def forward(
        self,
        output: Tensor,
        labels: Any,
        features: Any,
        target_output: Tensor | None = None,
        target_features: Any = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            output: (n, L) of the network on labelled source rows.
            labels: (n,) their classes.
            features: (n, d) rows with the report's columns, as a table or, with a report, coded by
                `encode`.
            target_output, target_features: (m, L) and (m, d) of unlabelled target rows, for a
                method.
        """
        given = target_output is not None and target_features is not None
        if self.fit is None and (target_output is not None or target_features is not None):
            raise SeesError("the weights of a report need no target rows: leave them out.")
        if self.fit is not None and not given:
            raise SeesError(
                f"{self.fit.estimation.method.name} is fitted to every batch: give target_output "
                "and target_features, or make this loss from a report."
            )
        if self.fit is None:
            weight, positions = self._held(output, labels, features)
        else:
            here, there = self._proba(output), self._proba(target_output)  # type: ignore[arg-type]
            if self.detach_weights:
                here, there = here.detach(), there.detach()
            weight, positions = self.fit.weights(here, labels, features, there, target_features)
        positions = positions.to(output.device)
        value = self._row_losses(output, positions)
        if value.shape != positions.shape:
            raise ShapeError(
                f"the loss must return one value per row, ({len(positions)},); got "
                f"{tuple(value.shape)}. In torch's losses that is reduction='none'."
            )
        return self.mean(weight.to(value.device, value.dtype), value)

    def mean(self, weight: Tensor, value: Tensor) -> Tensor:
        """The mean of row losses (n,) under weights (n,), clipped and detached as asked."""
        weight = weight.detach() if self.detach_weights else weight
        weight = weight if self.clip is None else weight.clamp_max(self.clip)
        total = (weight * value).sum()
        if self.estimator == "ipw":
            return total / len(value)
        return total / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    def _held(self, output: Tensor, labels: Any, features: Any) -> tuple[Tensor, Tensor]:
        """(n,) weights of the report, and labels as positions."""
        function = self._function()
        positions = read_labels(labels).positions(function.classes).to(output.device)
        if not isinstance(features, Rows):
            return function(features, labels), positions
        if len(features) != len(positions):
            raise ShapeError(f"features has {len(features)} rows, labels {len(positions)}.")
        held = next(function.buffers(), features.codes).device
        return function.of_rows(features.to(held), positions.to(held)), positions

    def _function(self) -> WeightFunction:
        if self.weight_function is None:
            raise SeesError("this loss fits a method to every batch: it has no weights to keep.")
        return self.weight_function

    def _proba(self, output: Tensor) -> Tensor:
        return two_columns(output).softmax(dim=1) if self.logits else output

    def _row_losses(self, output: Tensor, positions: Tensor) -> Tensor:
        if not isinstance(self.loss, str):
            return self.loss(output, positions)
        if not self.logits:
            proba = read_proba(output, len(positions), "output", output.device)
            return ROW_METRICS[self.loss](self._checked(proba, len(positions)), positions)
        scores = self._checked(two_columns(output), len(positions))
        if self.loss == "log_loss":  # Stable where a floored probability has no gradient.
            return nn.functional.cross_entropy(scores, positions, reduction="none")
        return ROW_METRICS[self.loss](scores.softmax(dim=1), positions)

    def _checked(self, matrix: Tensor, rows: int) -> Tensor:
        """With as many columns as classes; a method has checked that already."""
        if self.weight_function is None:
            return matrix
        return check_width(matrix, rows, len(self.weight_function.classes))

    def extra_repr(self) -> str:
        loss = "" if isinstance(self.loss, nn.Module) else f"{self.loss}, "
        method = "" if self.fit is None else f"{self.fit.estimation.method.name}, "
        settings = f"clip={self.clip}, detach_weights={self.detach_weights}"
        return f"{method}{loss}estimator={self.estimator}, {settings}"


@dataclass(frozen=True)
class _Fit:
    """A method that is fitted to every batch."""

    estimation: Estimation
    schema: Schema | None
    classes: Any

    def weights(
        self, proba: Tensor, labels: Any, features: Any, target_proba: Tensor, target_features: Any
    ) -> tuple[Tensor, Tensor]:
        """(n,) weights of the source rows, and their labels as positions."""
        if isinstance(features, Rows) or isinstance(target_features, Rows):
            raise SeesError("a method takes features as tables; coded rows belong to a report.")
        source = Source(features, labels, proba, classes=self.classes, schema=self.schema)
        target = Target(target_features, target_proba, source)
        prepared = self.estimation.prepare(source)
        function = self.estimation.match(prepared, target).weight_function
        return function.of_rows(source.rows, source.labels), source.labels
