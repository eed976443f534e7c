"""Pairs of entries in one cell of J, weighted by the number of kappa on which they agree.

Two rows that agree on h features, s of them J, agree on C(h - s, k - s) of the kappa. Subsets that
differ in their last feature only are one pass: the pairs in a cell of the first s - 1 features are
weighted once, and the indicators of the levels of every later feature pick from them.
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
from sees_torch.statistics.subsets import Subsets, all_subsets
from sees_torch.statistics.tables import Sums, indicators

SIDE = 1024
"""Entries on either side of a block of pairs."""


@dataclass(frozen=True)
class Cuts:
    """How many entries are in every (prediction, cell, label) of each prefix; probes come last.

    They shape the passes, so they are read from the data once, beforehand.
    """

    sizes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rows: CountedRows, sparsity: int, probe: Tensor) -> Cuts:
        entries = _Entries.of(rows, probe)
        counts = [
            torch.bincount(entries.key(prefix), minlength=entries.keys(prefix))
            for prefix in _prefixes(rows, sparsity)
        ]
        sizes = [len(count) for count in counts]
        return cls(tuple(tuple(part.tolist()) for part in torch.cat(counts).cpu().split(sizes)))


@dataclass(frozen=True)
class _Entries:
    """The entries, and after them the probes as entries of one more label with a mass of one."""

    codes: Tensor
    mass: Tensor
    block: Tensor
    sizes: tuple[int, ...]
    n_labels: int
    n_predictions: int

    @classmethod
    def of(cls, rows: CountedRows, probe: Tensor) -> _Entries:
        block = rows.block
        share = rows.count[probe] / rows.count[probe].sum(dim=1, keepdim=True)
        n_labels, n_predictions = len(rows.scale), rows.n_predictions
        last = n_labels * n_predictions + block[probe] % n_predictions
        return cls(
            torch.cat([rows.codes, rows.codes[:, probe]], dim=1),
            torch.cat([rows.count, share]),
            torch.cat([block, last]),
            rows.sizes,
            n_labels,
            n_predictions,
        )

    def keys(self, prefix: tuple[int, ...]) -> int:
        cells = math.prod(self.sizes[j] for j in prefix)
        return self.n_predictions * cells * (self.n_labels + 1)

    def key(self, prefix: tuple[int, ...]) -> Tensor:
        """(E,) prediction, then cell of the prefix, then label."""
        key = self.block % self.n_predictions
        for j in prefix:
            key = key * self.sizes[j] + self.codes[j]
        label = torch.div(self.block, self.n_predictions, rounding_mode="floor")
        return key * (self.n_labels + 1) + label


@dataclass(frozen=True)
class _Part:
    """Entries of one prediction, cell and label.

    Attributes:
        levels: (A, r) indicators of the levels of all features.
        mass: (r, C).
        weighed: (A', r) those of the features after the prefix; if hard, times the mass.
    """

    levels: Tensor
    mass: Tensor
    weighed: Tensor

    @classmethod
    def of(
        cls, codes: Tensor, mass: Tensor, grid: tuple[Tensor, Tensor], first: int, soft: bool
    ) -> _Part:
        shape = len(grid[0]), codes.shape[1]
        out = torch.empty(shape, dtype=mass.dtype, device=mass.device)
        levels = indicators(codes, grid, out)
        return cls(levels, mass, levels[first:] if soft else levels[first:] * mass[:, 0])

    def spans(self, side: int) -> list[slice]:
        n = len(self.mass)
        return [slice(begin, min(begin + side, n)) for begin in range(0, n, side)]


@dataclass(frozen=True)
class _Pairs:
    """Sums over pairs of entries that are in one cell of a prefix.

    Attributes:
        order: s; extra: k - s.
        side: entries on either side of a block of pairs.
        first: the levels from here on are those of the features after the prefix.
        soft: entries have mass on every prediction, and a pair weighs their inner product.
    """

    order: int
    extra: int
    side: int
    first: int
    soft: bool

    def sum(self, one: _Part, other: _Part) -> Tensor:
        """(levels,) sum over pairs that share the level, times (k - s)!."""
        total = one.levels.new_zeros(len(one.weighed), dtype=torch.float64)
        for here in one.spans(self.side):
            total += (one.weighed[:, here] * self._partners(one, here, other)).sum(dim=1)
        return total

    def at(self, one: _Part, other: _Part, of_feature: Tensor) -> Tensor:
        """(features, r) the same for each entry of `one`, whose level is its own."""
        parts = [
            of_feature @ (one.levels[self.first :, here] * self._partners(one, here, other))
            for here in one.spans(self.side)
        ]
        return torch.cat(parts, dim=1)

    def _partners(self, one: _Part, here: slice, other: _Part) -> Tensor:
        """(levels, r) mass at each level among the partners of entries, by the kappa shared."""
        width, reach = len(one.weighed), here.stop - here.start
        total = one.levels.new_zeros(width, reach, dtype=torch.float64)
        for there in other.spans(self.side):
            beyond = (one.levels[:, here].T @ other.levels[:, there]).sub_(self.order)
            shared = beyond if self.extra else torch.ones_like(beyond)
            for i in range(1, self.extra):
                shared = shared * (beyond - i)
            if self.soft:
                shared = shared * (one.mass[here] @ other.mass[there].T)
            total += other.weighed[:, there] @ shared.T
        return total


def by_matches(rows: CountedRows, subsets: Subsets, cuts: Cuts, probe: Tensor, memory: int) -> Sums:
    """The products of all J by pairs of entries."""
    entries, n_labels = _Entries.of(rows, probe), len(rows.scale)
    device, d, order = rows.codes.device, len(rows.sizes), subsets.members.shape[1]
    extra = min(2 * order, d) - order
    side = max(64, min(SIDE, math.isqrt(memory // 64)))
    dtype = exact_dtype(math.perm(max(d - order, 1), extra) * rows.largest**2 * side)
    grid = all_subsets(rows.sizes, 1, device).grid()
    size = torch.tensor(rows.sizes, device=device)[grid[0][:, 0]]
    starts = subsets.starts()
    product = rows.scale.new_zeros(subsets.total_cells, n_labels, n_labels)
    mass = rows.scale.new_zeros(subsets.total_cells, n_labels)
    push = rows.scale.new_zeros(len(probe), len(subsets), n_labels - 1)
    passed = 0
    for prefix, sizes in zip(_prefixes(rows, order), cuts.sizes, strict=True):
        later = max(prefix, default=-1) + 1
        first = sum(rows.sizes[:later])
        pairs = _Pairs(order, extra, side, first, rows.soft)
        sorting = entries.key(prefix).argsort()
        codes, weight = entries.codes[:, sorting], entries.mass[sorting].to(dtype)
        features = slice(passed, passed + d - later)
        owner = grid[0][first:, 0] - later
        of_feature = torch.arange(d - later, device=device)[:, None] == owner
        of_feature = of_feature.to(torch.float64)
        begins = starts[features][owner] + grid[1][first:, 0]

        for cell, cut in _cells(sizes, n_labels + 1):
            cell = cell % math.prod(rows.sizes[j] for j in prefix)
            at = begins + cell * size[first:]
            *labels, probes = (
                _Part.of(codes[:, here], weight[here], grid, first, rows.soft) for here in cut
            )
            for y, one in enumerate(labels):
                held = one.levels[first:] @ one.mass if rows.soft else one.weighed
                mass[:, y].index_add_(0, at, held.sum(dim=1, dtype=torch.float64))
                for z in range(y, n_labels):
                    product[:, y, z].index_add_(0, at, pairs.sum(one, labels[z]))
                if y < n_labels - 1 and len(probes.mass):
                    who = sorting[cut[-1]] - len(rows)
                    push[who, features, y] = pairs.at(probes, one, of_feature).T
        passed = features.stop
    ways = math.factorial(extra)
    product = product.triu() + product.triu(1).mT
    product *= rows.scale[:, None] * rows.scale / ways
    return Sums(product, mass * rows.scale, push * (rows.scale[:-1] / ways))


def _prefixes(rows: CountedRows, sparsity: int) -> list[tuple[int, ...]]:
    """The first s - 1 features of every J, in the order of the list of J."""
    d = len(rows.sizes)
    return [p for p in combinations(range(d), sparsity - 1) if max(p, default=-1) < d - 1]


def _cells(sizes: tuple[int, ...], n_labels: int) -> Iterator[tuple[int, list[slice]]]:
    """The (prediction, cell) that hold entries, and the range of each label in them."""
    end = 0
    for number in range(len(sizes) // n_labels):
        cut = []
        for size in sizes[number * n_labels : (number + 1) * n_labels]:
            cut.append(slice(end, end + size))
            end += size
        if cut[-1].stop > cut[0].start:
            yield number, cut
