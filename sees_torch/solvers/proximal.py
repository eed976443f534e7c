"""The proximal map of a group norm over a scaled simplex."""

from __future__ import annotations

import torch
from torch import Tensor

from sees_torch.solvers.group_simplex import GroupSimplex

TINY = 1e-37


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
        steps: Newton steps; there is no check in between, which would wait for the device.
    """
    weight = simplex.weight
    penalty = torch.where(simplex.penalised, shrink, 0.0)
    low = ((point - penalty - 1 / weight) / weight).amax(dim=-1, keepdim=True)
    high = (point / weight).amax(dim=-1, keepdim=True)
    nu = torch.minimum(torch.maximum(multiplier, low), high)
    entries = point
    for _ in range(steps):
        clipped = (point - nu * weight).clamp_min(0.0)
        norm = simplex.norms(clipped)
        factor = (1 - shrink / norm.clamp_min(TINY)).clamp_min(0.0)
        entries = clipped * simplex.spread(factor, free=1.0)
        gap = (weight * entries).sum(dim=-1, keepdim=True) - 1
        low = torch.where(gap >= 0, nu, low)
        high = torch.where(gap <= 0, nu, high)
        done = gap.abs() <= 1e-14
        live = weight * (clipped > 0)
        turn = simplex.sums(clipped * live)
        bend = torch.where(factor > 0, shrink / norm.clamp_min(TINY).pow(3), 0.0)
        slope = (simplex.spread(factor, free=1.0) * live * weight).sum(dim=-1, keepdim=True)
        slope = slope + (bend * turn.square()).sum(dim=-1, keepdim=True)
        newton = nu + gap / slope.clamp_min(TINY)
        inside = (newton >= low) & (newton <= high)
        nu = torch.where(done, nu, torch.where(inside, newton, (low + high) / 2))
    return entries, nu
