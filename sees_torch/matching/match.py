"""What a method finds: a weight function, the features it depends on, and the evidence."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import ConvergenceWarning, SeesError, SeesWarning, SupportWarning
from sees_torch.matching.selection import (
    LEAST_SHARE,
    STANDARD_ERRORS,
    Evidence,
    close_to_best,
    simplest,
)
from sees_torch.solvers.implicit import wants_graph
from sees_torch.solvers.solution import Status
from sees_torch.weights import WeightFunction

Estimator = Literal["ipw", "self-normalised", "plugin", "dr", "eff"]
"""Estimators of the gap from weights; see `sees_torch.gap.estimate_gap`."""


@dataclass(frozen=True)
class Ranking:
    """Every feature subset that was compared, best first.

    Attributes:
        subsets: feature positions of each subset.
        objective: (S,) distance between induced and observed target, same order.
        score: (S,) the distance beyond sampling noise, in standard deviations; 0 for populations.
        ties: answers that fit exactly as well as the first, itself included, as feature
            positions; more than one means the data cannot tell them apart.
    """

    subsets: tuple[tuple[int, ...], ...]
    objective: Tensor
    score: Tensor
    ties: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Candidate:
    """A hypothesis about the shift.

    Attributes:
        words: what it says shifted.
        method: the method that fits it.
        features: positions of the shifted features, where the hypothesis names them.
        rank: its place in the order of simplicity, 0 the simplest.
        odds: before any data, relative to the simplest; counts in averages only.
    """

    words: str
    method: Method
    features: tuple[int, ...]
    rank: int
    odds: float = 1.0

    def quick(self) -> Method:
        """The method without a search for its own settings, where it has one."""
        search = getattr(self.method, "quick", None)
        return self.method if search is None else search()


@dataclass(frozen=True)
class Choice:
    """Hypotheses that were compared, their evidence, and which was chosen.

    Attributes:
        candidates: H hypotheses.
        evidence: their held-out ratios.
        eligible: (H,) bool; those that could be chosen.
        chosen: position of the chosen one.
        averaged: the matches of those that the gap is averaged over, by position; empty to take
            the chosen one's gap.
        dispersion: at least 1; evidence counts by so much less in the average, since no hypothesis
            explains the data fully.
    """

    candidates: tuple[Candidate, ...]
    evidence: Evidence
    eligible: Tensor
    chosen: int
    averaged: Mapping[int, Match] = field(default_factory=dict)
    dispersion: float = 1.0

    @classmethod
    def make(
        cls, candidates: tuple[Candidate, ...], evidence: Evidence, eligible: Tensor
    ) -> Choice:
        """The simplest eligible hypothesis that is not clearly behind the best."""
        open_choice = cls(candidates, evidence, eligible, 0)
        return replace(open_choice, chosen=int(open_choice.pick(evidence.score())))

    def pick(self, score: Tensor, limit: float = STANDARD_ERRORS) -> Tensor:
        """(...,) the choice by scores (..., H)."""
        rank = torch.tensor([candidate.rank for candidate in self.candidates], device=score.device)
        usable = torch.where(self.eligible, score, -torch.inf)
        return simplest(usable, self.evidence.standard_errors, rank, limit)

    @property
    def candidate(self) -> Candidate:
        return self.candidates[self.chosen]

    @property
    def passed_over(self) -> bool:
        """A hypothesis that could not be chosen is clearly better than the chosen one."""
        evidence = self.evidence
        return not close_to_best(evidence.score(), evidence.standard_errors)[self.chosen]

    @property
    def behind(self) -> Tensor:
        """(H,) how far each is behind the best that could be chosen, in standard errors."""
        score = torch.where(self.eligible, self.evidence.score(), -torch.inf)
        best = int(score.argmax())
        error = self.evidence.standard_errors[best]
        return ((score[best] - score) / error.clamp_min(1e-37)).where(score < score[best], 0.0)

    def likely(self, open_to: Tensor) -> list[int]:
        """Those of `open_to` whose share in an average over all of them would count."""
        usable = torch.where(open_to, self._log_odds(self.evidence.score()), -torch.inf)
        return (usable.softmax(dim=0) >= LEAST_SHARE).nonzero().squeeze(1).tolist()

    def shares(self, score: Tensor) -> Tensor:
        """(..., H) share of every hypothesis in the average, by scores (..., H)."""
        usable = torch.full_like(score, -torch.inf)
        members = sorted(self.averaged)
        usable[..., members] = self._log_odds(score)[..., members]
        return usable.softmax(dim=-1)

    def share_naming(self, features: tuple[int, ...]) -> float:
        """Share, in the average, of hypotheses that name these features, others beside them or not.

        One where nothing is averaged.
        """
        if not self.averaged:
            return 1.0
        shares = self.shares(self.evidence.score())
        return sum(
            float(shares[place])
            for place in self.averaged
            if set(features) <= set(self.candidates[place].features)
        )

    def _log_odds(self, score: Tensor) -> Tensor:
        """(..., H) logarithm of the odds of every hypothesis given the data."""
        before = torch.tensor([candidate.odds for candidate in self.candidates]).to(score).log()
        return self.evidence.log_odds(score) / self.dispersion + before


@dataclass(frozen=True)
class Match:
    """The result of matching a source to a target.

    Attributes:
        method: name of the method.
        weight_function: estimate of p_t(x, y) / p_s(x, y).
        features: positions of the features that it depends on.
        residual: optimality residual of the solve, in the solver's units.
        status: how the solve ended.
        unseen_mass: share of the target where the source never was: in cells of the features
            that a table is on, else in rows with any level that the source does not show.
        estimator: the gap estimator that belongs to the method, None for the default.
        importance: (d,) contribution of every feature, where the method has one.
        ranking: the comparison of feature subsets, where the method has one.
        choice: the comparison of hypotheses, where the method chooses between them.
        settings: the method with the settings that it chose for itself, where it chose any.
    """

    method: str
    weight_function: WeightFunction
    features: tuple[int, ...] = ()
    residual: float = 0.0
    status: Status = Status.CONVERGED
    unseen_mass: float = 0.0
    estimator: Estimator | None = None
    importance: Tensor | None = None
    ranking: Ranking | None = None
    choice: Choice | None = None
    settings: Method | None = None

    def __post_init__(self) -> None:
        if self.status is not Status.CONVERGED:
            warnings.warn(
                f"{self.method} {self.status.value} (residual {self.residual:.1e}).",
                ConvergenceWarning,
                stacklevel=3,
            )
        if self.unseen_mass > UNSEEN_WARNING:
            warnings.warn(
                f"{self.unseen_mass:.1%} of the target is where the source never was. Nothing is "
                "known of the labels there: the estimate assumes that such rows behave as the "
                "average does.",
                SupportWarning,
                stacklevel=3,
            )

    def reweighed(self, function: WeightFunction) -> Match:
        """The same with another weight function; what there is to warn of has been said."""
        other = copy.copy(self)
        object.__setattr__(other, "weight_function", function)
        return other


UNSEEN_WARNING = 0.01


def has_graph(source: Source, target: Target) -> bool:
    """A gradient in the samples' probabilities may be asked for."""
    return wants_graph(source.proba, source.posterior, target.proba, target.posterior)


def whole_number(value: Any, name: str) -> int:
    """A whole number >= 0 of any integer type."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise SeesError(f"{name} must be a whole number >= 0, got {value!r}.")
    return number


@runtime_checkable
class Method(Protocol):
    """A configuration that matches samples; two calls on equal input give equal results."""

    @property
    def name(self) -> str: ...

    def match(self, source: Source, target: Target) -> Match: ...


@runtime_checkable
class Replicable(Protocol):
    """A method that can fit many resamples of the same rows at once."""

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights (B, n, L) and (B, m, L) of all rows, under multiplicities (B, n) and (B, m)."""
        ...


@runtime_checkable
class WarmStarted(Protocol):
    """A method whose solve can start from the solution on a target that is much like this one."""

    def match_from(self, source: Source, target: Target, start: Tensor | None) -> Match: ...

    def solution(self, match: Match) -> Tensor:
        """What `match_from` starts from."""
        ...


def quietly(method: Method, source: Source, target: Target) -> Match:
    """A match that is only looked at beside another: what it would warn of concerns nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        return method.match(source, target)


def chosen_again(match: Match, source: Source, target: Target) -> Match:
    """A match whose hypothesis was chosen without a graph, with the gradient of its weights."""
    if match.choice is None or not has_graph(source, target):
        return match
    found = quietly(match.choice.candidate.method, source, target)
    return match.reweighed(found.weight_function)
