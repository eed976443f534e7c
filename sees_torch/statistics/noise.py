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
from sees_torch.statistics.pairs import level_sums
from sees_torch.statistics.products import SubsetProducts

RIDGE = 1e-3
CHUNK = 2**21
"""Numbers that one intermediate tensor may hold."""


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
    unit = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-37).rsqrt()
    pair = unit[:, :, None] * unit[:, None, :]
    eye = RIDGE * torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    half = torch.linalg.solve_ex(gram * pair + eye, spread * pair, check_errors=False).result
    full = torch.linalg.solve_ex(gram * pair + eye, half.mT, check_errors=False).result
    live = products.mass[:, :-1] > 0
    variance = torch.where(live, full.diagonal(dim1=1, dim2=2) * unit.square(), 0.0)
    freedom = torch.where(live, half.diagonal(dim1=1, dim2=2), 0.0).sum(dim=1)
    length = _cell_squares(rows, products) if rows.soft else products.mass[:, :-1]
    square = (weight.square() - variance).clamp_min(0.0)
    constant = per_subset(products.product[:, -1, -1])
    # The total mass of a sample is fixed: its covariance is that of the rows less one direction.
    induced = per_subset(torch.einsum("ay,ayz,az->a", weight, gram, weight))
    taken_back = per_subset(freedom) - induced * (1 / m + 1 / n)
    on_source = per_subset((length * square).sum(dim=1))
    on_target = torch.where(rows.label == weight.shape[1], rows.square, 0.0).sum()
    on_target = on_target * rows.scale[-1]
    expected = kappas * (on_target / m + on_source / n) - constant * (1 / m + 1 / n)
    return Noise(expected, taken_back, (2 * constant).sqrt() * (1 / m + 1 / n))


def _spread(
    rows: CountedRows, products: SubsetProducts, weight: Tensor, n: float, m: float
) -> Tensor:
    """(A, L, L) covariance of b - G w in every cell, from the probed entries."""
    n_labels = weight.shape[1]
    label = rows.label
    # A sum over few columns is several times slower than the product.
    mass = rows.count @ torch.ones_like(rows.count[0]) * rows.scale[label]
    total, seen = (
        mass.new_zeros(n_labels + 1).index_add(0, label[index], mass[index])
        for index in (slice(None), products.probe)
    )
    label, mass = label[products.probe], mass[products.probe]
    mass = mass * (total / seen.clamp_min(1e-37))[label]
    codes = rows.codes_of(products.probe)
    # Variance per unit of mass: w^2 / n for a source row, 1 / m for a target row.
    spread = weight.new_zeros(products.subsets.total_cells, n_labels * n_labels)
    step = max(1, CHUNK // (len(products.subsets) * n_labels * n_labels))
    for some in torch.arange(len(mass), device=mass.device).split(step):
        cell = products.subsets.cell_of_rows(codes[some])
        own = label[some][:, None]
        fitted = weight[cell, own.clamp_max(n_labels - 1)].square() / n
        rate = mass[some][:, None] * torch.where(own < n_labels, fitted, 1 / m)
        push = products.push[some]
        outer = (rate[..., None] * push)[..., :, None] * push[..., None, :]
        spread.index_add_(0, cell.reshape(-1), outer.reshape(cell.numel(), -1))
    return spread.reshape(-1, n_labels, n_labels)


def _cell_squares(rows: CountedRows, products: SubsetProducts) -> Tensor:
    """(A, L) sums of the squared prediction lengths of source entries over every cell."""
    n_labels, label = len(rows.scale) - 1, rows.label
    square = rows.square * rows.scale[label]
    if products.subsets.members.shape[1] == 1:
        return level_sums(rows, square)[:, :-1]
    sums = square.new_zeros(products.subsets.total_cells * (n_labels + 1))
    step = max(1, CHUNK // len(products.subsets))
    for some in torch.arange(len(rows), device=sums.device).split(step):
        cell = products.subsets.cell_of_rows(rows.codes[:, some].T.to(torch.int64))
        place = cell * (n_labels + 1) + label[some][:, None]
        sums.index_add_(0, place.reshape(-1), square[some][:, None].expand_as(cell).reshape(-1))
    return sums.reshape(-1, n_labels + 1)[:, :-1]
