"""Which target rows have labels, and how likely a row was to get one.

Rows are sorted into strata by what a label of theirs would tell, as far as is known without any
label; where nobody asked, by how uncertain it is under p(y|x). Labels need only be taken at random
within a stratum: anywhere, or as `report.suggest_labels` proposes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.solvers.mixture import cell_sums

STRATA = 8
FEWEST = 10
"""Fewer labelled rows than this say too little of their own variance to enter the gap."""


def strata(source: Source, target: Target) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) stratum of every row: equal parts of the target's mass, the dullest first."""
    here, there = source.asked, target.asked
    if here is None or there is None:
        here, there = (
            1 - sample.posterior.detach().square().sum(dim=1) for sample in (source, target)
        )
    return cut(here, there, target), cut(there, there, target)


def cut(value: Tensor, there: Tensor, target: Target) -> Tensor:
    """(...,) stratum of rows with these values, by the values (m,) of the target's rows."""
    # The last bits of equal rows may differ, and must not put labelled rows into other strata.
    top = there.max().clamp_min(1e-37)
    value, there = ((each / top * 2**20).round() for each in (value, there))
    order = there.argsort(stable=True)
    below = target.mass[order].cumsum(0) - target.mass[order]
    below = torch.cat([below, below.new_ones(1)])
    # Rows of equal value stay together, also where sums end in another last bit.
    start = torch.searchsorted(there[order], value)
    return (below[start] * STRATA + 1e-9).floor().clamp_max(STRATA - 1).to(torch.int64)


@dataclass(frozen=True)
class Labelling:
    """The labelled target rows and their strata.

    Attributes:
        known: (m,) bool.
        here: (n,) stratum of every source row; there: (m,) of every target row.
        share: (G,) labelled part of the target rows of each stratum.
    """

    known: Tensor
    here: Tensor
    there: Tensor
    share: Tensor

    @classmethod
    def of(cls, source: Source, target: Target) -> Labelling | None:
        """None where there are too few labels."""
        if target.labelled < FEWEST:
            return None
        known = target.labels >= 0
        here, there = strata(source, target)
        labelled = cell_sums(torch.where(known, target.count, 0.0), there, STRATA)
        total = cell_sums(target.count, there, STRATA)
        return cls(known, here, there, labelled / total.clamp_min(1e-37))

    def mean(self, value: Tensor, count: Tensor) -> Tensor:
        """(B,) mean over all target rows of what only labelled ones add, (B, m).

        Multiplicities `count` are (B, m). Each stratum counts by the part of it that is labelled
        in the sample, however many labelled rows a resample has drawn.
        """
        labelled = torch.where(self.known, count, 0.0)
        rows = cell_sums(labelled, self.there, STRATA)
        found = cell_sums(labelled * value, self.there, STRATA) / rows.clamp_min(1e-37)
        mass = cell_sums(count, self.there, STRATA) / count.sum(dim=-1, keepdim=True)
        return (mass * self.share * found).sum(dim=-1)


def chances(labelling: Labelling | None, source: Source, target: Target) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) part of the target rows like each row that is labelled."""
    if labelling is None:
        here, there = (torch.zeros_like(sample.posterior[:, 0]) for sample in (source, target))
        return here, there
    return labelling.share[labelling.here], labelling.share[labelling.there]
