"""A hypothesis about the shift."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sees_torch.matching.match import Method

MOST_FEATURES = 3
"""A shift of more features is not sparse."""
NOTHING, FEATURES, COVARIATES, MANY = 0, 1, 10, 11
"""Ranks of simplicity: s features without labels have FEATURES + 2s - 1, with labels one more."""


@dataclass(frozen=True)
class Candidate:
    """A hypothesis about the shift.

    Attributes:
        words: what it says shifted.
        method: the method that fits it.
        features: positions of the shifted features, where the hypothesis names them.
        rank: its place in the order of simplicity, 0 the simplest.
        odds: before any data, relative to labels only; counts in averages only.
    """

    words: str
    method: Method
    features: tuple[int, ...]
    rank: int
    odds: float = 1.0

    @property
    def says(self) -> tuple[str, tuple[int, ...]]:
        """What shifted; hypotheses that differ in a penalty alone say the same."""
        return self.words, self.features

    @property
    def is_dense(self) -> bool:
        """A shift of more features than a search for a few could follow."""
        return self.rank >= FEATURES + 2 * MOST_FEATURES + 1

    @property
    def with_labels(self) -> bool:
        """Labels shifted, given the features that did."""
        return self.rank % 2 == 1

    def cases(self, d: int) -> list[tuple[bool, tuple[int, ...]]]:
        """What else this allows for, of d features: with labels or not, and which features."""
        if self.rank >= COVARIATES:  # Sums of functions of single features.
            fewer: Iterable[tuple[int, ...]] = [(), *((j,) for j in range(d))]
        else:
            sizes = range(len(self.features))
            fewer = [some for size in sizes for some in combinations(self.features, size)]
        nothing = [] if self.rank == NOTHING else [(False, ())]
        return [*nothing, *((self.with_labels, features) for features in fewer)]

    def quick(self) -> Method:
        """The method without a search for its own settings, where it has one."""
        search = getattr(self.method, "quick", None)
        return self.method if search is None else search()
