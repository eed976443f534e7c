"""A few labelled target rows: what they say about the gap, and which rows to label next.

Labelled rows measure how far the model's expectation m(x) = sum_y p_t(y|x) l(x, y) is off on the
target. Rows are sorted into strata by how uncertain their value is under p(y|x), and the error of
each stratum is the mean over its labelled rows, so labels need only be taken at random within a
stratum: anywhere, or as `suggest` proposes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.efficient import GapParts, RowValues, mean_variance, weighted_mean
from sees_torch.solvers.mixture import cell_sums

STRATA = 8
FEWEST = 10
"""Fewer labelled rows than this say too little of their own variance to correct the gap."""

CONTRADICTION = 3.0
"""Standard errors beyond which labels that contradict the model show a bias. At 2 they would do so
by chance in one world of twenty, and being believed there cost more than it gained elsewhere."""


def strata(target: Target, values: RowValues) -> Tensor:
    """(m,) stratum of every target row, by the standard deviation of its value under p(y|x)."""
    posterior, table = target.posterior.detach(), values.target.detach()
    mean = (posterior * table).sum(dim=1)
    spread = ((posterior * table.square()).sum(dim=1) - mean.square()).clamp_min(0.0).sqrt()
    # The last bits of equal rows may differ, and must not put labelled rows into other strata.
    spread = (spread / spread.max().clamp_min(1e-37) * 2**20).round()
    order = spread.argsort(stable=True)
    # Equal parts of the target's mass; rows of equal spread stay together.
    before = target.mass[order].cumsum(0) - target.mass[order]
    start = torch.searchsorted(spread[order], spread)
    return (before[start] * STRATA).floor().clamp_max(STRATA - 1).to(torch.int64)


@dataclass(frozen=True)
class LabelledError:
    """The error of m(x) by stratum, from labelled rows.

    Attributes:
        expected: (m,) m(x).
        residual: (m,) l - m(x) of labelled rows, 0 elsewhere.
        known: (m,) bool.
        stratum: (m,).
        doubt: (m,) variance of l that the model expects.
    """

    expected: Tensor
    residual: Tensor
    known: Tensor
    stratum: Tensor
    doubt: Tensor

    @classmethod
    def of(cls, target: Target, posterior: Tensor, values: RowValues) -> LabelledError:
        """From the target's corrected posterior (m, L)."""
        expected = (posterior * values.target).sum(dim=1)
        known = target.labels >= 0
        own = values.target.gather(1, target.labels.clamp_min(0)[:, None]).squeeze(1)
        residual = torch.where(known, own - expected, 0.0)
        doubt = (posterior * values.target.square()).sum(dim=1) - expected.square()
        return cls(expected, residual, known, strata(target, values), doubt.clamp_min(0.0))

    def value(self, count: Tensor) -> Tensor:
        """(B,) target value: mean of m(x), plus its error in every stratum; count is (B, m)."""
        share, error, _ = self._errors(count)
        return weighted_mean(self.expected.expand_as(count), count) + (share * error).sum(dim=-1)

    def _errors(self, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, G) share, mean error and labelled rows of every stratum; none: that of all."""
        share = cell_sums(count, self.stratum, STRATA) / count.sum(dim=-1, keepdim=True)
        labelled = torch.where(self.known, count, 0.0)
        rows = cell_sums(labelled, self.stratum, STRATA)
        pooled = weighted_mean(self.residual.expand_as(count), labelled.clamp_min(1e-37))
        sums = cell_sums(labelled * self.residual, self.stratum, STRATA)
        error = torch.where(rows > 0, sums / rows.clamp_min(1e-37), pooled[:, None])
        return share, error, rows

    def variance(self, count: Tensor) -> Tensor:
        """() of the strata's errors; count is (m,).

        Strata with few labelled rows borrow what the model expects of them, scaled by how far it
        was off on all labelled rows, as good as four rows.
        """
        share, error, rows = (part[0] for part in self._errors(count[None]))
        labelled = torch.where(self.known, count, 0.0)
        total = labelled.sum()
        about_all = self.residual - weighted_mean(self.residual, labelled)
        pooled = weighted_mean(about_all.square(), labelled) * total / (total - 1).clamp_min(1.0)
        off = pooled / weighted_mean(self.doubt, labelled).clamp_min(1e-37)
        mass = cell_sums(count, self.stratum, STRATA).clamp_min(1e-37)
        borrowed = off * cell_sums(count * self.doubt, self.stratum, STRATA) / mass
        centred = self.residual - error[self.stratum]
        sums = cell_sums(labelled * centred.square(), self.stratum, STRATA)
        spread = (sums + 4 * borrowed) / ((rows - 1).clamp_min(0.0) + 4)
        return (share.square() * spread / rows.clamp_min(1.0)).sum()


@dataclass(frozen=True)
class LabelMix:
    """The efficient estimate and that of the labelled rows, mixed for the least expected error.

    Attributes:
        share: of the labelled rows' estimate.
        variance: of the mixed gap, what remains of the bias included.
        bias: squared bias of the efficient estimate that the labels show, 0 within noise.
    """

    error: LabelledError
    share: float
    variance: float
    bias: float

    @classmethod
    def of(
        cls,
        source: Source,
        target: Target,
        estimate: GapParts,
        values: RowValues,
        posterior: Tensor,
    ) -> LabelMix:
        error = LabelledError.of(target, posterior, values)
        own = float(error.variance(target.count))

        def spread(model: float, labels: float, base: float) -> float:
            """Variance of  model * efficient + labels * labelled - base * source value."""
            blend = model * estimate.target_part[0] + labels * error.expected
            part = model * estimate.source_part[0] - base * values.own
            total = mean_variance(blend, target.count) + mean_variance(part, source.count)
            return float(total) + labels**2 * own

        # Labels that contradict the model beyond noise show a bias, which counts like an error.
        apart = float(estimate.target_value[0] - error.value(target.count[None])[0])
        noise = spread(1.0, -1.0, 0.0)
        bias = apart**2 - noise if apart**2 > CONTRADICTION**2 * noise else 0.0
        shares = [step / 20 for step in range(21)]
        risk = [spread(1 - k, k, 1.0) + (1 - k) ** 2 * bias for k in shares]
        best = min(range(len(shares)), key=risk.__getitem__)
        return cls(error, shares[best], risk[best], bias)

    def mixed(self, efficient: Tensor, count: Tensor) -> Tensor:
        """(B,) target values from the efficient ones."""
        return (1 - self.share) * efficient + self.share * self.error.value(count)


def enough_labels(target: Target) -> bool:
    return int((target.labels >= 0).sum()) >= FEWEST


def suggest(target: Target, values: RowValues, posterior: Tensor, k: int) -> Tensor:
    """(k,) positions of unlabelled target rows whose labels would shrink the interval most.

    Each stratum is given rows in proportion to its mass times its spread (Neyman's allocation),
    those that it already has counted in; within a stratum rows are taken in an order that depends
    on their content alone, as good as at random.
    """
    error = LabelledError.of(target, posterior, values)
    stratum = error.stratum
    mass = cell_sums(target.mass, stratum, STRATA)
    doubt = cell_sums(target.mass * error.doubt, stratum, STRATA) / mass.clamp_min(1e-37)
    wish = mass * doubt.clamp_min(1e-4).sqrt()
    held = cell_sums((target.labels >= 0).to(wish.dtype), stratum, STRATA)
    free = (target.labels < 0) & (target.count > 0)
    order = target.schema.row_hash(target.rows).argsort(stable=True)
    waiting = [order[(stratum[order] == g) & free[order]].tolist() for g in range(STRATA)]
    taken: list[int] = []
    wishes, have = wish.tolist(), held.tolist()
    for _ in range(k):
        need = [wishes[g] / (have[g] + 1) if len(waiting[g]) else -1.0 for g in range(STRATA)]
        g = max(range(STRATA), key=need.__getitem__)
        if need[g] < 0:
            break
        taken.append(waiting[g].pop(0))
        have[g] += 1
    return torch.tensor(taken, dtype=torch.int64)
