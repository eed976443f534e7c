"""What a method finds: a weight function, the features it depends on, and the evidence."""

from __future__ import annotations

import copy
import operator
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import ConvergenceWarning, SeesError, SeesWarning, SupportWarning
from sees_torch.solvers.implicit import wants_graph
from sees_torch.solvers.solution import Status
from sees_torch.weights import WeightFunction

if TYPE_CHECKING:
    from sees_torch.matching.choice import Choice

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
class Influential(Method, Protocol):
    """A method that can tell how its weights follow the rows."""

    def influence(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a unit of mass of every row adds to a number by moving the weights.

        Returns:
            (n,) and (m,), from slopes (n, L) and (m, L) of the number in the weights of all rows.
        """
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
