"""How every feature is spread in the source and in the target, in counts a reader can check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sees_torch.data import Column, Source, Target
from sees_torch.data.tables import Name
from sees_torch.disclosure import POOLED, level_name, pooled

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Marginal:
    """One feature: its levels, or its quantile bins, and their shares.

    Attributes:
        feature: its name.
        kind: "categorical" or "continuous".
        levels: in the order of the schema; missing, unseen and pooled ones last.
        source: share of the source rows in each; target: of the target rows.
    """

    feature: Name
    kind: str
    levels: tuple[str, ...]
    source: tuple[float, ...]
    target: tuple[float, ...]

    @property
    def distance(self) -> float:
        """Half the sum of the absolute changes, 0 for equal and 1 for disjoint distributions."""
        return sum(abs(s - t) for s, t in zip(self.source, self.target, strict=True)) / 2


def marginals(source: Source, target: Target, least: int = 0) -> list[Marginal]:
    """One a feature, in the order of the schema; levels with fewer than `least` rows are pooled."""
    return [
        _marginal(column, source, target, j, least)
        for j, column in enumerate(source.schema.columns)
    ]


def _marginal(column: Column, source: Source, target: Target, j: int, least: int) -> Marginal:
    counts = torch.stack([_counts(s, j, column.codes) for s in (source, target)], dim=1).cpu()
    shares = counts / counts.sum(dim=0)
    hidden = pooled(counts, least)
    shown = ((counts > 0).any(dim=1) & ~hidden).nonzero().squeeze(1)
    names = [level_name(column, code, least) for code in shown.tolist()]
    parts = shares[shown].T.tolist()
    if bool(hidden.any()):
        names.append(POOLED)
        for part, rest in zip(parts, shares[hidden].sum(dim=0).tolist(), strict=True):
            part.append(rest)
    return Marginal(column.name, column.kind, tuple(names), tuple(parts[0]), tuple(parts[1]))


def _counts(sample: Source | Target, j: int, codes: int) -> Tensor:
    return torch.bincount(sample.rows.codes[:, j], sample.count.detach(), minlength=codes)


def marginal_frame(found: list[Marginal]) -> pd.DataFrame:
    """One row a feature and level."""
    import pandas as pd

    return pd.DataFrame(
        [
            (one.feature, level, before, after, after - before)
            for one in found
            for level, before, after in zip(one.levels, one.source, one.target, strict=True)
        ],
        columns=pd.Index(["feature", "level", "source_share", "target_share", "change"]),
    )
