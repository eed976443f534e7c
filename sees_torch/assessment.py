"""From a match to a report: gaps, their errors, rival hypotheses and the verdict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sees_torch.alternatives import Alternative, compare, label_equivalent
from sees_torch.alternatives import power as alternative_power
from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.data.tables import Name
from sees_torch.efficient import RowValues
from sees_torch.errors import IdentificationError, SeesWarning, SupportError
from sees_torch.few_labels import LabelledError, LabelMix, enough_labels
from sees_torch.gap import (
    Gap,
    Metric,
    estimate_gap,
    gap_parts,
    is_rate,
    own_estimator,
    row_values,
    target_posterior,
)
from sees_torch.identifiability import blind_spot, judge, resolution
from sees_torch.matching import CBPE, KnownWeights, Match, Method, NoShift
from sees_torch.matching.auto import is_dense
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.match import Estimator, Replicable, has_graph
from sees_torch.report import ShiftReport
from sees_torch.uncertainty import (
    Replicates,
    analytic_error,
    bootstrap,
    held_back,
    normal_interval,
)
from sees_torch.weighted_metrics import expected_calibration_error


def report_match(
    source: Source,
    target: Target,
    match: Match,
    method: Method,
    metrics: Sequence[Metric] = ("accuracy",),
    estimator: str = "auto",
    *,
    confidence: float | None = None,
    replicates: int = 0,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> ShiftReport:
    """The report on what a method matched; arguments as those of `estimate_shift`."""
    used: Any = own_estimator(match) if estimator == "auto" else estimator
    if estimator != "auto":
        match = _alone(match)
    hypotheses = Hypotheses(source, target, match, method)
    choice = match.choice
    average = choice is not None and len(choice.averaged) > 0
    estimates = [_point(source, target, hypotheses, metric, used, average) for metric in metrics]
    gaps = [estimate.gap for estimate in estimates]
    weights = match.weight_function.of_rows(source.rows, source.labels)
    mean = float(source.mean(weights.detach()))
    _refuse_undefined(mean, gaps, match)
    _warn_of_mean(mean)
    with torch.no_grad():
        kind = interval_kind(source, target, match, method, used, confidence, replicates)
        resamples = None
        if kind == "bootstrap":
            resamples = bootstrap(
                source,
                target,
                hypotheses,
                [estimate.values for estimate in estimates],
                gaps,
                [estimate.mix for estimate in estimates],
                average=average,
                replicates=replicates,
                memory=memory,
                generator=generator,
            )
        spreads = [
            _spread(estimate, place, resamples, kind, confidence)
            for place, estimate in enumerate(estimates)
        ]
        intervals = tuple(interval for interval, _ in spreads)
        errors = tuple(error for _, error in spreads)
        alternatives: tuple[Alternative, ...] = ()
        if choice is not None:
            alternatives = tuple(compare(source, target, hypotheses, metrics[0]))
        selection = _selection(source, match, resamples)
        figures = _figures(source, target, match, weights)
        figures |= _evidence(
            source, target, match, metrics[0], estimates[0], errors[0], alternatives, selection
        )
        figures = {name: value for name, value in figures.items() if math.isfinite(value)}
        verdict = judge(
            source, match, method, float(gaps[0].gap), intervals[0], alternatives, figures
        )
    share = source.mean(one_hot(source.labels, len(source.classes)) * weights.detach()[:, None])
    share = share / share.sum().clamp_min(1e-37)
    return ShiftReport(
        gaps=tuple(gaps),
        match=match,
        weights=weights,
        source=source,
        target=target,
        metrics=tuple(metrics),
        target_label_distribution=dict(zip(source.classes, share.tolist(), strict=True)),
        diagnostics=figures,
        notes=(*source.notes, *target.notes),
        intervals=intervals,
        standard_errors=errors,
        analytic_errors=tuple(estimate.error for estimate in estimates),
        interval_source=kind,
        confidence=confidence,
        status=verdict.status,
        reasons=verdict.reasons,
        alternatives=alternatives,
        selection=selection,
    )


def headline_gap(
    source: Source, target: Target, match: Match, method: Method, metric: Metric, estimator: str
) -> float:
    """The gap that the report would state, without the report."""
    used: Any = own_estimator(match) if estimator == "auto" else estimator
    average = estimator == "auto" and match.choice is not None and len(match.choice.averaged) > 0
    hypotheses = Hypotheses(source, target, match, method)
    with torch.no_grad():
        return float(_point(source, target, hypotheses, metric, used, average).gap.gap)


@dataclass(frozen=True)
class _Estimate:
    """A gap, what it was made from, its analytic standard error, and how far to stretch others."""

    gap: Gap
    values: RowValues | None
    mix: LabelMix | None
    error: float | None
    stretch: float = 1.0


def _estimate(
    source: Source, target: Target, match: Match, metric: Metric, estimator: Estimator
) -> _Estimate:
    function = match.weight_function
    gap = estimate_gap(source, target, function, metric, estimator)
    values = row_values(source, target, metric)
    if values is None:
        return _Estimate(gap, None, None, None)
    with torch.no_grad():
        error = analytic_error(source, target, match, gap, values)
        if not enough_labels(target):
            stretch = held_back(source, target, match, gap, values)
            return _Estimate(gap, values, None, error, stretch)
        found = gap_parts(source, target, function, values, gap.estimator)
        posterior = target_posterior(function.table(target.rows), target.posterior)
        mix = LabelMix.of(source, target, found, values, posterior)
    if has_graph(source, target):
        posterior = target_posterior(function.table(target.rows), target.posterior)
        mix = replace(mix, error=LabelledError.of(target, posterior, values))
    value = mix.mixed(gap.target_value[None], target.count[None])[0]
    return _Estimate(replace(gap, target_value=value), values, mix, mix.variance**0.5)


def _point(
    source: Source,
    target: Target,
    hypotheses: Hypotheses,
    metric: Metric,
    estimator: Estimator,
    average: bool,
) -> _Estimate:
    """The estimate of one metric, averaged over hypotheses if it is to be."""
    match = hypotheses.fit(hypotheses.chosen)[1]
    chosen = _estimate(source, target, match, metric, estimator)
    return _average(source, target, hypotheses, metric, chosen) if average else chosen


def _alone(match: Match) -> Match:
    """The match with no average: an estimator that is asked for belongs to the chosen weights."""
    if match.choice is None:
        return match
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What there was to warn of has been said.
        return replace(match, choice=replace(match.choice, averaged={}))


def _average(
    source: Source, target: Target, hypotheses: Hypotheses, metric: Metric, chosen: _Estimate
) -> _Estimate:
    """The gap averaged over the hypotheses that the data leave open, by how well they explain them.

    Its variance is the mean of theirs and the variance between them.
    """
    choice = hypotheses.choice
    assert choice is not None
    shares = choice.shares(choice.evidence.score())
    value, square, known = torch.zeros_like(chosen.gap.target_value), 0.0, True
    for place in sorted(choice.averaged):
        match = hypotheses.fit(place)[1]
        own = place == hypotheses.chosen
        one = chosen if own else _estimate(source, target, match, metric, own_estimator(match))
        share = shares[place]
        value = value + share * one.gap.target_value
        known = known and one.error is not None
        square += float(share) * (float(one.gap.gap.detach()) ** 2 + (one.error or 0.0) ** 2)
    gap = replace(chosen.gap, target_value=value)
    error = max(square - float(gap.gap.detach()) ** 2, 0.0) ** 0.5 if known else None
    return replace(chosen, gap=gap, error=error)


def interval_kind(
    source: Source,
    target: Target,
    match: Match,
    method: Method,
    estimator: str,
    confidence: float | None,
    replicates: int,
) -> str:
    """Where the interval comes from, "bootstrap" or "analytic"; otherwise why there is none."""
    if confidence is None:
        return "not asked for"
    if is_population(source, target):
        return "none: multiplicities below one describe a population, which has no sampling error"
    if isinstance(method, NoShift):
        return "none: the method assumes that nothing shifted"
    if replicates and (match.choice is not None or isinstance(method, Replicable)):
        return "bootstrap"
    if estimator == "eff" or isinstance(method, (KnownWeights, CBPE)):
        return "analytic"
    if isinstance(method, Replicable):
        return f"none: the analytic error of {estimator!r} does not know that of the weights"
    return f"none: the error of the weights of {match.method} is not known"


def _spread(
    estimate: _Estimate,
    place: int,
    resamples: Replicates | None,
    kind: str,
    confidence: float | None,
) -> tuple[tuple[float, float] | None, float | None]:
    """Interval and standard error of one metric."""
    gap = float(estimate.gap.gap)
    if resamples is not None and confidence is not None:
        error = resamples.error(place)
        interval = resamples.interval(place, gap, confidence, estimate.stretch)
        if interval is not None:
            interval = _possible(interval, estimate.gap)
        return interval, None if error is None else error * estimate.stretch
    if kind == "analytic" and estimate.error is not None and confidence is not None:
        interval = normal_interval(gap, estimate.error, confidence)
        return _possible(interval, estimate.gap), estimate.error
    return None, None


def _possible(interval: tuple[float, float], gap: Gap) -> tuple[float, float]:
    """The interval without values that a rate cannot have; the estimate stays inside."""
    if not is_rate(gap.metric):
        return interval
    estimate, source = float(gap.gap), float(gap.source_value)
    low, high = interval
    return max(low, min(estimate, -source)), min(high, max(estimate, 1 - source))


def _selection(
    source: Source, match: Match, resamples: Replicates | None
) -> dict[tuple[Name, ...], float]:
    """How often each set of features was chosen, most often first."""
    if resamples is None or match.choice is None:
        return {}
    names = source.schema.names
    total: dict[tuple[Name, ...], float] = {}
    for place, share in resamples.frequency().items():
        candidate = match.choice.candidates[place]
        features = tuple(names[j] for j in candidate.features)
        key = (candidate.words,) if is_dense(candidate) else features
        total[key] = total.get(key, 0.0) + share
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _figures(source: Source, target: Target, match: Match, weights: Tensor) -> dict[str, float]:
    total, squares = weights.mul(source.count), weights.square().mul(source.count)
    figures = {
        "source_rows": float(source.total),
        "target_rows": float(target.total),
        "effective_rows": float(total.sum().square() / squares.sum().clamp_min(1e-37)),
        "largest_weight": float(weights[source.count > 0].max()),
        "mean_weight": float(source.mean(weights)),
        "unseen_mass": match.unseen_mass,
        "unseen_levels": target.unseen_mass(source),
        "residual": match.residual,
        "population": float(is_population(source, target)),
        "range": 1.0,
        "calibration_error_before": _calibration_error(source, source.proba),
        "calibration_error_after": _calibration_error(source, source.posterior),
    }
    ranking = match.ranking
    if ranking is not None and len(ranking.score) > 1:
        best, second = ranking.score[:2].tolist()
        figures["score"] = best
        if math.isfinite(second):
            figures["runner_up_score"] = second
    return figures


def _evidence(
    source: Source,
    target: Target,
    match: Match,
    metric: Metric,
    estimate: _Estimate,
    error: float | None,
    alternatives: Sequence[Alternative],
    selection: dict[tuple[Name, ...], float],
) -> dict[str, float]:
    """How well the headline gap and the shifted features are known."""
    figures: dict[str, float] = {}
    # Without an interval the analytic error answers: a verdict must not depend on what is shown.
    known = estimate.error if error is None else error
    if known is not None and not is_population(source, target):
        figures["standard_error"] = known
        figures["label_equivalent"] = label_equivalent(source, match, metric, known)
    if estimate.error is not None:
        figures["analytic_error"] = estimate.error
    resolved = resolution(source, target, match, metric)
    if resolved is not None:
        figures["unresolved"], figures["condition"] = resolved
    choice = match.choice
    if choice is not None:
        figures["blind_spot"] = blind_spot(source, target, metric)
        if not is_population(source, target):
            figures["power"] = alternative_power(source, match, metric, alternatives)
    if estimate.values is not None:
        figures["range"] = float(estimate.values.source.max() - estimate.values.source.min())
    if selection:
        names = tuple(source.schema.names[j] for j in match.features)
        dense = choice is not None and is_dense(choice.candidate)
        key = (choice.candidate.words,) if choice is not None and dense else names
        figures["stability"] = selection.get(key, 0.0)
    return figures


def _calibration_error(source: Source, proba: Tensor) -> float:
    return float(expected_calibration_error(proba.detach(), source.labels, source.count))


def _refuse_undefined(mean: float, gaps: Sequence[Gap], match: Match) -> None:
    """Refuse weights that leave nothing to estimate from: no number is better than NaN."""
    if not mean > 0:
        raise SupportError(
            f"{match.method} gives no weight to any labelled row: as the model sees it, the target "
            "is wholly of classes that the source does not show. Label some rows of them."
        )
    for gap in gaps:
        if not bool((gap.source_value + gap.target_value).isfinite()):
            raise IdentificationError(
                f"{gap.metric} is not defined for this target: {match.method} gives all of the "
                "weight to labelled rows of a single class. Ask for another metric or method."
            )


def _warn_of_mean(mean: float) -> None:
    if not 0.5 <= mean <= 2:
        warnings.warn(
            f"the weights average {mean:.3g} over the source instead of 1: the model's "
            "probabilities contradict the labels. Use calibrate=True.",
            SeesWarning,
            stacklevel=4,
        )
