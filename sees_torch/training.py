"""Weights of labelled rows for training loops.

The weights describe how the target differs from the source, so they fit any labelled rows of the
source's law; they are worth what the report's status says.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import WeightedRandomSampler

from sees_torch.errors import SeesError, SeesWarning, SupportError
from sees_torch.report import ShiftReport
from sees_torch.weights import WeightFunction


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
    weight = function_of(shift)(features, labels).detach()
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


def function_of(shift: Any) -> WeightFunction:
    """The weight function of a report, or itself."""
    function = getattr(shift, "weight_function", shift)
    if not isinstance(function, WeightFunction):
        raise SeesError(
            f"give a ShiftReport or a WeightFunction, got {type(shift).__name__}: methods are "
            "fitted by estimate_shift(..., method=...)."
        )
    return function
