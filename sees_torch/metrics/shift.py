"""`PerformanceShift`: the estimate of a shift as a torchmetrics metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from sees_torch.data import Schema
from sees_torch.data.streams import MAX_ROWS, PRECISION
from sees_torch.errors import SeesError
from sees_torch.estimation import Estimation
from sees_torch.gap import Metric as GapMetric
from sees_torch.matching import KnownWeights, Method
from sees_torch.metrics.counted import CountedRows
from sees_torch.metrics.picture import plot_values
from sees_torch.report import ShiftReport

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Value = dict[str, Any]
"""What `compute` returns."""


class PerformanceShift(CountedRows):
    """How much a model's performance changed from labelled to unlabelled rows, and what moved.

    Labelled batches are the source, **held out from the model's training**; batches without
    labels are the target. Only distinct rows are kept, with counts, and neither batches nor their
    order nor the number of processes change the value.

    Args:
        schema: how features are coded, `Schema.learn(source_features)`.
        classes: the classes in the order of the probability columns.
        method, metric, estimator, confidence, calibrate, replicates, memory_budget: as in
            `estimate_shift`.
        max_rows, precision: bound on the distinct rows of each sample, and bits that
            probabilities are rounded to when it is reached, as in `Source.from_batches`.
        metric_kwargs: of `torchmetrics.Metric`.

    Attributes:
        report: the whole `ShiftReport` of the last `compute`, None before.

    >>> from sees_torch import Schema, make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> shift = PerformanceShift(Schema.learn(pair.source), pair.classes, replicates=0)
    >>> shift.update(pair.source_proba, pair.labels, pair.source)
    >>> shift.update(pair.target_proba, features=pair.target)
    >>> shift.compute()["shifted_features"]
    ('x0',)
    """

    is_differentiable = False
    higher_is_better = None

    def __init__(
        self,
        schema: Schema,
        classes: Sequence[Any],
        method: str | Method = "auto",
        metric: GapMetric | Sequence[GapMetric] = "accuracy",
        estimator: str = "auto",
        confidence: float | None = 0.95,
        *,
        calibrate: bool | Literal["vector", "temperature"] = True,
        replicates: int = 200,
        memory_budget: int | None = None,
        max_rows: int = MAX_ROWS,
        precision: int | None = PRECISION,
        **metric_kwargs: Any,
    ) -> None:
        super().__init__(schema, classes, max_rows, precision, **metric_kwargs)
        self.estimation = Estimation.checked(
            method, metric, estimator, confidence, calibrate, replicates, memory_budget
        )
        if isinstance(self.estimation.method, KnownWeights):
            raise SeesError(
                "KnownWeights weighs the rows of one table, and this metric keeps distinct rows of "
                "many: use a weighted metric, e.g. WeightedAccuracy."
            )
        self.report: ShiftReport | None = None

    def update(
        self, proba: Any, labels: Any = None, features: Any = None, weight: Any = None
    ) -> None:
        """Count one batch: of the source if it has labels, else of the target.

        Args:
            proba: (n, L) the model's probabilities, or (n,) of the second of two classes.
            labels: (n,) class of every row.
            features: (n, d) DataFrame, ndarray or Tensor with the columns of the schema.
            weight: (n,) row multiplicities.
        """
        if features is None:
            raise SeesError("features is missing: give the (n, d) features of the batch's rows.")
        self._add(proba, labels, features, weight)

    def compute(self) -> Value:
        """The headline of the report.

        Returns:
            gap, low, high, source_value, target_value: float64 tensors of the first metric, low
                and high NaN without an interval; status: "identified", "weak" or
                "not_identified"; shifted_features: their names.
        """
        source, target = self._samples()
        report = self.report = self.estimation.report(self.estimation.prepare(source), target)
        low, high = report.interval or (torch.nan, torch.nan)
        numbers = {
            "gap": report.gap,
            "low": low,
            "high": high,
            "source_value": report.source_value,
            "target_value": report.target_value,
        }
        return {
            **{
                name: torch.tensor(number, dtype=torch.float64, device=self.device)
                for name, number in numbers.items()
            },
            "status": report.status,
            "shifted_features": report.shifted_features,
        }

    def forward(self, *args: Any, **kwargs: Any) -> Value:
        """Count one batch. A batch has rows of one sample and so no value: {} comes back."""
        self.update(*args, **kwargs)
        return {}

    def reset(self) -> None:
        """Forget all rows and the report."""
        super().reset()
        self.report = None

    def plot(
        self, val: Value | Sequence[Value] | None = None, ax: matplotlib.axes.Axes | None = None
    ) -> tuple[matplotlib.figure.FigureBase, matplotlib.axes.Axes]:
        """(figure, axes) with the metric on source and target and the interval.

        Args:
            val: what `compute` returned, or a list of such values, drawn one after the other; by
                default what it returns now.
            ax: axes to draw on, instead of a new figure.
        """
        values = self.compute() if val is None else val
        metric = self.estimation.metrics[0]
        return plot_values([values] if isinstance(values, dict) else values, metric, ax)
