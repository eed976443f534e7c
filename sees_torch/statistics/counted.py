"""Source and target as one list of distinct entries with their multiplicities.

An entry is a row of codes with a label and, for hard predictions, a prediction. The target enters
as one more label, the last: every product of tables that SEES-d needs (source with source, source
with target, target with target) is then one extended product. Counting has data-dependent shapes;
what follows it has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.counting import group_keys, row_keys

_ROWS = 2**14
"""Rows that are looked at together where a temporary of all of them would be large."""


@dataclass(frozen=True)
class CountedRows:
    """Distinct entries of both samples, ordered by label, then prediction, then codes.

    Attributes:
        codes: (d, E) small integers, levels renumbered to those that occur.
        count: (E, C) multiplicity; with soft predictions, the part of it on each of the C = F
            predictions, else C = 1.
        square: (E,) multiplicity times the squared length of the prediction vector, which is 1 for
            hard predictions.
        blocks: entries of each (label, prediction); soft entries have one block a label.
        scale: (L + 1,) share of its sample that a multiplicity of one is, by label.
        largest: the largest multiplicity, infinite unless all are whole numbers.
        soft: rows spread their mass over predictions.
        features: positions in the schema of the lines of `codes`; columns in which source and
            target have no level in common are left out, no table that holds one could match.
        sizes: levels that occur, per feature.
        levels: per feature, the schema's code of every level that occurs.
    """

    codes: Tensor
    count: Tensor
    square: Tensor
    blocks: tuple[int, ...]
    scale: Tensor
    largest: float
    soft: bool
    features: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[Tensor, ...]

    def __len__(self) -> int:
        return self.codes.shape[1]

    @property
    def n_predictions(self) -> int:
        """Blocks a label has."""
        return len(self.blocks) // len(self.scale)

    def slices(self) -> list[tuple[int, int, slice]]:
        """(label, prediction, entries) of every block."""
        ends = accumulate(self.blocks)
        return [
            (*divmod(place, self.n_predictions), slice(end - size, end))
            for place, (size, end) in enumerate(zip(self.blocks, ends, strict=True))
        ]

    def block_of_entries(self) -> Tensor:
        """(E,) label times n_predictions plus prediction."""
        sizes = torch.tensor(self.blocks, device=self.codes.device)
        return torch.repeat_interleave(sizes, output_size=len(self))


def count_samples(source: Source, target: Target, soft: bool) -> CountedRows:
    """The distinct entries of both samples.

    Args:
        source: the labelled sample.
        target: the unlabelled sample.
        soft: a row puts mass p(f|x) on every prediction f instead of all of it on the likeliest.
    """
    samples, n_labels = (source, target), len(source.classes)
    cards = source.schema.cardinalities
    dtype = _smallest(max(cards))
    codes = torch.cat([sample.rows.codes.to(dtype) for sample in samples])
    label = torch.cat([source.labels, source.labels.new_full((len(target),), n_labels)])
    weight = torch.cat([sample.count for sample in samples])
    n_predictions = 1 if soft else n_labels
    block = label
    if not soft:
        block = label * n_labels + torch.cat([sample.predictions for sample in samples])
    key, radix = row_keys(codes, cards, block, n_predictions * (n_labels + 1))
    groups = group_keys(key, radix)
    total = groups.sum(weight)
    kept = (total > 0).nonzero().squeeze(1)
    first = groups.first[kept]
    codes, block, total = codes.index_select(0, first), block[first], total[kept]
    square, count = total, total[:, None]
    if soft:
        proba = torch.cat([sample.proba.detach() for sample in samples])
        count = groups.sum(proba * weight[:, None])[kept]
        square = groups.sum(proba.square().sum(dim=1) * weight)[kept]
    blocks = torch.bincount(block, minlength=n_predictions * (n_labels + 1)).tolist()
    sources = sum(blocks[: n_labels * n_predictions])
    here, there = (occurring(part, cards) for part in (codes[:sources], codes[sources:]))
    codes, sizes, levels = _renumbered(codes, here | there, cards)
    shared = [bool(both.any()) for both in (here & there).split(cards)]
    features = tuple(j for j, keep in enumerate(shared) if keep)
    lines = codes.T if all(shared) else codes.T[list(features)]
    totals = [source.total] * n_labels + [target.total]
    return CountedRows(
        lines.contiguous(),
        count,
        square,
        tuple(blocks),
        torch.stack(totals).reciprocal(),
        float(total.max()) if bool((total == total.round()).all()) and not soft else torch.inf,
        soft,
        features,
        tuple(sizes[j] for j in features),
        tuple(levels[j] for j in features),
    )


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


def _smallest(cardinality: int) -> torch.dtype:
    """The smallest integers that hold the codes."""
    if cardinality <= 2**8:
        return torch.uint8
    return torch.int16 if cardinality <= 2**15 else torch.int32
