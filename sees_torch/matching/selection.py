"""Which hypothesis about the shift do the data support? A two-sample score.

Every hypothesis gives a density ratio r(x). Its score is  mean_t log r - log mean_s r - cost: the
second term charges for what a ratio gains by chance from the finite source, which the target's
likelihood alone does not see. Tables are fitted to all rows, and pay for it: k numbers that n and m
rows decided gain k / 2 (1/n + 1/m) on these rows and lose as much on others, so the cost is
k (1/n + 1/m). That is the score on rows held out, averaged over all ways of holding some out,
without the luck of one. Shifts of many features, whose k nobody knows, are judged on rows held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TypeVar

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.counting import content_hash, scatter_folds
from sees_torch.data.samples import is_population
from sees_torch.data.thinning import part_of, rounded, row_key

Sample = TypeVar("Sample", Source, Target)
FOLDS = 5
DEALS = 3
"""Rows are dealt into folds so many times, and scores are averaged: the luck of a single deal moves
a score by more than a number too many costs it."""
ONE_DEAL_ROWS = 20_000
"""From so many rows on one deal will do: its luck stays as it is, what a shift adds grows."""
ONE_DEAL_ENTRIES = 1000
"""With more pairs of a level and a label, shifts of many features take too long to fit to each."""
MANY_ROWS = 100_000
"""Half of so many rows fits as well as four fifths: then there are two folds."""
STANDARD_ERRORS = 1.5
"""A simpler hypothesis is kept unless it falls behind the best by more than this."""
LEAST_GAIN = 0.02
"""And by more than this part of what the best explains: p(y|x) is never quite right, and what a
feature too many gains by that grows with the rows as a shift does."""
RESAMPLED_STANDARD_ERRORS = 2 * STANDARD_ERRORS
"""The same in a bootstrap resample, whose score carries the noise of the sample and its own."""
TEMPER = 0.7
"""Log-likelihoods count by this much when hypotheses are averaged: none is quite right."""
UNSURE = 0.01
"""And so is p(y|x): a leftover of this part of a standard deviation is as good as a standard error,
however many rows there are."""
LEAST_SHARE = 0.02
"""Hypotheses with a smaller share are left out of the average."""
LEAST_RATIO = 1e-3
"""Ratios are floored here, so that no single row decides."""
TIE = 1e-9
"""Scores of populations, which have no noise, are equal when closer than this."""


@dataclass(frozen=True)
class Folds:
    """Shares of every row in each of F folds, (n, F) and (m, F), those of all deals in turn."""

    source: Tensor
    target: Tensor
    deals: int = 1

    @classmethod
    def deal(cls, source: Source, target: Target) -> Folds:
        """Rows dealt out in an order that depends on their content only."""
        rows = min(float(source.total), float(target.total))
        folds = FOLDS if rows < MANY_ROWS else 2
        entries = sum(source.schema.cardinalities) * len(source.classes)
        few = rows < ONE_DEAL_ROWS and entries <= ONE_DEAL_ENTRIES
        deals = DEALS if few else 1
        own = source.proba.detach().gather(1, source.labels[:, None])
        here = row_key(source) + content_hash(rounded(own))
        there = row_key(target)
        return cls(
            torch.cat([scatter_folds(here + k, source.count, folds) for k in range(deals)], dim=1),
            torch.cat([scatter_folds(there + k, target.count, folds) for k in range(deals)], dim=1),
            deals,
        )

    def training(self, source: Source, target: Target) -> tuple[Tensor, Tensor]:
        """(F, n) and (F, m) multiplicities without each fold."""
        return (source.count[:, None] * (1 - self.source)).T, (
            target.count[:, None] * (1 - self.target)
        ).T

    def held_out(self, ratio: Tensor) -> Ratios:
        """Ratios that were each fitted without the row, from (F, S, n + m) without each fold."""
        n = len(self.source)
        logs = ratio[..., n:].clamp_min(LEAST_RATIO).log()
        here = torch.einsum("fsn,nf->sn", ratio[..., :n], self.source) / self.deals
        there = torch.einsum("fsm,mf->sm", logs, self.target) / self.deals
        return Ratios(here, there, torch.zeros_like(here[:, 0]))


@dataclass(frozen=True)
class Ratios:
    """Density ratios of S hypotheses on all rows.

    Attributes:
        here: (S, n) on the source; there: (S, m) logarithms on the target.
        parameters: (S,) numbers that were fitted to the very rows that the ratios are of.
    """

    here: Tensor
    there: Tensor
    parameters: Tensor

    @classmethod
    def of(cls, here: Tensor, there: Tensor, parameters: Tensor) -> Ratios:
        """From ratios on both samples."""
        return cls(here, there.clamp_min(LEAST_RATIO).log(), parameters)

    @classmethod
    def together(cls, parts: Sequence[Ratios]) -> Ratios:
        """Hypotheses one after the other."""
        columns = zip(*((part.here, part.there, part.parameters) for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))


def thinned(sample: Sample, rows: int) -> Sample:
    """About so many distinct rows of a sample, as if at random, by their content only."""
    return sample if len(sample) <= rows else sample.select(*part_of(sample, rows))


def induced_ratio(source: Source, target: Target, tables: tuple[Tensor, Tensor]) -> Tensor:
    """(F, 1, n + m) induced p_t(x) / p_s(x) from weights (F, n, L) and (F, m, L).

    Where a target label is known, it is p_t(x, y) / p_s(x, y).
    """
    here, there = (
        (sample.posterior * table).sum(dim=-1)
        for sample, table in zip((source, target), tables, strict=True)
    )
    known = target.labels.clamp_min(0)[:, None].expand_as(tables[1][..., :1])
    there = torch.where(target.labels >= 0, tables[1].gather(-1, known).squeeze(-1), there)
    return torch.cat([here, there], dim=1)[:, None]


@dataclass(frozen=True)
class Evidence:
    """Ratios of H hypotheses on both samples.

    Attributes:
        on_source: (H, n) r / mean_s r.
        on_target: (H, m) log r - log mean_s r.
        cost: (H,) what scores gain by chance, from the rows that ratios were fitted to.
        source_count: (n,); target_count: (m,) multiplicities.
        population: there is no sampling noise.
    """

    on_source: Tensor
    on_target: Tensor
    cost: Tensor
    source_count: Tensor
    target_count: Tensor
    population: bool

    @classmethod
    def of(cls, source: Source, target: Target, ratios: Sequence[Ratios]) -> Evidence:
        """From the ratios of all hypotheses."""
        found = Ratios.together(ratios)
        on_source = found.here.clamp_min(LEAST_RATIO)
        mean = on_source @ source.mass
        population = is_population(source, target)
        cost = found.parameters.to(mean) * (1 / source.total + 1 / target.total)
        return cls(
            on_source / mean[:, None],
            found.there - mean.log()[:, None],
            torch.zeros_like(cost) if population else cost,
            source.count,
            target.count,
            population,
        )

    def score(
        self, source_count: Tensor | None = None, target_count: Tensor | None = None
    ) -> Tensor:
        """(..., H) scores, also under other multiplicities (..., n) and (..., m)."""
        here = self.source_count if source_count is None else source_count
        there = self.target_count if target_count is None else target_count
        log_mean = (here @ self.on_source.T / here.sum(dim=-1, keepdim=True)).log()
        gained = there @ self.on_target.T / there.sum(dim=-1, keepdim=True) - log_mean
        return gained - self.cost

    def log_odds(self, score: Tensor) -> Tensor:
        """(..., H) logarithm of how well each explains both samples, up to a constant.

        A score is a mean over the target whose noise is that of both samples, so it counts for
        n m / (n + m) rows.
        """
        n, m = self.source_count.sum(), self.target_count.sum()
        return score * (TEMPER * n * m / (n + m))

    @cached_property
    def standard_errors(self) -> Tensor:
        """(H, H) standard error of the difference of two scores."""
        if self.population:
            return torch.zeros(len(self.on_source), len(self.on_source)).to(self.on_source)
        spread = _covariance(self.on_source, self.source_count)
        spread = spread + _covariance(self.on_target, self.target_count)
        own = spread.diagonal()
        return (own[:, None] + own - 2 * spread).clamp_min(0.0).sqrt()


def misfit(source: Source, target: Target, ratio: Tensor) -> float:
    """Largest leftover shift of any level of any feature with the posterior, in its noise.

    If r is p_t(x) / p_s(x), then E_t[z / r] = E_s[z] for every z; here z = p(y|x) 1[x_i = level].

    Args:
        source, target: the samples.
        ratio: (m,) r on the target, divided by its mean over the source.

    Returns:
        The largest z-score over what the largest of so many independent ones would be, with an
        allowance for p(y|x); above one, some feature shifted in a way that r does not explain.
    """
    worst, tests = torch.zeros_like(ratio[0]), 0
    for j, size in enumerate(source.schema.cardinalities):
        moments = []
        for sample, weight in ((source, source.mass), (target, target.mass / ratio)):
            label = sample.posterior
            sums = torch.zeros(2, size, label.shape[1], dtype=label.dtype, device=label.device)
            code, mass = sample.rows.codes[:, j], sample.mass
            share = weight / mass.clamp_min(1e-37)
            sums[0].index_add_(0, code, label * weight[:, None])
            sums[1].index_add_(0, code, (label * share[:, None]).square() * mass[:, None])
            moments.append((sums[0], (sums[1] - sums[0].square()) / sample.total))
        (before, noise), (after, other) = moments
        unsure = UNSURE**2 * noise * source.total
        counted = (before > 0) & (noise + other > 0)
        score = (after - before) / (noise + other + unsure).clamp_min(1e-37).sqrt()
        worst = torch.maximum(worst, torch.where(counted, score.abs(), 0.0).max())
        tests += counted.numel()
    return float(worst) / NormalDist().inv_cdf(1 - 0.005 / tests)


def _covariance(values: Tensor, count: Tensor) -> Tensor:
    """(H, H) covariance of the means of (H, n) values."""
    total = count.sum()
    centred = values - (values @ count / total)[:, None]
    return (centred * count) @ centred.T / total.square()


def simplest(score: Tensor, error: Tensor, rank: Tensor, limit: float = STANDARD_ERRORS) -> Tensor:
    """(...,) the best hypothesis of the lowest rank whose best is not clearly behind.

    That one must itself be STANDARD_ERRORS ahead of the simplest of all, which is taken otherwise:
    of many complex ones some are ahead by chance, and what they rule out is no evidence for others.

    Args:
        score: (..., H), zero for "nothing".
        error: (H, H) standard errors of differences.
        rank: (H,) int64, 0 the simplest; of equal rank, the higher score is preferred.
        limit: standard errors that count as clearly behind.
    """
    best = score.argmax(dim=-1, keepdim=True)
    highest = score.gather(-1, best)
    noise = limit * error[best.squeeze(-1)]
    # In a population p(y|x) is right, and there is no noise.
    slack = torch.where(noise > 0, torch.maximum(noise, LEAST_GAIN * highest), 0.0)
    close = highest - score <= slack + TIE
    ranks = torch.arange(int(rank.max()) + 1, device=rank.device)
    of_rank = rank == ranks[:, None]
    leader = torch.where(of_rank, score[..., None, :], -torch.inf).argmax(dim=-1)
    good = close.gather(-1, leader) & of_rank.any(dim=-1) & score.gather(-1, leader).isfinite()
    lowest = good.to(torch.int64).argmax(dim=-1, keepdim=True)
    found = leader.gather(-1, lowest)
    simple = leader[..., :1]
    lead = score.gather(-1, found) - score.gather(-1, simple)
    unclear = of_rank[0].any() & (lead <= STANDARD_ERRORS * error[found, simple] + TIE)
    return torch.where(unclear, simple, found).squeeze(-1)
