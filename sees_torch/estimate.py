"""The front door: `estimate_shift`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from sees_torch.data import Source, Target
from sees_torch.data.columns import Kind
from sees_torch.data.probabilities import model_classes, predict
from sees_torch.data.samples import learn_schema
from sees_torch.data.tables import Name
from sees_torch.errors import SeesError
from sees_torch.estimation import Estimation
from sees_torch.gap import Metric
from sees_torch.matching import Method
from sees_torch.report import ShiftReport
from sees_torch.shortage import named_shortage


def estimate_shift(
    source: Any,
    labels: Any = None,
    target: Any = None,
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
            training**. Rows that the model was trained on make it look better than it is. Or a
            `Source`, which brings labels, probabilities and weights along.
        labels: (n,) source labels: ints, strings, bools or a categorical column.
        target: (m, d) features of the unlabelled target rows, same columns; a `Target` with a
            `Source`.
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
            scaling for up to ten classes, refined by the features where they clearly say more
            about the label (a note tells), and a temperature beyond. "vector" and "temperature"
            are these alone.
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
    estimation = Estimation.checked(
        method, metric, estimator, confidence, calibrate, replicates, memory_budget
    )
    with named_shortage("reading the samples"):
        if isinstance(source, (Source, Target)) or isinstance(target, (Source, Target)):
            extra = (labels, model, source_proba, target_proba, classes, kinds, source_weight)
            given = any(part is not None for part in (*extra, target_weight, target_labels))
            labelled, unlabelled = _ready_samples(source, target, given)
        else:
            labelled, unlabelled = _read_samples(
                source,
                labels,
                target,
                model,
                (source_proba, target_proba),
                classes=classes,
                kinds=kinds,
                weights=(source_weight, target_weight),
                target_labels=target_labels,
                logits=logits,
            )
        prepared = estimation.prepare(labelled)
    return estimation.report(prepared, unlabelled, generator)


def _ready_samples(source: Any, target: Any, more: bool) -> tuple[Source, Target]:
    if not (isinstance(source, Source) and isinstance(target, Target)):
        raise SeesError("give a Source together with a Target, or two tables.")
    if more:
        raise SeesError(
            "a Source and a Target bring labels, probabilities, classes and weights along: give "
            "them there, not to estimate_shift."
        )
    if target.schema != source.schema or target.classes != source.classes:
        raise SeesError("the Target was coded for another Source: make it with this one.")
    return source, target


def _read_samples(
    source: Any,
    labels: Any,
    target: Any,
    model: Any,
    proba: tuple[Any, Any],
    *,
    classes: Any,
    kinds: Mapping[Name, Kind] | None,
    weights: tuple[Any, Any],
    target_labels: Any,
    logits: bool,
) -> tuple[Source, Target]:
    """Tables, labels and probabilities as the two samples."""
    if target is None:
        raise SeesError("target is missing: give the features of the unlabelled rows.")
    schema = learn_schema(source, kinds, weights[0])
    source_proba, target_proba = proba
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
        source, labels, source_proba, classes=classes, weight=weights[0], schema=schema
    )
    return labelled, Target(target, target_proba, labelled, weight=weights[1], labels=target_labels)
