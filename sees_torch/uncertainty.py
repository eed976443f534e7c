"""How sure is the gap? A Poisson bootstrap of both samples, and the analytic error beside it.

A replicate gives every row a Poisson number of copies. In each, features are named anew from the
held-out ratios, and the gap is estimated anew: under the hypothesis named, or, where the gap is an
average over hypotheses, as the average by their shares in that replicate. The ratios themselves are
not fitted again (they were fitted without the rows they are judged on), and neither is the
calibration: `eff` and `dr` do not depend on p(y|x) to first order. So a replicate costs a few
passes over the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.efficient import (
    FEW_ROWS,
    RowValues,
    cells_of,
    efficient_values,
    mean_variance,
    variance,
    weighted_mean,
)
from sees_torch.few_labels import LabelMix
from sees_torch.gap import Gap, gap_parts, own_estimator, target_posterior
from sees_torch.matching import Match, Method
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.match import Estimator, Replicable
from sees_torch.matching.selection import RESAMPLED_STANDARD_ERRORS
from sees_torch.statistics.products import MEMORY
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS


def analytic_error(
    source: Source, target: Target, match: Match, gap: Gap, values: RowValues
) -> float:
    """Standard error of a gap given the hypothesis: V for `eff`, else given the weights."""
    function = match.weight_function
    if gap.estimator == "eff":
        return variance(source, target, cells_of(function, source, target), values) ** 0.5
    parts = gap_parts(source, target, function, values, gap.estimator)
    on_source = mean_variance(parts.source_part[0] - values.own, source.count)
    return float(on_source + mean_variance(parts.target_part[0], target.count)) ** 0.5


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
    average: bool,
    replicates: int,
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
        average: the gaps are averages over hypotheses.
        replicates: B.
        memory: bytes that a part of the replicates may take, 256 MiB by default.
        generator: of the resamples, by default one with a fixed seed.
    """
    device = source.count.device
    generator = generator or torch.Generator(device=device).manual_seed(0)
    usual = own_estimator(hypotheses.fit(hypotheses.chosen)[1])
    results, choices = [], []
    for size in _parts(source, target, replicates, memory or MEMORY):
        here, there = (_resampled(sample.count, size, generator) for sample in (source, target))
        chosen, shares = _shares(hypotheses, here, there, average)
        part = torch.zeros(size, len(gaps), dtype=torch.float64, device=device)
        for place, share in shares.items():
            rows = share.nonzero().squeeze(1)
            method, fitted = hypotheses.uncertain(place)
            resample = _Resample(source, target, method, fitted, here[rows], there[rows])
            for column, (gap, value, mix) in enumerate(zip(gaps, values, mixes, strict=True)):
                used = own_estimator(fitted) if gap.estimator == usual else gap.estimator
                found = resample.gap(gap.metric, used, value, mix).to(part.dtype)
                part[rows, column] += share[rows] * found
        results.append(part)
        choices.append(chosen)
    return Replicates(torch.cat(results), torch.cat(choices))


def _resampled(count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(B, n) Poisson multiplicities; a resample that came out empty is the sample itself."""
    drawn = torch.poisson(count.expand(size, -1), generator=generator)
    return torch.where(drawn.sum(dim=1, keepdim=True) > 0, drawn, count)


def _shares(
    hypotheses: Hypotheses, here: Tensor, there: Tensor, average: bool
) -> tuple[Tensor, dict[int, Tensor]]:
    """(B,) the candidate that each resample names, and (B,) shares of candidates in its gap."""
    choice = hypotheses.choice
    if choice is None:
        chosen = torch.full((len(here),), hypotheses.chosen, device=here.device)
        return chosen, {hypotheses.chosen: torch.ones_like(here[:, 0], dtype=torch.float64)}
    score = choice.evidence.score(here, there)
    chosen = choice.pick(score, RESAMPLED_STANDARD_ERRORS)
    if not average:
        return chosen, {
            place: (chosen == place).to(torch.float64) for place in torch.unique(chosen).tolist()
        }
    shares = choice.shares(score).to(torch.float64)
    return chosen, {place: shares[:, place] for place in sorted(choice.averaged)}


def _parts(source: Source, target: Target, replicates: int, memory: int) -> Iterator[int]:
    """Numbers of replicates that fit into memory together."""
    per_replicate = 8 * (len(source) + len(target)) * (8 + 8 * len(source.classes))
    step = max(1, memory // per_replicate)
    for first in range(0, replicates, step):
        yield min(step, replicates - first)


class _Resample:
    """One hypothesis under B sets of multiplicities."""

    def __init__(
        self,
        source: Source,
        target: Target,
        method: Method,
        match: Match,
        here: Tensor,
        there: Tensor,
    ) -> None:
        self.source, self.target, self.method, self.match = source, target, method, match
        self.here, self.there = here, there
        self._tables: tuple[Tensor, Tensor] | None = None

    def tables(self) -> tuple[Tensor, Tensor]:
        """Weights (B, n, L) and (B, m, L) fitted anew."""
        if self._tables is None:
            assert isinstance(self.method, Replicable)
            self._tables = self.method.replicate(
                self.source, self.target, self.match, self.here, self.there
            )
        return self._tables

    def gap(
        self, name: str, estimator: Estimator, values: RowValues | None, mix: LabelMix | None
    ) -> Tensor:
        """(B,) gaps of one metric."""
        source, target, here, there = self.source, self.target, self.here, self.there
        if values is None:
            metric = WEIGHTED_METRICS[name]
            weight = self._own(self.tables()[0])
            before = metric(source.proba, source.labels, here)
            return metric(source.proba, source.labels, here * weight) - before
        before = weighted_mean(values.own.expand_as(here), here)
        if estimator == "eff":
            cells = cells_of(self.match.weight_function, source, target)
            after = efficient_values(source, target, cells, values, here, there).target_value
        else:
            after = self._weighted(estimator, values)
        if mix is not None:
            after = mix.mixed(after, there)
        return after - before

    def _own(self, table: Tensor) -> Tensor:
        """(B, n) weights of the source rows under their own labels."""
        index = self.source.labels[None, :, None].expand(len(table), -1, 1)
        return table.gather(2, index).squeeze(2)

    def _weighted(self, estimator: str, values: RowValues) -> Tensor:
        on_source, on_target = self.tables()
        weight = self._own(on_source)
        if estimator == "ipw":
            return weighted_mean(weight * values.own, self.here)
        if estimator == "self-normalised":
            return weighted_mean(values.own.expand_as(weight), self.here * weight)
        posterior = target_posterior(on_target, self.target.posterior)
        plugin = weighted_mean((posterior * values.target).sum(dim=-1), self.there)
        if estimator == "plugin":
            return plugin
        expected = (target_posterior(on_source, self.source.posterior) * values.source).sum(dim=-1)
        return plugin + weighted_mean(weight * (values.own - expected), self.here)
