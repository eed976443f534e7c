"""Batched convex quadratic programs over small blocks that share one equality per problem.

    min sum_a ( w_a' G_a w_a - 2 b_a' w_a )    s.t.  w >= 0,   sum_a c_a . w_a = total

for many problems at once; a is a block (a cell) and belongs to one problem (a subset). Given the
multiplier nu of the equality the blocks separate, each a non-negative least-squares problem with
right side b + nu c, solved by block principal pivoting. c . w(nu) is piecewise linear and
non-decreasing, so a bracketed Newton search on nu ends on the exact piece.

G may be singular. The blocks are scaled to unit diagonal and solved with a proximal term around
the previous iterate: regular directions converge to the exact minimiser at the rate RIDGE / eigen-
value per pass, undetermined ones stay at the centre.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sees_torch.solvers.solution import Solution, attainable

RIDGE = 1e-9
PASSES = 3
CHECK_EVERY = 4


def least_squares(gram: Tensor, right: Tensor, free: Tensor, centre: Tensor) -> Tensor:
    """Minimisers of w'Gw - 2b'w without constraints, nearest to `centre` where not unique.

    Args:
        gram: (A, L, L), right: (A, L), free: (A, L) bool, the rest is fixed at 0,
        centre: (A, L).
    """
    scaled, scale = _scaled(gram, free)
    target = torch.where(free, right / scale, 0.0)
    point = torch.where(free, centre * scale, 0.0)
    system = scaled + RIDGE * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    for _ in range(PASSES):
        point = (
            point + _solve(system, _rest(system, target + RIDGE * point, point)[..., None])[..., 0]
        )
    return torch.where(free, point / scale, 0.0)


def nonnegative_quadratic(
    gram: Tensor,
    right: Tensor,
    weight: Tensor,
    total: Tensor,
    problem: Tensor,
    centre: Tensor,
    *,
    tolerance: float = 1e-10,
    max_steps: int = 100,
) -> Solution:
    """Minimisers of the problem above for a batch of problems.

    Args:
        gram: (A, L, L) symmetric positive semi-definite.
        right: (A, L), b.
        weight: (A, L) c >= 0; entries with c = 0 are fixed at 0.
        total: (S,) right side of each equality, positive.
        problem: (A,) which of the S problems a block belongs to.
        centre: (A, L) value preferred where the minimiser is not unique.
        tolerance: on the residual: the largest violation of stationarity, in units of the
            block's scaled right side, or of the equality.
        max_steps: Newton steps on the multiplier per pass.

    Returns:
        Solution whose value is (A, L), whose multiplier and residual are (S,).
    """
    free = weight > 0
    scaled, scale = _scaled(gram, free)
    slope_right = torch.where(free, weight / scale, 0.0)
    base = torch.where(free, right / scale, 0.0)
    system = scaled + RIDGE * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    point = torch.where(free, centre * scale, 0.0).clamp_min(0.0)
    passive = free.clone()
    multiplier = torch.zeros_like(total)
    steps = 0
    for _ in range(PASSES):
        point, multiplier, passive, taken = _match_total(
            system, base + RIDGE * point, slope_right, total, problem, passive, free,
            multiplier, point, max_steps,
        )  # fmt: skip
        steps += taken
    residual = _residual(scaled, base, slope_right, total, problem, free, point, multiplier)
    done = residual <= attainable(tolerance, gram.dtype)
    return Solution(torch.where(free, point / scale, 0.0), multiplier, residual, done, steps)


def _match_total(
    system: Tensor,
    base: Tensor,
    slope_right: Tensor,
    total: Tensor,
    problem: Tensor,
    passive: Tensor,
    free: Tensor,
    multiplier: Tensor,
    near: Tensor,
    max_steps: int,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Newton on nu until sum c . w(nu) = total, inside a bracket that always holds the root."""
    ratio = torch.where(free, base / slope_right.clamp_min(1e-37), -torch.inf).amax(dim=1)
    beta = torch.full_like(total, -torch.inf).scatter_reduce(0, problem, ratio, "amax")
    beta = beta.clamp_min(0.0)
    # One label alone already reaches slope max c^2 / G_yy, a lower bound of the block's.
    reach = torch.zeros_like(total).index_add(0, problem, slope_right.square().amax(dim=1))
    low = -beta - 1.0
    high = (total + torch.sqrt(total.square() + 4 * reach * beta)) / (2 * reach) + beta + 1.0
    point = torch.zeros_like(base)
    for step in range(1, max_steps + 1):
        nu = multiplier[problem][:, None]
        right = base + nu * slope_right
        point, passive, rise = _pivot(system, right, slope_right, passive, free, near)
        value = torch.zeros_like(total).index_add(0, problem, (slope_right * point).sum(dim=1))
        slope = torch.zeros_like(total).index_add(0, problem, (slope_right * rise).sum(dim=1))
        gap = total - value
        low = torch.where(gap >= 0, multiplier, low)
        high = torch.where(gap <= 0, multiplier, high)
        done = gap.abs() <= 1e-13 * total
        if step % CHECK_EVERY == 0 and bool(done.all()):
            break
        newton = multiplier + gap / slope.clamp_min(1e-37)
        inside = (newton >= low) & (newton <= high)
        trial = torch.where(inside, newton, (low + high) / 2)
        multiplier = torch.where(done, multiplier, trial)
    return point, multiplier, passive, step


def _pivot(
    system: Tensor,
    right: Tensor,
    slope_right: Tensor,
    passive: Tensor,
    free: Tensor,
    near: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Non-negative minimisers of x'Sx/2 - right'x by block principal pivoting.

    Returns the minimiser, its support, and d minimiser / d nu on that support; solves start from
    `near`, so that a point that is optimal already is returned unchanged. All infeasible
    entries are exchanged at once; after three exchanges without progress only the last one is,
    which cannot cycle for a positive definite S.
    """
    size = right.shape[-1]
    position = torch.arange(size, device=right.device)
    fewest = torch.full(right.shape[:-1], size + 1, device=right.device)
    patience = torch.full_like(fewest, 3)
    slack = 1e-14 * right.abs().amax(dim=-1, keepdim=True)
    limit = 20 + 5 * size * size
    for step in range(1, limit + 1):
        start = torch.where(passive, near, 0.0)
        both = torch.stack([_rest(system, right, start), slope_right], dim=-1)
        change, rise = _solve_on(system, both, passive).unbind(-1)
        point = start + change
        dual = torch.einsum("aij,aj->ai", system, point) - right
        wrong = free & torch.where(passive, point < -slack, dual < -slack)
        count = wrong.sum(dim=-1)
        if step % CHECK_EVERY == 0 and not bool(wrong.any()):
            break
        better = count < fewest
        fewest = torch.where(better, count, fewest)
        patience = torch.where(better, 3, patience - 1)
        last = torch.where(wrong, position, -1).amax(dim=-1, keepdim=True)
        single = wrong & (position == last)
        exchange = torch.where((patience > 0)[..., None], wrong, single)
        passive = passive ^ exchange
    return point.clamp_min(0.0), passive, rise


def _solve_on(system: Tensor, right: Tensor, passive: Tensor) -> Tensor:
    """Solutions on the passive entries, zero elsewhere; right is (A, L, k)."""
    pair = passive[..., :, None] & passive[..., None, :]
    masked = torch.where(pair, system, 0.0) + torch.diag_embed((~passive).to(system.dtype))
    return _solve(masked, torch.where(passive[..., None], right, 0.0))


def _rest(system: Tensor, right: Tensor, point: Tensor) -> Tensor:
    """The rest, right - S point, zero where it is rounding: tiny eigenvalues would magnify it."""
    product = torch.einsum("aij,aj->ai", system, point)
    size = torch.einsum("aij,aj->ai", system.abs(), point.abs()) + right.abs()
    rest = right - product
    return torch.where(rest.abs() <= 64 * torch.finfo(rest.dtype).eps * size, 0.0, rest)


def _solve(system: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_ex(system, right, check_errors=False).result


def _scaled(gram: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """G with unit diagonal, and the scale of every variable; fixed entries get an identity row."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(free & (diagonal > 0), diagonal, 1.0).sqrt()
    pair = free[..., :, None] & free[..., None, :]
    scaled = torch.where(pair, gram / (scale[..., :, None] * scale[..., None, :]), 0.0)
    return scaled + torch.diag_embed((~free).to(gram.dtype)), scale


def _residual(
    scaled: Tensor,
    base: Tensor,
    slope_right: Tensor,
    total: Tensor,
    problem: Tensor,
    free: Tensor,
    point: Tensor,
    multiplier: Tensor,
) -> Tensor:
    """(S,) largest |min(x, gradient)| over the free entries, or the miss of the equality."""
    right = base + multiplier[problem][:, None] * slope_right
    gradient = torch.einsum("aij,aj->ai", scaled, point) - right
    unit = right.abs().amax(dim=-1, keepdim=True).clamp_min(1e-37)
    violation = torch.where(free, torch.minimum(point, gradient).abs() / unit, 0.0).amax(dim=-1)
    worst = torch.zeros_like(total).scatter_reduce(0, problem, violation, "amax")
    value = torch.zeros_like(total).index_add(0, problem, (slope_right * point).sum(dim=1))
    return torch.maximum(worst, (value - total).abs() / total)
