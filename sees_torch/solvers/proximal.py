"""The proximal map of a group norm over a scaled simplex, and an optimality certificate.

The penalty is  eta sum_g ||a_g||_2  over disjoint groups, on  {a >= 0, c . a = 1}.  Entries of
group -1 (an intercept) are constrained but not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-300


@dataclass(frozen=True)
class GroupSimplex:
    """The feasible set and the groups.

    Attributes:
        weight: (..., 1, P) c > 0, the coefficients of the equality.
        group: (P,) group of every entry, -1 for unpenalised ones.
        groups: number of groups.
    """

    weight: Tensor
    group: Tensor
    groups: int

    def sums(self, entries: Tensor) -> Tensor:
        """(..., G + 1) sums over each group; the last is that of the unpenalised entries."""
        place = torch.where(self.group < 0, self.groups, self.group)
        return entries.new_zeros(*entries.shape[:-1], self.groups + 1).index_add(-1, place, entries)

    def spread(self, per_group: Tensor, free: float) -> Tensor:
        """(..., P) the value of every entry's group; `free` for unpenalised entries."""
        place = torch.where(self.group < 0, self.groups, self.group)
        last = per_group.new_full((*per_group.shape[:-1], 1), free)
        return torch.cat([per_group, last], dim=-1)[..., place]

    def norms(self, entries: Tensor) -> Tensor:
        """(..., G) Euclidean norm of each penalised group."""
        return self.sums(entries.square())[..., : self.groups].sqrt()

    def penalised(self) -> Tensor:
        return self.group >= 0


def prox(
    simplex: GroupSimplex, point: Tensor, shrink: Tensor, multiplier: Tensor, *, steps: int = 64
) -> tuple[Tensor, Tensor]:
    """argmin_a ||a - point||^2 / 2 + shrink sum_g ||a_g||  on the simplex, and its multiplier.

    For a multiplier nu, u = max(point - nu c, 0) and every group of u is shrunk towards zero;
    c . a(nu) falls monotonically in nu, so a bracketed Newton search finds it.

    Args:
        simplex: the feasible set.
        point: (..., B, P).
        shrink: (..., B, 1), step size times eta.
        multiplier: (..., B, 1) where the search starts.
        steps: at most so many Newton steps.
    """
    weight = simplex.weight
    penalty = torch.where(simplex.penalised(), shrink, 0.0)
    low = ((point - penalty - 1 / weight) / weight).amax(dim=-1, keepdim=True)
    high = (point / weight).amax(dim=-1, keepdim=True)
    nu = torch.minimum(torch.maximum(multiplier, low), high)
    entries = point
    for step in range(1, steps + 1):
        clipped = (point - nu * weight).clamp_min(0.0)
        norm = simplex.norms(clipped)
        factor = (1 - shrink / norm.clamp_min(TINY)).clamp_min(0.0)
        entries = clipped * simplex.spread(factor, free=1.0)
        gap = (weight * entries).sum(dim=-1, keepdim=True) - 1
        low = torch.where(gap >= 0, nu, low)
        high = torch.where(gap <= 0, nu, high)
        done = gap.abs() <= 1e-14
        if step % 4 == 0 and bool(done.all()):
            break
        live = weight * (clipped > 0)
        turn = simplex.sums(clipped * live)[..., : simplex.groups]
        bend = torch.where(factor > 0, shrink / norm.clamp_min(TINY).pow(3), 0.0)
        slope = (simplex.spread(factor, free=1.0) * live * weight).sum(dim=-1, keepdim=True)
        slope = slope + (bend * turn.square()).sum(dim=-1, keepdim=True)
        newton = nu + gap / slope.clamp_min(TINY)
        inside = (newton >= low) & (newton <= high)
        nu = torch.where(done, nu, torch.where(inside, newton, (low + high) / 2))
    return entries, nu


def certificate(simplex: GroupSimplex, entries: Tensor, push: Tensor, eta: Tensor) -> Tensor:
    """(..., B) upper bound of the suboptimality of `entries` for  -E[log z.a] + eta sum ||a_g||.

    With push = E[z / r], r = z.a, the bound is nu_f - (1 - eta sum_g ||a_g||): nu_f is the
    smallest nu for which ||(push_g - nu c_g)_+|| <= eta in every group (<= 0 unpenalised), that
    is, for which nu is dual feasible.
    """
    weight = simplex.weight
    ratio = push / weight
    free = torch.where(simplex.penalised(), -torch.inf, ratio).amax(dim=-1)
    by_entry = torch.where(simplex.penalised(), (push - eta) / weight, -torch.inf)
    group_low = _group_max(simplex, by_entry)
    group_high = _group_max(simplex, torch.where(simplex.penalised(), ratio, -torch.inf))
    low, high = group_low, group_high
    for _ in range(60):
        middle = (low + high) / 2
        excess = (push - simplex.spread(middle, free=0.0) * weight).clamp_min(0.0)
        feasible = simplex.norms(excess) <= eta
        low, high = torch.where(feasible, low, middle), torch.where(feasible, middle, high)
    dual = torch.maximum(high.amax(dim=-1), free) if simplex.groups else free
    penalty = (eta * simplex.norms(entries)).sum(dim=-1)
    return dual - (1 - penalty)


def _group_max(simplex: GroupSimplex, entries: Tensor) -> Tensor:
    place = torch.where(simplex.group < 0, simplex.groups, simplex.group).expand(entries.shape)
    start = entries.new_full((*entries.shape[:-1], simplex.groups + 1), -torch.inf)
    return start.scatter_reduce(-1, place, entries, "amax")[..., : simplex.groups]
