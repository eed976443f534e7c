"""The problem that SEES-c solves: moments of a basis on both samples, ready for the solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sees_torch.data import Rows, Source, Target
from sees_torch.errors import IdentificationError, SeesError, ShapeError, SupportError
from sees_torch.matching.likelihood import distinct_target
from sees_torch.solvers.design import Mixture
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import group_likelihood
from sees_torch.solvers.likelihood import penalised_likelihood
from sees_torch.solvers.proximal_gradient import descend
from sees_torch.solvers.solution import Solution
from sees_torch.statistics.basis import Basis, FeatureBasis, GaussianBasis, OwnBasis, pieces

Solver = Literal["auto", "proximal", "interior"]
SOLVERS: dict[Solver, Callable[..., Solution]] = {
    "auto": penalised_likelihood,
    "interior": group_likelihood,
    "proximal": descend,
}
FEW_ROWS = 256
"""Rows on which a basis is asked what its functions depend on."""
MOST_UNKNOWNS = 4000
"""Coefficients of a problem. Time grows with the cube of their number, memory with its square."""


@dataclass(frozen=True)
class BasisProblem:
    """Everything the solver needs; the last of the K + 1 functions is the constant.

    Attributes:
        rows: z = p(y|x) phi_k(x) on the distinct target rows, with mass (U,).
        moment: (K + 1, L) c, E_s[p(y|x) phi_k(x)].
        owner: (K + 1,) feature of every function, -1 for none.
        partition: (d,) the feature's functions sum to the same number on every source row.
    """

    source: Source
    basis: Basis
    rows: Mixture
    mass: Tensor
    moment: Tensor
    owner: Tensor
    partition: Tensor
    unseen_mass: float

    @classmethod
    def build(cls, source: Source, target: Target, basis: Basis) -> BasisProblem:
        check_size(
            source, basis, "SEES-c has a coefficient for every level and class", len(source.classes)
        )
        rows, posterior, mass = distinct_target(target)
        d = len(source.schema.columns)
        moment, partition = _source_moments(source, basis)
        owner = torch.tensor([*basis.owners, -1], dtype=torch.int64, device=moment.device)
        mixture = stacked(basis, rows, posterior)
        return cls(
            source,
            basis,
            mixture,
            mass.to(posterior.dtype),
            moment,
            owner,
            partition[:d],
            target.unseen_mass(source),
        )

    @property
    def groups(self) -> int:
        return len(self.source.schema.columns)

    def part(self, kept: Tensor) -> tuple[Mixture, GroupSimplex]:
        """The rows and the constraint of the functions kept (K + 1,).

        Columns that the source never shows (c = 0) are left out.
        """
        labels = self.moment.shape[1]
        place = (kept[:, None] & (self.moment > 0)).flatten().nonzero().squeeze(1)
        group = self.owner.repeat_interleave(labels)[place]
        simplex = GroupSimplex(self.moment.flatten()[place][None], group, self.groups)
        return replace(self.rows, kept=place), simplex

    def solve(
        self,
        etas: Sequence[float],
        kept: Tensor,
        tolerance: float,
        solver: Solver = "auto",
        start: Tensor | None = None,
    ) -> Solution:
        """Coefficients (B, K + 1, L) at every eta, from a start (K + 1, L) if there is one."""
        rows, simplex = self.part(kept)
        explained = (rows.fit(torch.ones_like(simplex.weight))[0] > 0) | (self.mass == 0)
        if not bool(explained.all()):
            lost = float(self.mass[~explained].sum())
            raise SupportError(
                f"{lost:.1%} of the target is where every basis function is zero, so no weight can "
                "explain it. Use intercept=True, or a basis that covers those rows."
            )
        eta = torch.tensor(etas, dtype=self.mass.dtype, device=self.mass.device)[:, None]
        if solver == "auto" and eta.device.type != "cpu":
            solver = "proximal"
        solve = SOLVERS[solver]
        near = None
        if start is not None and start.shape == self.moment.shape:
            near = start.to(eta).flatten()[rows.kept].expand(len(etas), -1)
        solution = solve(rows, self.mass[None], simplex, eta, tolerance=tolerance, near=near)
        value = self.moment.new_zeros(len(etas), self.moment.numel())
        value[:, rows.kept] = solution.value
        return replace(solution, value=value.reshape(len(etas), *self.moment.shape))

    def eta_max(self, label_weight: Tensor) -> float:
        """max_i || (E_t[p(y|x) phi / w0bar] - c)_+ ||_2 over features i, from w0 (L,)."""
        rows, simplex = self.part(torch.ones_like(self.owner, dtype=torch.bool))
        push = rows.moments((self.mass / (label_weight @ rows.share))[None])
        norms = simplex.norms((push - simplex.weight).clamp_min(0.0))
        return float(norms.max()) if self.groups else 0.0

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


def stacked(basis: Basis, rows: Rows, posterior: Tensor) -> Mixture:
    """p(y|x) phi_k(x) of all rows, the constant as the last function."""
    functions = len(basis.owners) + 1
    phi = posterior.new_ones(functions, len(rows))
    for here, part in pieces(rows, len(basis.owners)):
        phi[:-1, here] = basis(part).T
    every = torch.arange(functions * posterior.shape[1], device=posterior.device)
    return Mixture(phi, posterior.T.contiguous(), every)


def check_size(source: Source, basis: Basis, words: str, each: int) -> None:
    """Refuse more unknowns than a dense system can be solved for.

    Args:
        source, basis: what is fitted, and on what.
        words: which method has a coefficient for every what.
        each: coefficients of a function of the basis.
    """
    unknowns = len(basis.owners) * each
    if unknowns > MOST_UNKNOWNS:
        owner = max(set(basis.owners), key=basis.owners.count)
        named = f"{source.schema.names[owner]!r}" if owner >= 0 else "the basis"
        raise IdentificationError(
            f"{words}, {unknowns} here; at most {MOST_UNKNOWNS} are solved for. Merge levels of "
            f"{named}, which has the most, leave it out, or use a method that searches for few "
            'features, such as "sees-em".'
        )


def _source_moments(source: Source, basis: Basis) -> tuple[Tensor, Tensor]:
    """(K + 1, L) c, and (d,) whether a feature's functions have a constant sum."""
    d = len(source.schema.columns)
    posterior = source.posterior
    share = posterior * source.mass.to(posterior.dtype)[:, None]
    moment = posterior.new_zeros(len(basis.owners) + 1, posterior.shape[1])
    moment[-1] = share.sum(dim=0)
    least, most = posterior.new_full((d + 1,), torch.inf), posterior.new_zeros(d + 1)
    place = None
    for here, part in pieces(source.rows, len(basis.owners)):
        phi = basis(part).to(posterior.dtype)
        if place is None:
            _check_basis(basis, phi, d)
            _check_owners(basis, part)
            place = torch.tensor([o if o >= 0 else d for o in basis.owners], device=phi.device)
        _check_values(basis, phi)
        moment[:-1] += phi.T @ share[here]
        sums = phi.new_zeros(len(phi), d + 1).index_add(1, place, phi)
        seen = (source.count[here] > 0)[:, None]
        least = torch.minimum(least, torch.where(seen, sums, torch.inf).amin(dim=0))
        most = torch.maximum(most, torch.where(seen, sums, 0.0).amax(dim=0))
    narrow = 1e7 * torch.finfo(posterior.dtype).eps
    return moment, ((most - least < narrow) & (most > 0))[:d]


def _check_basis(basis: Basis, values: Tensor, features: int) -> None:
    if values.ndim != 2 or values.shape[1] != len(basis.owners):
        raise ShapeError(
            f"{_name(basis)} declares {len(basis.owners)} owners but returned shape "
            f"{tuple(values.shape)}: it must give one column per owner."
        )
    if not all(isinstance(o, int) and -1 <= o < features for o in basis.owners):
        raise SeesError(
            f"owners of {_name(basis)} must be feature positions 0 to {features - 1}, or "
            "-1. A function of two features belongs to no single group: split it, or use -1."
        )


def _check_owners(basis: Basis, rows: Rows) -> None:
    """Refuse functions that change with another feature than the one that owns them."""
    if isinstance(basis, (FeatureBasis, GaussianBasis)):
        return
    few = rows[torch.arange(min(len(rows), FEW_ROWS), device=rows.codes.device)]
    values = basis(few)
    for owner in sorted({o for o in basis.owners if o >= 0}):
        others = torch.arange(few.codes.shape[1], device=few.codes.device) != owner
        mixed = [
            torch.where(others, part.roll(1, 0), part)
            for part in (few.codes, few.values, few.clamped)
        ]
        own = torch.tensor([o == owner for o in basis.owners], device=values.device)
        if not torch.allclose(basis(Rows(*mixed))[:, own], values[:, own]):
            raise SeesError(
                f"{_name(basis)} has functions of feature {owner} that change with other features "
                "or from call to call. A function belongs to one feature: split it, or declare "
                "its owner as -1; put modules with dropout into eval mode."
            )


def _name(basis: Basis) -> str:
    return type(basis.inner if isinstance(basis, OwnBasis) else basis).__name__


def _check_values(basis: Basis, values: Tensor) -> None:
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise SeesError(
            f"{_name(basis)} gave negative or infinite values on the source: basis "
            "functions must be >= 0, since their coefficients are."
        )
