"""Point estimates of every metric, averaged where several hypotheses are open."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sees_torch.contributions import GapParts, RowValues
from sees_torch.data import Source, Target
from sees_torch.efficient import FREE_ROWS, efficient_values
from sees_torch.few_labels import LabelledError, LabelMix
from sees_torch.gap import (
    Gap,
    Metric,
    drift,
    estimate_gap,
    gap_parts,
    own_estimator,
    row_values,
    target_posterior,
)
from sees_torch.labelling import Labelling
from sees_torch.matching import Match, Method, NoShift, SEESc
from sees_torch.matching.choice import Choice
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.match import Estimator
from sees_torch.matching.selection import STANDARD_ERRORS
from sees_torch.uncertainty import RowErrors, analytic_error, held_back, label_equivalent
from sees_torch.weight_cells import cells_of

LEAST_HEDGED = 0.1
"""Hedges that together have a smaller part of the gap are left out."""
CHOSEN_BY_CHANCE = 2.0
"""The squared error that an average does not share with a hedge counts so many times beside the
hedge's: which hypotheses it holds was decided by the same rows."""
PRIOR_LABELS = 12.0
"""That nothing changed is known before any data as if from so many labelled target rows: gaps are
seldom large, and an average that is worth no more than that says little."""


@dataclass(frozen=True)
class Estimate:
    """A gap, what it was made from, its analytic standard error, and how far to stretch others.

    `drift` is the part of the gap that is allowed for labels that drifted given the features,
    `rows` what every row adds to the error.
    """

    gap: Gap
    values: RowValues | None
    mix: LabelMix | None
    error: float | None
    stretch: float = 1.0
    drift: float = 0.0
    rows: RowErrors | None = None


def _estimate(
    source: Source,
    target: Target,
    fitted: tuple[Method, Match],
    metric: Metric,
    estimator: Estimator,
) -> Estimate:
    method, match = fitted
    function = match.weight_function
    gap = estimate_gap(source, target, function, metric, estimator)
    values = row_values(source, target, metric)
    if values is None:
        return Estimate(gap, None, None, None)
    with torch.no_grad():
        rows = RowErrors.of(source, target, method, match, gap, values)
        stretch = held_back(source, target, match, gap, values)
    return Estimate(gap, values, None, rows.error(source, target), stretch, rows=rows)


def _point(
    source: Source,
    target: Target,
    hypotheses: Hypotheses,
    metric: Metric,
    estimator: Estimator,
) -> Estimate:
    """The estimate of one metric, averaged over hypotheses if it is to be."""
    choice = hypotheses.choice
    chosen = _estimate(source, target, hypotheses.fit(hypotheses.chosen), metric, estimator)
    if choice is None or not choice.parts:
        return chosen
    return _average(source, target, hypotheses, metric, chosen)


def _average(
    source: Source, target: Target, hypotheses: Hypotheses, metric: Metric, chosen: Estimate
) -> Estimate:
    """The gap averaged over the hypotheses that the data leave open, by how well they explain them.

    Its variance is the mean of theirs and the variance between them. The simplest stories drift,
    by as much as is allowed for give or take the same.
    """
    choice = hypotheses.choice
    assert choice is not None
    shares = choice.shares(choice.evidence.score())
    drifting = choice.story_shares
    allowed = torch.zeros_like(chosen.gap.target_value)
    value, square = torch.zeros_like(chosen.gap.target_value), 0.0
    rows: list[tuple[float, RowErrors]] = []
    for place in choice.parts:
        fitted = hypotheses.fit(place)
        one = chosen
        if place != hypotheses.chosen:
            one = _estimate(source, target, fitted, metric, own_estimator(fitted[1]))
        share = shares[place]
        value = value + share * one.gap.target_value
        if one.rows is not None:
            rows.append((float(share), one.rows))
        square += float(share) * (float(one.gap.gap.detach()) ** 2 + (one.error or 0.0) ** 2)
        if place in drifting:
            function = fitted[1].weight_function
            allowed = allowed + drifting[place] * drift(source, target, function, metric)
    square -= float((value - chosen.gap.source_value).detach()) ** 2
    gap = replace(chosen.gap, target_value=value + allowed)
    found = replace(chosen, gap=gap, drift=float(allowed))
    if not rows:
        return found
    error = (max(square, 0.0) + float(allowed) ** 2) ** 0.5
    return replace(found, error=error, rows=RowErrors.mixed(rows))


def _doubted(
    source: Source, target: Target, hypotheses: Hypotheses, estimate: Estimate
) -> Estimate:
    """That nothing shifted is as uncertain as labels only are: a small shift may have hidden."""
    choice, values = hypotheses.choice, estimate.values
    if choice is None or values is None or estimate.error is None:
        return estimate
    share = 1.0
    places = [p for p, c in enumerate(choice.candidates) if isinstance(c.method, NoShift)]
    if choice.parts:
        shares = choice.shares(choice.evidence.score())
        share = sum(float(shares[place]) for place in places)
    elif choice.chosen not in places:
        return estimate
    if not share or not places:
        return estimate
    as_labels = replace(estimate.gap, estimator="eff")
    error = analytic_error(source, target, *hypotheses.uncertain(places[0]), as_labels, values)
    return replace(estimate, error=(estimate.error**2 + share * error**2) ** 0.5)


def _told(source: Source, target: Target, hypotheses: Hypotheses, estimate: Estimate) -> Estimate:
    """The estimate mixed with what labelled rows say under no hypothesis, for the least error."""
    labelling, values = Labelling.of(source, target), estimate.values
    if labelling is None or values is None or estimate.error is None:
        return estimate
    match = hypotheses.fit(hypotheses.chosen)[1]
    function, estimator = match.weight_function, estimate.gap.estimator
    posterior = target_posterior(function.table(target.rows), target.posterior)
    labelled = LabelledError.of(target, posterior, values, labelling)
    with torch.no_grad():
        if estimator == "eff":
            cells = cells_of(function, source, target)
            parts: GapParts = efficient_values(source, target, cells, values, few_rows=FREE_ROWS)
        else:
            parts = gap_parts(source, target, function, values, estimator)
        mix = LabelMix.of(
            source, target, estimate.gap.target_value, estimate.error, parts, values, labelled
        )
    value = mix.mixed(estimate.gap.target_value[None], target.count[None])[0]
    return replace(
        estimate,
        gap=replace(estimate.gap, target_value=value),
        mix=mix,
        error=(mix.variance + mix.bias_left) ** 0.5,
        # Resamples do not know of the bias that is left.
        stretch=estimate.stretch * (1 + mix.bias_left / max(mix.variance, 1e-37)) ** 0.5,
        drift=(1 - mix.share) * estimate.drift,
    )


def _hedged(
    source: Source, target: Target, match: Match, choice: Choice, method: Method, metric: Metric
) -> Choice:
    """The choice with the part of shifts of many features in the gap, by the errors of all.

    The average over few features is hardly biased but may vary much, penalised fits vary less and
    are pulled: each has a part by the inverse of its expected squared error, less what average and
    hedge share.
    """
    if not choice.hedges:
        return choice
    hypotheses = Hypotheses(source, target, match, method)
    hypotheses.choice = replace(choice, extremes=())
    average = _point(source, target, hypotheses, metric, own_estimator(match))
    average = _doubted(source, target, hypotheses, average)
    assert average.error is not None
    assert average.rows is not None
    spread = label_equivalent(source, match, metric, 1.0)
    behind = choice.lags()
    worth = {}
    for place in choice.hedges:
        penalised, fitted = hypotheses.fit(place)
        assert isinstance(penalised, SEESc)
        one = _estimate(source, target, (penalised, fitted), metric, own_estimator(fitted))
        assert one.error is not None
        assert one.rows is not None
        shared = max(one.rows.covariance(average.rows, source, target), 0.0)
        own = CHOSEN_BY_CHANCE * max(average.error**2 - shared, 0.0)
        apart = float(average.gap.gap - one.gap.gap) ** 2
        # A penalty pulls as far as 1 / eta labelled rows err, or as the errors leave unexplained.
        pulled = max(one.error**2 - shared, 0.0) + spread * float(penalised.eta)
        expected = max(pulled, apart - own, 1e-37)
        beyond = max(float(behind[place]) - STANDARD_ERRORS, 0.0)
        worth[place] = math.exp(-(beyond**2) / 2) * own / expected
    parts = {place: part / (1 + sum(worth.values())) for place, part in worth.items()}
    return replace(choice, hedges=parts if sum(parts.values()) >= LEAST_HEDGED else {})


def _belief(source: Source, hypotheses: Hypotheses, metric: Metric, estimate: Estimate) -> float:
    """Part of an averaged gap that is believed, by its error."""
    if estimate.error is None:
        return 1.0
    match = hypotheses.fit(hypotheses.chosen)[1]
    worth = label_equivalent(source, match, metric, estimate.error)
    return 1 / (1 + PRIOR_LABELS / max(worth, 1e-37))


def _believed(estimate: Estimate, belief: float) -> Estimate:
    """The estimate with so much of its gap; its error is that of the whole."""
    before, after = estimate.gap.source_value, estimate.gap.target_value
    return replace(
        estimate, gap=replace(estimate.gap, target_value=before + belief * (after - before))
    )


@dataclass(frozen=True)
class Points:
    """Estimates of all metrics from one match.

    Attributes:
        match: without an average where an estimator was asked for.
        hypotheses: behind it; estimator: of the chosen one.
        estimates: one a metric.
    """

    match: Match
    hypotheses: Hypotheses
    estimator: Estimator
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
    choice = match.choice
    # A metric that is no mean over rows has no error of its own.
    by = "accuracy" if row_values(source, target, metrics[0]) is None else metrics[0]
    if choice is not None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # What there was to warn of has been said.
            if estimator == "auto":
                choice = _hedged(source, target, match, choice, method, by)
            else:  # It belongs to the chosen weights.
                choice = replace(choice, averaged=(), resampled=(), hedges={}, extremes=())
            match = replace(match, choice=choice)
    hypotheses = Hypotheses(source, target, match, method)

    def estimated(metric: Metric) -> Estimate:
        plain = _point(source, target, hypotheses, metric, used)
        return _told(source, target, hypotheses, _doubted(source, target, hypotheses, plain))

    estimates = [estimated(metric) for metric in metrics]
    if choice is not None and choice.parts:
        with torch.no_grad():
            known = estimates[0] if by is metrics[0] else estimated(by)
            belief = _belief(source, hypotheses, by, known)
        hypotheses.choice = replace(choice, belief=belief)
        match = replace(match, choice=hypotheses.choice)
        estimates = [_believed(estimate, belief) for estimate in estimates]
    return Points(match, hypotheses, used, estimates)
