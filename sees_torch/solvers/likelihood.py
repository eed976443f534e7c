"""The penalised likelihood by whichever method reaches its tolerance.

The interior-point method takes few steps, and may get stuck where probabilities have tens of
decades; what it leaves unsolved the proximal gradient tries again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sees_torch.solvers.design import Mixture
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import group_likelihood
from sees_torch.solvers.proximal_gradient import descend
from sees_torch.solvers.solution import Solution

SECOND_STEPS = 500
"""Steps of the second try: those that succeed take a tenth of it."""


def penalised_likelihood(
    rows: Tensor | Mixture,
    mass: Tensor,
    simplex: GroupSimplex,
    eta: Tensor,
    *,
    tolerance: float = 1e-9,
    near: Tensor | None = None,
) -> Solution:
    """Minimisers, as of `group_likelihood`; a member that is tried twice has the better one."""
    first = group_likelihood(rows, mass, simplex, eta, tolerance=tolerance, near=near)
    left = (~first.converged).nonzero().squeeze(1)
    if not len(left):
        return first
    weight = simplex.weight.expand(len(eta), -1)[left]
    second = descend(
        rows,
        mass.expand(len(eta), -1)[left],
        replace(simplex, weight=weight),
        eta[left],
        tolerance=tolerance,
        max_steps=SECOND_STEPS,
    )
    # A residual that is not a number is worse than any.
    better = ~(first.residual[left] <= second.residual)
    value, multiplier, residual, converged = (
        part.clone() for part in (first.value, first.multiplier, first.residual, first.converged)
    )
    value[left] = torch.where(better[:, None], second.value, value[left])
    multiplier[left] = torch.where(better, second.multiplier, multiplier[left])
    residual[left] = torch.where(better, second.residual, residual[left])
    converged[left] = better & second.converged
    return Solution(value, multiplier, residual, converged, first.steps + second.steps)
