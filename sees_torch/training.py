"""Weights inside training loops: per row, or as a loss on the target.

The weights describe how the target differs from the source, so they fit any labelled rows of the
source's law; they are worth what the report's status says.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import WeightedRandomSampler

from sees_torch.data import Rows
from sees_torch.data.labels import read_labels
from sees_torch.data.probabilities import check_width, read_proba, two_columns
from sees_torch.errors import SchemaError, SeesError, SeesWarning, ShapeError, SupportError
from sees_torch.gap import ROW_METRICS, RowMetric
from sees_torch.report import ShiftReport
from sees_torch.weights import WeightFunction, copied

BatchMean = Literal["ipw", "self-normalised"]
LOSSES = tuple(name for name in ROW_METRICS if name != "accuracy")
"""Accuracy has no gradient."""


@dataclass(frozen=True)
class ImportanceWeights:
    """Weights of labelled rows, ready for training.

    Attributes:
        weights: (n,) with mean 1.
        effective_rows: (sum w)^2 / sum w^2, the equally weighted rows that these are worth.
        clipped_rows: share of the rows whose weight was cut.
        clipped_weight: share of the weight that was cut off.
    """

    weights: Tensor
    effective_rows: float
    clipped_rows: float = 0.0
    clipped_weight: float = 0.0

    def sampler(
        self, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> WeightedRandomSampler:
        """For a DataLoader over these rows: batches that look like the target.

        Args:
            num_samples: rows per epoch, by default as many as there are.
            generator: source of randomness, as in torch.
        """
        count = len(self.weights) if num_samples is None else num_samples
        return WeightedRandomSampler(self.weights.tolist(), count, generator=generator)


def importance_weights(
    shift: ShiftReport | WeightFunction,
    features: Any,
    labels: Any,
    *,
    clip: float | None = None,
    min_effective: float = 0.1,
) -> ImportanceWeights:
    """Weights of any labelled rows of the source's law, for an importance-weighted loss.

    Args:
        shift: a report, or its weight function.
        features: (n, d) the rows, with the columns that the report was made from.
        labels: (n,) their classes.
        clip: a number above 1 cuts weights at so many times their mean, one below 1 at this
            quantile of them; afterwards they are scaled to mean 1 again.
        min_effective: warn when the effective rows are fewer than this share of the rows.

    >>> from sees_torch import estimate_shift, make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> report = estimate_shift(**pair.inputs(), replicates=0)
    >>> found = importance_weights(report, pair.source, pair.labels, clip=4.0)
    >>> found.weights.shape, round(float(found.weights.mean()), 6)
    (torch.Size([4000]), 1.0)
    """
    if clip is not None and (not clip > 0 or clip == 1):
        raise SeesError(
            f"clip must be above 1 (times the mean weight) or between 0 and 1 (a quantile), "
            f"got {clip!r}."
        )
    weight = _function_of(shift)(features, labels).detach()
    if not float(weight.sum()) > 0:
        raise SupportError(
            "every row weighs 0: by these weights none of them occurs in the target."
        )
    weight = weight / weight.mean()
    kept = weight
    if clip is not None:
        cap = clip if clip > 1 else float(weight.kthvalue(math.ceil(clip * len(weight))).values)
        kept = weight.clamp_max(cap)
        if not float(kept.sum()) > 0:
            raise SupportError(f"the {clip} quantile of the weights is 0: clip at a higher one.")
    found = ImportanceWeights(
        kept / kept.mean(),
        effective_rows=float(kept.sum().square() / kept.square().sum()),
        clipped_rows=float((kept < weight).to(weight.dtype).mean()),
        clipped_weight=float((weight - kept).mean()),
    )
    if found.effective_rows < min_effective * len(weight):
        warnings.warn(
            f"{len(weight)} weighted rows are worth {found.effective_rows:.0f}, fewer than "
            f"{min_effective:.0%} of them ({found.clipped_weight:.0%} of the weight was clipped): "
            "a network trained on them will be noisy. Clip lower, or get more rows like the "
            "target's.",
            SeesWarning,
            stacklevel=2,
        )
    return found


class TargetLoss(nn.Module):
    """The loss that a network is estimated to have on the target, from labelled source rows.

    mean w l over a batch (`ipw`, whose mean over batches is the whole sample's), or
    sum w l / sum w (`self-normalised`: steadier, with a bias that falls with the batch size). The
    module has its own copy of the weights, in its state and moved with it.

    Args:
        shift: a report, or its weight function.
        loss: "log_loss", "brier", or a function of (outputs as given, labels as class positions)
            that returns one value per row, such as `nn.CrossEntropyLoss(reduction="none")`.
        logits: the network's outputs are logits; for the named losses.
        estimator: "ipw" or "self-normalised".
        clip: largest weight of a row.
        detach: no gradient through the weights. A network that can move them lowers this loss by
            moving weight onto easy rows.

    >>> from sees_torch import estimate_shift, make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> report = estimate_shift(**pair.inputs(), metric="log_loss", estimator="ipw", replicates=0)
    >>> value = TargetLoss(report)(torch.tensor(pair.source_proba), pair.labels, pair.source)
    >>> abs(float(value) - report.target_value) < 1e-9
    True
    """

    def __init__(
        self,
        shift: ShiftReport | WeightFunction,
        loss: str | RowMetric = "log_loss",
        *,
        logits: bool = False,
        estimator: BatchMean = "ipw",
        clip: float | None = None,
        detach: bool = True,
    ) -> None:
        super().__init__()
        if loss not in LOSSES and not callable(loss):
            raise SeesError(f"loss takes {', '.join(LOSSES)} or a per-row function, got {loss!r}.")
        if estimator not in get_args(BatchMean):
            raise SeesError(f"estimator takes 'ipw' or 'self-normalised', got {estimator!r}.")
        if clip is not None and not clip > 0:
            raise SeesError(f"clip, the largest weight, must be positive, got {clip!r}.")
        self.weight_function = copied(_function_of(shift))
        self.loss, self.logits, self.estimator = loss, logits, estimator
        self.clip, self.detach = clip, detach

    def update(self, shift: ShiftReport | WeightFunction) -> None:
        """Take the weights of a newer report, on the device where this loss is."""
        function, held = copied(_function_of(shift)), next(self.weight_function.buffers(), None)
        if function.classes != self.weight_function.classes:
            raise SchemaError(
                f"the new weights are for the classes {list(function.classes)}, this loss is for "
                f"{list(self.weight_function.classes)}."
            )
        self.weight_function = function if held is None else function.to(held.device)

    def encode(self, features: Any) -> Rows:
        """A table as coded rows, to be indexed by a tensor: coding once saves time per batch."""
        return self.weight_function.schema.encode(features, "features")

    def forward(self, output: Tensor, labels: Any, features: Any) -> Tensor:
        """The loss of a batch.

        Args:
            output: (n, L) of the network.
            labels: (n,) classes.
            features: (n, d) rows with the report's columns, as a table or coded by `encode`.
        """
        function = self.weight_function
        positions = read_labels(labels).positions(function.classes).to(output.device)
        value = self._row_losses(output, positions)
        if value.shape != positions.shape:
            raise ShapeError(
                f"the loss must return one value per row, ({len(positions)},); got "
                f"{tuple(value.shape)}. In torch's losses that is reduction='none'."
            )
        if isinstance(features, Rows):
            if len(features) != len(positions):
                raise ShapeError(f"features has {len(features)} rows, labels {len(positions)}.")
            held = next(function.buffers(), features.codes).device
            weight = function.of_rows(features.to(held), positions.to(held))
        else:
            weight = function(features, labels)
        weight = weight.to(value.device, value.dtype)
        weight = weight.detach() if self.detach else weight
        weight = weight if self.clip is None else weight.clamp_max(self.clip)
        total = (weight * value).sum()
        if self.estimator == "ipw":
            return total / len(value)
        return total / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    def _row_losses(self, output: Tensor, positions: Tensor) -> Tensor:
        if not isinstance(self.loss, str):
            return self.loss(output, positions)
        shape = (len(positions), len(self.weight_function.classes))
        if not self.logits:
            proba = read_proba(output, len(positions), "output", output.device)
            return ROW_METRICS[self.loss](check_width(proba, *shape), positions)
        scores = check_width(two_columns(output), *shape)
        if self.loss == "log_loss":  # Stable where a floored probability has no gradient.
            return nn.functional.cross_entropy(scores, positions, reduction="none")
        return ROW_METRICS[self.loss](scores.softmax(dim=1), positions)

    def extra_repr(self) -> str:
        loss = "" if isinstance(self.loss, nn.Module) else f"{self.loss}, "
        return f"{loss}estimator={self.estimator}, clip={self.clip}, detach={self.detach}"


def _function_of(shift: Any) -> WeightFunction:
    function = getattr(shift, "weight_function", shift)
    if not isinstance(function, WeightFunction):
        raise SeesError(
            f"give a ShiftReport or a WeightFunction, got {type(shift).__name__}: methods are "
            "fitted by estimate_shift(..., method=...)."
        )
    return function
