"""The weighted metrics as torchmetrics: `update(proba, labels, weight)` batch by batch.

A weight is honoured or refused, never ignored. Labels are positions of the probability columns.
Without rows, or without weight, every value is NaN.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from sees_torch import weighted_metrics
from sees_torch.data.arrays import as_numbers, read_count
from sees_torch.data.probabilities import read_proba
from sees_torch.errors import SeesError, ShapeError
from sees_torch.gap import ROW_METRICS
from sees_torch.matching.match import whole_number
from sees_torch.metrics.states import RowMetric
from sees_torch.weighted_metrics import METRICS


class _WeightedMetric(RowMetric):
    """Checks what comes in; `metric` names the function of `sees_torch` behind the class."""

    metric: ClassVar[str]
    is_differentiable = False
    higher_is_better = True
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0

    def update(self, proba: Any, labels: Any, weight: Any = None) -> None:
        """Count one batch.

        Args:
            proba: (n, L) probabilities, or (n,) of the second of two classes.
            labels: (n,) whole numbers, the position of every row's class.
            weight: (n,) weights >= 0 of any scale; ones if not given.
        """
        matrix = as_numbers(proba, "proba", self.device)
        rows = len(matrix) if matrix.ndim else 0
        read_proba(proba, rows, "proba", self.device)  # Only to refuse what is none.
        if matrix.ndim == 1 or matrix.shape[1] == 1:
            matrix = matrix.reshape(-1)
            matrix = torch.stack([1 - matrix, matrix], dim=1)
        positions = _positions(labels, matrix)
        count = read_count(weight, rows, "weight", empty=True).to(self.device)
        self._count(matrix, positions, count)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """(figure, axes) of the value, or of several values, as in torchmetrics."""
        return self._plot(val, ax)

    def _count(self, proba: Tensor, labels: Tensor, weight: Tensor) -> None:
        raise NotImplementedError


def _positions(labels: Any, proba: Tensor) -> Tensor:
    """(n,) int64 labels, checked against the (n, L) probabilities."""
    found = labels if isinstance(labels, Tensor) else torch.as_tensor(labels)
    if found.shape != proba.shape[:1]:
        raise ShapeError(
            f"labels must have shape ({len(proba)},), one class per row; got {tuple(found.shape)}."
        )
    if found.is_floating_point() or found.is_complex():
        raise SeesError(
            f"labels must be whole numbers, positions of the probability columns; got {found.dtype}"
        )
    found = found.to(device=proba.device, dtype=torch.int64)
    if len(found) and not bool(((found >= 0) & (found < proba.shape[1])).all()):
        raise SeesError(
            f"labels must lie in 0 to {proba.shape[1] - 1}, one per probability column; got "
            f"{int(found.min())} to {int(found.max())}."
        )
    return found


class _MeanOverRows(_WeightedMetric):
    """A mean of one value per row: two sums."""

    def __init__(self, **metric_kwargs: Any) -> None:
        super().__init__(**metric_kwargs)
        # Names of their own: MetricCollection shares states of equal names and first values.
        for part in ("sum", "weight"):
            zero = torch.zeros((), dtype=torch.float64)
            self.add_state(f"{self.metric}_{part}", zero, dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        total, weight = (getattr(self, f"{self.metric}_{part}") for part in ("sum", "weight"))
        return torch.where(weight > 0, total / weight, torch.nan)

    def _count(self, proba: Tensor, labels: Tensor, weight: Tensor) -> None:
        values = ROW_METRICS[self.metric](proba, labels)
        for part, more in (("sum", weight @ values), ("weight", weight.sum())):
            name = f"{self.metric}_{part}"
            setattr(self, name, getattr(self, name) + more)


class WeightedAccuracy(_MeanOverRows):
    """Weighted share of the rows whose likeliest class is the label.

    >>> accuracy = WeightedAccuracy()
    >>> accuracy.update(torch.tensor([0.2, 0.9]), torch.tensor([1, 1]), torch.tensor([1.0, 3.0]))
    >>> float(accuracy.compute())
    0.75
    """

    metric = "accuracy"


class WeightedLogLoss(_MeanOverRows):
    """Weighted mean of -log p(label), with p floored at 1e-15."""

    metric = "log_loss"
    is_differentiable = True
    higher_is_better = False
    plot_upper_bound = None


class WeightedBrier(_MeanOverRows):
    """Weighted mean of the squared distance between probabilities and one-hot label, 0 to 2."""

    metric = "brier"
    is_differentiable = True
    higher_is_better = False
    plot_upper_bound = 2.0


class _OfClasses(_WeightedMetric):
    """A metric whose state has one column per class.

    Args:
        num_classes: number L of classes.
        metric_kwargs: of `torchmetrics.Metric`.
    """

    def __init__(self, num_classes: int = 2, **metric_kwargs: Any) -> None:
        super().__init__(**metric_kwargs)
        self.num_classes = whole_number(num_classes, "num_classes")
        if self.num_classes < 2:
            raise SeesError(f"num_classes must be at least 2, got {num_classes}.")

    def _check_columns(self, proba: Tensor) -> None:
        if proba.shape[1] != self.num_classes:
            raise ShapeError(
                f"proba has {proba.shape[1]} columns, the metric was made for {self.num_classes}: "
                f"give num_classes={proba.shape[1]}."
            )


class _OfConfusion(_OfClasses):
    """A function of the weighted confusion matrix."""

    def __init__(self, num_classes: int = 2, **metric_kwargs: Any) -> None:
        super().__init__(num_classes, **metric_kwargs)
        zero = torch.zeros(self.num_classes, self.num_classes, dtype=torch.float64)
        self.add_state("confusion", zero, dist_reduce_fx="sum")
        self.confusion: Tensor

    def compute(self) -> Tensor:
        # The matrix is a sample too: L * L rows, each a label with a certain prediction.
        sure = torch.eye(self.num_classes, dtype=torch.float64, device=self.confusion.device)
        place = torch.arange(self.num_classes, device=self.confusion.device)
        proba = sure.repeat(self.num_classes, 1)
        labels = place.repeat_interleave(self.num_classes)
        return METRICS[self.metric](proba, labels, self.confusion.reshape(-1))

    def _count(self, proba: Tensor, labels: Tensor, weight: Tensor) -> None:
        self._check_columns(proba)
        place = labels * self.num_classes + proba.argmax(dim=1)
        more = self.confusion.new_zeros(self.num_classes**2).index_add(0, place, weight)
        self.confusion = self.confusion + more.reshape_as(self.confusion)


class WeightedPrecision(_OfConfusion):
    """Mean weighted precision over the classes that occur or are predicted (macro)."""

    metric = "precision"


class WeightedRecall(_OfConfusion):
    """Mean weighted recall over the classes that occur or are predicted (macro)."""

    metric = "recall"


class WeightedF1(_OfConfusion):
    """Mean weighted F1 over the classes that occur or are predicted (macro)."""

    metric = "f1"


class WeightedBalancedAccuracy(_OfConfusion):
    """Mean weighted recall over the classes that occur."""

    metric = "balanced_accuracy"


class _OfRows(_OfClasses):
    """A metric that needs all rows at once."""

    def __init__(self, num_classes: int = 2, **metric_kwargs: Any) -> None:
        super().__init__(num_classes, **metric_kwargs)
        self.add_rows("proba", (self.num_classes,), torch.float64)
        self.add_rows("labels", (), torch.int64)
        self.add_rows("weight", (), torch.float64)

    def compute(self) -> Tensor:
        return METRICS[self.metric](*(self.rows(name) for name in ("proba", "labels", "weight")))

    def _count(self, proba: Tensor, labels: Tensor, weight: Tensor) -> None:
        self._check_columns(proba)
        for name, more in (("proba", proba), ("labels", labels), ("weight", weight)):
            getattr(self, name).append(more.detach())


class WeightedAUROC(_OfRows):
    """Weighted area under the ROC curve: of class 1, or the mean of each class against the rest."""

    metric = "auroc"


class WeightedAveragePrecision(_OfRows):
    """Weighted average precision: of class 1, or the mean of each class against the rest."""

    metric = "average_precision"


class WeightedCalibrationError(_OfRows):
    """Weighted mean over bins of |accuracy - confidence| of the likeliest class.

    Args:
        num_classes: number L of classes.
        n_bins: equally wide bins on [0, 1].
        metric_kwargs: of `torchmetrics.Metric`.
    """

    metric = "expected_calibration_error"
    higher_is_better = False

    def __init__(self, num_classes: int = 2, n_bins: int = 15, **metric_kwargs: Any) -> None:
        super().__init__(num_classes, **metric_kwargs)
        self.n_bins = whole_number(n_bins, "n_bins")
        if not self.n_bins:
            raise SeesError("n_bins must be at least 1, got 0.")

    def compute(self) -> Tensor:
        proba, labels, weight = (self.rows(name) for name in ("proba", "labels", "weight"))
        return weighted_metrics.expected_calibration_error(proba, labels, weight, self.n_bins)
