"""Covariate shift of many features: basis weights that are the same under every label."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.matching.basis_resamples import Stack
from sees_torch.matching.match import Match
from sees_torch.matching.sees_c import SEESc
from sees_torch.weights import BasisWeights


@dataclass(frozen=True)
class CovariatesOnly:
    """Only p(x) shifted: one coefficient for all labels, otherwise as SEES-c.

    Args:
        eta: strength of the penalty.
        tolerance: bound on the suboptimality of the solve, in units of the objective.
    """

    eta: float = 1e-3
    tolerance: float = 1e-9

    @property
    def name(self) -> str:
        return "covariates"

    def match(self, source: Source, target: Target) -> Match:
        """The weights, the same under every label."""
        blind = [s.with_posterior(torch.ones_like(s.posterior[:, :1])) for s in (source, target)]
        found = SEESc(eta=self.eta, tolerance=self.tolerance).match(blind[0], blind[1])  # type: ignore[arg-type]
        function = found.weight_function
        assert isinstance(function, BasisWeights)
        labels = len(source.classes)
        shared = BasisWeights(
            source.schema,
            source.classes,
            function.basis,
            function.coefficient.expand(-1, labels),
            function.intercept.expand(labels),
        )
        return replace(found, method=self.name, weight_function=shared)

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of all rows under many multiplicities, by one Newton step from the match."""
        stack = Stack.of(source, target, match.weight_function, labels=False)
        return stack.weights(stack.one_step(self.eta, here, there))

    def influence(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a unit of mass of every row adds to a number by moving the weights."""
        stack = Stack.of(source, target, match.weight_function, labels=False)
        return stack.influence(self.eta, here, there)

    def refits(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same, each solved to the tolerance, from the match as a first guess."""
        stack = Stack.of(source, target, match.weight_function, labels=False)
        return stack.weights(stack.solve([self.eta], here, there, self.tolerance)[0])
