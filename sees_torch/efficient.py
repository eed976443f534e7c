"""The gap with the least variance that the shifted features allow.

Given the features J that shift, any weight table w(a, y) on their cells a gives an unbiased gap:

    gap = mean_t M - mean_s l,    M(x) = sum_y p(y|x) { w (w - 1) l(x, y) / n + lambda_ay } / D(x),
    D(x) = sum_y p(y|x) { w^2 / n + w / m },

with lambda from one L x L system per cell that makes l - M sum to zero over the source rows of
every (a, y). Then E_s[g(a, y) (l - M)] = 0 for every g, so E_t[M] = E_s[w M] = E_s[w l] whatever p
and w were; they decide the variance only. Where few source rows leave lambda undetermined it is
held back, and mean_s w (l - M) is added, so that a bias is the product of two errors. Target rows
in cells that the source never visits count by what the weights say of them. At the true p and w the
variance is the least possible for a regular estimator,

    V = Var_s( w (l - M) - l ) / n + Var_t(M) / m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.errors import SeesError
from sees_torch.solvers.mixture import cell_sums
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction

FEW_ROWS = 5.0
"""lambda is pulled towards its value under a perfect p(y|x) by FEW_ROWS^2 / rows, in rows: a class
with about so many source rows in a cell, or fewer, says little of its own."""
FREE_ROWS = 0.3
"""The same when the variance is asked for: what is held back must not look like knowledge."""
LEAST_WEIGHT = 0.05
"""Least weight in M (any weights give the gap): with a weight of zero, which a fit may reach though
the truth is another, rows that are surely of that label would count without bound."""

ROUNDING = 1e-14
"""Of a cell's system, relative to its largest entry."""


@dataclass(frozen=True)
class RowValues:
    """A per-row metric on both samples.

    Attributes:
        own: (n,) value of every source row.
        source: (n, L) value that it would have under each label; target: (m, L).
    """

    own: Tensor
    source: Tensor
    target: Tensor


@dataclass(frozen=True)
class Cells:
    """The table of a weight function and where rows are in it.

    Attributes:
        weight: (C, L); of a table, the last cell holds every row outside it.
        source: (n,) cell of every source row; target: (m,).
    """

    weight: Tensor
    source: Tensor
    target: Tensor


def has_cells(function: WeightFunction) -> bool:
    return isinstance(function, (ConstantWeights, TableWeights))


def cells_of(function: WeightFunction, source: Source, target: Target) -> Cells:
    """The cells of a weight function that is a table, or constant per label."""
    if isinstance(function, ConstantWeights):
        here, there = (torch.zeros_like(s.rows.codes[:, 0]) for s in (source, target))
        return Cells(function.weight[None], here, there)
    if not isinstance(function, TableWeights):
        raise SeesError(
            "estimator 'eff' needs weights that are a table on a few features, as SEES-d, SEES-em "
            f"and label shift give; {type(function).__name__} are not. Use 'dr'."
        )
    weight = torch.cat([function.weight, function.fallback[None]])
    return Cells(weight, function.place(source.rows), function.place(target.rows))


@dataclass(frozen=True)
class GapParts:
    """Estimates of one metric under B sets of multiplicities, and what each row adds to them.

    Attributes:
        source_value, target_value: (B,); target_value is the sum of the means of both parts.
        source_part: (B, n) of the source rows; target_part: (B, m) of the target rows.
    """

    source_value: Tensor
    target_value: Tensor
    source_part: Tensor
    target_part: Tensor

    @property
    def gap(self) -> Tensor:
        return self.target_value - self.source_value


@dataclass(frozen=True)
class Efficient(GapParts):
    """Efficient estimates: the source rows add w (l - M), the target rows M.

    Attributes:
        unresolved: (B, C, L) mean of l - M that the system could not bring to zero, by cell and
            label: large where labels cannot be told apart inside the cell.
        condition: (B, C) condition number of the cells' systems, 1 where nothing is asked.
    """

    unresolved: Tensor
    condition: Tensor


def efficient_values(
    source: Source,
    target: Target,
    cells: Cells,
    values: RowValues,
    source_count: Tensor | None = None,
    target_count: Tensor | None = None,
    sizes: tuple[float, float] | None = None,
    few_rows: float = FEW_ROWS,
) -> Efficient:
    """Efficient estimates, one for each set of row multiplicities.

    Args:
        source, target: the samples; their posterior is p(y|x).
        cells: the weight table.
        values: the metric on both samples.
        source_count: (B, n); target_count: (B, m); the samples' own by default.
        sizes: n and m that the estimate is tuned to, by default the samples' own.
        few_rows: how many source rows of a class count as few.
    """
    value, source_values, target_values = values.own, values.source, values.target
    here = source.count[None] if source_count is None else source_count
    there = target.count[None] if target_count is None else target_count
    n, m = sizes or (float(source.total), float(target.total))
    n_cells, n_labels = cells.weight.shape
    weight = cells.weight.clamp_min(LEAST_WEIGHT)

    def parts(posterior: Tensor, cell: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """P / D (rows, L), and the part of M without lambda."""
        w = weight[cell]
        scale = (posterior * (w.square() / n + w / m)).sum(dim=1).clamp_min(1e-9 / (n + m))
        return posterior / scale[:, None], (posterior * w * (w - 1) * values / n).sum(1) / scale

    use_s, base_s = parts(source.posterior, cells.source, source_values)
    use_t, base_t = parts(target.posterior, cells.target, target_values)
    pair = cells.source * n_labels + source.labels

    def by_pair(per_row: Tensor) -> Tensor:
        """(B, C, L) sums over the source rows of every cell and label."""
        return cell_sums(here * per_row, pair, n_cells * n_labels).reshape(-1, n_cells, n_labels)

    rows = by_pair(torch.ones_like(value))
    system = torch.stack([by_pair(column) for column in use_s.T], dim=-1)
    unit = rows.clamp_min(min(1.0, n / len(source)))
    # With a perfect p the system is diagonal: lambda = w (mean of l) (1/n + 1/m).
    centre = weight * by_pair(value) / unit * (1 / n + 1 / m)
    step = weight / m
    scaled = system * step[:, None, :] / unit.sqrt()[..., None]
    rest = by_pair(value - base_s) - (system @ centre[..., None]).squeeze(-1)
    normal = scaled.mT @ scaled
    eye = torch.eye(n_labels, dtype=normal.dtype, device=normal.device)
    pseudo = 1e-9 if is_population(source, target) else 1.0
    # A population holds nothing back, yet its labels may be impossible to tell apart.
    rounding = ROUNDING * normal.diagonal(dim1=-2, dim2=-1).amax(dim=-1, keepdim=True)
    ridge = torch.diag_embed((few_rows * pseudo) ** 2 / unit + rounding)
    moved = scaled.mT @ (rest / unit.sqrt())[..., None]
    solved = torch.linalg.solve_ex(normal + ridge, moved, check_errors=False).result.squeeze(-1)
    multiplier = centre + step * solved
    left = rest - (system @ (step * solved)[..., None]).squeeze(-1)
    m_source = _on_rows(use_s, multiplier, cells.source) + base_s
    bare = rows.sum(dim=2) == 0
    unseen = bare[:, cells.target]
    m_target = _on_rows(use_t, multiplier, cells.target) + base_t
    m_target = torch.where(unseen, _expected(target, cells, target_values), m_target)
    # Zero where the system is solved; where lambda was held back, the weights answer for the rest.
    source_part = cells.weight[cells.source, source.labels] * (value - m_source)
    source_part = source_part * weighted_mean((~unseen).to(there), there)[:, None]
    return Efficient(
        weighted_mean(value.expand_as(here), here),
        weighted_mean(m_target, there) + weighted_mean(source_part, here),
        source_part,
        m_target,
        left / unit,
        torch.linalg.cond(torch.where(bare[..., None, None], eye, normal + 1e-12 * eye)).sqrt(),
    )


@torch.no_grad()
def worst_condition(source: Source, target: Target, function: WeightFunction) -> float:
    """Largest condition number of the cells that hold 1 % or more of the target."""
    here, there = (
        torch.nn.functional.one_hot(sample.predictions, len(source.classes)).to(sample.posterior)
        for sample in (source, target)
    )
    own = here.gather(1, source.labels[:, None]).squeeze(1)
    cells = cells_of(function, source, target)
    found = efficient_values(source, target, cells, RowValues(own, here, there))
    mass = torch.zeros_like(cells.weight[:, 0]).index_add(0, cells.target, target.mass)
    return float(torch.where(mass >= 0.01, found.condition[0], 1.0).max())


@torch.no_grad()
def variance(
    source: Source,
    target: Target,
    cells: Cells,
    values: RowValues,
    sizes: tuple[float, float] | None = None,
    few_rows: float = FREE_ROWS,
) -> float:
    """Plug-in V of the gap, for samples of these sizes; by default nothing is held back."""
    n, m = sizes or (float(source.total), float(target.total))
    found = efficient_values(source, target, cells, values, sizes=(n, m), few_rows=few_rows)
    own = mean_variance(found.source_part[0] - values.own, source.count) * source.total / n
    return float(own + mean_variance(found.target_part[0], target.count) * target.total / m)


def _expected(target: Target, cells: Cells, values: Tensor) -> Tensor:
    """(m,) what the weights say of every target row: all there is to go by in unseen cells."""
    joint = target.posterior * cells.weight[cells.target]
    joint = torch.where(joint.sum(dim=1, keepdim=True) > 0, joint, target.posterior)
    return (joint * values).sum(dim=1) / joint.sum(dim=1)


def _on_rows(use: Tensor, multiplier: Tensor, cell: Tensor) -> Tensor:
    """(B, rows) sum_y p(y|x) lambda_ay / D(x), one label at a time to spare memory."""
    total = use.new_zeros(len(multiplier), len(use))
    for label in range(use.shape[1]):
        total = total + use[:, label] * multiplier[:, cell, label]
    return total


def weighted_mean(value: Tensor, count: Tensor) -> Tensor:
    return (value * count).sum(dim=-1) / count.sum(dim=-1)


def mean_variance(value: Tensor, count: Tensor) -> Tensor:
    """Variance of the mean of (..., n) values with multiplicities."""
    centred = value - weighted_mean(value, count)[..., None]
    return (centred.square() * count).sum(dim=-1) / count.sum(dim=-1).square()
