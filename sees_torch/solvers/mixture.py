"""Class offsets and mixture shares of many cells at once, by batched Newton steps.

Entries (rows of a sample, once per feature subset) are spread over cells; every cell is its own
small convex problem in L unknowns. Sums over entries are scatter additions along the last
dimension, so a step costs a few passes and one batch of L x L solves, however many cells there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.solvers.solution import Solution, attainable

LIFT = 1e-4
"""Where a share near zero that should grow is put."""
CHECK_EVERY = 2
"""Steps between looks at the residual: each look waits for the device."""


@dataclass(frozen=True)
class Mixtures(Solution):
    """Shares of all cells.

    Attributes:
        curvature: (B, A, L, L) of the loss in relative steps, q -> q (1 - z), to which the prior
            adds its pseudo-rows.
    """

    curvature: Tensor

    def free(self, pseudo: Tensor, rows: Tensor) -> Tensor:
        """(B, A) how many shares of every cell its rows decide, and not the prior: 0 to L - 1.

        Args:
            pseudo: (B, L, A) pseudo-rows; a prior may also hold known labels, which are rows.
            rows: (B, A) of the cell.
        """
        held = torch.linalg.solve_ex(self.curvature, torch.diag_embed(pseudo.movedim(1, -1))).result
        # Shares sum to one: one direction less, as far as the rows decide it.
        summed = rows / (rows + pseudo.sum(dim=1)).clamp_min(1e-37)
        live = (pseudo > 0).sum(dim=1)
        return (live - held.diagonal(dim1=-2, dim2=-1).sum(dim=-1) - summed).clamp_min(0.0)


def class_offsets(
    logits: Tensor,
    labels: Tensor,
    mass: Tensor,
    cell: Tensor,
    cells: int,
    *,
    ridge: Tensor,
    tolerance: float = 1e-8,
    max_steps: int = 60,
) -> Solution:
    """Offsets delta_a that make  softmax(logits + delta_a)  agree with the labels of every cell.

    Penalised maximum likelihood,  sum mu (logsumexp(logits + delta) - delta_y) + ridge/2 |delta|^2:
    without the ridge the mean of the shifted probabilities equals the label shares exactly; the
    ridge, in rows, keeps offsets of small cells near zero. A class without rows in a cell gets
    -inf: it cannot occur there. A cell without any rows keeps offsets 0.

    Args:
        logits: (L, N).
        labels: (N,) int64.
        mass: (B, N) rows that each entry stands for, one problem per B.
        cell: (N,) int64 cell of every entry.
        cells: number of cells A.
        ridge: (B,) strength of the penalty.
        tolerance: on the squared Newton decrement, in rows.
        max_steps: Newton steps.

    Returns:
        Solution with value (B, L, A) and residual (B, A).
    """
    tolerance = attainable(tolerance, logits.dtype)
    n_labels = len(logits)
    rows = label_sums(mass, labels, cell, cells, n_labels)
    present = rows > 0
    ruled_out = ~present & present.any(dim=1, keepdim=True)
    delta = torch.where(ruled_out, -torch.inf, torch.zeros_like(rows))
    weight = ridge[:, None, None]
    eye = torch.eye(n_labels, dtype=logits.dtype, device=logits.device)
    for step in range(1, max_steps + 1):
        share = (logits + on_entries(delta, cell)).softmax(dim=1)
        p = share * mass[:, None]
        sums = cell_sums(p, cell, cells)
        slope = torch.where(present, sums - rows + weight * delta, 0.0)
        curve = torch.diag_embed(sums.movedim(1, -1)) - pair_sums(p, share, cell, cells)
        curve = curve + (weight[..., None] + 1e-12) * eye
        move = _solve(curve, slope.movedim(1, -1)).movedim(-1, 1)
        residual = (move * slope).sum(dim=1)
        # A bounded step keeps far-off starts from overshooting; near the end it is not active.
        delta = delta - move.clamp(-2.0, 2.0)
        if step % CHECK_EVERY == 0 and bool((residual <= tolerance).all()):
            break
    return Solution(delta, torch.zeros_like(residual), residual, residual <= tolerance, step)


def cell_mixtures(
    score: Tensor,
    mass: Tensor,
    cell: Tensor,
    prior: Tensor,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 200,
) -> Mixtures:
    """Shares q_a that maximise  sum mu log(score . q_a) + sum_y prior log q_a(y)  in every cell.

    q_a lies on the simplex; prior are Dirichlet pseudo-rows, 0 for a class that cannot occur. The
    simplex needs no constraint: adding (rows + prior) times the sum of q makes its minimiser sum
    to one. Newton steps are cut before any share reaches zero; where a step does not improve a
    cell, one of the EM algorithm, which always does, is taken there instead, so the likelihood
    never falls, and the next Newton steps are shorter.

    Args:
        score: (B, L, N) p(y|x) / pi_a(y) >= 0.
        mass: (B, N) rows that each entry stands for.
        cell: (N,) int64 cell of every entry.
        prior: (B, L, A).
        tolerance: on the squared Newton decrement, in rows.
        max_steps: Newton steps.

    Returns:
        Mixtures with value (B, L, A) and residual (B, A); cells without rows return their prior.
    """
    tolerance = attainable(tolerance, score.dtype)
    cells = prior.shape[-1]
    live = prior > 0
    weight = prior.sum(dim=1, keepdim=True)
    total = cell_sums(mass, cell, cells)[:, None] + weight
    share = torch.where(live, prior / weight.clamp_min(1e-37), 0.0)

    def fitted(share: Tensor) -> Tensor:
        return (score * on_entries(share, cell)).sum(dim=1).clamp_min(1e-37)

    def loss(share: Tensor, fit: Tensor) -> Tensor:
        logs = torch.where(live, prior * share.clamp_min(1e-37).log(), 0.0)
        return (total * share - logs).sum(dim=1) - cell_sums(mass * fit.log(), cell, cells)

    fit = fitted(share)
    now = loss(share, fit)
    reach, failed = torch.ones_like(now), torch.zeros_like(now, dtype=torch.bool)
    for step in range(1, max_steps + 1):
        relative = score / fit[:, None]
        weighted = relative * mass[:, None]
        pull = cell_sums(weighted, cell, cells)
        # In relative steps z, q -> q (1 - z), gradient and curvature carry factors of q.
        slope = torch.where(live, share * (total - pull) - prior, 0.0)
        curve = pair_sums(weighted, relative, cell, cells)
        scale = torch.where(live, share, 0.0).movedim(1, -1)
        curve = curve * scale[..., :, None] * scale[..., None, :]
        curve = curve + torch.diag_embed(torch.where(live, prior, 1.0).movedim(1, -1))
        move = _solve(curve, slope.movedim(1, -1)).movedim(-1, 1)
        residual = (move * slope).sum(dim=1)
        # A share that its own gradient would raise is not lowered for the sake of others.
        move = torch.where((move > 0) & (slope < 0), 0.0, move)
        room = (0.95 / move.amax(dim=1).clamp_min(1e-37)).clamp_max(reach)
        expected = torch.where(live, (share * pull + prior) / total.clamp_min(1e-37), 0.0)
        trial = torch.where(failed[:, None], expected, share * (1 - room[:, None] * move))
        # In relative steps a share near zero hardly moves, even if the likelihood wants it to grow.
        stranded = live & (trial < LIFT) & (pull > total * (1 + 1e-6))
        trial = torch.where(stranded, LIFT, trial)
        lifted = stranded.any(dim=1)
        residual = torch.where(lifted, torch.inf, residual)
        trial_fit = fitted(trial)
        trial_loss = loss(trial, trial_fit)
        moved = failed | lifted | (trial_loss <= now + 1e-12 * now.abs())
        share = torch.where(moved[:, None], trial, share)
        fit = torch.where(on_entries(moved, cell), trial_fit, fit)
        now = torch.where(moved, trial_loss, now)
        reach = torch.where(moved, (2 * reach).clamp_max(1.0), reach / 4)
        failed = ~moved
        if step % CHECK_EVERY == 0 and bool((residual <= tolerance).all()):
            break
    share = share / share.sum(dim=1, keepdim=True).clamp_min(1e-37)
    ones = torch.ones_like(residual)
    return Mixtures(share, ones, residual, residual <= tolerance, step, curve)


def cell_sums(entries: Tensor, cell: Tensor, cells: int) -> Tensor:
    """Sums of (..., N) entries over the entries of each cell, (..., A)."""
    return entries.new_zeros(*entries.shape[:-1], cells).index_add(-1, cell, entries)


def on_entries(values: Tensor, cell: Tensor) -> Tensor:
    """(..., N) the value of every entry's cell, from (..., A); `gather` is here the fastest way."""
    return values.gather(-1, cell.expand(*values.shape[:-1], -1))


def label_sums(mass: Tensor, labels: Tensor, cell: Tensor, cells: int, n_labels: int) -> Tensor:
    """(B, L, A) mass of every label in each cell; other labels (-1) count nowhere."""
    place = torch.where(labels >= 0, labels * cells + cell, n_labels * cells)
    sums = cell_sums(mass, place, n_labels * cells + 1)
    return sums[:, :-1].reshape(len(mass), n_labels, cells)


def pair_sums(left: Tensor, right: Tensor, cell: Tensor, cells: int) -> Tensor:
    """(B, A, L, L) sums of left_y right_z over each cell, for a product symmetric in y and z."""
    members, n_labels = left.shape[:2]
    result = left.new_zeros(members, cells, n_labels, n_labels)
    for y in range(n_labels):
        upto = cell_sums(left[:, y, None] * right[:, : y + 1], cell, cells).movedim(1, -1)
        result[..., y, : y + 1] = upto
        result[..., : y + 1, y] = upto
    return result


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_ex(matrix, right[..., None], check_errors=False).result.squeeze(-1)
