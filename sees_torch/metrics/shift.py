"""`PerformanceShift`: the estimate of a shift as a torchmetrics metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sees_torch.data import Schema, Source, Target
from sees_torch.data.streams import MAX_ROWS, PRECISION, Counted
from sees_torch.errors import SeesError
from sees_torch.estimation import Estimation
from sees_torch.gap import Metric as GapMetric
from sees_torch.gap import metric_name, metric_values
from sees_torch.matching import BBSE, KnownWeights, Method, SEESd
from sees_torch.metrics.counted import CountedRows
from sees_torch.metrics.picture import plot_values
from sees_torch.metrics.tables import Layout
from sees_torch.report import ShiftReport
from sees_torch.weighted_metrics import METRICS

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Value = dict[str, Any]
"""What `compute` returns."""


PROBES = 512
"""Distinct rows of each sample that tables are accompanied by."""


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
        states: "rows" keeps distinct rows, for the whole report. "tables", for `SEESd` with a
            given number of features and `BBSE`, keeps sums over the cells of a few features: their
            size depends on the schema only and processes just add them up. Then `compute` has the
            gap by "ipw" or "self-normalised", for one metric that is a mean over rows, without
            interval, verdict (status "not_judged") and report. Noise, for the choice between
            features, is measured on PROBES distinct rows of each sample.
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
    counts: Tensor
    losses: Tensor
    totals: Tensor

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
        states: Literal["rows", "tables"] = "rows",
        **metric_kwargs: Any,
    ) -> None:
        estimation = Estimation.checked(
            method, metric, estimator, confidence, calibrate, replicates, memory_budget
        )
        if states not in ("rows", "tables"):
            raise SeesError(f"states takes 'rows' or 'tables', got {states!r}.")
        also = None
        if states == "tables":
            used, max_rows = _table_method(estimation), PROBES
            also = (used, metric_name(estimation.metrics[0]))
        super().__init__(schema, classes, max_rows, precision, also, **metric_kwargs)
        self.estimation, self.layout = estimation, None
        if also is not None:
            self.layout = Layout.of(also[0], schema, len(self.classes))
            for name, zero in self.layout.empty().items():
                self.add_state(name, zero, dist_reduce_fx="sum")
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
                "not_identified", "not_judged" by tables; shifted_features: their names.
        """
        source, target = self._samples()
        if self.layout is not None:
            return self._from_tables(self.layout, source, target)
        report = self.report = self.estimation.report(self.estimation.prepare(source), target)
        interval = report.interval or (torch.nan, torch.nan)
        values = report.source_value, report.target_value
        return self._value(values, interval, report.status, report.shifted_features)

    def _from_tables(self, layout: Layout, source: Source, target: Target) -> Value:
        match = layout.match(self.counts, self.totals, source, target)
        losses = self.losses / self.totals[0, 0]
        normalised = self.estimation.estimator == "self-normalised"
        counts = self.counts / self.totals[0, 0]
        after = layout.value(losses, counts, match, normalised)
        before = losses[layout.subsets(losses.device).cells_of(0)].sum()
        names = tuple(self.schema.names[j] for j in match.features)
        nothing = (torch.nan, torch.nan)
        return self._value((float(before), float(after)), nothing, "not_judged", names)

    def _value(
        self,
        values: tuple[float, float],
        interval: tuple[float, float],
        status: str,
        features: tuple[Any, ...],
    ) -> Value:
        before, after = values
        numbers = {
            "gap": after - before,
            "low": interval[0],
            "high": interval[1],
            "source_value": before,
            "target_value": after,
        }
        return {
            **{
                name: torch.tensor(number, dtype=torch.float64, device=self.device)
                for name, number in numbers.items()
            },
            "status": status,
            "shifted_features": features,
        }

    def _tabulate(self, part: Counted) -> None:
        if self.layout is None:
            return
        values = torch.zeros_like(part.count)
        if bool((part.labels >= 0).all()):
            values = metric_values(self.estimation.metrics[0], part.proba, part.labels)
        more = self.layout.counted(part.rows, part.labels, part.proba, part.count, values)
        for name, state in more.items():
            setattr(self, name, getattr(self, name) + state.to(self.device))

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


def _table_method(estimation: Estimation) -> SEESd:
    """The method whose tables are kept, refused where tables are not enough."""
    method = estimation.method
    if isinstance(method, BBSE):
        method = SEESd(0, soft=method.soft)
    if not isinstance(method, SEESd):
        raise SeesError(
            f"states='tables' serve SEESd and BBSE, got {method.name}: use states='rows'."
        )
    if estimation.estimator not in ("auto", "ipw", "self-normalised"):
        raise SeesError(
            f"tables give 'ipw' or 'self-normalised', got {estimation.estimator!r}: other "
            "estimators need states='rows'."
        )
    if len(estimation.metrics) > 1 or metric_name(estimation.metrics[0]) in METRICS:
        raise SeesError("tables hold one metric that is a mean over rows: use states='rows'.")
    return method
