"""All feature subsets of one size, and the cells of each, as one flat list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from sees_torch.errors import SeesError

MAX_CELLS = 2**26


@dataclass(frozen=True)
class Subsets:
    """S subsets of s features each; their cells lie one subset after the other.

    Attributes:
        members: (S, s) int64 feature positions, ascending.
        strides: (S, s) int64, mixed radix: a cell is the sum of code times stride.
        cells: number of cells of each subset.
    """

    members: Tensor
    strides: Tensor
    cells: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def total_cells(self) -> int:
        return sum(self.cells)

    def starts(self) -> Tensor:
        """(S,) position of the first cell of each subset in the flat list."""
        sizes = torch.tensor(self.cells, device=self.members.device)
        return sizes.cumsum(0) - sizes

    def cells_of(self, subset: int) -> slice:
        """Where the cells of one subset are in the flat list."""
        start = sum(self.cells[:subset])
        return slice(start, start + self.cells[subset])

    def of_cell(self) -> Tensor:
        """(A,) the subset that each cell of the flat list belongs to."""
        sizes = torch.tensor(self.cells, device=self.members.device)
        return torch.repeat_interleave(sizes, output_size=self.total_cells)

    def grid(self) -> tuple[Tensor, Tensor]:
        """(A, s) features and (A, s) levels of every cell of the flat list."""
        owner = self.of_cell()
        rest = torch.arange(self.total_cells, device=owner.device) - self.starts()[owner]
        levels = []
        for stride in self.strides[owner].unbind(dim=1):
            levels.append(rest // stride)
            rest = rest % stride
        none = torch.zeros(len(owner), 0, dtype=torch.int64, device=owner.device)
        return self.members[owner], torch.stack(levels, dim=1) if levels else none

    def cell_of_rows(self, codes: Tensor) -> Tensor:
        """(U, S) position in the flat list of the cell that every row is in."""
        cell = self.starts().expand(len(codes), -1)
        for member, stride in zip(self.members.unbind(1), self.strides.unbind(1), strict=True):
            cell = torch.addcmul(cell, codes[:, member], stride)
        return cell

    def part(self, first: int, last: int) -> Subsets:
        return Subsets(self.members[first:last], self.strides[first:last], self.cells[first:last])


def all_subsets(sizes: tuple[int, ...], order: int, device: torch.device) -> Subsets:
    """Every subset of `order` features, 0 to d."""
    return subsets_of(list(combinations(range(len(sizes)), order)), sizes, device)


def subsets_of(
    members: Sequence[tuple[int, ...]], sizes: tuple[int, ...], device: torch.device
) -> Subsets:
    """These subsets, all of the same number of features.

    Args:
        members: feature positions of each subset, ascending; the empty subset has one cell.
        sizes: number of levels of each feature.
        device: where the tensors live.
    """
    order = len(members[0])
    chosen = torch.tensor(members, dtype=torch.int64, device=device).reshape(len(members), order)
    level_count = torch.tensor(sizes, dtype=torch.int64, device=device)[chosen]
    cells = tuple(math.prod(sizes[j] for j in subset) for subset in members)
    if sum(cells) > MAX_CELLS:
        raise SeesError(
            f"{len(cells)} subsets of {order} features have {sum(cells):.2g} cells, more than "
            f"{MAX_CELLS:.2g}. Lower the sparsity, or merge levels of the widest columns "
            f"(they have {sorted(sizes)[-3:]} levels)."
        )
    ones = torch.ones_like(chosen[:, :1])
    strides = torch.cat([level_count[:, 1:], ones], dim=1).flip(1).cumprod(1).flip(1)
    return Subsets(chosen, strides[:, :order], cells)
