"""How sure is the gap? A Poisson bootstrap of both samples, and the analytic error beside it.

A replicate gives every row a Poisson number of copies. In each, the hypothesis is chosen anew from
the held-out ratios, and the gap is estimated anew under the chosen one. The ratios themselves are
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
from sees_torch.matching import Match, Method, NoShift, SEESem
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
    ) -> tuple[float, float]:
        """The percentile interval, stretched about the estimate and to hold it."""
        tail = (1 - confidence) / 2
        levels = torch.tensor([tail, 1 - tail], dtype=self.gaps.dtype, device=self.gaps.device)
        low, high = torch.quantile(self.gaps[:, metric], levels).tolist()
        return gap - stretch * max(gap - low, 0.0), gap + stretch * max(high - gap, 0.0)

    def error(self, metric: int) -> float:
        return float(self.gaps[:, metric].std())

    def frequency(self) -> dict[int, float]:
        """Share of the replicates that chose each candidate."""
        count = torch.bincount(self.chosen)
        return {place: c / len(self.chosen) for place, c in enumerate(count.tolist()) if c}


def bootstrap(
    source: Source,
    target: Target,
    match: Match,
    method: Method,
    values: Sequence[RowValues | None],
    gaps: Sequence[Gap],
    mixes: Sequence[LabelMix | None],
    *,
    replicates: int,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Replicates:
    """Poisson resamples of both samples, each with its own choice of hypothesis.

    Args:
        source, target: the samples.
        match: of the samples, with its choice if the method made one.
        method: that made the match; used when there was no choice.
        values: of each metric's rows, None for a metric that is no mean over rows.
        gaps: their estimates, for the name and estimator of each.
        mixes: how labelled target rows enter each.
        replicates: B.
        memory: bytes that a part of the replicates may take, 256 MiB by default.
        generator: of the resamples, by default one with a fixed seed.
    """
    device = source.count.device
    generator = generator or torch.Generator(device=device).manual_seed(0)
    hypotheses = _Hypotheses(source, target, match, method)
    usual = own_estimator(match)
    results, choices = [], []
    for size in _parts(source, target, replicates, memory or MEMORY):
        here, there = (_resampled(sample.count, size, generator) for sample in (source, target))
        chosen = hypotheses.choose(here, there)
        part = torch.zeros(size, len(gaps), dtype=torch.float64, device=device)
        for place in torch.unique(chosen).tolist():
            rows = (chosen == place).nonzero().squeeze(1)
            method, fitted = hypotheses.fit(place)
            resample = _Resample(source, target, method, fitted, here[rows], there[rows])
            for column, (gap, value, mix) in enumerate(zip(gaps, values, mixes, strict=True)):
                used = own_estimator(fitted) if gap.estimator == usual else gap.estimator
                part[rows, column] = resample.gap(gap.metric, used, value, mix).to(part.dtype)
        results.append(part)
        choices.append(chosen)
    return Replicates(torch.cat(results), torch.cat(choices))


def _resampled(count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(B, n) Poisson multiplicities; a resample that came out empty is the sample itself."""
    drawn = torch.poisson(count.expand(size, -1), generator=generator)
    return torch.where(drawn.sum(dim=1, keepdim=True) > 0, drawn, count)


def _parts(source: Source, target: Target, replicates: int, memory: int) -> Iterator[int]:
    """Numbers of replicates that fit into memory together."""
    per_replicate = 8 * (len(source) + len(target)) * (8 + 8 * len(source.classes))
    step = max(1, memory // per_replicate)
    for first in range(0, replicates, step):
        yield min(step, replicates - first)


class _Hypotheses:
    """The candidates, fitted to the samples when they are first asked for."""

    def __init__(self, source: Source, target: Target, match: Match, method: Method) -> None:
        self.samples = source, target
        self.choice = match.choice
        self.fitted: dict[int, tuple[Method, Match]] = {}
        place = 0 if self.choice is None else self.choice.chosen
        used = method if self.choice is None else self.choice.candidate.method
        self.fitted[place] = (match.settings or used, match)
        if isinstance(self.fitted[place][0], NoShift):
            del self.fitted[place]

    def choose(self, here: Tensor, there: Tensor) -> Tensor:
        """(B,) the candidate that each resample prefers."""
        if self.choice is None:
            return torch.zeros(len(here), dtype=torch.int64, device=here.device)
        score = self.choice.evidence.score(here, there)
        return self.choice.pick(score, RESAMPLED_STANDARD_ERRORS)

    def fit(self, place: int) -> tuple[Method, Match]:
        """Nothing shifted is uncertain like labels only: a small shift may have gone unseen."""
        if place not in self.fitted:
            assert self.choice is not None
            method = self.choice.candidates[place].quick()
            if isinstance(method, NoShift):
                method = SEESem(features=())
            self.fitted[place] = method, method.match(*self.samples)
        return self.fitted[place]


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
