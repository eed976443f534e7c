"""The interval of a gap: where it comes from, or why there is none."""

from __future__ import annotations

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.estimates import Estimate
from sees_torch.gap import Gap, is_rate
from sees_torch.matching import CBPE, KnownWeights, Match, Method, NoShift
from sees_torch.matching.match import Influential, Replicable
from sees_torch.uncertainty import Replicates, normal_interval

KNOWN_ERRORS = (KnownWeights, CBPE)
"""Methods whose weights have no error of their own."""


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
    used = method if match.choice is None else match.choice.candidate.method
    if estimator == "eff" or isinstance(used, (NoShift, Influential, *KNOWN_ERRORS)):
        return "analytic"
    if match.choice is not None or isinstance(method, Replicable):
        return (
            f"none: the analytic error of {estimator!r} does not know that of the weights; ask for "
            "replicates"
        )
    return f"none: the error of the weights of {match.method} is not known"


def spread(
    estimate: Estimate,
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
