"""How large the objective of SEES-d is by chance alone, for every subset of features.

At the true subset and weights the objective is not zero in samples but, on average,

    N (E_t|p|^2 / m + E_s[w^2 |p|^2] / n) - sum_kappa |p_t,kappa|^2 (1/m + 1/n),

N the number of kappa and |p| the length of a row's prediction vector. Fitting the weights takes
back `freedom` of it, more for features of many levels, and inflates w^2 by the weights' variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.products import SubsetProducts

RIDGE = 1e-3


@dataclass(frozen=True)
class Noise:
    """Per subset: expected objective at the truth, what fitting takes back of it, and a scale.

    `scale` is the standard deviation of the objective, sqrt(2 sum_kappa |p_t,kappa|^2) (1/m + 1/n)
    if tables were independent: distances between tables of many small cells are small, and so is
    their noise.
    """

    expected: Tensor
    freedom: Tensor
    scale: Tensor

    def score(self, objective: Tensor) -> Tensor:
        """(S,) what is left unexplained, in standard deviations: comparable between subsets."""
        return (objective - self.expected + self.freedom) / self.scale


def sampling_noise(
    rows: CountedRows, products: SubsetProducts, weight: Tensor, n: float, m: float
) -> Noise:
    """The noise of all subsets at fitted weights (A, L), for n source and m target rows."""
    owner = products.subsets.of_cell()
    n_subsets, order = products.subsets.members.shape
    kappas = math.comb(len(rows.features) - order, min(2 * order, len(rows.features)) - order)

    def per_subset(per_cell: Tensor) -> Tensor:
        return per_cell.new_zeros(n_subsets).index_add(0, owner, per_cell)

    spread = _spread(rows, products, weight, n, m)
    gram = products.product[:, :-1, :-1]
    unit = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
    pair = unit[:, :, None] * unit[:, None, :]
    eye = RIDGE * torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    half = torch.linalg.solve_ex(gram * pair + eye, spread * pair, check_errors=False).result
    full = torch.linalg.solve_ex(gram * pair + eye, half.mT, check_errors=False).result
    live = products.mass[:, :-1] > 0
    variance = torch.where(live, full.diagonal(dim1=1, dim2=2) * unit.square(), 0.0)
    freedom = torch.where(live, half.diagonal(dim1=1, dim2=2), 0.0).sum(dim=1)
    length = products.mass if not rows.soft else _cell_sums(rows, products, rows.square)
    square = (weight.square() - variance).clamp_min(0.0)
    constant = per_subset(products.product[:, -1, -1])
    # The total mass of a sample is fixed: its covariance is that of the rows less one direction.
    induced = per_subset(torch.einsum("ay,ayz,az->a", weight, gram, weight))
    taken_back = per_subset(freedom) - induced * (1 / m + 1 / n)
    on_source = per_subset((length[:, :-1] * square).sum(dim=1))
    on_target = rows.square[:, -1].sum()
    expected = kappas * (on_target / m + on_source / n) - constant * (1 / m + 1 / n)
    return Noise(expected, taken_back, (2 * constant).sqrt() * (1 / m + 1 / n))


def _spread(
    rows: CountedRows, products: SubsetProducts, weight: Tensor, n: float, m: float
) -> Tensor:
    """(A, L, L) covariance of b - G w in every cell, from the probed rows."""
    mass, push = rows.mass[products.probe], products.push
    total = rows.mass.sum(dim=(0, 1))
    seen = mass.sum(dim=(0, 1)).clamp_min(1e-300)
    mass = mass * (total / seen)
    cell = products.subsets.cell_of_rows(rows.codes[products.probe])
    # Variance per unit of mass: w^2 / n for a source row, 1 / m for a target row.
    rate = torch.cat([weight[cell].square() / n, torch.ones_like(weight[cell][..., :1]) / m], -1)
    if rows.soft:
        each = mass.sum(dim=1, keepdim=True)
        share = torch.where(each > 0, mass / each.clamp_min(1e-300), 0.0)
        moved = torch.einsum("bfk,bsfy->bsky", share, push)
        outer = torch.einsum("bk,bsk,bsky,bskz->bsyz", each[:, 0], rate, moved, moved)
    else:
        outer = torch.einsum("bfk,bsk,bsfy,bsfz->bsyz", mass, rate, push, push)
    n_labels = weight.shape[1]
    spread = outer.new_zeros(products.subsets.total_cells, n_labels, n_labels)
    return spread.index_add(0, cell.reshape(-1), outer.flatten(0, 1))


def _cell_sums(rows: CountedRows, products: SubsetProducts, per_row: Tensor) -> Tensor:
    """(A, k) sums of (U, k) values over the rows of every cell of every subset."""
    cell = products.subsets.cell_of_rows(rows.codes)
    every = per_row[:, None].expand(-1, cell.shape[1], -1).flatten(0, 1)
    sums = per_row.new_zeros(products.subsets.total_cells, per_row.shape[1])
    return sums.index_add(0, cell.reshape(-1), every)
