"""Source and target as one list of distinct code rows with the mass of each (prediction, label).

The target enters as one more label, the last: every product of tables that SEES-d needs (source
with source, source with target, target with target) is then one extended product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sees_torch.data import Source, Target
from sees_torch.data.counting import group_rows


@dataclass(frozen=True)
class CountedRows:
    """Distinct code rows of both samples.

    Attributes:
        codes: (U, d) int64, levels renumbered to those that occur.
        mass: (U, F, L + 1) share of the source with prediction f and label y; last column: share
            of the target with prediction f.
        square: (U, L + 1) the same mass times the squared length of each row's prediction vector,
            which is 1 for hard predictions.
        soft: rows spread their mass over predictions.
        features: positions in the schema of the columns of `codes`; columns in which source and
            target have no level in common are left out, no table that holds one could match.
        sizes: levels that occur, per feature.
        levels: per feature, the schema's code of every level that occurs.
    """

    codes: Tensor
    mass: Tensor
    square: Tensor
    soft: bool
    features: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[Tensor, ...]

    @property
    def label_mass(self) -> Tensor:
        """(U, L + 1) mass per label, predictions summed out."""
        return self.mass.sum(dim=1)


def count_samples(source: Source, target: Target, soft: bool) -> CountedRows:
    """The distinct rows of both samples.

    Args:
        source: the labelled sample.
        target: the unlabelled sample.
        soft: a row puts mass p(f|x) on every prediction f instead of all of it on the likeliest.
    """
    codes, sizes, levels = compact_levels(
        torch.cat([source.rows.codes, target.rows.codes]), source.schema.cardinalities
    )
    features = shared_features(codes, sizes, source, target)
    codes = codes[:, features]
    sizes, levels = tuple(sizes[j] for j in features), tuple(levels[j] for j in features)
    groups = group_rows(codes, sizes)
    n_labels = len(source.classes)

    def prediction_mass(sample: Source | Target) -> Tensor:
        per_class = sample.proba if soft else one_hot(sample.predictions, n_labels)
        return per_class.to(sample.proba.dtype) * sample.mass[:, None]

    # Position of (row group, prediction, label) in the flattened mass; labels vary fastest.
    label = torch.cat([source.labels, source.labels.new_full((len(target),), n_labels)])
    per_row = torch.cat([prediction_mass(source), prediction_mass(target)])
    prediction = torch.arange(n_labels, device=codes.device)
    place = (groups.of_row[:, None] * n_labels + prediction) * (n_labels + 1) + label[:, None]
    flat = per_row.new_zeros(len(groups) * n_labels * (n_labels + 1))
    flat = flat.index_add(0, place.reshape(-1), per_row.reshape(-1))
    mass = flat.reshape(len(groups), n_labels, n_labels + 1)
    square = mass.sum(dim=1)
    if soft:
        length = torch.cat([s.proba.square().sum(dim=1) * s.mass for s in (source, target)])
        flat = length.new_zeros(square.numel())
        flat = flat.index_add(0, groups.of_row * (n_labels + 1) + label, length)
        square = flat.reshape(square.shape)
    first = codes[groups.first]
    return CountedRows(first, mass, square, soft, tuple(features), sizes, levels)


def shared_features(
    codes: Tensor, sizes: tuple[int, ...], source: Source, target: Target
) -> list[int]:
    """Features in which some level has mass in both samples."""
    kept = []
    for j, size in enumerate(sizes):
        here = torch.bincount(codes[: len(source), j], source.count, minlength=size)
        there = torch.bincount(codes[len(source) :, j], target.count, minlength=size)
        if bool(((here > 0) & (there > 0)).any()):
            kept.append(j)
    return kept


def compact_levels(
    codes: Tensor, cardinalities: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...], tuple[Tensor, ...]]:
    """Codes renumbered to the levels that occur, their number, and the original of each."""
    columns, levels = [], []
    for column, size in zip(codes.T, cardinalities, strict=True):
        present = torch.bincount(column, minlength=size) > 0
        levels.append(present.nonzero().squeeze(1))
        columns.append((present.cumsum(0) - 1)[column])
    return torch.stack(columns, dim=1), tuple(len(level) for level in levels), tuple(levels)
