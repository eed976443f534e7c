"""SEES-c: basis weights under a group penalty, matched by Kullback-Leibler divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import IdentificationError, SeesError, ShapeError, SupportError
from sees_torch.matching.basis_resamples import Stack
from sees_torch.matching.likelihood import distinct_target
from sees_torch.matching.match import Match, whole_number
from sees_torch.matching.selection import Evidence, Folds, induced_ratio
from sees_torch.solvers.proximal import GroupSimplex
from sees_torch.solvers.proximal_gradient import group_likelihood
from sees_torch.solvers.solution import Solution, Status
from sees_torch.statistics.basis import Basis, FeatureBasis
from sees_torch.weights import BasisWeights

ETAS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""What eta="auto" chooses from."""
MATTERS = 1e-3
"""A feature is selected when its importance, in units of the weight, exceeds this."""


@dataclass(frozen=True)
class SEESc:
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
        basis: "auto" (paired), "linear" as in the paper, "paired", "quadratic", or a Basis.
        intercept: add an unpenalised constant per label, so that a large eta tends to label shift.
        refit: solve again without penalty on the selected features (and a constant per label).
        tolerance: bound on the suboptimality of the solve, in units of the objective.
    """

    eta: float | Literal["auto"] = 1e-3
    sparsity: int | Literal["auto"] | None = None
    basis: str | Basis = "auto"
    intercept: bool = False
    refit: bool = False
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        if self.eta != "auto":
            try:
                eta = float(self.eta)
            except (TypeError, ValueError):
                eta = -1.0
            if not 0 <= eta < float("inf"):
                raise SeesError(f"eta must be 'auto' or a number >= 0, got {self.eta!r}.")
            object.__setattr__(self, "eta", eta)
        if self.sparsity == "auto":
            object.__setattr__(self, "sparsity", None)
        if self.sparsity is not None:
            object.__setattr__(self, "sparsity", whole_number(self.sparsity, "sparsity"))

    @property
    def name(self) -> str:
        return "sees-c"

    def match(self, source: Source, target: Target) -> Match:
        """The weights at this eta."""
        if self.eta == "auto":
            return self._best(source, target)
        return self.path(source, target, [self.eta])[0]

    def _best(self, source: Source, target: Target) -> Match:
        """The weights at the eta with the best held-out score."""
        folds = Folds.deal(source, target)
        counts = folds.training(source, target)
        matches = self.path(source, target, ETAS)
        ratios = []
        for eta, match in zip(ETAS, matches, strict=True):
            tables = replace(self, eta=eta).refits(source, target, match, *counts)
            ratios.append(folds.held_out(induced_ratio(source, target, tables)))
        best = int(Evidence.of(source, target, ratios).score().argmax())
        return replace(matches[best], settings=replace(self, eta=ETAS[best]))

    def path(self, source: Source, target: Target, etas: Sequence[float]) -> list[Match]:
        """The weights at every eta, solved as one batch."""
        d = len(source.schema.columns)
        if isinstance(self.sparsity, int) and self.sparsity > d:
            raise IdentificationError(
                f"sparsity={self.sparsity} but there are {d} features: at most {d} can shift."
            )
        problem = _Problem.build(source, target, self._basis(source))
        kept = torch.full_like(problem.owner, True, dtype=torch.bool)
        solution = problem.solve(etas, kept, self.intercept, self.tolerance)
        importance = problem.importance(problem.unpack(solution.value, kept, self.intercept)[0])
        if not self.refit:
            return [
                self._finish(problem, solution, row, kept, self.intercept, importance[row])
                for row in range(len(etas))
            ]
        matches = []
        for row in range(len(etas)):
            chosen = self._select(importance[row])
            member = torch.isin(problem.owner, torch.tensor(chosen, device=problem.owner.device))
            again = problem.solve([0.0], member, True, self.tolerance)
            matches.append(self._finish(problem, again, 0, member, True, importance[row]))
        return matches

    def eta_max(self, source: Source, target: Target) -> float:
        """The smallest eta that selects no feature, with an intercept.

        From the label-shift solution w0 it is max_i || (E_t[p(y|x) phi / w0bar] - c)_+ ||_2 over
        the coefficients of feature i, w0bar = sum_y p(y|x) w0(y).
        """
        problem = _Problem.build(source, target, self._basis(source))
        nothing = torch.zeros_like(problem.owner, dtype=torch.bool)
        solution = problem.solve([0.0], nothing, True, self.tolerance)
        everything = ~nothing
        z, c, group = problem.stack(everything, True)
        label_weight = solution.value[0]
        fit = z[:, -len(label_weight) :] @ label_weight
        push = ((problem.mass / fit) @ z - c).clamp_min(0.0)
        squares = c.new_zeros(problem.groups + 1)
        squares = squares.index_add(0, torch.where(group < 0, problem.groups, group), push.square())
        return float(squares[:-1].max().sqrt()) if problem.groups else 0.0

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of all rows under many multiplicities, by one Newton step from the match."""
        stack = Stack.of(source, target, match.weight_function)
        return stack.weights(stack.one_step(0.0 if self.refit else self._eta(), here, there))

    def refits(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same, each solved to the tolerance, from the match as a first guess."""
        stack = Stack.of(source, target, match.weight_function)
        if self.refit:
            return stack.weights(stack.only_support().solve(0.0, here, there, self.tolerance))
        return stack.weights(stack.solve(self._eta(), here, there, self.tolerance))

    def _eta(self) -> float:
        if self.eta == "auto":
            raise SeesError("eta='auto' is chosen by match; resamples need a number.")
        return self.eta

    def _basis(self, source: Source) -> Basis:
        if isinstance(self.basis, str):
            return FeatureBasis(source, "paired" if self.basis == "auto" else self.basis)
        if not isinstance(self.basis, Basis):
            raise SeesError(
                f"basis must be a name or a sees_torch Basis module that declares `owners`, "
                f"got {type(self.basis).__name__}."
            )
        return self.basis

    def _select(self, importance: Tensor) -> list[int]:
        order = importance.argsort(descending=True, stable=True).tolist()
        chosen = [i for i in order if float(importance[i]) > MATTERS]
        return sorted(chosen[: self.sparsity] if isinstance(self.sparsity, int) else chosen)

    def _finish(
        self,
        problem: _Problem,
        solution: Solution,
        row: int,
        kept: Tensor,
        intercept: bool,
        importance: Tensor,
    ) -> Match:
        coefficient, constant = problem.unpack(solution.value, kept, intercept)
        converged = bool(solution.converged[row])
        return Match(
            self.name,
            BasisWeights(
                problem.source.schema,
                problem.source.classes,
                problem.basis,
                coefficient[row],
                constant[row],
            ),
            tuple(self._select(importance)),
            float(solution.residual[row]),
            Status.CONVERGED if converged else Status.MAX_STEPS,
            problem.unseen_mass,
            importance=importance,
        )


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

    def refits(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same, each solved to the tolerance, from the match as a first guess."""
        stack = Stack.of(source, target, match.weight_function, labels=False)
        return stack.weights(stack.solve(self.eta, here, there, self.tolerance))


@dataclass(frozen=True)
class _Problem:
    """Moments of a basis on both samples: everything the solver needs.

    Attributes:
        phi: (U, K) basis on the distinct target rows, with posterior (U, L) and mass (U,).
        moment: (K, L) c, E_s[p(y|x) phi_k(x)]; label_moment: (L,) E_s[p(y|x)].
        owner: (K,) feature of every function, -1 for none.
        partition: (d,) the feature's functions sum to the same number on every source row.
    """

    source: Source
    basis: Basis
    phi: Tensor
    posterior: Tensor
    mass: Tensor
    moment: Tensor
    label_moment: Tensor
    owner: Tensor
    partition: Tensor
    unseen_mass: float

    @classmethod
    def build(cls, source: Source, target: Target, basis: Basis) -> _Problem:
        rows, posterior, mass = distinct_target(target)
        on_source, on_target = basis(source.rows), basis(rows)
        d = len(source.schema.columns)
        _check_basis(basis, on_source, d)
        owner = torch.tensor(basis.owners, dtype=torch.int64, device=on_source.device)
        place = torch.where(owner < 0, d, owner)
        sums = on_source.new_zeros(len(on_source), d + 1).index_add(1, place, on_source)[:, :d]
        seen = source.count > 0
        width = sums[seen].amax(dim=0) - sums[seen].amin(dim=0)
        partition = (width < 1e-9) & (sums[seen].amax(dim=0) > 0)
        moment = torch.einsum("n,nk,nl->kl", source.mass, on_source, source.posterior)
        label_moment = source.mean(source.posterior)
        return cls(
            source,
            basis,
            on_target,
            posterior,
            mass,
            moment,
            label_moment,
            owner,
            partition,
            target.unseen_mass(source),
        )

    @property
    def groups(self) -> int:
        return len(self.source.schema.columns)

    def stack(self, kept: Tensor, intercept: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Design (U, P), constraint (P,) and group (P,): function-major, the intercept last."""
        n_labels = self.posterior.shape[1]
        z = (self.phi[:, kept, None] * self.posterior[:, None, :]).flatten(1)
        c = self.moment[kept].flatten()
        group = self.owner[kept].repeat_interleave(n_labels)
        if intercept:
            z = torch.cat([z, self.posterior], dim=1)
            c = torch.cat([c, self.label_moment])
            group = torch.cat([group, group.new_full((n_labels,), -1)])
        return z, c, group

    def solve(
        self, etas: Sequence[float], kept: Tensor, intercept: bool, tolerance: float
    ) -> Solution:
        """Coefficients at every eta; columns that the source never shows (c = 0) stay at zero."""
        z, c, group = self.stack(kept, intercept)
        usable = c > 0
        explained = (z[:, usable].sum(dim=1) > 0) | (self.mass == 0)
        if not bool(explained.all()):
            lost = float(self.mass[~explained].sum())
            raise SupportError(
                f"{lost:.1%} of the target is where every basis function is zero, so no weight can "
                "explain it. Use intercept=True, or a basis that covers those rows."
            )
        simplex = GroupSimplex(c[usable][None], group[usable], self.groups)
        eta = torch.tensor(etas, dtype=z.dtype, device=z.device)[:, None]
        solution = group_likelihood(
            z[:, usable], self.mass[None], simplex, eta, tolerance=tolerance
        )
        value = z.new_zeros(len(etas), len(c))
        value[:, usable] = solution.value
        return replace(solution, value=value)

    def unpack(self, value: Tensor, kept: Tensor, intercept: bool) -> tuple[Tensor, Tensor]:
        """Coefficients (B, K, L) and intercepts (B, L) from solver vectors (B, P)."""
        n_labels = self.posterior.shape[1]
        constant = value.new_zeros(len(value), n_labels)
        if intercept:
            value, constant = value[:, :-n_labels], value[:, -n_labels:]
        full = value.new_zeros(len(value), len(self.owner), n_labels)
        full[:, kept] = value.reshape(len(value), -1, n_labels)
        return full, constant

    def importance(self, coefficient: Tensor) -> Tensor:
        """(B, d) beta_i = ||a_{e_i}|| after a group's constant part is moved to the intercept.

        Where the functions of a feature sum to a constant, the smallest coefficient of each label
        is a constant in disguise: without an intercept some group must carry it.
        """
        shape = (len(coefficient), self.groups + 1, coefficient.shape[-1])
        place = torch.where(self.owner < 0, self.groups, self.owner)
        seen = (self.moment > 0).expand_as(coefficient)
        index = place[:, None].expand_as(coefficient)
        low = coefficient.new_full(shape, torch.inf).scatter_reduce(
            1, index, torch.where(seen, coefficient, torch.inf), "amin"
        )
        low = torch.where(low.isfinite(), low, 0.0)
        constant = torch.cat([self.partition, self.partition.new_zeros(1)])
        low = torch.where(constant[:, None], low, 0.0)
        rest = torch.where(seen, coefficient - low[:, place], 0.0)
        squares = coefficient.new_zeros(shape).scatter_add(1, index, rest.square())
        return squares.sum(dim=-1).sqrt()[:, :-1]


def _check_basis(basis: Basis, values: Tensor, features: int) -> None:
    if values.ndim != 2 or values.shape[1] != len(basis.owners):
        raise ShapeError(
            f"{type(basis).__name__} declares {len(basis.owners)} owners but returned shape "
            f"{tuple(values.shape)}: it must give one column per owner."
        )
    if not all(isinstance(o, int) and -1 <= o < features for o in basis.owners):
        raise SeesError(
            f"owners of {type(basis).__name__} must be feature positions 0 to {features - 1}, or "
            "-1. A function of two features belongs to no single group: split it, or use -1."
        )
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise SeesError(
            f"{type(basis).__name__} gave negative or infinite values on the source: basis "
            "functions must be >= 0, since their coefficients are."
        )
