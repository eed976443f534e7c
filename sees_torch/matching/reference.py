"""Reference answers: nothing shifted, the calibrated plug-in, and weights that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sees_torch.data import Source, Target
from sees_torch.data.tables import Name
from sees_torch.errors import SeesError
from sees_torch.matching.match import Match
from sees_torch.matching.parameters import Parameters
from sees_torch.weights import ConstantWeights, RowWeights, TableWeights, WeightFunction


def _ones(source: Source) -> ConstantWeights:
    weight = torch.ones(len(source.classes), dtype=torch.float64, device=source.rows.codes.device)
    return ConstantWeights(source.schema, source.classes, weight)


@dataclass(frozen=True)
class NoShift(Parameters):
    """Nothing shifted: every weight is one and the gap is zero."""

    @property
    def name(self) -> str:
        return "none"

    def match(self, source: Source, target: Target) -> Match:
        return Match(self.name, _ones(source), estimator="ipw")


@dataclass(frozen=True)
class CBPE(Parameters):
    """Confidence-based estimation: the mean loss that the calibrated model expects on the target.

    Right when p(y|x) is the same in both samples (covariate shift) and the model knows it.
    """

    @property
    def name(self) -> str:
        return "cbpe"

    def match(self, source: Source, target: Target) -> Match:
        return Match(self.name, _ones(source), estimator="plugin")


@dataclass(frozen=True)
class KnownWeights(Parameters):
    """Weights that somebody knows: the floor that no estimate can beat, in simulations.

    Args:
        weight: one number per source row (then only the estimators "ipw" and "self-normalised"
            apply), or a mapping from (level of each feature ..., label) to the weight, as the
            simulations return it, or a WeightFunction of the source's schema.
        features: the features that the keys of a mapping start with.
    """

    weight: Any
    features: tuple[Name, ...] = ()

    @property
    def name(self) -> str:
        return "known"

    def match(self, source: Source, target: Target) -> Match:
        if isinstance(self.weight, WeightFunction):
            if self.weight.schema != source.schema or self.weight.classes != source.classes:
                raise SeesError(
                    "the known weight function was made for another schema or other classes than "
                    "the source's. Give the weights as a mapping from levels and label instead."
                )
            members = tuple(getattr(self.weight, "features", ()))
            return Match(self.name, self.weight, members)
        if isinstance(self.weight, Mapping):
            return Match(self.name, self._table(source), self._members(source))
        weight = torch.as_tensor(self.weight, dtype=torch.float64).to(source.rows.codes.device)
        if weight.shape != (len(source),):
            raise SeesError(
                f"known weights must be one number per source row, ({len(source)},); "
                f"got {tuple(weight.shape)}."
            )
        function = RowWeights(source.schema, source.classes, weight)
        return Match(self.name, function, estimator="ipw")

    def _members(self, source: Source) -> tuple[int, ...]:
        unknown = [name for name in self.features if name not in source.schema.names]
        if unknown:
            raise SeesError(f"source has no columns {unknown}; it has {source.schema.names}.")
        return tuple(source.schema.names.index(name) for name in self.features)

    def _table(self, source: Source) -> WeightFunction:
        members = self._members(source)
        columns = [source.schema.columns[j] for j in members]
        cells: dict[tuple[int, ...], list[float]] = {}
        for key, weight in self.weight.items():
            *levels, label = key if isinstance(key, tuple) else (key,)
            if label not in source.classes or len(levels) != len(columns):
                raise SeesError(
                    f"key {key!r} of the known weights must be the levels of {self.features}, then "
                    f"one of the classes {source.classes}."
                )
            try:
                cell = tuple(c.levels.index(v) for c, v in zip(columns, levels, strict=True))
            except ValueError:
                continue  # A level that was not drawn into this source.
            cells.setdefault(cell, [0.0] * len(source.classes))
            cells[cell][source.classes.index(label)] = float(weight)
        device = source.rows.codes.device
        grid = torch.tensor(list(cells), dtype=torch.int64, device=device)
        table = torch.tensor(list(cells.values()), dtype=torch.float64, device=device)
        if not members:
            return ConstantWeights(source.schema, source.classes, table[0])
        fallback = torch.ones(len(source.classes), dtype=torch.float64, device=device)
        return TableWeights(source.schema, source.classes, members, grid, table, fallback)
