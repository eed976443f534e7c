"""Marginal tables of every kappa, each formed once, and what all J inside them need of it.

A kappa of k features in order is a left part, its first k // 2 features, and a right part. One
matrix product of the indicators of left cells with those of right cells gives the tables of many
kappas; a J inside kappa takes i features from the left part and s - i from the right one, so sums
over the cells of kappa that agree on J are products with 0/1 matrices from both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.packing import exact_dtype
from sees_torch.statistics.subsets import Subsets, all_subsets, subsets_of

CHUNK = 2**15
"""Entries whose indicators are formed together."""
WIDTH = 96
"""Left cells of one product: enough to be efficient, few enough to skip most overlapping parts."""
BLOCK = 2**23
"""Bytes of the tables that probes look up at a time: what a cache holds."""
LIMIT = 2**62
"""Cells of one kappa that int64 can number."""


@dataclass(frozen=True)
class Sums:
    """Of every J: product (A, L + 1, L + 1), mass (A, L + 1) and push (b, S, L)."""

    product: Tensor
    mass: Tensor
    push: Tensor


def indicators(codes: Tensor, grid: tuple[Tensor, Tensor], out: Tensor) -> Tensor:
    """(A, r) one where an entry is in a cell, written into `out`."""
    members, levels = grid
    if not members.shape[1]:
        return out.fill_(1.0)
    for i, (member, level) in enumerate(zip(members.unbind(1), levels.unbind(1), strict=True)):
        value, wanted = codes.index_select(0, member), level[:, None].to(codes.dtype)
        if i == 0:
            torch.eq(value, wanted, out=out)
        else:
            out.mul_(value == wanted)
    return out


def by_tables(
    rows: CountedRows, subsets: Subsets, probe: Tensor, memory: int, whole: Tensor | None = None
) -> Sums:
    """The tables by matrix products, or cut out of `whole`, the counts of all pairs of levels."""
    device, n_labels, columns = rows.block.device, len(rows.scale), rows.count.shape[1]
    sparsity, d = subsets.members.shape[1], len(rows.sizes)
    order = min(2 * sparsity, d)
    groups = rows.n_predictions * columns
    to_cells = _Marginal(rows.sizes, sparsity, order, device)
    to_subsets = _Marginal((1,) * d, sparsity, order, device)
    first, second = torch.triu_indices(n_labels, n_labels, device=device)
    channels = rows.scale.new_zeros(len(first) + n_labels, subsets.total_cells)
    push = rows.scale.new_zeros(len(probe), n_labels - 1, len(subsets))
    group = rows.block[probe] % rows.n_predictions * columns
    share = rows.count[probe] / rows.count[probe].sum(dim=1, keepdim=True)
    probed = rows.codes_of(probe)
    rows = rows if whole is not None else rows.ordered()
    every = [all_subsets(rows.sizes, size, device) for size in (order // 2, order - order // 2)]
    for block in _blocks(rows.sizes, order, memory // (32 * groups * n_labels), device):
        (left, _), (right, _) = block
        cells = [_Part.cells(*side, all_of) for side, all_of in zip(block, every, strict=True)]
        if whole is None:
            tables = _dense_tables(rows, left, right, memory)
        else:
            tables = whole[:, :, cells[0].place[:, None], cells[1].place]
        tables = tables * rows.scale[:, None, None] * _disjoint(left, right)
        pairs = (tables[:, first] * tables[:, second]).sum(dim=0)
        channels += to_cells(torch.cat([pairs, tables.sum(dim=0)]), *cells)
        bare = [_Part.whole(*side) for side in block]
        at_left, at_right = (part.cell_of_rows(probed) for part in (left, right))
        step = max(1, min(memory, BLOCK) // (16 * len(left) * len(right) * n_labels))
        for some in torch.arange(len(probe), device=device).split(step):
            here, there = at_left[some, :, None], at_right[some, None, :]
            own = tables[group[some, None, None], :-1, here, there]
            if columns > 1:
                own = own * share[some, 0, None, None, None]
            for c in range(1, columns):
                more = tables[group[some, None, None] + c, :-1, here, there]
                own = own + more * share[some, c, None, None, None]
            flat = own.permute(0, 3, 1, 2).flatten(0, 1)
            push[some] += to_subsets(flat, *bare).reshape(len(some), n_labels - 1, -1)
    product = rows.scale.new_zeros(subsets.total_cells, n_labels, n_labels)
    product[:, first, second] = channels[: len(first)].T
    product[:, second, first] = channels[: len(first)].T
    kappas = math.comb(d - sparsity, order - sparsity)
    return Sums(product, channels[len(first) :].T / kappas, push.mT)


def _dense_tables(rows: CountedRows, left: Subsets, right: Subsets, memory: int) -> Tensor:
    """(F, L + 1, A, A') count of every pair of cells."""
    columns = rows.count.shape[1]
    n_left, n_right = left.total_cells, right.total_cells
    step = max(1, min(CHUNK, memory // (16 * (n_left + n_right))))
    dtype = exact_dtype(rows.largest * step)
    grids = left.grid(), right.grid()
    here, there = (
        torch.empty(cells, step, dtype=dtype, device=rows.codes.device)
        for cells in (n_left, n_right)
    )
    tables = rows.scale.new_zeros(rows.n_predictions * columns, len(rows.scale), n_left, n_right)
    for label, prediction, entries in rows.slices():
        for begin in range(entries.start, entries.stop, step):
            end = min(begin + step, entries.stop)
            codes = rows.codes[:, begin:end]
            a = indicators(codes, grids[0], here[:, : end - begin])
            b = indicators(codes, grids[1], there[:, : end - begin])
            for column in range(columns):
                one = a
                if rows.largest > 1:
                    one = a * rows.count[begin:end, column].to(dtype)
                tables[prediction * columns + column, label] += one @ b.T
    return tables


def _disjoint(left: Subsets, right: Subsets) -> Tensor | float:
    """(A, A') one where all features of the left part come before those of the right one."""
    if not left.members.shape[1]:
        return 1.0
    return left.grid()[0][:, -1:] < right.grid()[0][:, :1].T


@dataclass(frozen=True)
class _Part:
    """Cells of some subsets: features, levels, and place in the list of all subsets' cells."""

    members: Tensor
    levels: Tensor
    place: Tensor

    @classmethod
    def cells(cls, subsets: Subsets, number: Tensor, every: Subsets) -> _Part:
        """All cells of subsets that are at `number` in the list of every subset of their size."""
        owner = subsets.of_cell()
        within = torch.arange(len(owner), device=owner.device) - subsets.starts()[owner]
        return cls(*subsets.grid(), every.starts()[number][owner] + within)

    @classmethod
    def whole(cls, subsets: Subsets, number: Tensor) -> _Part:
        """The subsets themselves, as if each had one cell."""
        return cls(subsets.members, torch.zeros_like(subsets.members), number)

    def onto(self, values: Tensor, inner: Subsets) -> Tensor:
        """(c, x, A) sums of (c, x, cells) values over the cells that agree with an inner cell."""
        if inner.members.shape[1] == self.members.shape[1]:
            none = values.new_zeros(*values.shape[:2], inner.total_cells)
            return none.index_copy_(2, self.place, values)
        if not inner.members.shape[1]:
            return values.sum(dim=2, keepdim=True)
        return values @ self._agree(inner).to(values.dtype).T

    def _agree(self, inner: Subsets) -> Tensor:
        """(A, cells) bool, cells of fewer features that agree with these."""
        members, levels = inner.grid()
        agree = torch.ones(len(members), len(self.place), dtype=torch.bool, device=members.device)
        for member, level in zip(members.unbind(1), levels.unbind(1), strict=True):
            found = torch.zeros_like(agree)
            for own, at in zip(self.members.unbind(1), self.levels.unbind(1), strict=True):
                found |= (member[:, None] == own) & (level[:, None] == at)
            agree &= found
        return agree


def _blocks(
    sizes: tuple[int, ...], order: int, room: int, device: torch.device
) -> Iterator[tuple[tuple[Subsets, Tensor], tuple[Subsets, Tensor]]]:
    """Left parts, a few at a time, each with all right parts that begin after the first of them.

    Both come with their numbers in the list of all subsets of their size.
    """
    d, n_left = len(sizes), order // 2
    rights = list(combinations(range(d), order - n_left))
    lefts = list(enumerate(combinations(range(d), n_left)))
    lefts = [(i, part) for i, part in lefts if max(part, default=-1) < d - (order - n_left)]
    lefts.sort(key=lambda numbered: numbered[1][::-1])
    begin = 0
    while begin < len(lefts):
        after = max(lefts[begin][1], default=-1)
        skipped = sum(min(part, default=d) <= after for part in rights)
        right = subsets_of(rights[skipped:], sizes, device)
        end, held = begin, 0
        while end < len(lefts):
            held += math.prod(sizes[j] for j in lefts[end][1])
            if end > begin and held > min(WIDTH, room // right.total_cells):
                break
            end += 1
        numbers, parts = zip(*lefts[begin:end], strict=True)
        yield (
            (subsets_of(parts, sizes, device), torch.tensor(numbers, device=device)),
            (right, torch.arange(skipped, len(rights), device=device)),
        )
        begin = end


class _Marginal:
    """Sums over the cells of kappa = left and right part that agree on J, for every J."""

    def __init__(
        self, sizes: tuple[int, ...], sparsity: int, order: int, device: torch.device
    ) -> None:
        n_left = order // 2
        features = list(combinations(range(len(sizes)), sparsity))
        _, levels = all_subsets(sizes, sparsity, device).grid()
        owner = all_subsets(sizes, sparsity, device).of_cell()
        self.splits = []
        for i in range(max(0, sparsity - (order - n_left)), min(sparsity, n_left) + 1):
            split = []
            for taken in (slice(0, i), slice(i, sparsity)):
                inner = all_subsets(sizes, len(range(sparsity)[taken]), device)
                place = {
                    part: number
                    for number, part in enumerate(
                        combinations(range(len(sizes)), inner.members.shape[1])
                    )
                }
                which = torch.tensor([place[part[taken]] for part in features], device=device)
                within = (levels[:, taken] * inner.strides[which[owner]]).sum(dim=1)
                split.append((inner, inner.starts()[which[owner]] + within))
            self.splits.append(split)

    def __call__(self, values: Tensor, left: _Part, right: _Part) -> Tensor:
        """(c, A) sums for every cell of every J of (c, left cells, right cells) values."""
        total: Tensor | float = 0.0
        for (inner_left, at_left), (inner_right, at_right) in self.splits:
            # The side that leaves less is summed first.
            if inner_right.total_cells <= inner_left.total_cells:
                found = left.onto(right.onto(values, inner_right).mT, inner_left).mT
            else:
                found = right.onto(left.onto(values.mT, inner_left).mT, inner_right)
            total = total + found[:, at_left, at_right]
        assert isinstance(total, Tensor)
        return total


def by_listing(rows: CountedRows, subsets: Subsets, probe: Tensor) -> Sums:
    """The same tables one kappa at a time, as lists of cells: for features of many levels."""
    n_labels, (n_entries, columns) = len(rows.scale), rows.count.shape
    sparsity, d = subsets.members.shape[1], len(rows.sizes)
    order = min(2 * sparsity, d)
    groups = rows.n_predictions * columns
    block = rows.block
    label = rows.label
    column = block % rows.n_predictions * columns
    column = column[:, None] + torch.arange(columns, device=column.device)
    mass = rows.count * rows.scale[label][:, None]
    share = rows.count[probe] / rows.count[probe].sum(dim=1, keepdim=True)
    place = {part: number for number, part in enumerate(combinations(range(d), sparsity))}
    ends = subsets.starts()
    product = mass.new_zeros(subsets.total_cells, n_labels, n_labels)
    held = mass.new_zeros(subsets.total_cells, n_labels)
    push = mass.new_zeros(len(probe), len(subsets), n_labels - 1)
    everyone = torch.arange(n_entries, device=block.device)
    for kappa in combinations(range(d), order):
        cell, n_cells = torch.zeros_like(block), 1
        for j in kappa:
            if n_cells * rows.sizes[j] >= LIMIT:
                n_cells, cell = n_entries, _ranks(cell)
            cell, n_cells = cell * rows.sizes[j] + rows.codes[j], n_cells * rows.sizes[j]
        if n_cells > n_entries:
            n_cells, cell = n_entries, _ranks(cell)
        at = ((cell * groups)[:, None] + column) * n_labels + label[:, None]
        tables = mass.new_zeros(n_cells * groups * n_labels)
        tables = tables.index_add_(0, at.reshape(-1), mass.reshape(-1))
        tables = tables.reshape(n_cells, groups, n_labels)
        someone = torch.zeros_like(cell[:n_cells]).scatter_(0, cell, everyone)
        squares, sums = tables.mT @ tables, tables.sum(dim=1)
        own = torch.einsum("bc,bcy->by", share, tables[cell[probe][:, None], column[probe], :-1])
        for inner in combinations(kappa, sparsity):
            number = place[inner]
            at_inner = ends[number].expand(n_cells)
            for j, stride in zip(inner, subsets.strides[number].unbind(), strict=True):
                at_inner = at_inner + rows.codes[j][someone].to(torch.int64) * stride
            product.index_add_(0, at_inner, squares)
            held.index_add_(0, at_inner, sums)
            push[:, number] += own
    return Sums(product, held / math.comb(d - sparsity, order - sparsity), push)


def _ranks(key: Tensor) -> Tensor:
    """(n,) the number of different smaller keys."""
    ordered, order = key.sort()
    new = torch.zeros_like(order)
    new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0))
