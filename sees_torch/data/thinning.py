"""A part of many rows, as if at random, by their content only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sees_torch.data.counting import content_hash, scatter_folds

if TYPE_CHECKING:
    from sees_torch.data.samples import Source, Target


def row_key(sample: Source | Target) -> Tensor:
    """(n,) hash of a row's features and probabilities, in whatever order the classes are."""
    return sample.schema.row_hash(sample.rows) + content_hash(rounded(sample.proba.detach()))


def rounded(proba: Tensor) -> Tensor:
    """Another order of classes may change the last bits."""
    return (proba * 2**40).round()


def part_of(sample: Source | Target, rows: int) -> tuple[Tensor, Tensor]:
    """About so many distinct rows: their positions, and how many copies of each."""
    parts = math.ceil(len(sample) / rows)
    if parts < 2:
        return torch.arange(len(sample), device=sample.count.device), sample.count
    count = sample.count * scatter_folds(row_key(sample), sample.count, parts)[:, 0]
    kept = (count > 0).nonzero().squeeze(1)
    return kept, count[kept]
