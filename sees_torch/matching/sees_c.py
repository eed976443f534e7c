"""SEES-c: basis weights under a group penalty, matched by Kullback-Leibler divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from sees_torch.data import Source, Target
from sees_torch.errors import IdentificationError, SeesError
from sees_torch.matching.basis_resamples import Stack
from sees_torch.matching.match import Match, whole_number
from sees_torch.matching.parameters import Parameters
from sees_torch.matching.penalised import BasisProblem, Solver
from sees_torch.matching.selection import Evidence, Folds, induced_ratio
from sees_torch.solvers.implicit import wants_graph
from sees_torch.solvers.solution import Solution, Status
from sees_torch.statistics.basis import Basis, FeatureBasis, OwnBasis
from sees_torch.weights import BasisWeights, WeightFunction

ETAS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""What eta="auto" chooses from."""
MATTERS = 1e-3
"""A feature is selected when its importance, in units of the weight, exceeds this."""


@dataclass(frozen=True)
class SEESc(Parameters):
    """Shift of the labels and of features that a group penalty selects.

    The weights w(x, y) = sum_k a_{k,y} phi_k(x) minimise

        -E_t[ log sum_y p(y|x) w(x, y) ] + eta sum_i ||a_{e_i}||_2

    over a >= 0 with E_s[ sum_y p(y|x) w(x, y) ] = 1, where a_{e_i} are all coefficients of feature
    i. (The paper prints the penalty with a plus inside a maximisation; it is subtracted there.)
    The expectation over the source uses p(y|x) too, not the labels: the two sides then err alike.
    Without an intercept some group must carry the constant, and the penalty bends the weights a
    little even when nothing shifted; with one, no shift gives exactly w = 1.

    Args:
        eta: strength of the penalty; "auto" takes the best held-out two-sample score.
        sparsity: keep at most so many features in the selection, those of the largest importance;
            None or "auto" keeps every feature that matters.
        basis: "auto" (paired), "linear" as in the paper, "paired", "quadratic", a Basis, or any
            nn.Module that turns coded rows into (n, K) values >= 0 and declares `owners` as a
            Basis does.
        intercept: add an unpenalised constant per label, so that a large eta tends to label shift.
        refit: solve again without penalty on the selected features (and a constant per label).
        tolerance: bound on the suboptimality of the solve, in units of the objective.
        solver: "proximal" (accelerated proximal gradient), "interior" (interior-point), or "auto":
            the first on a GPU, the second on a CPU, and there the first too for what the second
            leaves unsolved. Both stop on the same certificate.
    """

    eta: float | Literal["auto"] = 1e-3
    sparsity: int | Literal["auto"] | None = None
    basis: str | Basis | nn.Module = "auto"
    intercept: bool = False
    refit: bool = False
    tolerance: float = 1e-9
    solver: Solver = "auto"

    def __post_init__(self) -> None:
        if self.eta != "auto":
            try:
                eta = float(self.eta)
            except (TypeError, ValueError):
                eta = -1.0
            if not 0 <= eta < float("inf"):
                raise SeesError(f"eta must be 'auto' or a number >= 0, got {self.eta!r}.")
            object.__setattr__(self, "eta", eta)
        if self.solver not in ("auto", "proximal", "interior"):
            raise SeesError(f"solver takes 'auto', 'proximal' or 'interior', got {self.solver!r}.")
        if self.sparsity == "auto":
            object.__setattr__(self, "sparsity", None)
        if self.sparsity is not None:
            object.__setattr__(self, "sparsity", whole_number(self.sparsity, "sparsity"))

    @property
    def name(self) -> str:
        return "sees-c"

    def match(self, source: Source, target: Target) -> Match:
        """The weights at this eta."""
        return self.match_from(source, target, None)

    def match_from(self, source: Source, target: Target, start: Tensor | None) -> Match:
        """The same, sooner: from the solution on a target that is much like this one."""
        with torch.no_grad():
            best = self._best if self.eta == "auto" else self._only
            found = best(source, target, start)
        if not wants_graph(source.posterior, target.posterior):
            return found
        settings = found.settings if isinstance(found.settings, SEESc) else self
        eta = settings._last_eta()
        return found.reweighed(_differentiable(source, target, found.weight_function, eta))

    def solution(self, match: Match) -> Tensor:
        """(K + 1, L) coefficients, those of the constant last, that `match_from` starts from."""
        function = match.weight_function
        assert isinstance(function, BasisWeights)
        return torch.cat([function.coefficient, function.intercept[None]]).detach()

    def _only(self, source: Source, target: Target, start: Tensor | None) -> Match:
        return self.path(source, target, [self._eta()], start)[0]

    def _best(self, source: Source, target: Target, start: Tensor | None) -> Match:
        """The weights at the eta with the best held-out score."""
        folds = Folds.deal(source, target)
        counts = folds.training(source, target)
        matches = self.path(source, target, ETAS, start)
        ratios = [
            folds.held_out(induced_ratio(source, target, tables))
            for tables in self.path_refits(source, target, ETAS, matches, *counts)
        ]
        best = int(Evidence.of(source, target, ratios).score().argmax())
        return replace(matches[best], settings=replace(self, eta=ETAS[best]))

    def path(
        self,
        source: Source,
        target: Target,
        etas: Sequence[float],
        start: Tensor | None = None,
    ) -> list[Match]:
        """The weights at every eta, solved as one batch."""
        d = len(source.schema.columns)
        if isinstance(self.sparsity, int) and self.sparsity > d:
            raise IdentificationError(
                f"sparsity={self.sparsity} but there are {d} features: at most {d} can shift."
            )
        problem = BasisProblem.build(source, target, self._basis(source))
        kept = torch.ones_like(problem.owner, dtype=torch.bool)
        kept[-1] = self.intercept
        solution = problem.solve(etas, kept, self.tolerance, self.solver, start)
        importance = problem.importance(solution.value)
        matches = []
        for row in range(len(etas)):
            found, at = solution, row
            if self.refit:
                chosen = torch.tensor([-1, *self._select(importance[row])], device=kept.device)
                member = torch.isin(problem.owner, chosen)
                found, at = problem.solve([0.0], member, self.tolerance, self.solver), 0
            matches.append(self._finish(problem, found, at, importance[row]))
        return matches

    def eta_max(self, source: Source, target: Target) -> float:
        """The smallest eta that selects no feature, with an intercept.

        The label-shift solution is the answer until some group's gradient leaves its ball.
        """
        problem = BasisProblem.build(source, target, self._basis(source))
        constant = torch.zeros_like(problem.owner, dtype=torch.bool)
        constant[-1] = True
        return problem.eta_max(problem.solve([0.0], constant, self.tolerance).value[0, -1])

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of all rows under many multiplicities, by one Newton step from the match."""
        stack = Stack.of(source, target, match.weight_function)
        return stack.weights(stack.one_step(self._last_eta(), here, there))

    def influence(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a unit of mass of every row adds to a number by moving the weights."""
        stack = Stack.of(source, target, match.weight_function)
        return stack.influence(self._last_eta(), here, there)

    def refits(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same, each solved to the tolerance, from the match as a first guess."""
        return self.path_refits(source, target, [self._eta()], [match], here, there)[0]

    def path_refits(
        self,
        source: Source,
        target: Target,
        etas: Sequence[float],
        matches: Sequence[Match],
        here: Tensor,
        there: Tensor,
    ) -> list[tuple[Tensor, Tensor]]:
        """The same at every eta of a path with its matches; without refits, as one batch."""
        if self.refit:  # Every eta has a support of its own.
            stacks = [
                Stack.of(source, target, match.weight_function, intercept=True).only_support()
                for match in matches
            ]
            return [s.weights(s.solve([0.0], here, there, self.tolerance)[0]) for s in stacks]
        intercept = self.intercept
        stack = Stack.of(source, target, matches[0].weight_function, intercept=intercept)
        return [stack.weights(value) for value in stack.solve(etas, here, there, self.tolerance)]

    def _eta(self) -> float:
        if self.eta == "auto":
            raise SeesError("eta='auto' is chosen by match; resamples need a number.")
        return self.eta

    def _last_eta(self) -> float:
        """Of the last solve: a refit has no penalty."""
        return 0.0 if self.refit else self._eta()

    def _basis(self, source: Source) -> Basis:
        if isinstance(self.basis, str):
            return FeatureBasis(source, "paired" if self.basis == "auto" else self.basis)
        if isinstance(self.basis, Basis):
            return self.basis
        if isinstance(self.basis, nn.Module) and hasattr(self.basis, "owners"):
            return OwnBasis(self.basis)
        raise SeesError(
            "basis must be a name, a Basis, or an nn.Module of coded rows that declares `owners`, "
            f"got {type(self.basis).__name__}."
        )

    def _select(self, importance: Tensor) -> list[int]:
        order = importance.argsort(descending=True, stable=True).tolist()
        chosen = [i for i in order if float(importance[i]) > MATTERS]
        return sorted(chosen[: self.sparsity] if isinstance(self.sparsity, int) else chosen)

    def _finish(
        self, problem: BasisProblem, solution: Solution, row: int, importance: Tensor
    ) -> Match:
        converged = bool(solution.converged[row])
        return Match(
            self.name,
            BasisWeights(
                problem.source.schema,
                problem.source.classes,
                problem.basis,
                solution.value[row, :-1],
                solution.value[row, -1],
            ),
            tuple(self._select(importance)),
            float(solution.residual[row]),
            Status.CONVERGED if converged else Status.MAX_STEPS,
            problem.unseen_mass,
            importance=importance,
        )


def _differentiable(
    source: Source, target: Target, function: WeightFunction, eta: float
) -> WeightFunction:
    """The same weights with their gradient in both samples' p(y|x); the support is held fixed."""
    assert isinstance(function, BasisWeights)
    value = Stack.of(source, target, function).differentiable(eta)
    table = value.reshape(-1, len(source.classes))
    return BasisWeights(source.schema, source.classes, function.basis, table[:-1], table[-1])
