"""Ridge logistic regression for a batch of row masses, by damped Newton steps."""

from __future__ import annotations

import torch
from torch import Tensor

from sees_torch.solvers.solution import Solution


def ridge_logistic(
    inputs: Tensor,
    outcome: Tensor,
    mass: Tensor,
    ridge: float,
    *,
    tolerance: float = 1e-10,
    max_steps: int = 100,
) -> Solution:
    """Minimisers of  sum mu log(1 + e^{-t}) + ridge/2 ||beta||^2, t the signed score.

    Args:
        inputs: (n, K).
        outcome: (n,) 0 or 1.
        mass: (B, n) row masses of each problem.
        ridge: penalty; the intercept is not penalised.
        tolerance: on half the squared Newton decrement, relative to the total mass.
        max_steps: Newton steps.

    Returns:
        Solution with value (B, K + 1), the intercept last, and residual (B,).
    """
    design = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
    penalty = torch.full_like(design[0], ridge)
    penalty[-1] = 0.0
    value = design.new_zeros(len(mass), design.shape[1])
    total = mass.sum(dim=1)

    def loss(value: Tensor) -> Tensor:
        score = value @ design.T
        nll = torch.nn.functional.softplus(score) - outcome * score
        return (mass * nll).sum(dim=1) + (penalty * value.square()).sum(dim=1) / 2

    residual = torch.full_like(total, torch.inf)
    steps = 0
    while steps < max_steps and not bool((residual <= tolerance).all()):
        steps += 1
        p = (value @ design.T).sigmoid()
        slope = (mass * (p - outcome)) @ design + penalty * value
        curve = torch.einsum("bn,ni,nj->bij", mass * p * (1 - p), design, design)
        # The second ridge keeps the intercept's equation solvable when p runs to 0 or 1.
        curve = (
            curve
            + torch.diag(penalty)
            + 1e-12
            * total[:, None, None]
            * torch.eye(len(penalty), dtype=design.dtype, device=design.device)
        )
        move = torch.linalg.solve(curve, slope[..., None]).squeeze(-1)
        residual = (slope * move).sum(dim=1) / (2 * total)
        length = torch.ones_like(total)[:, None]
        now = loss(value)
        for _ in range(12):
            worse = (loss(value - length * move) > now * (1 + 1e-14))[:, None]
            length = torch.where(worse, length / 2, length)
        value = torch.where(worse, value, value - length * move)
    return Solution(value, torch.zeros_like(total), residual, residual <= tolerance, steps)
