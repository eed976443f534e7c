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

A target row whose label is known adds h(x, y) in place of M(x). With e(x) the part of the rows like
it that is labelled, the same sums are zero for C = (1 - e) M + e h in place of M, and the variance
is least for

    h(x, y) = { w (w - 1) l / n + lambda_ay - (1 - e) M w^2 / n } / { w / m + e w^2 / n },

with M(x) the mean of h(x, y) under p_t(y|x). So labels also tell apart what features do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.contributions import GapParts, RowValues, mean_variance, weighted_mean
from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.labelling import Labelling, chances
from sees_torch.solvers.mixture import cell_sums
from sees_torch.weight_cells import Cells, cells_of
from sees_torch.weights import WeightFunction

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
class Efficient(GapParts):
    """Efficient estimates: the source rows add w (l - M), the target rows M.

    Attributes:
        unresolved: (B, C, L) mean of l - M that the system could not bring to zero, by cell and
            label: large where labels cannot be told apart inside the cell.
        condition: (B, C) condition number of the cells' systems, 1 where nothing is asked.
        multiplier: (B, C, L) lambda.
    """

    unresolved: Tensor
    condition: Tensor
    multiplier: Tensor


@dataclass(frozen=True)
class _Terms:
    """M, and h of a labelled row, as linear functions of the multipliers lambda.

    Attributes:
        weight: (C, L), bounded away from zero.
        n, m: rows that the estimate is tuned to.
    """

    weight: Tensor
    n: float
    m: float

    def smooth(
        self, posterior: Tensor, cell: Tensor, values: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(rows, L) what M adds of each lambda, and (rows,) M without them."""
        w, n, m = self.weight[cell], self.n, self.m
        kept = (w / m) / (w / m + chance[:, None] * w.square() / n)
        scale = posterior * ((1 - chance[:, None]) * kept * w.square() / n + w / m)
        scale = scale.sum(dim=1).clamp_min(1e-9 / (n + m))
        use = posterior * kept
        return use / scale[:, None], (use * w * (w - 1) * values / n).sum(1) / scale

    def told(
        self, cell: Tensor, label: Tensor, value: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(rows,) what h adds of M, and of its label's lambda, and h without either."""
        w, n, m = self.weight[cell, label], self.n, self.m
        scale = w / m + chance * w.square() / n
        rest = w * (w - 1) * value / n
        return -(1 - chance) * w.square() / n / scale, 1 / scale, rest / scale

    def value(
        self,
        cell: Tensor,
        label: Tensor,
        value: Tensor,
        chance: Tensor,
        smooth: Tensor,
        multiplier: Tensor,
    ) -> Tensor:
        """(B, rows) h of rows with these labels, from M and (B, C, L) multipliers."""
        of_m, of_own, rest = self.told(cell, label, value, chance)
        return of_m * smooth + of_own * multiplier[:, cell, label] + rest


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
        sizes: n and m that the estimate is tuned to, by default the samples' own; as large a part
            of m is labelled.
        few_rows: how many source rows of a class count as few.
    """
    value = values.own
    here = source.count[None] if source_count is None else source_count
    there = target.count[None] if target_count is None else target_count
    n, m = sizes or (float(source.total), float(target.total))
    n_cells, n_labels = cells.weight.shape
    terms = _Terms(cells.weight.clamp_min(LEAST_WEIGHT), n, m)
    labelling = Labelling.of(source, target)
    chance_s, chance_t = chances(labelling, source, target)
    use_s, base_s = terms.smooth(source.posterior, cells.source, values.source, chance_s)
    use_t, base_t = terms.smooth(target.posterior, cells.target, values.target, chance_t)
    pair = cells.source * n_labels + source.labels

    def by_pair(per_row: Tensor) -> Tensor:
        """(B, C, L) sums over the source rows of every cell and label."""
        return cell_sums(here * per_row, pair, n_cells * n_labels).reshape(-1, n_cells, n_labels)

    # What a source row stands for, C = reach * M + direct * lambda + fixed.
    reach, direct, fixed = torch.ones_like(value), torch.zeros_like(value), torch.zeros_like(value)
    if labelling is not None:
        of_m, of_own, rest = terms.told(cells.source, source.labels, value, chance_s)
        reach = 1 - chance_s + chance_s * of_m
        direct, fixed = chance_s * of_own, chance_s * rest
    rows = by_pair(torch.ones_like(value))
    system = torch.stack([by_pair(column * reach) for column in use_s.T], dim=-1)
    if labelling is not None:
        system = system + torch.diag_embed(by_pair(direct))
    unit = rows.clamp_min(min(1.0, n / len(source)))
    # With a perfect p the system is diagonal: lambda = w (mean of l) (1/n + 1/m).
    centre = terms.weight * by_pair(value) / unit * (1 / n + 1 / m)
    wanted = by_pair(value - reach * base_s - fixed)
    held = few_rows * (1e-9 if is_population(source, target) else 1.0)
    multiplier, left, condition = _multipliers(
        system, wanted, centre, terms.weight / m, rows, unit, held
    )
    stands = reach * (_on_rows(use_s, multiplier, cells.source) + base_s) + fixed
    if labelling is not None:
        stands = stands + direct * multiplier[:, cells.source, source.labels]
    unseen = (rows.sum(dim=2) == 0)[:, cells.target]
    smooth = _on_rows(use_t, multiplier, cells.target) + base_t
    smooth = torch.where(unseen, _expected(target, cells, values.target), smooth)
    # Zero where the system is solved; where lambda was held back, the weights answer for the rest.
    source_part = cells.weight[cells.source, source.labels] * (value - stands)
    source_part = source_part * weighted_mean((~unseen).to(there), there)[:, None]
    total = weighted_mean(smooth, there) + weighted_mean(source_part, here)
    told, target_part = smooth.new_zeros(1, len(target)), smooth
    if labelling is not None:
        label = target.labels.clamp_min(0)
        own = values.target.gather(1, label[:, None]).squeeze(1)
        h = terms.value(cells.target, label, own, chance_t, smooth, multiplier)
        told = torch.where(labelling.known, torch.where(unseen, own, h) - smooth, 0.0)
        total, target_part = total + labelling.mean(told, there), smooth + told
    before = weighted_mean(value.expand_as(here), here)
    return Efficient(
        before, total, source_part, target_part, told, left / unit, condition, multiplier
    )


def _multipliers(
    system: Tensor,
    wanted: Tensor,
    centre: Tensor,
    step: Tensor,
    rows: Tensor,
    unit: Tensor,
    held: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, C, L) lambda, what of the wanted sums it leaves, and (B, C) condition numbers.

    Args:
        system: (B, C, L, L) sums that a unit of each lambda makes.
        wanted: (B, C, L) sums.
        centre: (B, C, L) what lambda is pulled towards where few rows say what it is.
        step: (C, L) scale of lambda.
        rows: (B, C, L) source rows, and unit the same, bounded away from zero.
        held: how many rows are few.
    """
    scaled = system * step[:, None, :] / unit.sqrt()[..., None]
    rest = wanted - (system @ centre[..., None]).squeeze(-1)
    normal = scaled.mT @ scaled
    eye = torch.eye(rows.shape[-1], dtype=normal.dtype, device=normal.device)
    # A population holds nothing back, yet its labels may be impossible to tell apart.
    rounding = ROUNDING * normal.diagonal(dim1=-2, dim2=-1).amax(dim=-1, keepdim=True)
    ridge = torch.diag_embed(held**2 / unit + rounding)
    moved = scaled.mT @ (rest / unit.sqrt())[..., None]
    solved = torch.linalg.solve_ex(normal + ridge, moved, check_errors=False).result.squeeze(-1)
    left = rest - (system @ (step * solved)[..., None]).squeeze(-1)
    bare = (rows.sum(dim=2) == 0)[..., None, None]
    condition = torch.linalg.cond(torch.where(bare, eye, normal + 1e-12 * eye)).sqrt()
    return centre + step * solved, left, condition


@torch.no_grad()
def label_values(
    source: Source, target: Target, cells: Cells, values: RowValues
) -> tuple[Tensor, Tensor]:
    """(n, L) and (m, L) h of a target row like each row, under each label."""
    found = efficient_values(source, target, cells, values)
    terms = _Terms(cells.weight.clamp_min(LEAST_WEIGHT), float(source.total), float(target.total))
    labelled = chances(Labelling.of(source, target), source, target)

    def of(sample: Source | Target, cell: Tensor, value: Tensor, chance: Tensor) -> Tensor:
        use, base = terms.smooth(sample.posterior, cell, value, chance)
        smooth = _on_rows(use, found.multiplier, cell) + base
        every = [torch.full_like(cell, y) for y in range(value.shape[1])]
        told = [
            terms.value(cell, y, column, chance, smooth, found.multiplier)[0]
            for y, column in zip(every, value.T, strict=True)
        ]
        return torch.stack(told, dim=1)

    here = of(source, cells.source, values.source, labelled[0])
    return here, of(target, cells.target, values.target, labelled[1])


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
