"""What moved, cell by cell, and how the gap splits between the labels and each shifted feature."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sees_torch.data import Source
from sees_torch.data.tables import Name
from sees_torch.disclosure import POOLED, level_name, pooled
from sees_torch.errors import SeesError
from sees_torch.solvers.mixture import cell_sums
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class JointLaw:
    """Source and target law of the shifted features and the label.

    Attributes:
        names: of the axes: the shifted features, then "label".
        source: (k_1, ..., k_s, L) source shares; weight: their weights, scaled to average one.
        value: mean of the metric, 0 where the source has no rows.
        levels: codes of the features' levels along each axis.
    """

    names: tuple[Name, ...]
    source: Tensor
    weight: Tensor
    value: Tensor
    levels: tuple[list[int], ...]

    @classmethod
    def of(cls, source: Source, function: WeightFunction, own: Tensor) -> JointLaw:
        """The laws by cell; `own` is the metric's value of every source row."""
        if not isinstance(function, (TableWeights, ConstantWeights)):
            raise SeesError(
                "only weights that are a table on a few features can be explained cell by cell; "
                f"{type(function).__name__} are not. Look at report.match.importance instead."
            )
        members = function.features if isinstance(function, TableWeights) else ()
        codes, levels = [], []
        for j in members:
            level, code = torch.unique(source.rows.codes[:, j], return_inverse=True)
            codes.append(code)
            levels.append(level.tolist())
        n_labels = len(source.classes)
        shape = (*(len(level) for level in levels), n_labels)
        place = torch.zeros_like(source.labels)
        for code, size in zip([*codes, source.labels], shape, strict=True):
            place = place * size + code
        cells = math.prod(shape)
        share = cell_sums(source.mass, place, cells)
        weight = function.of_rows(source.rows, source.labels).detach()
        moved = cell_sums(source.mass * weight, place, cells)
        moved = moved / moved.sum().clamp_min(1e-37)
        value = cell_sums(source.mass * own.detach(), place, cells) / share.clamp_min(1e-37)
        ratio = torch.where(share > 0, moved / share.clamp_min(1e-37), 0.0)
        names = tuple(source.schema.names[j] for j in members)
        names = (*names, free_name("label", names))
        return cls(
            names,
            share.reshape(shape),
            ratio.reshape(shape),
            value.reshape(shape),
            tuple(levels),
        )

    def shift(self, moved: tuple[int, ...]) -> float:
        """The metric when the axes `moved` follow the target and the rest given them the source."""
        others = tuple(axis for axis in range(self.source.ndim) if axis not in moved)
        if not moved:
            return float((self.source * self.value).sum())
        target, before = self.source * self.weight, self.source
        if others:  # An empty tuple would mean all dimensions.
            target = target.sum(dim=others, keepdim=True)
            before = before.sum(dim=others, keepdim=True)
        ratio = torch.where(before > 0, target / before.clamp_min(1e-37), 0.0)
        return float((self.source * ratio * self.value).sum())

    def shapley(self) -> dict[Name, float]:
        """Each axis' share of the change of the metric, averaged over all orders of moving."""
        players = range(self.source.ndim)
        worth = {
            moved: self.shift(moved)
            for size in range(self.source.ndim + 1)
            for moved in combinations(players, size)
        }
        shares = {}
        for player in players:
            total = 0.0
            for moved, value in worth.items():
                if player not in moved:
                    rest = self.source.ndim - len(moved) - 1
                    orders = math.factorial(len(moved)) * math.factorial(rest)
                    gain = worth[tuple(sorted((*moved, player)))] - value
                    total += orders * gain
            shares[self.names[player]] = total / math.factorial(self.source.ndim)
        return shares


def free_name(name: str, taken: Container[Name]) -> str:
    """A name that no feature has, this one if it can be."""
    while name in taken:
        name = f"{name}_"
    return name


def cell_frame(law: JointLaw, source: Source, least: int = 0) -> pd.DataFrame:
    """Every cell and label: its share before and after, and its weight.

    Cells with fewer than `least` source rows stand together in the last row.
    """
    import pandas as pd

    columns = {column.name: column for column in source.schema.columns}
    features = law.names[:-1]
    label_name, before_name, after_name, change_name, weight_name = (
        free_name(name, features)
        for name in ("label", "source_share", "target_share", "change", "weight")
    )
    records = []
    places = torch.nonzero(law.source)
    counts = law.source[law.source > 0] * source.total
    hidden = pooled(counts[:, None], least)
    for position in places[~hidden].tolist():
        *cell, label = position
        index = tuple(position)
        before = float(law.source[index])
        after = before * float(law.weight[index])
        levels = {
            name: level_name(columns[name], law.levels[axis][code], least)
            for axis, (name, code) in enumerate(zip(law.names[:-1], cell, strict=True))
        }
        records.append(
            levels
            | {
                label_name: source.classes[label],
                before_name: before,
                after_name: after,
                change_name: after - before,
                weight_name: float(law.weight[index]),
            }
        )
    names = [*features, label_name, before_name, after_name, change_name, weight_name]
    frame = pd.DataFrame(records, columns=pd.Index(names))
    frame = frame.sort_values(change_name, key=abs, ascending=False, kind="stable")
    if bool(hidden.any()):
        before = float(law.source[law.source > 0][hidden].sum())
        after = float((law.source * law.weight)[law.source > 0][hidden].sum())
        rest = [POOLED] * (len(features) + 1) + [before, after, after - before, after / before]
        frame = pd.concat([frame, pd.DataFrame([rest], columns=frame.columns)])
    return frame.reset_index(drop=True)
