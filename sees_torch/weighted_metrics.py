"""Classification metrics of weighted rows that are no mean over rows, for many weights at once.

Every metric takes class probabilities (n, L), labels (n,) as class positions, and weights (..., n)
that are >= 0 (None: ones), and returns shape (...,); each set of weights may have any scale. A row
without weight counts as absent, and weights that are all zero give NaN. Nothing waits for the
device, so labels outside 0..L-1 and negative weights are the caller's to refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from sees_torch.errors import ShapeError


class WeightedMetric(Protocol):
    """(probabilities (n, L), labels (n,), weights (..., n) or None) -> (...,) values."""

    def __call__(self, proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor: ...


def weighted_mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """(...,) means of (n,) values under weights (..., n).

    >>> weighted_mean(torch.tensor([1.0, 4.0]), torch.tensor([[1, 1], [2, 1]]))
    tensor([2.5000, 2.0000])
    """
    if values.ndim != 1:
        raise ShapeError(f"values must have shape (n,), one per row; got {tuple(values.shape)}.")
    weight = _weight_of_rows(values, weight)
    return _ratio(weight @ values.to(weight.dtype), weight.sum(dim=-1), empty=torch.nan)


def balanced_accuracy(proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean recall over the classes that occur."""
    hit, true, _ = _class_weights(proba, labels, weight)
    return _mean_over(true > 0, _ratio(hit, true))


def precision(proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean precision over the classes that occur or are predicted; 0 for one never predicted."""
    hit, true, predicted = _class_weights(proba, labels, weight)
    return _mean_over(true + predicted > 0, _ratio(hit, predicted))


def recall(proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean recall over the classes that occur or are predicted; 0 for one that never occurs."""
    hit, true, predicted = _class_weights(proba, labels, weight)
    return _mean_over(true + predicted > 0, _ratio(hit, true))


def f1(proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the classes that occur or are predicted of 2 hit / (true + predicted)."""
    hit, true, predicted = _class_weights(proba, labels, weight)
    return _mean_over(true + predicted > 0, _ratio(2 * hit, true + predicted))


def auroc(proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Chance that a row of the class scores above a row of another, ties counting one half.

    With two classes it is that of class 1, with more the mean over the classes, each against the
    rest. A class that has no weight, or all of it, is left out of the mean; NaN if none remains.
    Differentiable in the weights only.
    """
    return _one_vs_rest(_auroc_of_class, proba, labels, weight)


def average_precision(proba: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the rows of a class of the precision among rows that score at least as high.

    With two classes it is that of class 1, with more the mean over the classes, each against the
    rest. A class that has no weight is left out of the mean; NaN if none remains.
    Differentiable in the weights only.
    """
    return _one_vs_rest(_average_precision_of_class, proba, labels, weight)


def expected_calibration_error(
    proba: Tensor, labels: Tensor, weight: Tensor | None = None, bins: int = 15
) -> Tensor:
    """Mean over bins of |accuracy - confidence|, by the weight of the bin.

    The confidence is the probability of the likeliest class, with two classes as with more. Bins
    are equally wide on [0, 1] and hold their lower edge, the last one both edges. Also
    differentiable in the probabilities, within their bins.
    """
    weight = _weight_of(proba, labels, weight)
    predicted = proba.argmax(dim=1)
    confidence = proba.gather(1, predicted[:, None]).squeeze(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=proba.dtype, device=proba.device)
    position = torch.bucketize(confidence.detach(), edges[1:-1], right=True)
    error = (predicted == labels).to(weight.dtype) - confidence.to(weight.dtype)
    by_bin = (weight * error) @ _one_hot(position, bins, weight)
    return _ratio(by_bin.abs().sum(dim=-1), weight.sum(dim=-1), empty=torch.nan)


METRICS: dict[str, WeightedMetric] = {
    "balanced_accuracy": balanced_accuracy,
    "precision": precision,
    "recall": recall,
    "f1": f1,
    "auroc": auroc,
    "average_precision": average_precision,
    "expected_calibration_error": expected_calibration_error,
}


def cost(matrix: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The per-row metric matrix[label, likeliest class] of an (L, L) tensor, array or nested list.

    >>> missed_costs_five = cost([[0, 1], [5, 0]])
    >>> missed_costs_five(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([1, 1]))
    tensor([5., 0.])
    """
    table = matrix if isinstance(matrix, Tensor) else torch.tensor(matrix, dtype=torch.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ShapeError(
            f"the costs must be a square matrix, cost[label, prediction]; got {tuple(table.shape)}."
        )

    def row_cost(proba: Tensor, labels: Tensor) -> Tensor:
        if proba.shape[1] != len(table):
            raise ShapeError(
                f"costs of {len(table)} classes do not fit probabilities of {proba.shape[1]}: "
                "give one row and one column per class."
            )
        return table.to(proba)[labels, proba.argmax(dim=1)]

    row_cost.__name__ = "cost"
    return row_cost


def _weight_of_rows(like: Tensor, weight: Tensor | None) -> Tensor:
    """The weights, checked, in the wider of both precisions and at least float32."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if weight is None:
        return torch.ones(len(like), dtype=dtype, device=like.device)
    if weight.ndim < 1 or weight.shape[-1] != len(like):
        raise ShapeError(
            f"weights must have shape (..., {len(like)}), one per row along the last dimension; "
            f"got {tuple(weight.shape)}."
        )
    return weight.to(torch.promote_types(weight.dtype, dtype))


def _weight_of(proba: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    if proba.ndim != 2 or proba.shape[1] < 2:
        raise ShapeError(
            "probabilities must have shape (n, L), one column per class and at least two; "
            f"got {tuple(proba.shape)}."
        )
    if labels.shape != proba.shape[:1]:
        raise ShapeError(f"labels must have shape ({len(proba)},); got {tuple(labels.shape)}.")
    return _weight_of_rows(proba, weight)


def _one_hot(positions: Tensor, count: int, like: Tensor) -> Tensor:
    return (positions[:, None] == torch.arange(count, device=positions.device)).to(like.dtype)


def _ratio(part: Tensor, whole: Tensor, empty: float = 0.0) -> Tensor:
    """Part / whole, or `empty` where whole is zero, with a finite gradient there."""
    some = whole > 0
    return torch.where(some, part / torch.where(some, whole, 1.0), empty)


def _mean_over(counted: Tensor, values: Tensor) -> Tensor:
    """(...,) means over the classes that count; the values (..., L) of the others are zero."""
    return values.sum(dim=-1) / counted.sum(dim=-1)


def _class_weights(
    proba: Tensor, labels: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(..., L) weights of each class: hit, occurring, predicted."""
    weight = _weight_of(proba, labels, weight)
    true = _one_hot(labels, proba.shape[1], weight)
    predicted = _one_hot(proba.argmax(dim=1), proba.shape[1], weight)
    return weight @ (true * predicted), weight @ true, weight @ predicted


CurveArea = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _one_vs_rest(area: CurveArea, proba: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    weight = _weight_of(proba, labels, weight)
    # The area under the ROC curve multiplies weights: shares neither overflow nor vanish.
    share = _ratio(weight, weight.sum(dim=-1, keepdim=True))
    n_labels = proba.shape[1]
    classes = [1] if n_labels == 2 else range(n_labels)
    areas = [area(proba[:, label].detach(), labels == label, share) for label in classes]
    defined = torch.stack([known for _, known in areas], dim=-1)
    return _mean_over(defined, torch.stack([value for value, _ in areas], dim=-1))


def _auroc_of_class(score: Tensor, member: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(...,) values, and whether they are defined."""
    weight, member, start, end = _ranked(score, member, weight)
    inside, outside = weight * member, weight * ~member
    sums = _running_sums(inside)
    won = (outside * (_at(sums, start) + _at(sums, end))).sum(dim=-1) / 2
    pairs = inside.sum(dim=-1) * outside.sum(dim=-1)
    return _ratio(won, pairs), pairs > 0


def _average_precision_of_class(
    score: Tensor, member: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """(...,) values, and whether they are defined."""
    weight, member, _, end = _ranked(score, member, weight)
    inside = weight * member
    # A row of the class with no weight at or above it would, given some, stand first: precision 1.
    # It has no weight, so only the gradient sees this.
    precisions = _ratio(_at(_running_sums(inside), end), _at(_running_sums(weight), end), empty=1.0)
    total = inside.sum(dim=-1)
    return _ratio((inside * precisions).sum(dim=-1), total), total > 0


def _ranked(score: Tensor, member: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights and membership from the highest score down, and each row's ties as start and end.

    From the top, so that the few highest rows are summed without cancellation.
    """
    key, order = torch.sort(-score, stable=True)
    start, end = torch.searchsorted(key, key), torch.searchsorted(key, key, right=True)
    return _at(weight, order), member[order], start, end


def _running_sums(weight: Tensor) -> Tensor:
    """(..., n + 1) sums of the first 0, 1, ..., n weights."""
    return torch.nn.functional.pad(weight.cumsum(dim=-1), (1, 0))


def _at(values: Tensor, position: Tensor) -> Tensor:
    """Values at places of the last dimension; `gather` is here faster than `index_select`."""
    return values.gather(-1, position.expand(*values.shape[:-1], -1))
