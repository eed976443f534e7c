"""Counts that are too small to be told: rare cells are shown only together.

That holds for each table, and for the page as a whole; who puts the tables of cells and of
marginals side by side can still subtract one from the other.
"""

from __future__ import annotations

from torch import Tensor

from sees_torch.data import Column
from sees_torch.errors import SeesError

POOLED = "pooled"
"""What stands for the levels of pooled cells."""


def checked_least(least: int) -> int:
    """The smallest count that may be shown, refused if it is none."""
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise SeesError(
            f"min_cell_count must be a whole number, 0 to show every cell; got {least!r}."
        )
    return least


def pooled(counts: Tensor, least: int) -> Tensor:
    """(C,) bool: cells that may be shown only together.

    These are the cells with some, but fewer than `least` rows in any of the samples, and as many
    of the next smallest as it takes for the pool to hold `least` rows itself; otherwise a single
    rare cell would follow from the others and the total.

    Args:
        counts: (C, k) rows of every cell in each of k samples.
        least: smallest count that may be shown.

    >>> import torch
    >>> pooled(torch.tensor([[90.0], [3.0], [7.0], [40.0]]), 5).tolist()
    [False, True, True, False]
    """
    hidden = ((counts > 0) & (counts < least)).any(dim=1)
    if not bool(hidden.any()):
        return hidden
    for place in counts.sum(dim=1).argsort(stable=True).tolist():
        held = counts[hidden].sum(dim=0)
        if not bool(((held > 0) & (held < least)).any()):
            break
        hidden[place] = True
    return hidden


def level_name(column: Column, code: int, least: int = 0) -> str:
    """A level or bin in words; where rare cells are pooled, without the ends of a range.

    The least and the greatest value of a column belong to single rows.
    """
    inner = column.edges
    if not least or column.kind == "categorical" or code > len(inner):
        return column.describe(code)
    if not inner:
        return "all values"
    if code == 0:
        return f"up to {column.show(inner[0])}"
    if code == len(inner):
        return f"above {column.show(inner[-1])}"
    return column.describe(code)
