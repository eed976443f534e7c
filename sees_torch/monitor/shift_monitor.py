"""One source, made ready once, and target after target: estimates, alerts, and what is kept."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.columns import Kind
from sees_torch.data.probabilities import model_classes, predict
from sees_torch.data.tables import Name
from sees_torch.errors import SeesError, SupportError
from sees_torch.estimation import Estimation
from sees_torch.gap import Metric, metric_name
from sees_torch.matching import Method
from sees_torch.matching.match import whole_number
from sees_torch.monitor.alerts import Alerts, rank
from sees_torch.monitor.observation import NAN, Observation, report_row, skipped_row
from sees_torch.monitor.splits import nearest_size, split_gap, split_size, stretch
from sees_torch.monitor.window import Window
from sees_torch.report import ShiftReport

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd


class ShiftMonitor:
    """Keeps a labelled source ready, coded, merged and calibrated, for target after target.

    Args:
        source, labels, model, source_proba: as in `estimate_shift`; or a `Source`.
        method, metric, estimator, confidence, classes, kinds, source_weight, calibrate, replicates,
            memory_budget, logits: as in `estimate_shift`.
        alerts: when to raise an alert; None never does.
        window: chunks that one estimate pools, the newest included.
        half_life: number of chunks after which a row counts half; it then pools as many chunks as
            are remembered, or `window`.
        min_rows: `observe` skips a chunk (or a window) of fewer rows.
        progress: called with (splits done, splits) while a threshold is learnt.

    Several threads may use one monitor: it takes one chunk at a time.

    >>> from sees_torch import make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> monitor = ShiftMonitor(pair.source, pair.labels, source_proba=pair.source_proba)
    >>> monitor.add(pair.target, pair.target_proba, name="May").shifted_features
    ('x0',)
    >>> list(monitor.to_frame().index)
    ['May']
    """

    def __init__(
        self,
        source: Any,
        labels: Any = None,
        model: Any = None,
        source_proba: Any = None,
        method: str | Method = "auto",
        metric: Metric | Sequence[Metric] = "accuracy",
        estimator: str = "auto",
        confidence: float | None = 0.95,
        *,
        classes: Sequence[Any] | None = None,
        kinds: Mapping[Name, Kind] | None = None,
        source_weight: Any = None,
        calibrate: bool | Literal["vector", "temperature"] = True,
        replicates: int = 200,
        memory_budget: int | None = None,
        logits: bool = False,
        alerts: Alerts | None = None,
        window: int = 1,
        half_life: float | None = None,
        min_rows: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.estimation = Estimation.checked(
            method, metric, estimator, confidence, calibrate, replicates, memory_budget
        )
        self.model, self.logits = model, logits
        self.alerts, self.window = alerts, Window(window, half_life)
        if alerts is not None:
            alerts.worse(self.metric)  # Refuse a metric without a direction before any work.
        self.min_rows, self.progress = whole_number(min_rows, "min_rows"), progress
        if not isinstance(source, Source):
            if (model is None) == (source_proba is None):
                raise SeesError("give either model, or source_proba.")
            if model is not None:
                source_proba = predict(model, source, "source", logits=logits)
                classes = classes if classes is not None else model_classes(model)
            source = Source(
                source, labels, source_proba, classes=classes, kinds=kinds, weight=source_weight
            )
        self.source = self.estimation.prepare(source)
        self.rows: dict[Hashable, dict[str, Any]] = {}
        self.nulls: dict[int, list[float]] = {}
        """Gaps of the splits of the source, by the size of their part."""
        self.start: Tensor | None = None
        """The last chunk's solution, which the next solve starts from."""
        self._one_at_a_time = threading.RLock()

    @functools.cached_property
    def source_digest(self) -> str:
        """A hash of the source's rows, for states on disk."""
        from sees_torch.monitor.state import digest_source

        return digest_source(self.source.merged)

    def add(
        self,
        target: Any,
        target_proba: Any = None,
        *,
        name: Hashable = None,
        target_weight: Any = None,
        generator: torch.Generator | None = None,
    ) -> ShiftReport:
        """The report on one more target, remembered under its name (by default its number)."""
        with self._one_at_a_time:
            found = self._found(target, target_proba, name, target_weight, generator, 1)
        assert found.report is not None
        return found.report

    def add_many(
        self,
        targets: Mapping[Hashable, Any],
        target_probas: Mapping[Hashable, Any] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> list[ShiftReport]:
        """The reports on many targets, each on its own, in one solve where the method can."""
        with self._one_at_a_time:
            names = [self._free(name) for name in targets]
            probas = {} if target_probas is None else target_probas
            chunks = [self._coded(targets[name], probas.get(name), None) for name in names]
            reports = self.estimation.reports(self.source, chunks, generator)
            for name, chunk, report in zip(names, chunks, reports, strict=True):
                verdict = self._judged(report, float(chunk.total))
                self.rows[name] = report_row(Observation(name, report, *verdict), report)
        return reports

    def observe(
        self,
        target: Any,
        target_proba: Any = None,
        *,
        name: Hashable = None,
        target_weight: Any = None,
        generator: torch.Generator | None = None,
    ) -> Observation:
        """As `add`, with the alert; a chunk that is empty or too small is noted, not refused."""
        with self._one_at_a_time:
            fewest = self.min_rows
            try:
                return self._found(target, target_proba, name, target_weight, generator, fewest)
            except SupportError as error:
                key = self._free(name)
                self.rows[key] = skipped_row(self._source_row(), len(target), str(error))
                return Observation(key, None, note=str(error))

    def learn(self, rows: float) -> float:
        """The largest drop that chance explains in a chunk of so many rows."""
        if self.alerts is None or self.alerts.false_alarms is None:
            raise SeesError("nothing is learnt without Alerts(false_alarms=...).")
        with self._one_at_a_time:
            return self.alerts.limit(self._null(self.alerts, rows))

    def to_frame(self) -> pd.DataFrame:
        """One row per target, in the order they came."""
        import pandas as pd

        frame = pd.DataFrame(
            list(self.rows.values()), index=pd.Index(list(self.rows), name="target")
        )
        return frame.infer_objects()

    def plot(self) -> matplotlib.figure.Figure:
        """The estimated metric over the chunks, with intervals, thresholds and alerts."""
        from sees_torch.monitor.picture import plot_monitor

        return plot_monitor(self)

    def save(self, path: str | Path) -> None:
        """Write everything that later chunks depend on, but the source, to a file."""
        from sees_torch.monitor.state import save_state

        with self._one_at_a_time:
            save_state(self, path)

    def resume(self, path: str | Path) -> ShiftMonitor:
        """Go on where a monitor of the same source and settings was when it was saved."""
        from sees_torch.monitor.state import load_state

        with self._one_at_a_time:
            load_state(self, path)
        return self

    def _found(
        self,
        target: Any,
        proba: Any,
        name: Hashable,
        weight: Any,
        generator: torch.Generator | None,
        fewest: int,
    ) -> Observation:
        """Estimate and judge; a chunk that cannot be estimated is not remembered."""
        key = self._free(name)
        chunk = self._coded(target, proba, weight)
        chunks = self.window.with_chunk(chunk)
        pooled = self.window.pooled(chunks)
        rows = float(pooled.total)
        if rows < fewest:
            if self.window.length != 1:  # Small chunks may be enough together.
                self.window.chunks.append(chunk)
            raise SupportError(f"{rows:g} rows are too few: at least {fewest} are asked for.")
        report = self.estimation.report(self.source, pooled, generator, self.start)
        alert, threshold, p_value = self._judged(report, rows)
        found = Observation(key, report, alert, threshold, p_value)
        self.rows[key] = report_row(found, report)
        self.window.chunks.append(chunk)
        self.start = self.estimation.solution(report)
        return found

    def _free(self, name: Hashable) -> Hashable:
        key = len(self.rows) if name is None else name
        if key in self.rows:
            raise SeesError(f"there is a target {key!r} already: give another name.")
        return key

    def _coded(self, target: Any, proba: Any, weight: Any) -> Target:
        """The chunk's distinct rows, where more than one chunk is to be kept."""
        given = self.source.given
        if isinstance(target, Target):
            if target.schema != given.schema:
                raise SeesError("the Target was coded for another Source: make it with this one.")
        else:
            if not len(target):
                raise SupportError("the chunk is empty.")
            if proba is None:
                if self.model is None:
                    raise SeesError("give target_proba: the monitor has no model.")
                target = given.schema.align(target)
                proba = predict(self.model, target, "target", logits=self.logits)
            target = Target(target, proba, given, weight=weight)
        return target if self.window.length == 1 else target.merged()[0]

    def _judged(self, report: ShiftReport, rows: float) -> tuple[bool, float, float]:
        """Whether the estimate raises an alert, the gap beyond which it does, and its p-value."""
        alerts = self.alerts
        if alerts is None:
            return False, NAN, NAN
        worse = alerts.worse(report.metric)
        drop = worse * report.gap
        material = alerts.material(report.target_value, drop, worse)
        if alerts.false_alarms is None:
            return material, NAN, NAN
        null = self._null(alerts, rows)
        limit = alerts.limit(null)
        return material and drop > limit, worse * limit, rank(drop, null)

    def _null(self, alerts: Alerts, rows: float) -> list[float]:
        """Drops of splits of the source, as large as a chunk of so many rows would show."""
        size = nearest_size(self.nulls, split_size(self.source.merged, rows))
        gaps = self.nulls.setdefault(size, [])
        while len(gaps) < alerts.splits:
            draw = len(gaps)
            gaps.append(split_gap(self.estimation, self.source.merged, size, alerts.seed, draw))
            if self.progress is not None:
                self.progress(len(gaps), alerts.splits)
        scale = alerts.worse(self.metric) * stretch(self.source.merged, size, rows)
        return [scale * gap for gap in gaps[: alerts.splits]]

    @property
    def metric(self) -> str:
        """Name of the headline metric."""
        return metric_name(self.estimation.metrics[0])

    def _source_row(self) -> dict[str, Any]:
        value = next((row["source"] for row in self.rows.values()), NAN)
        return {"metric": self.metric, "source": value}
