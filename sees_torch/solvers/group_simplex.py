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
    def together(self) -> Tensor:
        """(P, P) bool, whether two entries are in the same penalised group."""
        return (self.group[:, None] == self.group) & self.penalised

    @cached_property
    def _members(self) -> Tensor:
        """(P, G) one where an entry is in a group: few entries are added fastest by a product."""
        every = torch.arange(self.groups, device=self.group.device)
        return (self.group[:, None] == every).to(self.weight.dtype)

    def sums(self, entries: Tensor) -> Tensor:
        """(..., G) sums over each penalised group."""
        return entries @ self._members

    def largest(self, entries: Tensor) -> Tensor:
        """(..., G) largest entry of each penalised group."""
        start = entries.new_full((*entries.shape[:-1], self.groups + 1), -torch.inf)
        place = torch.where(self.penalised, self.group, self.groups).expand(entries.shape)
        return start.scatter_reduce(-1, place, entries, "amax")[..., : self.groups]

    def spread(self, per_group: Tensor, free: float) -> Tensor:
        """(..., P) the value of every entry's group; `free` for unpenalised entries."""
        if not self.groups:
            return per_group.new_full((*per_group.shape[:-1], len(self.group)), free)
        place = self.group.clamp_min(0).expand(*per_group.shape[:-1], -1)
        return torch.where(self.penalised, per_group.gather(-1, place), free)

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
    climb to it, and the chord from where they end to a nu at which the norm is zero meets eta
    above it. So the bound holds however far the steps have come.
    """
    weight = simplex.weight
    price = push / weight
    dual = torch.where(simplex.penalised, -torch.inf, price).amax(dim=-1)
    if simplex.groups:
        nu, zero = simplex.largest((push - eta) / weight), simplex.largest(price)
        for _ in range(NEWTON_STEPS):
            norm, slope = _excess(simplex, push, nu)
            nu = torch.where(norm > eta, nu + (norm - eta) / slope, nu)
        norm, _ = _excess(simplex, push, nu)
        nu = torch.where(norm > eta, nu + (1 - eta / norm) * (zero - nu), nu)
        dual = torch.maximum(dual, nu.amax(dim=-1))
        dual = dual + (eta * simplex.norms(entries)).sum(dim=-1)
    return dual - 1


def _excess(simplex: GroupSimplex, push: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, G) ||(push_g - nu c_g)_+|| and minus its derivative in nu."""
    excess = (push - simplex.spread(nu, free=0.0) * simplex.weight).clamp_min(0.0)
    norm = simplex.norms(excess)
    return norm, simplex.sums(excess * simplex.weight) / norm
