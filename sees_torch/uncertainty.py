"""How sure is the gap? A Poisson bootstrap of both samples, and the analytic error beside it.

A replicate gives every row a Poisson number of copies. In each, features are named anew from the
ratios of all hypotheses, and the gap is estimated anew: as the average over hypotheses by their
shares in that replicate, or, where nothing shifted or a method averages none, under the hypothesis
named. The calibration moves by one Newton step, and the gap with it, to first order. The ratios are
not fitted again: what they gain from the rows they were fitted to is charged for. So a replicate
costs a few passes over the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from sees_torch.calibration import Calibration
from sees_torch.contributions import GapParts, RowValues, mean_covariance, mean_variance
from sees_torch.data import Source, Target
from sees_torch.efficient import FEW_ROWS, FREE_ROWS, efficient_values, variance
from sees_torch.few_labels import LabelMix
from sees_torch.gap import Gap, Metric, gap_parts, own_estimator, row_values
from sees_torch.matching import Match, Method
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.match import Influential
from sees_torch.matching.selection import RESAMPLED_STANDARD_ERRORS
from sees_torch.resamples import Resample, through_calibration, through_weights
from sees_torch.statistics.products import MEMORY
from sees_torch.weight_cells import cells_of


@dataclass(frozen=True)
class RowErrors:
    """What every row adds to the error of a gap, given the hypothesis.

    Attributes:
        source: (n,); target: (m,).
    """

    source: Tensor
    target: Tensor

    @classmethod
    def of(
        cls,
        source: Source,
        target: Target,
        method: Method,
        match: Match,
        gap: Gap,
        values: RowValues,
    ) -> RowErrors:
        """By itself and, where the method can tell, by moving the weights.

        `eff` holds nothing back here, so its error is sqrt(V); it does not move with the weights.
        """
        function = match.weight_function
        if gap.estimator == "eff":
            cells = cells_of(function, source, target)
            parts: GapParts = efficient_values(source, target, cells, values, few_rows=FREE_ROWS)
            return cls(parts.source_part[0] - values.own, parts.target_part[0])
        parts = gap_parts(source, target, function, values, gap.estimator)
        here, there = parts.source_part[0] - values.own, parts.target_part[0]
        if isinstance(method, Influential):
            moved = through_weights(source, target, method, match, gap, values)
            here, there = here + moved[0].to(here), there + moved[1].to(there)
        return cls(here, there)

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, RowErrors]]) -> RowErrors:
        """Of a mean of gaps, by their shares."""
        here, there = (torch.zeros_like(each) for each in (parts[0][1].source, parts[0][1].target))
        for share, each in parts:
            here, there = here + share * each.source, there + share * each.target
        return cls(here, there)

    def covariance(self, other: RowErrors, source: Source, target: Target) -> float:
        """Of the errors of two gaps."""
        here = mean_covariance(self.source, other.source, source.count)
        return float(here + mean_covariance(self.target, other.target, target.count))

    def error(self, source: Source, target: Target) -> float:
        """The standard error of the gap."""
        return self.covariance(self, source, target) ** 0.5


def analytic_error(
    source: Source,
    target: Target,
    method: Method,
    match: Match,
    gap: Gap,
    values: RowValues,
) -> float:
    """Standard error of a gap given the hypothesis."""
    with torch.no_grad():
        return RowErrors.of(source, target, method, match, gap, values).error(source, target)


def label_equivalent(source: Source, match: Match, metric: Metric, error: float) -> float:
    """How many labelled target rows would give the metric on the target with the same error."""
    values = row_values(source, source, metric)  # type: ignore[arg-type]
    if values is None or error <= 0:
        return float("inf")
    weight = match.weight_function.of_rows(source.rows, source.labels) * source.count
    spread = float(mean_variance(values.own, weight) * weight.sum())
    return spread / error**2


def held_back(source: Source, target: Target, match: Match, gap: Gap, values: RowValues) -> float:
    """How much wider the free `eff` varies than the one that holds back in cells with few rows.

    Holding back lowers the variance by trusting p(y|x); the interval must not profit from that.
    """
    if gap.estimator != "eff":
        return 1.0
    cells = cells_of(match.weight_function, source, target)
    free = variance(source, target, cells, values)
    return max(
        1.0, (free / max(variance(source, target, cells, values, None, FEW_ROWS), 1e-37)) ** 0.5
    )


def normal_interval(gap: float, error: float, confidence: float) -> tuple[float, float]:
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return gap - reach, gap + reach


@dataclass(frozen=True)
class Replicates:
    """Gaps of every metric in every replicate, and the hypothesis that each chose.

    Attributes:
        gaps: (B, number of metrics).
        chosen: (B,) position among the candidates; zeros without a choice.
    """

    gaps: Tensor
    chosen: Tensor

    def interval(
        self, metric: int, gap: float, confidence: float, stretch: float
    ) -> tuple[float, float] | None:
        """The percentile interval, stretched about the estimate and to hold it."""
        found = self._defined(metric)
        if found is None:
            return None
        tail = (1 - confidence) / 2
        levels = torch.tensor([tail, 1 - tail], dtype=found.dtype, device=found.device)
        low, high = torch.quantile(found, levels).tolist()
        return gap - stretch * max(gap - low, 0.0), gap + stretch * max(high - gap, 0.0)

    def error(self, metric: int) -> float | None:
        found = self._defined(metric)
        return None if found is None else float(found.std())

    def _defined(self, metric: int) -> Tensor | None:
        """Gaps of the replicates that have one; None if most have none.

        A resample may leave a rare class out, and then has no AUROC.
        """
        gaps = self.gaps[:, metric]
        found = gaps[gaps.isfinite()]
        return found if len(found) >= max(2, len(gaps) / 2) else None

    def frequency(self) -> dict[int, float]:
        """Share of the replicates that chose each candidate."""
        count = torch.bincount(self.chosen)
        return {place: c / len(self.chosen) for place, c in enumerate(count.tolist()) if c}


def bootstrap(
    source: Source,
    target: Target,
    hypotheses: Hypotheses,
    values: Sequence[RowValues | None],
    gaps: Sequence[Gap],
    mixes: Sequence[LabelMix | None],
    *,
    replicates: int,
    drifts: Sequence[float] = (),
    calibration: Calibration | None = None,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Replicates:
    """Poisson resamples of both samples, each with its own choice of hypothesis.

    Args:
        source, target: the samples.
        hypotheses: behind the match.
        values: of each metric's rows, None for a metric that is no mean over rows.
        gaps: their estimates, for the name and estimator of each.
        mixes: how labelled target rows enter each.
        replicates: B.
        drifts: what each is allowed for labels that drift given the features; a resample has a
            random multiple of it, which is one on average and varies by one.
        calibration: that made the posteriors; None if nothing did.
        memory: bytes that a part of the replicates may take, 256 MiB by default.
        generator: of the resamples, by default one with a fixed seed.
    """
    device = source.count.device
    generator = generator or torch.Generator(device=device).manual_seed(0)
    usual = own_estimator(hypotheses.fit(hypotheses.chosen)[1])
    through: dict[tuple[int, int], Tensor] = {}
    results, choices = [], []
    for size in _parts(source, target, replicates, memory or MEMORY):
        here, there = (_resampled(sample.count, size, generator) for sample in (source, target))
        chosen, shares = _shares(hypotheses, here, there, generator)
        part = torch.zeros(size, len(gaps), dtype=torch.float64, device=device)
        for place, share in shares.items():
            rows = share.nonzero().squeeze(1)
            method, fitted = hypotheses.uncertain(place)
            resample = Resample(source, target, method, fitted, here[rows], there[rows])
            for column, (gap, value, mix) in enumerate(zip(gaps, values, mixes, strict=True)):
                used = own_estimator(fitted) if gap.estimator == usual else gap.estimator
                key = place, column
                if key not in through:
                    through[key] = through_calibration(
                        source, target, calibration, method, fitted, gap.metric, used, value
                    )
                found = resample.gap(gap.metric, used, value, mix, through[key]).to(part.dtype)
                part[rows, column] += share[rows] * found
        if any(drifts):
            luck = torch.rand(size, 1, generator=generator, dtype=part.dtype, device=device)
            part -= torch.log1p(-luck) * torch.tensor(drifts, dtype=part.dtype, device=device)
        results.append(part)
        choices.append(chosen)
    return Replicates(torch.cat(results), torch.cat(choices))


def _resampled(count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(B, n) Poisson multiplicities; a resample that came out empty is the sample itself."""
    drawn = torch.poisson(count.expand(size, -1), generator=generator)
    return torch.where(drawn.sum(dim=1, keepdim=True) > 0, drawn, count)


def _shares(
    hypotheses: Hypotheses, here: Tensor, there: Tensor, generator: torch.Generator
) -> tuple[Tensor, dict[int, Tensor]]:
    """(B,) the candidate that each resample names, and (B,) shares of candidates in its gap."""
    choice = hypotheses.choice
    if choice is None:
        chosen = torch.full((len(here),), hypotheses.chosen, device=here.device)
        return chosen, {hypotheses.chosen: torch.ones_like(here[:, 0], dtype=torch.float64)}
    score = choice.evidence.score(here, there)
    chosen = choice.pick(score, RESAMPLED_STANDARD_ERRORS)
    if not choice.parts and not choice.resampled:
        return chosen, {
            place: (chosen == place).to(torch.float64) for place in torch.unique(chosen).tolist()
        }
    luck = torch.rand(len(here), 2, generator=generator, dtype=score.dtype, device=score.device)
    shares = choice.resampled_shares(score, luck).to(torch.float64)
    members = (shares > 0).any(dim=0).nonzero().squeeze(1).tolist()
    return chosen, {place: shares[:, place] for place in members}


def _parts(source: Source, target: Target, replicates: int, memory: int) -> Iterator[int]:
    """Numbers of replicates that fit into memory together."""
    per_replicate = 8 * (len(source) + len(target)) * (8 + 8 * len(source.classes))
    step = max(1, memory // per_replicate)
    for first in range(0, replicates, step):
        yield min(step, replicates - first)
