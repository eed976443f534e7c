"""Tables of every pair of features, many pairs a pass: for s = 1 and many entries.

A pass counts the joint cells of two lines of packed features; sums of them are the tables of every
feature of the one with every feature of the other.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from sees_torch.statistics.counted import CountedRows

CHUNK = 2**16
"""Entries that are counted together: what stays in cache."""


def table_cells(rows: CountedRows) -> int:
    """Numbers in the tables of all pairs."""
    return len(rows.blocks) * rows.count.shape[1] * sum(rows.sizes) ** 2


def joint_cells(rows: CountedRows) -> list[int]:
    """Numbers in the table of every pair of lines; a line with itself has only its own cells."""
    cells = rows.packing.cells
    every = combinations_with_replacement(range(len(cells)), 2)
    return [len(rows.blocks) * cells[i] * (cells[j] if i != j else 1) for i, j in every]


def pair_tables(rows: CountedRows) -> Tensor:
    """(F, L + 1, A, A) counts of every level of a feature with every level of a later one."""
    n_labels, columns = len(rows.scale), rows.count.shape[1]
    lines, cells = rows.lines, rows.packing.cells
    at = rows.packing.levels()
    within = [rows.packing.indicators(line, lines.device) for line in range(len(lines))]
    total = sum(rows.sizes)
    tables = rows.count.new_zeros(rows.n_predictions, columns, n_labels, total, total)
    weight = rows.count.T.contiguous()
    for i, j in combinations_with_replacement(range(len(lines)), 2):
        keys = [rows.block, lines[i]] if i == j else [rows.block, lines[i], lines[j]]
        shape = (len(rows.blocks), *([cells[i]] if i == j else [cells[i], cells[j]]))
        joint = _counts(keys, shape, weight)
        left, right = (within[k].to(joint.dtype) for k in (i, j))
        found = (joint[:, :, None] * left) @ left.T if i == j else left @ joint @ right.T
        found = found.reshape(columns, n_labels, rows.n_predictions, *found.shape[2:])
        tables[..., at[i], at[j]] = found.permute(2, 0, 1, 3, 4)
    return tables.flatten(0, 1)


def level_sums(rows: CountedRows, per_entry: Tensor) -> Tensor:
    """(A, L + 1) sums of a (E,) tensor over the entries of every level of every feature."""
    n_labels, label = len(rows.scale), rows.label
    parts = [
        rows.packing.indicators(number, label.device).to(per_entry.dtype)
        @ _counts([label, line], (n_labels, cells), per_entry[None])[0].T
        for number, (line, cells) in enumerate(zip(rows.lines, rows.packing.cells, strict=True))
    ]
    return torch.cat(parts)


def _counts(keys: list[Tensor], shape: tuple[int, ...], weights: Tensor) -> Tensor:
    """(C, ...) sums of weights (C, E) by the keys of the entries."""
    sums = weights.new_zeros(len(weights), math.prod(shape))
    for begin in range(0, weights.shape[1], CHUNK):
        here = slice(begin, begin + CHUNK)
        place, *others = (key[here] for key in keys)
        for other, size in zip(others, shape[1:], strict=True):
            place = torch.add(other, place, alpha=size)
        for sum_, weight in zip(sums, weights, strict=True):
            sum_.scatter_add_(0, place, weight[here])
    return sums.reshape(len(weights), *shape)
