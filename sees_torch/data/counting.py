"""Rows that agree carry the same information: count them once.

These functions have data-dependent shapes, so they stay at the edge of the library; everything
after them works on tensors of known shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LIMIT = 2**62
_ROWS = 2**14
"""Rows that are packed together: a temporary of all of them would be large."""

COPIES = 64
"""Copies of one row that are dealt to folds one by one."""


@dataclass(frozen=True)
class Groups:
    """Which rows are equal.

    Attributes:
        of_row: (n,) the group of every row.
        first: (U,) the first row of every group.
    """

    of_row: Tensor
    first: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def counted(self, count: Tensor) -> Groups:
        """The groups that have any mass; rows of the others are put into one that is cut off."""
        kept = self.sum(count) > 0
        place = torch.where(kept, kept.cumsum(0) - 1, int(kept.sum()))
        return Groups(place[self.of_row], self.first[kept])

    def sum(self, per_row: Tensor) -> Tensor:
        """Sums of a (n, ...) tensor over the rows of each group, (U, ...)."""
        total = per_row.new_zeros((len(self) + 1, *per_row.shape[1:]))
        return total.index_add(0, self.of_row, per_row)[:-1]


def group_rows(codes: Tensor, sizes: Sequence[int], others: Sequence[Tensor] = ()) -> Groups:
    """Groups of rows that agree in every code and in every column of `others`.

    Args:
        codes: (n, d) int64, column j in 0 .. sizes[j] - 1.
        sizes: number of codes of each column.
        others: (n,) tensors of any dtype, compared exactly.
    """
    columns, counts = [], []
    for other in others:
        levels, column = torch.unique(other, return_inverse=True)
        columns.append(column)
        counts.append(len(levels))
    key, radix = row_keys(codes, sizes)
    return group_keys(*combined_keys([key, *columns], [radix, *counts]))


def combined_keys(columns: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, int]:
    """(n,) int64 keys that order rows by one column after the other, and a bound of the keys.

    Args:
        columns: (n,) int64 each, column j in 0 .. sizes[j] - 1.
        sizes: number of values of each column.
    """
    key, radix = columns[0], sizes[0]
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        key, radix = _room(key, radix, size)
        key, radix = torch.add(column, key, alpha=size), radix * size
    return key, radix


def chance_rows(n: int, number: int, device: torch.device) -> Tensor:
    """(number,) rows out of n, as if drawn at random with replacement, always the same ones."""
    return _mix(torch.arange(number, device=device)).remainder(n)


def row_keys(codes: Tensor, sizes: Sequence[int]) -> tuple[Tensor, int]:
    """(n,) int64 keys that order rows by their codes, and a bound of the keys.

    Args:
        codes: (n, d) integers, column j in 0 .. sizes[j] - 1.
        sizes: number of codes of each column.
    """
    key = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
    radix, begin = 1, 0
    while begin < len(sizes):
        # As many columns at once as one key holds.
        end, size = begin + 1, sizes[begin]
        while end < len(sizes) and radix * size * sizes[end] < _LIMIT:
            size, end = size * sizes[end], end + 1
        key, radix = _room(key, radix, size)
        strides = [math.prod(sizes[j + 1 : end]) for j in range(begin, end)]
        stride = torch.tensor(strides, device=codes.device)
        parts = [(part[:, begin:end] * stride).sum(dim=1) for part in codes.split(_ROWS)]
        key, radix = key * size + torch.cat(parts), radix * size
        begin = end
    return key, radix


def _room(key: Tensor, radix: int, size: int) -> tuple[Tensor, int]:
    """The keys, replaced by their ranks (at most n) where mixed radix would overflow."""
    if radix * size < _LIMIT:
        return key, radix
    distinct, rank = torch.unique(key, return_inverse=True)
    return rank, len(distinct)


def group_keys(key: Tensor, radix: int | None = None) -> Groups:
    """Groups of equal int64 keys, in the order of the keys.

    Few possible keys (0 .. radix - 1, where it is given) are looked up, many are sorted.
    """
    n = len(key)
    if radix is not None and radix <= n:
        present = torch.bincount(key, minlength=radix) > 0
        of_row = (present.cumsum(0) - 1)[key]
        first = torch.full((int(present.sum()),), n, device=key.device)
        rows = torch.arange(n, device=key.device)
        return Groups(of_row, first.scatter_reduce(0, of_row, rows, "amin"))
    sorted_key, order = key.sort(stable=True)
    begins = torch.ones(n, dtype=torch.bool, device=key.device)
    begins[1:] = sorted_key[1:] != sorted_key[:-1]
    of_row = torch.empty_like(order).scatter_(0, order, begins.cumsum(0) - 1)
    return Groups(of_row, order[begins])


def deal(count: Tensor, folds: int) -> Tensor:
    """(n, folds) share of every row in each fold when rows are dealt out in turn.

    A row of multiplicity c is dealt like c equal rows: one unit to each fold in turn, going on
    where the row before it ended. Fewer than ten rows a fold are too few to leave any out: then
    every row is in all folds alike.
    """
    if float(count.sum()) < 10 * folds:
        return torch.full((len(count), folds), 1 / folds, dtype=count.dtype, device=count.device)
    end = count.cumsum(0)
    fold = torch.arange(folds, dtype=end.dtype, device=end.device)

    def dealt(upto: Tensor) -> Tensor:
        return (upto // folds)[:, None] + (upto[:, None] % folds - fold).clamp(0.0, 1.0)

    received = dealt(end) - dealt(end - count)
    return torch.where(count[:, None] > 0, received / count[:, None].clamp_min(1e-37), 1 / folds)


def scatter_folds(key: Tensor, count: Tensor, folds: int) -> Tensor:
    """(n, folds) share of every row in each fold when each copy goes to a fold of its own.

    Copies of equal keys are numbered, and the number and the key decide the fold as if at random:
    equal rows are not spread evenly, which would make every fold a copy of the others. Of more
    than COPIES, as many go to each fold as chance would send there. Neither the order of rows nor
    their merging changes what a fold holds. Fewer than ten rows a fold are too few to leave any
    out: then every row is in all folds alike.
    """
    if float(count.sum()) < 10 * folds:
        return torch.full((len(count), folds), 1 / folds, dtype=count.dtype, device=count.device)
    groups = group_keys(key)
    keys, total = key[groups.first], groups.sum(count)
    copies = total.clamp_max(COPIES).ceil().to(torch.int64)
    row = torch.repeat_interleave(copies)
    number = torch.arange(len(row), device=key.device) - (copies.cumsum(0) - copies)[row]
    fold = _mix(keys[row] + _mix(number)).remainder(folds)
    # The last copy of a fractional multiplicity is a part of one.
    part = torch.where(number == copies[row] - 1, total[row] - (copies[row] - 1), 1.0)
    sums = total.new_zeros(len(total) * folds)
    sums = sums.index_add(0, row * folds + fold, part.to(total.dtype)).reshape(-1, folds)
    many = (total > COPIES).nonzero().squeeze(1)
    noise = _normal(_mix(keys[many, None] + _mix(-1 - torch.arange(folds, device=key.device))))
    noise = (noise - noise.mean(dim=1, keepdim=True)).to(total.dtype)
    even = total[many, None] / folds
    sums = sums.index_copy(0, many, (even + even.sqrt() * noise).clamp_min(0.0))
    whole = sums.sum(dim=1, keepdim=True)
    share = torch.where(whole > 0, sums / whole.clamp_min(1e-37), 1 / folds)
    return share[groups.of_row]


def _normal(bits: Tensor) -> Tensor:
    """Standard normal numbers from random int64."""
    uniform = (_shift(bits, 12).to(torch.float64) + 0.5) / 2**52
    return math.sqrt(2) * torch.erfinv(2 * uniform - 1)


def content_hash(*columns: Tensor, salt: Tensor | None = None) -> Tensor:
    """A pseudo-random int64 for every row that depends on its content only.

    Row order, column order and batching do not change it, so folds and random subsets drawn
    from it keep estimates invariant to all three.

    Args:
        columns: (n, k) tensors of any dtype.
        salt: (k,) int64, a number per column that moves with it; without it rows that hold the
            same values in other columns are alike.
    """
    total = torch.zeros(len(columns[0]), dtype=torch.int64, device=columns[0].device)
    for block in columns:
        bits = block.to(torch.float64).contiguous().view(torch.int64)
        if salt is not None:
            bits = bits + _mix(salt)
        total = total + _mix(bits).sum(dim=1)
    return _mix(total)


def hash_codes(codes: Tensor, sizes: Sequence[int], salt: Tensor) -> Tensor:
    """`content_hash` of codes, looked up: column j is in 0 .. sizes[j] - 1."""
    cards = torch.tensor(sizes, device=codes.device)
    start = cards.cumsum(0) - cards
    column = torch.repeat_interleave(cards, output_size=sum(sizes))
    level = torch.arange(len(column), device=codes.device) - start[column]
    mixed = _mix(level.to(torch.float64).view(torch.int64) + _mix(salt)[column])
    parts = [mixed[part + start].sum(dim=1) for part in codes.split(_ROWS)]
    return _mix(torch.cat(parts))


def hash_columns(columns: Sequence[Tensor]) -> Tensor:
    """(n,) int64 hash of every row of (n,) columns, their order included."""
    total: Tensor | None = None
    for column in columns:
        bits = column.contiguous()
        bits = bits.view(torch.int64) if bits.dtype == torch.float64 else bits.to(torch.int64)
        total = bits if total is None else _mix(total) ^ bits
    assert total is not None
    return total


def _mix(bits: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64 with wrap-around."""
    bits = bits + -7046029254386353131
    bits = (bits ^ _shift(bits, 30)) * -4658895280553007687
    bits = (bits ^ _shift(bits, 27)) * -7723592293110705685
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, by: int) -> Tensor:
    """Logical right shift: int64 has only the arithmetic one."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
