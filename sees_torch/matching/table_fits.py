"""Weights of every cell of every feature subset by squared distance, for many targets at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sees_torch.errors import SupportError
from sees_torch.solvers.quadratic import least_squares, nonnegative_quadratic
from sees_torch.solvers.solution import Solution, Status
from sees_torch.statistics.products import SubsetProducts


@dataclass(frozen=True)
class TableFit:
    """Weights of every cell of every subset, and what they leave unexplained."""

    weight: Tensor
    objective: Tensor
    unseen: Tensor
    solution: Solution

    def status(self, subset: int) -> Status:
        if not bool(self.solution.residual[subset].isfinite()):
            return Status.NOT_FINITE
        return Status.CONVERGED if bool(self.solution.converged[subset]) else Status.MAX_STEPS


def fit_tables(many: Sequence[SubsetProducts], constrained: bool) -> list[TableFit]:
    """Weights of all subsets for many targets, in one solve.

    Target mass in cells that the source never visits (tau) cannot be explained by any weight: the
    rest is matched, sum c . w = 1 - tau, and divided by 1 - tau.
    """
    if not many:
        return []
    sizes = [len(products.subsets) for products in many]
    firsts = [0, *accumulate(sizes)]
    pairs = zip(many, firsts, strict=False)
    owner = torch.cat([products.subsets.of_cell() + first for products, first in pairs])
    mass = torch.cat([products.mass for products in many])
    product = torch.cat([products.product for products in many])
    source_mass, target_mass = mass[:, :-1], mass[:, -1]
    gram, right = product[:, :-1, :-1], product[:, :-1, -1]
    zero = mass.new_zeros(firsts[-1])
    visited = source_mass.sum(dim=1) > 0
    unseen = zero.index_add(0, owner, torch.where(visited, 0.0, target_mass)).clamp(0.0, 1.0)
    # Without evidence a cell weighs what its share of the target says, whatever the label.
    ratio = torch.where(visited, target_mass / source_mass.sum(dim=1).clamp_min(1e-37), 0.0)
    centre = ratio[:, None].expand_as(source_mass)
    comparable = unseen < 1 - 1e-9
    if not all(bool(part.any()) for part in comparable.split(sizes)):
        raise SupportError(
            "no cell of any feature subset holds both source and target rows: the two samples "
            "share no level. Check that the columns are coded alike."
        )
    total = torch.where(comparable, 1 - unseen, 1.0)
    if constrained:
        solution = nonnegative_quadratic(gram, right, source_mass, total, owner, centre)
    else:
        value = least_squares(gram, right, source_mass > 0, centre)
        solution = Solution(value, zero, zero, torch.ones_like(comparable), 1)
    weight = solution.value
    explained = torch.einsum("ay,ayz,az->a", weight, gram, weight) - 2 * (right * weight).sum(dim=1)
    objective = zero.index_add(0, owner, explained + product[:, -1, -1])
    objective = torch.where(comparable, objective, torch.inf)
    cells = [len(products.mass) for products in many]
    scaled, value = (t.split(cells) for t in (weight / total[owner][:, None], weight))
    per_subset = [
        t.split(sizes)
        for t in (objective, unseen, solution.multiplier, solution.residual, solution.converged)
    ]
    return [
        TableFit(w, fit, lost, Solution(v, nu, residual, done, solution.steps))
        for w, v, fit, lost, nu, residual, done in zip(scaled, value, *per_subset, strict=True)
    ]
