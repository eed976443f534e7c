"""Point estimates of every metric, averaged where several hypotheses are open."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sees_torch.data import Source, Target
from sees_torch.efficient import RowValues
from sees_torch.few_labels import LabelledError, LabelMix, enough_labels
from sees_torch.gap import (
    Gap,
    Metric,
    estimate_gap,
    gap_parts,
    own_estimator,
    row_values,
    target_posterior,
)
from sees_torch.matching import Match, Method
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.match import Estimator, has_graph
from sees_torch.uncertainty import analytic_error, held_back


@dataclass(frozen=True)
class Estimate:
    """A gap, what it was made from, its analytic standard error, and how far to stretch others."""

    gap: Gap
    values: RowValues | None
    mix: LabelMix | None
    error: float | None
    stretch: float = 1.0


def _estimate(
    source: Source, target: Target, match: Match, metric: Metric, estimator: Estimator
) -> Estimate:
    function = match.weight_function
    gap = estimate_gap(source, target, function, metric, estimator)
    values = row_values(source, target, metric)
    if values is None:
        return Estimate(gap, None, None, None)
    with torch.no_grad():
        error = analytic_error(source, target, match, gap, values)
        if not enough_labels(target):
            stretch = held_back(source, target, match, gap, values)
            return Estimate(gap, values, None, error, stretch)
        found = gap_parts(source, target, function, values, gap.estimator)
        posterior = target_posterior(function.table(target.rows), target.posterior)
        mix = LabelMix.of(source, target, found, values, posterior)
    if has_graph(source, target):
        posterior = target_posterior(function.table(target.rows), target.posterior)
        mix = replace(mix, error=LabelledError.of(target, posterior, values))
    value = mix.mixed(gap.target_value[None], target.count[None])[0]
    return Estimate(replace(gap, target_value=value), values, mix, mix.variance**0.5)


def _point(
    source: Source,
    target: Target,
    hypotheses: Hypotheses,
    metric: Metric,
    estimator: Estimator,
    average: bool,
) -> Estimate:
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
        return replace(match, choice=replace(match.choice, averaged=(), hedges=(), resampled=()))


def _average(
    source: Source, target: Target, hypotheses: Hypotheses, metric: Metric, chosen: Estimate
) -> Estimate:
    """The gap averaged over the hypotheses that the data leave open, by how well they explain them.

    Its variance is the mean of theirs and the variance between them.
    """
    choice = hypotheses.choice
    assert choice is not None
    shares = choice.shares(choice.evidence.score())
    value, square, known = torch.zeros_like(chosen.gap.target_value), 0.0, True
    for place in choice.averaged:
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


@dataclass(frozen=True)
class Points:
    """Estimates of all metrics from one match.

    Attributes:
        match: without an average where an estimator was asked for.
        hypotheses: behind it; estimator: of the chosen one; average: the gaps are averages.
        estimates: one a metric.
    """

    match: Match
    hypotheses: Hypotheses
    estimator: Estimator
    average: bool
    estimates: list[Estimate]


def point_estimates(
    source: Source,
    target: Target,
    match: Match,
    method: Method,
    metrics: Sequence[Metric],
    estimator: str,
) -> Points:
    """The estimates that a report states; arguments as those of `report_match`."""
    used: Any = own_estimator(match) if estimator == "auto" else estimator
    if estimator != "auto":
        match = _alone(match)
    hypotheses = Hypotheses(source, target, match, method)
    average = match.choice is not None and len(match.choice.averaged) > 0
    estimates = [_point(source, target, hypotheses, metric, used, average) for metric in metrics]
    return Points(match, hypotheses, used, average, estimates)
