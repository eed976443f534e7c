"""Basis weights fitted to many resamples of the same rows, starting from those of the sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.matching.penalised import stacked
from sees_torch.solvers.design import Mixture
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.implicit import likelihood_curve, likelihood_solution
from sees_torch.solvers.likelihood import penalised_likelihood
from sees_torch.weights import BasisWeights, WeightFunction

AT_ONCE = 2**20
"""Rows of all resamples beyond which a larger batch is slower, not faster."""


@dataclass(frozen=True)
class Stack:
    """The problem of SEES-c with its coefficients as one vector, for the rows as they are.

    Attributes:
        on_source: stacked p(y|x) phi of the n source rows; on_target: of the m target rows. The
            constant is the last function.
        mass: (m,) of the target rows; moment: (P,) c of the sample.
        group: (P,) feature of every entry, -1 for none.
        value: (P,) the sample's solution.
        features: number of features.
        classes: number of labels; coefficients may be common to all of them.
        open: (P,) bool, entries that may be fitted.
    """

    on_source: Mixture
    on_target: Mixture
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
        return replace(self, open=self.open & (torch.isin(self.group, used) | (self.group < 0)))

    @classmethod
    def of(
        cls,
        source: Source,
        target: Target,
        function: WeightFunction,
        *,
        labels: bool = True,
        intercept: bool = False,
    ) -> Stack:
        """The stack of a weight function.

        Args:
            source, target: the samples.
            function: fitted to them.
            labels: whether coefficients differ between labels.
            intercept: whether the constant may be fitted.
        """
        assert isinstance(function, BasisWeights)
        classes = len(source.classes)
        used = classes if labels else 1
        here, there = (
            stacked(
                function.basis,
                sample.rows,
                sample.posterior if labels else torch.ones_like(sample.posterior[:, :1]),
            )
            for sample in (source, target)
        )
        owners = torch.tensor([*function.basis.owners, -1], device=source.count.device)
        value = torch.cat([function.coefficient[:, :used].flatten(), function.intercept[:used]])
        value = value.to(here.phi.dtype)
        may_move = torch.ones_like(value, dtype=torch.bool)
        may_move[-used:] = intercept
        return cls(
            here,
            there,
            target.mass.to(value.dtype),
            here.moments(source.mass.to(value.dtype)[None])[0],
            owners.repeat_interleave(used),
            value,
            len(source.schema.columns),
            classes,
            may_move,
        )

    def weights(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n, L) and (B, m, L) weights of all rows from coefficients (B, P)."""
        coefficient = value.reshape(len(value), len(self.on_source.phi), -1)
        here, there = (
            (rows.phi.T @ coefficient).clamp_min(0.0) for rows in (self.on_source, self.on_target)
        )
        return here.expand(-1, -1, self.classes), there.expand(-1, -1, self.classes)

    def solve(self, etas: Sequence[float], here: Tensor, there: Tensor, tolerance: float) -> Tensor:
        """(E, B, P) solutions at every eta under multiplicities (B, n) and (B, m), as one batch.

        Many rows are solved an eta at a time.
        """
        moment = self.on_source.moments(_shares(here, self.value))
        kept = ((moment > 0).all(dim=0) & self.open).nonzero().squeeze(1)
        rows = replace(self.on_target, kept=kept)
        # A level whose source rows are all in one fold cannot be explained without that fold.
        explained = rows.fit(torch.ones_like(moment[:1, kept])) > 0
        mass = _shares(there * explained, self.value)
        value = moment.new_zeros(len(etas), *moment.shape)
        together = max(1, AT_ONCE // there.numel())
        for first in range(0, len(etas), together):
            part = moment.new_tensor(etas[first : first + together])
            solution = penalised_likelihood(
                rows,
                mass.repeat(len(part), 1),
                GroupSimplex(moment[:, kept].repeat(len(part), 1), self.group[kept], self.features),
                part.repeat_interleave(len(mass))[:, None],
                tolerance=tolerance,
            )
            place = value[first : first + together]
            place[..., kept] = solution.value.reshape(*place.shape[:-1], -1)
        return value

    def differentiable(self, eta: float) -> Tensor:
        """(P,) the sample's solution with its gradient in the posteriors."""
        return likelihood_solution(
            self.on_target, self.mass, self.moment, self.group, self.value.detach(), eta
        )

    def one_step(self, eta: float, here: Tensor, there: Tensor) -> Tensor:
        """(B, P) after one Newton step on the support of the sample's solution.

        Solves the optimality conditions of every resample, linearised at the sample's solution:
        the step of the k-step bootstrap, exact to the order that the bootstrap itself is.
        """
        near = self._linearised(eta)
        moment = near.on_source.moments(_shares(here, near.value))
        push = near.on_target.moments(_shares(there, near.value) / near.fit)
        slope = push - near.pull - near.price * moment
        right = torch.cat([slope, 1 - (moment @ near.value)[:, None]], dim=1)
        moved = near.value + (right @ near.inverse)[:, :-1]
        total = (moment * moved).sum(dim=1, keepdim=True)
        # Of few rows a step may leave what is possible: such a resample keeps the sample's weights.
        moved = torch.where(total > 0.5, moved / total, near.value)
        value = moved.new_zeros(len(moved), len(self.value))
        value[:, near.support] = moved
        return value

    def influence(self, eta: float, here: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) and (m,) what a unit of mass of every row adds to a number by moving the solution.

        Args:
            eta: strength of the penalty.
            here, there: (n, L) and (m, L) slopes of the number in the weights of all rows.
        """
        near = self._linearised(eta)
        slope = self.on_source.phi @ here.to(self.value) + self.on_target.phi @ there.to(self.value)
        if len(self.value) < slope.numel():  # Coefficients that are common to all labels.
            slope = slope.sum(dim=1)
        along = near.inverse[:, :-1] @ slope.flatten()[near.support]
        entries, level = torch.stack([along[:-1], near.value]), along[-1]
        moved, kept = near.on_source.fit(entries)
        return -(near.price * moved + level * kept), near.on_target.fit(entries)[0] / near.fit

    def _linearised(self, eta: float) -> _Linearised:
        support = (self.value > 1e-9 * self.value.max()).nonzero().squeeze(1)
        a, group, c = self.value[support], self.group[support], self.moment[support]
        z_s, z_t = (replace(rows, kept=support) for rows in (self.on_source, self.on_target))
        inverse, pull = likelihood_curve(z_t, self.mass, c, group, a, eta)
        fit = z_t.fit(a[None])[0].clamp_min(1e-12)
        return _Linearised(support, a, z_s, z_t, fit, inverse, pull, 1 - (pull * a).sum())


@dataclass(frozen=True)
class _Linearised:
    """The optimality conditions at the sample's solution, on its support.

    Attributes:
        support: (P',) positions of the entries above zero; value: (P',) a > 0.
        on_source, on_target: z of these entries; fit: (m,) r = z . a on the target.
        inverse: (P' + 1, P' + 1) of the conditions; pull: (P',) slope of the penalty.
        price: multiplier of the constraint c . a = 1.
    """

    support: Tensor
    value: Tensor
    on_source: Mixture
    on_target: Mixture
    fit: Tensor
    inverse: Tensor
    pull: Tensor
    price: Tensor


def _shares(count: Tensor, like: Tensor) -> Tensor:
    """(B, n) multiplicities as masses that sum to one."""
    return (count / count.sum(dim=1, keepdim=True).clamp_min(1e-37)).to(like.dtype)
