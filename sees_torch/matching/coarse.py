"""Many rows with probabilities of two classes: those in one cell that hardly differ, as one.

Within a cell rows enter the likelihood through p(y|x) alone. Its log-odds are cut into BINS, and
each bin of a cell counts as one row at the mean of its p(y|x): first-order errors cancel, and
weights change by less than 1e-4 (the test of this module measures it). The cost of a Newton step
then follows cells and bins, not rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sees_torch.data.counting import Groups, combined_keys, group_keys
from sees_torch.solvers.implicit import wants_graph
from sees_torch.statistics.subsets import Subsets

if TYPE_CHECKING:
    from sees_torch.matching.batch import Batch

MANY_ROWS = 50_000
"""Fewer rows of both samples are left as they are."""
BINS = 2048
FLOOR = 1e-15
REACH = 12.0
"""Log-odds beyond this are in the outermost bins."""


def coarse(batch: Batch, subsets: Subsets) -> Batch:
    """The batch with rows merged that are in one cell of a subset; unchanged if that does not pay.

    Args:
        batch: both samples.
        subsets: a single one; several have no cells in common.
    """
    n, rows, labels = len(batch.labels), len(batch.codes), batch.n_labels
    most = subsets.total_cells * BINS * (2 * labels + 1)
    if labels != 2 or len(subsets) > 1 or rows < MANY_ROWS or most > 2 * rows:
        return batch
    if wants_graph(batch.logits):  # Every row has a gradient of its own.
        return batch
    cells, cell = subsets.total_cells, subsets.cell_of_rows(batch.codes)[:, 0]
    place, mass, weighed = batch.bins
    here = _groups(cell[:n], batch.labels, place[:n], (cells, labels, BINS))
    there = _groups(cell[n:], batch.known + 1, place[n:], (cells, labels + 1, BINS))
    first = torch.cat([here.first, there.first + n])
    # The two samples lie differently inside a bin: each has means of its own.
    bin_of_row = cell * BINS + place
    bin_of_row[n:] += cells * BINS
    none = mass.new_zeros(2 * cells * BINS)
    held = none.scatter_add(0, bin_of_row, mass).clamp_min(1e-37)
    mean = none.scatter_add(0, bin_of_row, weighed) / held
    middle = mean[bin_of_row[first]].logit(FLOOR)
    return replace(
        batch,
        codes=batch.codes[first],
        logits=torch.nn.functional.logsigmoid(torch.stack([-middle, middle])),
        labels=batch.labels[here.first],
        known=batch.known[there.first],
        source_count=_merged(here, batch.source_count),
        target_count=_merged(there, batch.target_count),
    )


def bins_of(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(n + m,) the bin of every row, its mass over all sets of multiplicities, and mass times p."""
    odds = batch.logits[1] - batch.logits[0]
    place = ((odds + REACH) * (BINS / (2 * REACH))).clamp(0, BINS - 1).to(torch.int64)
    mass = torch.cat([batch.source_count.sum(dim=0), batch.target_count.sum(dim=0)])
    return place, mass, mass * odds.sigmoid()


def _groups(cell: Tensor, label: Tensor, place: Tensor, sizes: tuple[int, ...]) -> Groups:
    return group_keys(*combined_keys([cell, label, place], sizes))


def _merged(groups: Groups, count: Tensor) -> Tensor:
    """(B, U) multiplicities of the groups; a set at a time, so that no copy of all is made."""
    return torch.stack([groups.sum(one) for one in count])
