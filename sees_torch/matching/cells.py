"""Label shift inside every cell of a few features, for many feature subsets at once.

Given the features J that shift with the label, p_t(x | a) = sum_y q_a(y) p_s(x | a, y) in every
cell a of X_J. With p(y|x) calibrated inside the cell, the likelihood of q_a is concave, and

    w(a, y) = [ q_a(y) / pi_a(y) ] . [ p_t(a) / p_s(a) ],

pi_a the label shares of the cell's source rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.efficient import FEW_ROWS
from sees_torch.matching.batch import Batch
from sees_torch.matching.coarse import MANY_ROWS, coarse
from sees_torch.solvers.implicit import offset_solution, share_solution, wants_graph
from sees_torch.solvers.mixture import (
    cell_mixtures,
    cell_sums,
    class_offsets,
    label_sums,
    on_entries,
)
from sees_torch.statistics.subsets import Subsets

OFFSET_ROWS = 2.0
"""Pull of a cell's class offsets to zero, in rows."""
EMPTY_ROWS = 1.0
"""p_t(a) is smoothed by so many rows of the source's p_s(a)."""


@dataclass(frozen=True)
class CellWeights:
    """Weights of every cell of every subset, under each set of multiplicities.

    Attributes:
        subsets: S subsets, A cells.
        weight: (B, L, A); where the source never was, the fallback.
        fallback: (B, L) label-shift weights.
        offset: (B, L, A) class offsets that calibrate p(y|x) inside the cell.
        visited: (B, A) cells with source rows.
        unseen: (B, S) share of the target in other cells.
        residual: (B, A) squared Newton decrement of the cell's shares, in rows.
        parameters: (B, S) numbers that the rows decided, and not the prior.
        converged: every solve reached its tolerance.
        blind: weights are the same for every label.
    """

    subsets: Subsets
    weight: Tensor
    fallback: Tensor
    offset: Tensor
    visited: Tensor
    unseen: Tensor
    residual: Tensor
    parameters: Tensor
    converged: bool
    blind: bool = False

    def on_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, n, L) and (B, m, L) weights of all rows; for a single subset."""
        cell = self.subsets.cell_of_rows(batch.codes).squeeze(1)
        weight = self.weight.mT[:, cell]
        n = len(batch.labels)
        return weight[:, :n], weight[:, n:]

    def ratio(self, batch: Batch) -> Tensor:
        """(B, S, n + m) induced p_t(x) / p_s(x), or p_t(x, y) / p_s(x, y) where y is known."""
        n, n_subsets, rows = len(batch.labels), len(self.subsets), len(batch.codes)
        cell = self.subsets.cell_of_rows(batch.codes).T.reshape(-1)
        shape = len(self.weight), n_subsets, rows
        if self.blind:
            return on_entries(self.weight[:, 0], cell).reshape(shape)
        if batch.n_labels == 2:
            log_odds = (batch.logits[1] - batch.logits[0]).repeat(n_subsets)
            shift = on_entries(self.offset[:, 1] - self.offset[:, 0], cell)
            rise = on_entries(self.weight[:, 1] - self.weight[:, 0], cell)
            base = on_entries(self.weight[:, 0], cell)
            ratio = shift.add_(log_odds).sigmoid_().mul_(rise).add_(base).reshape(shape)
        else:
            posterior = _shifted(batch.logits, self.offset, cell, n_subsets)
            ratio = (posterior * on_entries(self.weight, cell)).sum(dim=1).reshape(shape)
        if not bool((batch.known >= 0).any()):
            return ratio
        at = cell.reshape(n_subsets, rows)[:, n:]
        labelled = self.weight[:, batch.known.clamp_min(0).expand(n_subsets, -1), at]
        known = torch.where(batch.known >= 0, labelled, ratio[..., n:])
        return torch.cat([ratio[..., :n], known], dim=-1)


def fit_cells(
    batch: Batch,
    subsets: Subsets,
    shrinkage: float,
    fallback: Tensor | None = None,
    few_rows: float = FEW_ROWS,
) -> CellWeights:
    """Weights of all cells of all subsets.

    Args:
        batch: both samples.
        subsets: feature subsets to fit, each on its own.
        shrinkage: Dirichlet pseudo-rows that pull a cell's label shares towards label shift.
        fallback: (B, L) label-shift weights; ones where they are what is being fitted.
        few_rows: a cell in which some class has about so many source rows or fewer keeps to the
            label shift: what its target rows seem to say is mostly the source's noise.
    """
    n_subsets, n_cells = len(subsets), subsets.total_cells
    batch = coarse(batch, subsets)
    n, cell = len(batch.labels), subsets.cell_of_rows(batch.codes)
    on_source, on_target = cell[:n].T.reshape(-1), cell[n:].T.reshape(-1)
    source_count = batch.source_count.repeat(1, n_subsets)
    target_count = batch.target_count.repeat(1, n_subsets)
    ridge = torch.full_like(source_count[:, 0], OFFSET_ROWS * batch.pseudo)
    labels = batch.labels.repeat(n_subsets)
    problem = batch.logits[:, :n].repeat(1, n_subsets), labels, source_count, on_source
    with torch.no_grad():
        offsets = class_offsets(*problem, n_cells, ridge=ridge, tolerance=batch.tolerance)
    offset = offsets.value
    if wants_graph(batch.logits):
        offset = offset_solution(*problem, ridge, offset)
    per_label = label_sums(source_count, labels, on_source, n_cells, batch.n_labels)
    rows = per_label.sum(dim=1)
    visited = rows > 0
    source_posterior = _shifted(batch.logits[:, :n], offset, on_source, n_subsets)
    share = cell_sums(source_posterior * source_count[:, None], on_source, n_cells)
    share = share / rows[:, None].clamp_min(1e-37)
    if fallback is None:
        fallback = torch.ones_like(share[:, :, 0])
    centre = share * fallback[..., None]
    centre = centre / centre.sum(dim=1, keepdim=True).clamp_min(1e-37)
    target_posterior = _shifted(batch.logits[:, n:], offset, on_target, n_subsets)
    base = on_entries(share, on_target)
    score = torch.where(base > 0, target_posterior / base.clamp_min(1e-37), 0.0)
    known = batch.known.repeat(n_subsets)
    seen = on_entries(visited, on_target)
    labelled = label_sums(
        torch.where(seen, target_count, 0.0), known, on_target, n_cells, batch.n_labels
    )
    # A known label is a row that says q_a(y) outright: it counts like a pseudo-row of the prior.
    there = cell_sums(target_count, on_target, n_cells)
    fewest = torch.where(per_label > 0, per_label, torch.inf).amin(dim=1)
    doubt = (few_rows * batch.pseudo / fewest.clamp_min(1e-37)).square() * there
    pseudo = (shrinkage * batch.pseudo + doubt)[:, None] * centre
    prior = pseudo + torch.where(centre > 0, labelled, 0.0)
    mixed = torch.where((known < 0) & seen, target_count, 0.0)
    with torch.no_grad():
        shares = cell_mixtures(score, mixed, on_target, prior, tolerance=batch.tolerance)
        free = shares.free(pseudo, torch.where(visited, there, 0.0))
        parameters = _parameters(subsets, visited, torch.where(visited, free, 0.0), batch.n_labels)
    found = shares.value
    if wants_graph(score, prior):
        found = share_solution(score, mixed, on_target, prior, found)
    ratio, unseen = _cell_ratio(batch, subsets, rows, there)
    weight = torch.where(share > 0, found / share.clamp_min(1e-37), 0.0)
    weight = weight * ratio[:, None]
    weight = torch.where(visited[:, None], weight, fallback[..., None])
    converged = bool(offsets.converged.all()) and bool(shares.converged.all())
    residual = torch.where(visited, shares.residual, 0.0)
    return CellWeights(
        subsets, weight, fallback, offset, visited, unseen, residual, parameters, converged
    )


def fit_shares(batch: Batch, subsets: Subsets) -> CellWeights:
    """Weights p_t(a) / p_s(a), the same for every label: only the cells' shares shifted."""
    n, n_subsets, n_cells = len(batch.labels), len(subsets), subsets.total_cells
    cell = subsets.cell_of_rows(batch.codes)
    rows = cell_sums(batch.source_count.repeat(1, n_subsets), cell[:n].T.reshape(-1), n_cells)
    there = cell_sums(batch.target_count.repeat(1, n_subsets), cell[n:].T.reshape(-1), n_cells)
    ratio, unseen = _cell_ratio(batch, subsets, rows, there)
    weight = torch.where(rows > 0, ratio, 1.0)[:, None].expand(-1, batch.n_labels, -1)
    nothing = torch.zeros_like(weight)
    return CellWeights(
        subsets,
        weight,
        torch.ones_like(weight[:, :, 0]),
        nothing,
        rows > 0,
        unseen,
        nothing[:, 0],
        _occupied(subsets, rows > 0) - 1,
        True,
        blind=True,
    )


def _occupied(subsets: Subsets, visited: Tensor) -> Tensor:
    """(B, S) visited cells of each subset."""
    return cell_sums(visited.to(torch.float64), subsets.of_cell(), len(subsets))


def _parameters(subsets: Subsets, visited: Tensor, free: Tensor, n_labels: int) -> Tensor:
    """(B, S) numbers that the rows decided: shares of cells, and of labels in each.

    Cells that the prior decides all take the label shift, whose L - 1 numbers the rows decide.
    """
    cells = _occupied(subsets, visited)
    within = cell_sums(free, subsets.of_cell(), len(subsets)) * (1 - 1 / cells.clamp_min(1))
    return cells - 1 + (n_labels - 1) + within


def _cell_ratio(
    batch: Batch, subsets: Subsets, rows: Tensor, there: Tensor
) -> tuple[Tensor, Tensor]:
    """(B, A) p_t(a) / p_s(a), smoothed, and (B, S) target mass where the source never was."""
    owner = subsets.of_cell()
    lost = cell_sums(torch.where(rows > 0, 0.0, there), owner, len(subsets))
    n_rows = batch.source_count.sum(dim=1)[:, None]
    m_rows = batch.target_count.sum(dim=1)[:, None]
    here = rows / n_rows
    smooth = EMPTY_ROWS * batch.pseudo
    gained = (there + smooth * here) / (m_rows + smooth - lost)[:, owner].clamp_min(1e-37)
    return gained / here.clamp_min(1e-37), lost / m_rows


def chunks(batch: Batch, subsets: Subsets, memory: int) -> Iterator[Subsets]:
    """The subsets in parts whose tensors fit into so many bytes, about.

    Each alone where there are so many rows that those of its cells can be merged.
    """
    together = memory // (len(batch) * batch.bytes_per_subset())
    step = max(1, together if len(batch.codes) < MANY_ROWS else 1)
    for first in range(0, len(subsets), step):
        yield subsets.part(first, first + step)


def _shifted(logits: Tensor, offset: Tensor, cell: Tensor, n_subsets: int) -> Tensor:
    """(B, L, S n) p(y|x), calibrated inside the cells of every subset."""
    return (logits.repeat(1, n_subsets) + on_entries(offset, cell)).softmax(dim=1)
