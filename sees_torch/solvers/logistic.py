"""Ridge logistic regression for a batch of row masses, by damped Newton steps."""

from __future__ import annotations

import torch
from torch import Tensor

from sees_torch.solvers.design import weighted_gram
from sees_torch.solvers.solution import Solution, attainable

STEPS_A_ROUND = 3
"""Steps that share one Hessian; convergence is checked in between."""


def ridge_logistic(
    design: Tensor,
    outcome: Tensor,
    mass: Tensor,
    ridge: float,
    *,
    alike: bool = False,
    tolerance: float = 1e-10,
    max_steps: int = 150,
) -> Solution:
    """Minimisers of  sum mu log(1 + e^{-t}) + ridge/2 ||beta||^2, t the signed score.

    Args:
        design: (K + 1, n) inputs, a row of ones last.
        outcome: (n,) 0 or 1.
        mass: (B, n) row masses of each problem.
        ridge: penalty; the intercept is not penalised.
        alike: the masses differ so little that one Hessian, of their mean, serves all problems.
        tolerance: on half the squared Newton decrement, relative to the total mass.
        max_steps: Newton steps.

    Returns:
        Solution with value (B, K + 1), the intercept last, and residual (B,).
    """
    tolerance = attainable(tolerance, design.dtype)
    penalty = torch.full_like(design[:, 0], ridge)
    penalty[-1] = 0.0
    total = mass.sum(dim=1, keepdim=True)

    def loss(value: Tensor, score: Tensor) -> Tensor:
        nll = torch.nn.functional.softplus(score).sub_(outcome * score).mul_(mass)
        return (
            nll.sum(dim=1, keepdim=True) + (penalty * value.square()).sum(dim=1, keepdim=True) / 2
        )

    value = design.new_zeros(len(mass), len(design))
    score = mass.new_zeros(mass.shape)
    now = loss(value, score)
    length = torch.ones_like(total)
    residual = torch.full_like(total, torch.inf)
    steps = 0
    while steps < max_steps and not bool((residual <= tolerance).all()):
        p = score.sigmoid()
        curve = mass * p * (1 - p)
        curve = weighted_gram(design, curve.mean(dim=0, keepdim=True) if alike else curve)
        # The second ridge keeps the intercept's equation solvable when p runs to 0 or 1.
        curve = curve + torch.diag_embed(penalty + 1e-12 * total[: len(curve)])
        factor = torch.linalg.cholesky_ex(curve, check_errors=False).L
        for _ in range(STEPS_A_ROUND):
            slope = (mass * (score.sigmoid() - outcome)) @ design.T + penalty * value
            move = torch.cholesky_solve(slope[..., None], factor).squeeze(-1)
            done = residual <= tolerance
            residual = torch.where(
                done, residual, (slope * move).sum(dim=1, keepdim=True) / (2 * total)
            )
            moved = value - length * move
            ahead = moved @ design
            then = loss(moved, ahead)
            better = (then <= now * (1 + 1e-14)) & ~done
            value = torch.where(better, moved, value)
            score = torch.where(better, ahead, score)
            now = torch.where(better, then, now)
            # A step that overshoots is tried again at half its length.
            length = torch.where(better, (2 * length).clamp_max(1.0), length / 2)
        steps += STEPS_A_ROUND
    residual = residual.squeeze(1)
    return Solution(value, torch.zeros_like(residual), residual, residual <= tolerance, steps)
