"""Source and target as one list of entries with their multiplicities.

An entry is a row of codes with a label and, for hard predictions, a prediction. The target enters
as one more label, the last: every product of tables that SEES-d needs (source with source, source
with target, target with target) is then one extended product. Counting has data-dependent shapes;
what follows it has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.counting import Groups, chance_rows, combined_keys, group_keys
from sees_torch.statistics.packing import Packing

PROBES = 512
"""Entries that stand for all where noise is measured."""
MANY = 2**18
"""Of more entries than this, equal ones are merged only if a part shows that there are many."""
_SAMPLE = 2**14
_ROWS = 2**14
"""Rows that are looked at together where a temporary of all of them would be large."""
_ODD = -7046029254386353131


@dataclass(frozen=True)
class CountedRows:
    """Entries of both samples.

    Attributes:
        lines: (G, E) codes of the features, packed; levels renumbered to those that occur.
        packing: how.
        count: (E, C) multiplicity; with soft predictions, the part of it on each of the C = F
            predictions, else C = 1.
        square: (E,) multiplicity times the squared length of the prediction vector, which is 1 for
            hard predictions.
        block: (E,) label times n_predictions plus prediction.
        blocks: entries of each block; soft entries have one block a label.
        distinct: entries differ, and are ordered by block, then by codes. Else they are rows as
            they came, hardly any two of them equal.
        scale: (L + 1,) share of its sample that a multiplicity of one is, by label.
        largest: the largest multiplicity, infinite unless all are whole numbers.
        soft: rows spread their mass over predictions.
        features: positions in the schema of the packed features; columns in which source and
            target have no level in common are left out, no table that holds one could match.
        levels: per feature, the schema's code of every level that occurs.
    """

    lines: Tensor
    packing: Packing
    count: Tensor
    square: Tensor
    block: Tensor
    blocks: tuple[int, ...]
    distinct: bool
    scale: Tensor
    largest: float
    soft: bool
    features: tuple[int, ...]
    levels: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.block)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Levels that occur, per feature."""
        return self.packing.sizes

    @property
    def n_predictions(self) -> int:
        """Blocks a label has."""
        return len(self.blocks) // len(self.scale)

    @cached_property
    def codes(self) -> Tensor:
        """(d, E) small integers."""
        return self.packing.unpack(self.lines)

    def codes_of(self, entries: Tensor) -> Tensor:
        """(r, d) int64 codes of some entries."""
        return self.packing.unpack(self.lines[:, entries]).T.to(torch.int64)

    @cached_property
    def label(self) -> Tensor:
        """(E,) label of every entry, the last one for the target's."""
        if self.n_predictions == 1:
            return self.block
        return torch.div(self.block, self.n_predictions, rounding_mode="floor")

    def slices(self) -> list[tuple[int, int, slice]]:
        """(label, prediction, entries) of every block; the entries must be in order."""
        ends = accumulate(self.blocks)
        return [
            (*divmod(place, self.n_predictions), slice(end - size, end))
            for place, (size, end) in enumerate(zip(self.blocks, ends, strict=True))
        ]

    def ordered(self) -> CountedRows:
        """The entries ordered by block."""
        if self.distinct:
            return self
        order = self.block.argsort(stable=True)
        return replace(
            self,
            lines=self.lines.index_select(1, order),
            count=self.count[order],
            square=self.square[order],
            block=self.block[order],
        )

    def probe(self) -> Tensor:
        """(b,) entries that stand for all; which, depends on their content only."""
        if self.distinct:
            stride = -(-len(self) // PROBES)
            return torch.arange(0, len(self), stride, device=self.block.device)
        # Multilinear hashing: products with odd numbers, wrapped around.
        key, odd = self.block * _ODD, _ODD
        for line in self.lines:
            odd = _wrapped(odd * _ODD)
            key = key.add_(line, alpha=odd)
        return key.mul_(_ODD).topk(PROBES, largest=False).indices


def count_samples(source: Source, target: Target, soft: bool) -> CountedRows:
    """The entries of both samples, equal ones merged unless there are hardly any.

    Args:
        source: the labelled sample.
        target: the unlabelled sample.
        soft: a row puts mass p(f|x) on every prediction f instead of all of it on the likeliest.
    """
    samples, n_labels = (source, target), len(source.classes)
    label = torch.cat([source.labels, source.labels.new_full((len(target),), n_labels)])
    weight = torch.cat([sample.count for sample in samples])
    n_predictions = 1 if soft else n_labels
    n_blocks, block = n_predictions * (n_labels + 1), label
    if not soft:
        block = label * n_labels + torch.cat([sample.predictions for sample in samples])
    packing, lines, levels, features = _packed(source, target)
    proba = torch.cat([sample.proba.detach() for sample in samples]) if soft else None
    groups = _equal_entries(packing, lines, block, n_blocks)
    if groups is None:
        total, square, count = weight, weight, weight[:, None]
        if proba is not None:
            count, square = proba * weight[:, None], _lengths(proba) * weight
    else:
        total = square = groups.sum(weight)
        count = total[:, None]
        if proba is not None:
            count = groups.sum(proba * weight[:, None])
            square = groups.sum(_lengths(proba) * weight)
        lines, block = lines.index_select(1, groups.first), block[groups.first]
    if not bool((total > 0).all()):
        kept = (total > 0).nonzero().squeeze(1)
        lines, block, total = lines.index_select(1, kept), block[kept], total[kept]
        count, square = count[kept], square[kept]
    whole = not soft and bool((total == total.round()).all())
    totals = [source.total] * n_labels + [target.total]
    return CountedRows(
        lines,
        packing,
        count,
        square,
        block,
        tuple(torch.bincount(block, minlength=n_blocks).tolist()),
        groups is not None,
        torch.stack(totals).reciprocal(),
        float(total.max()) if whole else torch.inf,
        soft,
        features,
        levels,
    )


def _lengths(proba: Tensor) -> Tensor:
    """(n,) squared lengths of rows; a sum over few columns is several times slower."""
    return torch.einsum("nl,nl->n", proba, proba)


def _packed(
    source: Source, target: Target
) -> tuple[Packing, Tensor, tuple[Tensor, ...], tuple[int, ...]]:
    """Features in lines, (G, n + m) cells, levels that occur, and the features that are kept."""
    packing = Packing.of(source.schema.cardinalities)
    parts = [packing.pack(sample.rows.codes) for sample in (source, target)]
    found: list[list[Tensor]] = []
    for sample, lines in zip((source, target), parts, strict=True):
        occurs: list[Tensor] = []
        for line, sizes in zip(lines, packing.lines, strict=True):
            held = torch.bincount(line, sample.count, minlength=math.prod(sizes)) > 0
            joint = held.reshape(sizes)
            every = range(len(sizes))
            occurs += [
                joint.flatten() if len(sizes) == 1 else joint.any(dim=[k for k in every if k != j])
                for j in every
            ]
        found.append(occurs)
    pairs = list(zip(*found, strict=True))
    shared = tuple(bool((here & there).any()) for here, there in pairs)
    levels = tuple((here | there).nonzero().squeeze(1) for here, there in pairs)
    features = tuple(j for j, keep in enumerate(shared) if keep)
    packing, lines = packing.compacted(parts, levels, shared)
    return packing, lines, tuple(levels[j] for j in features), features


def _equal_entries(packing: Packing, lines: Tensor, block: Tensor, n_blocks: int) -> Groups | None:
    """Groups of equal entries; None where there are many entries and hardly two are equal."""
    n = len(block)
    columns, sizes = [block, *lines], [n_blocks, *packing.cells]
    if n > MANY:
        some = chance_rows(n, _SAMPLE, block.device)
        key, _ = combined_keys([column[some] for column in columns], sizes)
        counts = torch.unique(key, return_counts=True)[1]
        pairs = float((counts * (counts - 1)).sum()) / 2
        # So many pairs would agree if all n rows were different, since some are drawn twice.
        if pairs < 2 * len(some) ** 2 / (2 * n):
            return None
    return group_keys(*combined_keys(columns, sizes))


def _wrapped(number: int) -> int:
    """The number as int64 holds it."""
    return (number + 2**63) % 2**64 - 2**63


def shared_features(
    codes: Tensor, sizes: tuple[int, ...], source: Source, target: Target
) -> list[int]:
    """Features in which some level has mass in both samples."""
    n = len(source)
    here = occurring(codes[:n][source.count > 0], sizes)
    there = occurring(codes[n:][target.count > 0], sizes)
    return [j for j, both in enumerate((here & there).split(sizes)) if bool(both.any())]


def compact_levels(
    codes: Tensor, cardinalities: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...], tuple[Tensor, ...]]:
    """Codes renumbered to the levels that occur, their number, and the original of each."""
    return _renumbered(codes, occurring(codes, cardinalities), cardinalities)


def occurring(codes: Tensor, cardinalities: tuple[int, ...]) -> Tensor:
    """(sum of cardinalities,) bool, the levels that occur, feature after feature."""
    start, total = _starts(cardinalities, codes.device), sum(cardinalities)
    found = torch.zeros(total, dtype=torch.int64, device=codes.device)
    for part in codes.split(_ROWS):
        found += torch.bincount((part + start).reshape(-1), minlength=total)
    return found > 0


def _renumbered(
    codes: Tensor, present: Tensor, cardinalities: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...], tuple[Tensor, ...]]:
    by_feature = present.split(cardinalities)
    levels = tuple(here.nonzero().squeeze(1) for here in by_feature)
    # Levels that are the first of their feature already have the number that they would get.
    pairs = zip(by_feature, levels, strict=True)
    if not all(bool(here[: len(found)].all()) for here, found in pairs):
        rank = torch.cat([here.cumsum(0) - 1 for here in by_feature]).to(codes.dtype)
        start = _starts(cardinalities, codes.device)
        codes = torch.cat([rank[part + start] for part in codes.split(_ROWS)])
    return codes, tuple(len(found) for found in levels), levels


def _starts(cardinalities: tuple[int, ...], device: torch.device) -> Tensor:
    sizes = torch.tensor(cardinalities, device=device)
    return sizes.cumsum(0) - sizes
