"""Both samples under one or many sets of row multiplicities, such as resamples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.matching.coarse import bins_of
from sees_torch.statistics.counted import compact_levels

FLOOR = 1e-12
"""Probabilities are floored here before their logarithm is taken."""


@dataclass(frozen=True)
class Batch:
    """Both samples under B sets of row multiplicities.

    Attributes:
        codes: (n + m, d) source rows, then target rows; levels renumbered to those that occur.
        sizes: levels that occur, per feature; levels: the schema's code of each.
        logits: (L, n + m) log p(y|x).
        labels: (n,).
        known: (m,) label of a target row, -1 where it is not known.
        source_count: (B, n); target_count: (B, m).
        pseudo: what one pseudo-row counts: 1, or next to nothing for a population without noise.
    """

    codes: Tensor
    sizes: tuple[int, ...]
    levels: tuple[Tensor, ...]
    logits: Tensor
    labels: Tensor
    known: Tensor
    source_count: Tensor
    target_count: Tensor
    pseudo: float

    @classmethod
    def of(
        cls,
        source: Source,
        target: Target,
        source_count: Tensor | None = None,
        target_count: Tensor | None = None,
    ) -> Batch:
        codes, sizes, levels = compact_levels(
            torch.cat([source.rows.codes, target.rows.codes]), source.schema.cardinalities
        )
        posterior = torch.cat([source.posterior, target.posterior])
        return cls(
            # A column at a time is what is looked at.
            codes.T.contiguous().T,
            sizes,
            levels,
            posterior.clamp_min(FLOOR).log().T.contiguous(),
            source.labels,
            target.labels,
            source.count[None] if source_count is None else source_count,
            target.count[None] if target_count is None else target_count,
            1e-10 if is_population(source, target) else 1.0,
        )

    @property
    def tolerance(self) -> float:
        """Of the solvers, in rows; a whole population weighs as much as one row."""
        return 1e-6 if self.pseudo == 1 else 1e-14

    @property
    def n_labels(self) -> int:
        return len(self.logits)

    def __len__(self) -> int:
        return len(self.source_count)

    @cached_property
    def bins(self) -> tuple[Tensor, Tensor, Tensor]:
        """What does not depend on the cells where rows are merged."""
        return bins_of(self)

    def bytes_per_subset(self) -> int:
        """What the intermediate tensors of one subset take, about, for one set of counts."""
        return 8 * 10 * self.n_labels * len(self.codes)
