"""A source and a target whose shift is known."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ShiftedPair:
    """A source and a target whose shift is known.

    Attributes:
        source, labels, source_proba: the labelled sample and the classifier's probabilities.
        target, target_proba: the unlabelled sample.
        target_labels: what a user would not have.
        classes: order of the probability columns.
        features: names of the shifted features.
        weight_table: {(level of each shifted feature ..., label): p_t / p_s}.
        weights: (n,) true weight of every source row.
        population_gap: accuracy under p_t minus accuracy under p_s.
        source_weight, target_weight: row multiplicities, None when rows are drawn.
    """

    source: pd.DataFrame
    labels: np.ndarray
    source_proba: np.ndarray
    target: pd.DataFrame
    target_proba: np.ndarray
    target_labels: np.ndarray
    classes: tuple[Hashable, ...]
    features: tuple[str, ...]
    weight_table: dict[tuple[Hashable, ...], float]
    weights: np.ndarray
    population_gap: float
    source_weight: np.ndarray | None = None
    target_weight: np.ndarray | None = None

    @property
    def realised_gap(self) -> float:
        """Accuracy on the drawn target minus accuracy on the drawn source."""
        on_target = _accuracy(self, self.target_proba, self.target_labels, self.target_weight)
        return on_target - _accuracy(self, self.source_proba, self.labels, self.source_weight)

    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of `estimate_shift`."""
        names = ("source", "labels", "target", "source_proba", "target_proba", "classes")
        return {name: getattr(self, name) for name in (*names, "source_weight", "target_weight")}


def _accuracy(
    pair: ShiftedPair, proba: np.ndarray, labels: np.ndarray, weight: np.ndarray | None
) -> float:
    place = {label: position for position, label in enumerate(pair.classes)}
    truth = np.array([place[label] for label in labels])
    return float(np.average(proba.argmax(axis=1) == truth, weights=weight))
