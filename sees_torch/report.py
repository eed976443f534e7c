"""The front door: `estimate_shift`, and the report it returns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sees_torch.calibration import calibrate as calibrate_samples
from sees_torch.data import Source, Target
from sees_torch.data.columns import Kind
from sees_torch.data.probabilities import model_classes, predict
from sees_torch.data.samples import learn_schema
from sees_torch.data.tables import Name
from sees_torch.errors import SeesError, SeesWarning
from sees_torch.gap import ESTIMATORS, Estimator, Gap, RowMetric, estimate_gap
from sees_torch.matching import Match, Method, SEESd
from sees_torch.matching.names import resolve_method
from sees_torch.weights import WeightFunction

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd


@dataclass(frozen=True)
class ShiftReport:
    """How much performance changed, and which features moved.

    Attributes:
        gaps: one estimate per metric, the headline first.
        match: what the method found.
        weights: (n,) weight of every source row, exactly `weight_function(source, labels)`.
        target_label_distribution: {class: estimated share of the target}.
        interval: for the population gap; None until it is asked for.
        status: "unchecked": no verdict on identifiability was made.
        diagnostics: named figures about the fit.
        notes: what was done to unusual input, in words.
    """

    gaps: tuple[Gap, ...]
    match: Match
    weights: Tensor
    source: Source = field(repr=False)
    target: Target = field(repr=False)
    target_label_distribution: dict[Any, float]
    diagnostics: dict[str, float]
    notes: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    status: str = "unchecked"

    @property
    def gap(self) -> float:
        """Metric on the target minus metric on the source, for the headline metric."""
        return float(self.gap_tensor.detach())

    @property
    def gap_tensor(self) -> Tensor:
        return self.gaps[0].gap

    @property
    def source_value(self) -> float:
        return float(self.gaps[0].source_value.detach())

    @property
    def target_value(self) -> float:
        return float(self.gaps[0].target_value.detach())

    @property
    def metric(self) -> str:
        return self.gaps[0].metric

    @property
    def weight_function(self) -> WeightFunction:
        return self.match.weight_function

    @property
    def shifted_features(self) -> tuple[Name, ...]:
        """Names of the shifted features; () means labels only, or nothing."""
        return tuple(self.source.schema.names[j] for j in self.match.features)

    @property
    def ties(self) -> tuple[tuple[Name, ...], ...]:
        """Sets of features that fit exactly as well as the chosen one, itself included."""
        if self.match.ranking is None:
            return (self.shifted_features,)
        names = self.source.schema.names
        return tuple(tuple(names[j] for j in tied) for tied in self.match.ranking.ties)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, as plain Python values."""
        return {
            "method": self.match.method,
            "status": self.status,
            "metric": self.metric,
            "estimator": self.gaps[0].estimator,
            "gap": self.gap,
            "interval": self.interval,
            "source_value": self.source_value,
            "target_value": self.target_value,
            "shifted_features": [_json_key(name) for name in self.shifted_features],
            "ties": [[_json_key(name) for name in tied] for tied in self.ties],
            "target_label_distribution": {
                _json_key(label): share for label, share in self.target_label_distribution.items()
            },
            "metrics": {
                name: {"source": source, "target": target, "gap": target - source}
                for name, source, target in self.values()
            },
            "diagnostics": dict(self.diagnostics),
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: source, target, gap, and how they were estimated."""
        import pandas as pd

        rows = [
            {
                "metric": name,
                "source": source,
                "target": target,
                "gap": target - source,
                "method": self.match.method,
                "estimator": self.gaps[0].estimator,
                "shifted_features": ", ".join(map(str, self.shifted_features)),
                "status": self.status,
            }
            for name, source, target in self.values()
        ]
        return pd.DataFrame(rows).set_index("metric")

    def ranking(self, best: int | None = None) -> pd.DataFrame:
        """The feature subsets that the method compared, best score first.

        `objective` is the distance that remains, `score` the distance beyond sampling noise in
        standard deviations: scores are comparable between subsets, objectives are not.
        """
        import pandas as pd

        found = self.match.ranking
        if found is None:
            raise SeesError(f"{self.match.method} does not rank feature subsets.")
        names = self.source.schema.names
        features = [tuple(names[j] for j in subset) for subset in found.subsets[:best]]
        figures = {"objective": found.objective[:best], "score": found.score[:best]}
        return pd.DataFrame(
            {"features": features} | {name: values.tolist() for name, values in figures.items()}
        )

    def plot(self) -> matplotlib.figure.Figure:
        """Source against target value, and the weights by cell of the shifted features."""
        from sees_torch.report_plot import plot_report

        return plot_report(self)

    def values(self) -> list[tuple[str, float, float]]:
        """Name, source and target value of every metric; equal names are numbered."""
        names = [gap.metric for gap in self.gaps]
        return [
            (
                name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}",
                float(gap.source_value.detach()),
                float(gap.target_value.detach()),
            )
            for place, (name, gap) in enumerate(zip(names, self.gaps, strict=True))
        ]

    def __str__(self) -> str:
        from sees_torch.report_text import report_lines

        return "\n".join(report_lines(self))


def _json_key(name: Any) -> Any:
    """A name that JSON can hold: text and numbers as they are, anything else as text."""
    return name if isinstance(name, (str, int, float)) else str(name)


def estimate_shift(
    source: Any,
    labels: Any,
    target: Any,
    model: Any = None,
    source_proba: Any = None,
    target_proba: Any = None,
    method: str | Method = "auto",
    metric: str | RowMetric | Sequence[str | RowMetric] = "accuracy",
    estimator: str = "auto",
    confidence: float | None = 0.95,
    *,
    classes: Sequence[Any] | None = None,
    kinds: Mapping[Name, Kind] | None = None,
    source_weight: Any = None,
    target_weight: Any = None,
    calibrate: bool = True,
    target_labels: Any = None,
    replicates: int = 200,
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    logits: bool = False,
) -> ShiftReport:
    """How much a model's performance changed from source to target, and which features moved.

    Args:
        source: (n, d) DataFrame, ndarray or Tensor: labelled rows, **held out from the model's
            training**. Rows that the model was trained on make it look better than it is.
        labels: (n,) source labels: ints, strings, bools or a categorical column.
        target: (m, d) features of the unlabelled target rows, same columns.
        model: nn.Module, classifier with predict_proba, or callable on the table; or
        source_proba, target_proba: its probabilities, (n, L) and (m, L), (n,) for binary, or a
            DataFrame with a column a class.
        method: a name ("sees-d", "sees-c", "bbse", "mlls", "kliep", "dlu", "cbpe", "none") or a
            configured object; "auto" is SEES-d with one shifted feature.
        metric: name, per-row function (probabilities, labels) -> (n,), or a list of them: the
            first is the headline.
        estimator: "ipw" (the paper's), "self-normalised", "plugin", "dr"; "auto" is the method's
            own, else "dr".
        confidence: level of the interval; None switches it off. This version has none yet, so
            `report.interval` is None and `replicates` and `generator` have nothing to do.
        classes: order of the probability columns; needed unless the labels sort into it.
        kinds: {column: "categorical" | "continuous"}, else inferred by the rule of `Schema`.
        source_weight, target_weight: row multiplicities.
        calibrate: calibrate p(y|x) on the source, cross-fitted, where a method or estimator uses
            it; predictions and metrics always use the model's own probabilities.
        target_labels: labels of a few target rows; refused, this version cannot use them yet.
        replicates: bootstrap replicates of the interval.
        memory_budget: bytes that the tables of SEES-d may take at a time; 256 MiB by default.
        generator: source of randomness of the interval; point estimates use none.
        logits: the model returns logits; they are never guessed from their range.

    >>> from sees_torch import make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> report = estimate_shift(**pair.inputs())
    >>> report.shifted_features
    ('x0',)
    """
    chosen = resolve_method(method)
    if memory_budget is not None and isinstance(chosen, SEESd) and chosen.memory_budget is None:
        chosen = replace(chosen, memory_budget=memory_budget)
    if target_labels is not None:
        raise SeesError("target_labels cannot be used yet: leave it out.")
    if confidence is not None and not 0 < confidence < 1:
        raise SeesError(f"confidence must lie between 0 and 1, or be None; got {confidence!r}.")
    metrics = [metric] if isinstance(metric, str) or callable(metric) else metric
    if not isinstance(metrics, (list, tuple)) or not metrics:
        raise SeesError(f"metric must be a name, a function or a list of them, got {metric!r}.")
    if estimator not in ("auto", *ESTIMATORS):
        raise SeesError(
            f"unknown estimator {estimator!r}: take 'auto' or one of {', '.join(ESTIMATORS)}."
        )
    schema = learn_schema(source, kinds, source_weight)
    if model is not None:
        if source_proba is not None or target_proba is not None:
            raise SeesError("give either model, or source_proba and target_proba.")
        target = schema.align(target)
        schema.encode(target)  # Refuse a table that does not fit before the model sees it.
        source_proba = predict(model, source, "source", logits=logits)
        target_proba = predict(model, target, "target", logits=logits)
        classes = classes if classes is not None else model_classes(model)
    elif source_proba is None or target_proba is None:
        raise SeesError("give model, or both source_proba and target_proba.")
    elif logits:
        raise SeesError("logits=True belongs to model; turn given logits into probabilities.")
    labelled = Source(
        source, labels, source_proba, classes=classes, weight=source_weight, schema=schema
    )
    unlabelled = Target(target, target_proba, labelled, weight=target_weight)
    if calibrate:
        labelled, unlabelled = calibrate_samples(labelled, unlabelled)
    with torch.no_grad():
        match = chosen.match(labelled, unlabelled)
    return report_match(labelled, unlabelled, match, metrics, estimator)


def report_match(
    source: Source,
    target: Target,
    match: Match,
    metrics: Sequence[str | RowMetric] = ("accuracy",),
    estimator: str = "auto",
) -> ShiftReport:
    """The report on a match: gaps, label distribution and diagnostics."""
    used: Any = (match.estimator or "dr") if estimator == "auto" else estimator
    chosen: Estimator = used
    gaps = tuple(estimate_gap(source, target, match.weight_function, m, chosen) for m in metrics)
    weights = match.weight_function.of_rows(source.rows, source.labels)
    share = source.mean(
        torch.nn.functional.one_hot(source.labels, len(source.classes)) * weights[:, None]
    )
    share = share / share.sum().clamp_min(1e-300)
    total = weights.mul(source.count)
    squares = weights.square().mul(source.count)
    diagnostics = {
        "source_rows": float(source.total),
        "target_rows": float(target.total),
        "effective_rows": float(total.sum().square() / squares.sum().clamp_min(1e-300)),
        "largest_weight": float(weights[source.count > 0].max()),
        "mean_weight": float(source.mean(weights)),
        "unseen_mass": match.unseen_mass,
        "residual": match.residual,
    }
    if not 0.5 <= diagnostics["mean_weight"] <= 2:
        warnings.warn(
            f"the weights average {diagnostics['mean_weight']:.3g} over the source instead of 1: "
            "the model's probabilities contradict the labels. Use calibrate=True.",
            SeesWarning,
            stacklevel=3,
        )
    if match.ranking is not None and len(match.ranking.score) > 1:
        best, second = match.ranking.score[:2].tolist()
        diagnostics["score"] = best
        if math.isfinite(second):
            diagnostics["runner_up_score"] = second
    return ShiftReport(
        gaps,
        match,
        weights,
        source,
        target,
        dict(zip(source.classes, share.tolist(), strict=True)),
        diagnostics,
        target.treatments(),
    )
