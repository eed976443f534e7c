"""Many targets against one source, whose part of the work is done once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from sees_torch.data import Source, Target
from sees_torch.data.columns import Kind
from sees_torch.data.probabilities import model_classes, predict
from sees_torch.data.tables import Name
from sees_torch.errors import SeesError
from sees_torch.estimation import Estimation
from sees_torch.gap import Metric
from sees_torch.matching import Method
from sees_torch.report import ShiftReport

if TYPE_CHECKING:
    import pandas as pd


class ShiftMonitor:
    """Keeps a labelled source ready, coded, merged and calibrated, for target after target.

    Args:
        source, labels, model, source_proba: as in `estimate_shift`; or a `Source`.
        method, metric, estimator, confidence, classes, kinds, source_weight, calibrate, replicates,
            memory_budget, logits: as in `estimate_shift`.

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
    ) -> None:
        self.estimation = Estimation.checked(
            method, metric, estimator, confidence, calibrate, replicates, memory_budget
        )
        self.model, self.logits = model, logits
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
        key = len(self.rows) if name is None else name
        if key in self.rows:
            raise SeesError(f"there is a target {key!r} already: give another name.")
        given = self.source.given
        if not isinstance(target, Target):
            if target_proba is None:
                if self.model is None:
                    raise SeesError("give target_proba: the monitor has no model.")
                target = given.schema.align(target)
                target_proba = predict(self.model, target, "target", logits=self.logits)
            target = Target(target, target_proba, given, weight=target_weight)
        elif target.schema != given.schema:
            raise SeesError("the Target was coded for another Source: make it with this one.")
        report = self.estimation.report(self.source, target, generator)
        self.rows[key] = _row(report)
        return report

    def to_frame(self) -> pd.DataFrame:
        """One row per target, in the order they came."""
        import pandas as pd

        frame = pd.DataFrame(
            list(self.rows.values()), index=pd.Index(list(self.rows), name="target")
        )
        return frame.infer_objects()


def estimate_many(
    source: Any,
    labels: Any,
    targets: Mapping[Hashable, Any],
    model: Any = None,
    source_proba: Any = None,
    target_probas: Mapping[Hashable, Any] | None = None,
    *,
    models: Mapping[Hashable, Any] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> pd.DataFrame:
    """One source against many targets, and if asked many models: a row for each pair.

    Args:
        source, labels: as in `estimate_shift`.
        targets: {name: table}.
        model: as in `estimate_shift`; or source_proba and target_probas, {name: probabilities}.
        models: {name: model}, to compare several.
        generator: of the resamples.
        options: other arguments of `estimate_shift`.

    >>> from sees_torch import make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=2000, m=4000)
    >>> months = {"May": pair.target[:2000], "June": pair.target[2000:]}
    >>> proba = {"May": pair.target_proba[:2000], "June": pair.target_proba[2000:]}
    >>> found = estimate_many(
    ...     pair.source, pair.labels, months, None, pair.source_proba, proba, method="mlls"
    ... )
    >>> list(found.index), found.columns[:4].tolist()
    (['May', 'June'], ['metric', 'source', 'target', 'gap'])
    """
    import pandas as pd

    if not isinstance(targets, Mapping) or not targets:
        raise SeesError("targets must be a mapping from names to tables, not empty.")
    if models is not None and (model is not None or source_proba is not None):
        raise SeesError("give either models, or model, or source_proba and target_probas.")
    if target_probas is not None and set(target_probas) != set(targets):
        raise SeesError(
            f"target_probas has {list(target_probas)}, targets has {list(targets)}: name them "
            "alike."
        )
    frames = {}
    for title, one in ({"": model} if models is None else models).items():
        monitor = ShiftMonitor(source, labels, one, source_proba, **options)
        for name, target in targets.items():
            proba = None if target_probas is None else target_probas[name]
            monitor.add(target, proba, name=name, generator=generator)
        frames[title] = monitor.to_frame()
    return frames[""] if models is None else pd.concat(frames, names=["model"])


def _row(report: ShiftReport) -> dict[str, Any]:
    """The headline of a report."""
    low, high = report.interval or (float("nan"), float("nan"))
    return {
        "metric": report.metric,
        "source": report.source_value,
        "target": report.target_value,
        "gap": report.gap,
        "low": low,
        "high": high,
        "status": report.status,
        "hypothesis": report.hypothesis,
        "shifted_features": ", ".join(map(str, report.shifted_features)),
        "rows": report.diagnostics["target_rows"],
        "effective_rows": report.diagnostics["effective_rows"],
    }
