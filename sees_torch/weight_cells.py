"""The cells of weights that are a table on a few features, or constant per label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import SeesError
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction


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
