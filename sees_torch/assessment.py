"""From a match to a report: gaps, their errors, rival hypotheses and the verdict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sees_torch.alternatives import (
    Alternative,
    averaged_beside,
    compare,
    power,
)
from sees_torch.calibration import Calibration
from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.data.tables import Name
from sees_torch.errors import IdentificationError, SeesWarning, SupportError
from sees_torch.estimates import Estimate, Points, point_estimates
from sees_torch.gap import Gap, Metric, is_rate
from sees_torch.identifiability import Verdict, judge
from sees_torch.intervals import interval_kind, spread
from sees_torch.matching import Match, Method
from sees_torch.report import ShiftReport
from sees_torch.resolution import blind_spot, resolution
from sees_torch.uncertainty import Replicates, bootstrap, label_equivalent
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
    calibration: Calibration | None = None,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> ShiftReport:
    """The report on what a method matched; arguments as those of `estimate_shift`.

    The samples' posteriors are those of the calibration, if there is one.
    """
    points = point_estimates(source, target, match, method, metrics, estimator)
    match, estimates = points.match, points.estimates
    gaps = [estimate.gap for estimate in estimates]
    weights = match.weight_function.of_rows(source.rows, source.labels)
    mean = float(source.mean(weights.detach()))
    _refuse_undefined(mean, gaps, match)
    _warn_of_mean(mean)
    _warn_of_rates(gaps)
    with torch.no_grad():
        kind = interval_kind(
            source, target, match, method, points.estimator, confidence, replicates
        )
        resamples = None
        if kind == "bootstrap":
            resamples = _resamples(
                source, target, points, replicates, calibration, memory, generator
            )
        spreads = [
            spread(estimate, place, resamples, kind, confidence)
            for place, estimate in enumerate(estimates)
        ]
        intervals, errors = zip(*spreads, strict=True)
        selection = _selection(source, match, resamples)
        figures = _figures(source, target, match, weights)
        figures |= _evidence(source, target, match, metrics[0], estimates[0], errors[0], selection)
        verdict, alternatives, figures = _judged(
            source, target, points, method, metrics[0], gaps[0], figures
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


def _judged(
    source: Source,
    target: Target,
    points: Points,
    method: Method,
    metric: Metric,
    gap: Gap,
    figures: dict[str, float],
) -> tuple[Verdict, tuple[Alternative, ...], dict[str, float]]:
    """The verdict, the hypotheses beside the chosen one, and all figures that are finite."""
    match, hypotheses = points.match, points.hypotheses
    alternatives: tuple[Alternative, ...] = ()
    if match.choice is not None:
        alternatives = tuple(compare(source, target, hypotheses, metric))
    worst = power(source, target, hypotheses, metric)
    unseen = None if worst is None else source.schema.names[worst[1]]
    if worst is not None:
        figures = figures | {"power": worst[0]}
    figures = {name: value for name, value in figures.items() if math.isfinite(value)}
    value = float(gap.gap)
    verdict = judge(source, match, method, gap.metric, value, alternatives, figures, unseen)
    if match.choice is not None and match.choice.parts:
        beside = averaged_beside(source, target, hypotheses, metric, alternatives)
        alternatives = tuple(sorted((*alternatives, *beside), key=lambda a: -a.score))
    return verdict, alternatives, figures


def _resamples(
    source: Source,
    target: Target,
    points: Points,
    replicates: int,
    calibration: Calibration | None,
    memory: int | None,
    generator: torch.Generator | None,
) -> Replicates:
    """The gaps of all metrics in resamples of both samples."""
    return bootstrap(
        source,
        target,
        points.hypotheses,
        [estimate.values for estimate in points.estimates],
        [estimate.gap for estimate in points.estimates],
        [estimate.mix for estimate in points.estimates],
        replicates=replicates,
        drifts=[estimate.drift for estimate in points.estimates],
        calibration=calibration,
        memory=memory,
        generator=generator,
    )


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
        key = (candidate.words,) if candidate.is_dense else features
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
    if target.labelled:
        figures["labelled_rows"] = target.labelled
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
    estimate: Estimate,
    error: float | None,
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
    if estimate.drift:
        figures["drift"] = estimate.drift
    if estimate.mix is not None and estimate.mix.share:
        figures["told"] = estimate.mix.share
    if match.choice is not None and match.choice.parts:
        figures["belief"] = match.choice.belief
    resolved = resolution(source, target, match, metric)
    if resolved is not None:
        figures["unresolved"], figures["condition"] = resolved
    choice = match.choice
    if choice is not None:
        figures["blind_spot"] = blind_spot(source, target, metric)
    if estimate.values is not None:
        figures["range"] = float(estimate.values.source.max() - estimate.values.source.min())
    if selection:
        names = tuple(source.schema.names[j] for j in match.features)
        dense = choice is not None and choice.candidate.is_dense
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


def _warn_of_rates(gaps: Sequence[Gap]) -> None:
    """Estimates without a bound may leave what is possible, by more than noise if all is wrong."""
    for gap in gaps:
        value = float(gap.target_value.detach())
        if is_rate(gap.metric) and not -0.1 <= value <= 1.1:
            warnings.warn(
                f"{gap.metric} on the target is estimated at {value:.0%}, which is impossible: the "
                "model's probabilities on the target do not fit those on the source. Check that "
                "both come from the same model, and do not use this number.",
                SeesWarning,
                stacklevel=4,
            )
