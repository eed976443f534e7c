"""A scaled simplex whose entries come in groups, and a certificate of optimality over it.

The penalty is  eta sum_g ||a_g||_2  over disjoint groups, on  {a >= 0, c . a = 1}.  Entries of
group -1 (an intercept) are constrained but not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NEWTON_STEPS = 20


@dataclass(frozen=True)
class GroupSimplex:
    """The feasible set and the groups.

    Attributes:
        weight: (..., 1 or B, P) c > 0, the coefficients of the equality.
        group: (P,) group of every entry, -1 for unpenalised ones.
        groups: number of groups.
    """

    weight: Tensor
    group: Tensor
    groups: int

    @cached_property
    def penalised(self) -> Tensor:
        """(P,) bool."""
        return self.group >= 0

    @cached_property
    def _place(self) -> Tensor:
        return torch.where(self.penalised, self.group, self.groups)

    def sums(self, entries: Tensor) -> Tensor:
        """(..., G) sums over each penalised group."""
        shape = (*entries.shape[:-1], self.groups + 1)
        return entries.new_zeros(shape).index_add(-1, self._place, entries)[..., : self.groups]

    def largest(self, entries: Tensor) -> Tensor:
        """(..., G) largest entry of each penalised group."""
        start = entries.new_full((*entries.shape[:-1], self.groups + 1), -torch.inf)
        place = self._place.expand(entries.shape)
        return start.scatter_reduce(-1, place, entries, "amax")[..., : self.groups]

    def spread(self, per_group: Tensor, free: float) -> Tensor:
        """(..., P) the value of every entry's group; `free` for unpenalised entries."""
        last = per_group.new_full((*per_group.shape[:-1], 1), free)
        return torch.cat([per_group, last], dim=-1)[..., self._place]

    def norms(self, entries: Tensor) -> Tensor:
        """(..., G) Euclidean norm of each penalised group."""
        return self.sums(entries.square()).sqrt()

    def flat(self, members: int) -> Tensor:
        """(B, P) the feasible point with all entries alike."""
        level = 1 / self.weight.sum(dim=-1, keepdim=True)
        return level.expand(members, self.weight.shape[-1])

    def normalised(self, entries: Tensor) -> Tensor:
        """Non-negative entries scaled onto c . a = 1."""
        return entries / (self.weight * entries).sum(dim=-1, keepdim=True)


def certificate(simplex: GroupSimplex, entries: Tensor, push: Tensor, eta: Tensor) -> Tensor:
    """(..., B) upper bound of the suboptimality of `entries` for  -E[log z.a] + eta sum ||a_g||.

    With push = E[z / r], r = z.a, the bound is nu_f - (1 - eta sum_g ||a_g||): nu_f is the
    smallest nu for which ||(push_g - nu c_g)_+|| <= eta in every group (<= 0 unpenalised), that
    is, for which nu is dual feasible. The norm is convex and falls in nu: Newton steps from below
    climb to it.
    """
    weight = simplex.weight
    dual = torch.where(simplex.penalised, -torch.inf, push / weight).amax(dim=-1)
    if simplex.groups:
        nu = simplex.largest((push - eta) / weight)
        for _ in range(NEWTON_STEPS):
            excess = (push - simplex.spread(nu, free=0.0) * weight).clamp_min(0.0)
            norm = simplex.norms(excess)
            slope = simplex.sums(excess * weight) / norm
            nu = torch.where(norm > eta, nu + (norm - eta) / slope, nu)
        dual = torch.maximum(dual, nu.amax(dim=-1))
        dual = dual + (eta * simplex.norms(entries)).sum(dim=-1)
    return dual - 1
