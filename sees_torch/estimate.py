"""The front door: `estimate_shift`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from sees_torch.assessment import report_match
from sees_torch.calibration import calibrate as calibrate_samples
from sees_torch.data import Source, Target
from sees_torch.data.columns import Kind
from sees_torch.data.probabilities import model_classes, predict
from sees_torch.data.samples import learn_schema
from sees_torch.data.tables import Name
from sees_torch.errors import SeesError
from sees_torch.gap import ESTIMATORS, Metric
from sees_torch.matching import Auto, Method, SEESd, SEESem
from sees_torch.matching.match import whole_number
from sees_torch.matching.names import resolve_method
from sees_torch.report import ShiftReport


def estimate_shift(
    source: Any,
    labels: Any,
    target: Any,
    model: Any = None,
    source_proba: Any = None,
    target_proba: Any = None,
    method: str | Method = "auto",
    metric: Metric | Sequence[Metric] = "accuracy",
    estimator: str = "auto",
    confidence: float | None = 0.95,
    *,
    classes: Sequence[Any] | None = None,
    kinds: Mapping[Name, Kind] | None = None,
    source_weight: Any = None,
    target_weight: Any = None,
    calibrate: bool | Literal["vector", "temperature"] = True,
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
        method: a name ("sees-em", "sees-c", "sees-d", "bbse", "mlls", "kliep", "dlu", "cbpe",
            "none") or a configured object; "auto" compares hypotheses and takes the simplest that
            the data do not speak against.
        metric: name, per-row function (probabilities, labels) -> (n,), or a list of them: the
            first is the headline.
        estimator: "ipw" (the paper's), "self-normalised", "plugin", "dr", "eff"; "auto" is the
            method's own, else "eff" for weights that are a table on a few features and "dr" for
            others. Metrics that are no mean over rows always use weighted source rows.
        confidence: level of the interval for the population gap; None switches it off.
        classes: order of the probability columns; needed unless the labels sort into it.
        kinds: {column: "categorical" | "continuous"}, else inferred by the rule of `Schema`.
        source_weight, target_weight: row multiplicities.
        calibrate: calibrate p(y|x) on the source, cross-fitted, where a method or estimator uses
            it; predictions and metrics always use the model's own probabilities. True is vector
            scaling for up to ten classes and a temperature beyond; either can be asked for by name.
        target_labels: (m,) labels of the target rows where they are known, None or NaN where they
            are not; for the methods "auto" and "sees-em". Ten or more correct the gap.
        replicates: bootstrap resamples behind the interval; 0 takes the analytic interval, which
            is fast and does not allow for the choice of features.
        memory_budget: bytes that tables and resamples may take at a time; 256 MiB by default.
        generator: source of the resamples' randomness, by default one with a fixed seed; point
            estimates use none.
        logits: the model returns logits; they are never guessed from their range.

    >>> from sees_torch import make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000)
    >>> report = estimate_shift(**pair.inputs())
    >>> report.shifted_features
    ('x0',)
    """
    chosen = resolve_method(method)
    if memory_budget is not None and isinstance(chosen, (SEESd, SEESem, Auto)):
        chosen = replace(chosen, memory_budget=chosen.memory_budget or memory_budget)
    if target_labels is not None and not isinstance(chosen, (SEESem, Auto)):
        raise SeesError(f"{chosen.name} cannot use target_labels: take method 'auto' or 'sees-em'.")
    if whole_number(replicates, "replicates") == 1:
        raise SeesError("replicates must be 0 (analytic interval) or at least 2; 200 are usual.")
    if confidence is not None and not 0 < confidence < 1:
        raise SeesError(f"confidence must lie between 0 and 1, or be None; got {confidence!r}.")
    if calibrate not in (True, False, "vector", "temperature"):
        raise SeesError(
            f"calibrate takes True, False, 'vector' or 'temperature', got {calibrate!r}."
        )
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
    unlabelled = Target(target, target_proba, labelled, weight=target_weight, labels=target_labels)
    if calibrate:
        form = None if calibrate is True else calibrate
        labelled, unlabelled = calibrate_samples(labelled, unlabelled, form)
    with torch.no_grad():
        match = chosen.match(labelled, unlabelled)
    return report_match(
        labelled,
        unlabelled,
        match,
        chosen,
        metrics,
        estimator,
        confidence=confidence,
        replicates=replicates,
        memory=memory_budget,
        generator=generator,
    )
