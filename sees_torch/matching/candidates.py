"""The hypotheses that are compared: what each says, fits, costs, and how likely it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sees_torch.data.tables import Name
from sees_torch.matching.candidate import COVARIATES, FEATURES, MANY, NOTHING, Candidate
from sees_torch.matching.covariates_only import CovariatesOnly
from sees_torch.matching.reference import NoShift
from sees_torch.matching.sees_c import SEESc
from sees_torch.matching.sees_em import CellShares, SEESem

ODDS = 1 / 30
"""Odds, before any data, of each feature after the first that it shifted as well: there are many,
and a true set with a feature too many explains the data as well as the true set. A shift of many
features counts as one of four. Also the odds that features shifted and the labels given them did
not: the data can hardly tell, and natural shifts of features nearly always move labels."""

UNMOVED = 1.5
"""Odds that nothing shifted, against labels only or any single feature with them. With 1 intervals
are more than half as wide again, where nothing shifted, as those of somebody who knows."""
HIDDEN = 1.0
"""The same where a shift may hide, since it would leave little to go by. With less the gap of some
small samples that shifted is better, but intervals are too wide where nothing did."""


def nothing(odds: float = UNMOVED) -> Candidate:
    return Candidate("nothing", NoShift(), (), NOTHING, odds)


def table(
    names: Sequence[Name],
    members: tuple[int, ...],
    shrinkage: float | Literal["auto"],
    memory: int,
) -> Candidate:
    """Labels, and the features at these positions."""
    words = "labels and features" if members else "labels only"
    method = SEESem(
        features=tuple(names[j] for j in members), shrinkage=shrinkage, memory_budget=memory
    )
    odds = ODDS ** max(len(members) - 1, 0)
    return Candidate(words, method, members, FEATURES + 2 * len(members), odds)


def shares(names: Sequence[Name], members: tuple[int, ...]) -> Candidate:
    """The features at these positions; labels given them stayed."""
    method = CellShares(tuple(names[j] for j in members))
    rank, odds = FEATURES + 2 * len(members) - 1, ODDS ** len(members)
    return Candidate("features, not labels", method, members, rank, odds)


def covariates(method: CovariatesOnly) -> Candidate:
    """Any features; labels given them stayed."""
    return Candidate("covariates only", method, (), COVARIATES, ODDS**4)


def many(method: SEESc) -> Candidate:
    """Labels and any features."""
    return Candidate("labels and many features", method, (), MANY, ODDS**3)
