"""Basis weights fitted to many resamples of the same rows, starting from those of the sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.solvers.proximal import GroupSimplex
from sees_torch.solvers.proximal_gradient import group_likelihood
from sees_torch.weights import BasisWeights, WeightFunction


@dataclass(frozen=True)
class Stack:
    """The problem of SEES-c with its coefficients as one vector, for the rows as they are.

    Attributes:
        phi_source: (n, K) basis on the source; phi_target: (m, K).
        on_source: (n, P) stacked p(y|x) phi; on_target: (m, P); the intercept last.
        mass: (m,) of the target rows; moment: (P,) c of the sample.
        group: (P,) feature of every entry, -1 for none.
        value: (P,) the sample's solution.
        features: number of features.
        classes: number of labels; coefficients may be common to all of them.
        open: (P,) bool, entries that may be fitted.
    """

    phi_source: Tensor
    phi_target: Tensor
    on_source: Tensor
    on_target: Tensor
    mass: Tensor
    moment: Tensor
    group: Tensor
    value: Tensor
    features: int
    classes: int
    open: Tensor

    def only_support(self) -> Stack:
        """The same with the features that have no weight left out."""
        used = self.group[self.value > 0]
        return replace(self, open=torch.isin(self.group, used) | (self.group < 0))

    @classmethod
    def of(
        cls, source: Source, target: Target, function: WeightFunction, *, labels: bool = True
    ) -> Stack:
        """The stack of a weight function; without labels its coefficients are common to all."""
        assert isinstance(function, BasisWeights)
        classes = len(source.classes)
        used = classes if labels else 1
        phi = [function.basis(sample.rows) for sample in (source, target)]
        stacked = []
        for sample, values in zip((source, target), phi, strict=True):
            posterior = sample.posterior if labels else torch.ones_like(sample.posterior[:, :1])
            z = (values[:, :, None] * posterior[:, None, :]).flatten(1)
            stacked.append(torch.cat([z, posterior], dim=1))
        owner = torch.tensor(function.basis.owners, device=phi[0].device).repeat_interleave(used)
        value = torch.cat([function.coefficient[:, :used].flatten(), function.intercept[:used]])
        return cls(
            phi[0],
            phi[1],
            stacked[0],
            stacked[1],
            target.mass,
            source.mean(stacked[0]),
            torch.cat([owner, owner.new_full((used,), -1)]),
            value,
            len(source.schema.columns),
            classes,
            torch.ones_like(value, dtype=torch.bool),
        )

    def weights(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n, L) and (B, m, L) weights of all rows from coefficients (B, P)."""
        used = value.shape[1] // (self.phi_source.shape[1] + 1)
        coefficient = value[:, :-used].reshape(len(value), -1, used)
        constant = value[:, None, -used:]
        here, there = (phi @ coefficient + constant for phi in (self.phi_source, self.phi_target))
        return here.expand(-1, -1, self.classes), there.expand(-1, -1, self.classes)

    def solve(self, eta: float, here: Tensor, there: Tensor, tolerance: float) -> Tensor:
        """(B, P) solutions under multiplicities (B, n) and (B, m), as one batch."""
        moment = here @ self.on_source / here.sum(dim=1, keepdim=True)
        usable = (moment > 0).all(dim=0) & self.open
        used = len(self.value) - len(self.value[self.group >= 0])
        if not bool((self.value[-used:] > 0).any()):
            usable[-used:] = False  # The form without an intercept.
        start = self.value[usable].clamp_min(0.0) + 1e-9
        c = moment[:, usable]
        solution = group_likelihood(
            self.on_target[:, usable],
            there / there.sum(dim=1, keepdim=True),
            GroupSimplex(c, self.group[usable], self.features),
            torch.full_like(moment[:, :1], eta),
            start=start / (c * start).sum(dim=1, keepdim=True),
            tolerance=tolerance,
        )
        value = torch.zeros_like(moment)
        value[:, usable] = solution.value
        return value

    def one_step(self, eta: float, here: Tensor, there: Tensor) -> Tensor:
        """(B, P) after one Newton step on the support of the sample's solution.

        Solves the optimality conditions of every resample, linearised at the sample's solution:
        the step of the k-step bootstrap, exact to the order that the bootstrap itself is.
        """
        support = self.value > 1e-9 * self.value.max()
        a, group = self.value[support], self.group[support]
        z_s, z_t, c = self.on_source[:, support], self.on_target[:, support], self.moment[support]
        r = (z_t @ a).clamp_min(1e-12)
        same = (group[:, None] == group) & (group >= 0)[:, None]
        norm = (same.to(a.dtype) @ a.square()).sqrt().clamp_min(1e-300)
        pull = torch.where(group >= 0, eta * a / norm, 0.0)
        eye = torch.eye(len(a), dtype=a.dtype, device=a.device)
        bend = (eye - a[:, None] * a / norm[:, None].square()) * eta / norm[:, None]
        curve = (z_t * (self.mass / r.square())[:, None]).T @ z_t + torch.where(same, bend, 0.0)
        # Groups that share the constant make the system singular; the weights are unique.
        matrix = torch.cat(
            [torch.cat([curve, c[:, None]], dim=1), torch.cat([c, c.new_zeros(1)])[None]]
        )
        inverse = torch.linalg.pinv(matrix, rtol=1e-10, hermitian=True)
        moment = here @ z_s / here.sum(dim=1, keepdim=True)
        push = (there / r) @ z_t / there.sum(dim=1, keepdim=True)
        slope = push - pull - (1 - (pull * a).sum()) * moment
        right = torch.cat([slope, 1 - (moment @ a)[:, None]], dim=1)
        moved = (a + (right @ inverse)[:, :-1]).clamp_min(0.0)
        moved = moved / (moment * moved).sum(dim=1, keepdim=True).clamp_min(1e-300)
        value = moved.new_zeros(len(moved), len(self.value))
        value[:, support] = moved
        return value
