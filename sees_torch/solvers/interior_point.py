"""Maximum likelihood of a mixture under a group penalty, by a primal-dual interior-point method.

    min_a  -sum_u mu_u log(z_u . a) + eta sum_g ||a_g||_2     s.t.  a >= 0,  c . a = 1

for a batch of eta (or of row masses mu) at once. Inside a > 0 the objective is smooth, and the
barrier bounds its third derivatives, so that about a dozen Newton steps on the relaxed optimality
conditions suffice, whatever the scale of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.solvers.design import Mixture
from sees_torch.solvers.group_simplex import GroupSimplex, certificate
from sees_torch.solvers.solution import Solution, attainable

STEPS_A_ROUND = 3
"""Steps between looks at the certificate."""
CHEAP = 2**20
"""Multiplications for a Hessian of the likelihood that cost less than a step: then each step has
its own, else the steps of a round share one."""
WARM_UP = 4
FIRST_GAP = 0.1
NEARNESS, NEAR_GAP = 0.9, 0.01
"""A start near the solution is moved inside, or entries at zero would stay there for many steps."""
TO_BOUNDARY = 0.99
RIDGE = 1e-13
TINY = 1e-37


@dataclass(frozen=True)
class _Point:
    """Where the members of a batch are; all (B, P) but the multiplier (B, 1).

    Attributes:
        entries: a > 0.
        slack: s > 0, of a >= 0; entries * slack falls to zero.
        direction: y, ||y_g|| <= 1, which ends as a_g / ||a_g|| where that is not 0 / 0.
        multiplier: nu, of c . a = 1.
        fit: (B, U) r = z . a, and push (B, P) E[z / r].
    """

    entries: Tensor
    slack: Tensor
    direction: Tensor
    multiplier: Tensor
    fit: Tensor
    push: Tensor

    def of(self, members: Tensor) -> _Point:
        return _Point(*(getattr(self, name)[members] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Problem:
    """A batch of problems."""

    mixture: Mixture
    mass: Tensor
    simplex: GroupSimplex
    eta: Tensor
    alike: bool

    def of(self, members: Tensor) -> _Problem:
        weight = self.simplex.weight[members]
        return replace(
            self,
            mass=self.mass[members],
            simplex=replace(self.simplex, weight=weight),
            eta=self.eta[members],
        )

    def push(self, fit: Tensor) -> Tensor:
        """(B, P) E[z / r], minus the gradient of the likelihood."""
        return self.mixture.moments(torch.where(self.mass > 0, self.mass / fit, 0.0))

    def curve(self, fit: Tensor) -> Tensor:
        """(B or 1, P, P) E[z z' / r^2], its Hessian."""
        weight = torch.where(self.mass > 0, self.mass / fit.square(), 0.0)
        return self.mixture.gram(weight.mean(dim=0, keepdim=True) if self.alike else weight)

    def certificate(self, entries: Tensor, push: Tensor) -> Tensor:
        return certificate(self.simplex, entries, push, self.eta)

    def unit(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Norm of every entry's group, one for unpenalised ones, and entries over it."""
        if not self.simplex.groups:
            return torch.ones_like(entries), entries
        norm = self.simplex.spread(self.simplex.norms(entries).clamp_min(TINY), free=1.0)
        return norm, entries / norm

    def start(self, near: Tensor | None) -> _Point:
        """Inside a > 0: from all entries alike, or from entries (B, P) near the solution."""
        a = self.simplex.flat(len(self.eta))
        if near is not None:
            a = torch.lerp(a, self.simplex.normalised(near), NEARNESS)
        push = self.push(self.mixture.fit(a))
        for _ in range(WARM_UP if near is None else 1):
            a = self.simplex.normalised(a * (push / self.simplex.weight).clamp_min(0.1))
            fit = self.mixture.fit(a)
            push = self.push(fit)
        _, unit = self.unit(a)
        eta = torch.where(self.simplex.penalised, self.eta, 0.0)
        nu = 1 - (eta * unit * a).sum(dim=-1, keepdim=True)
        slack = nu * self.simplex.weight + eta * unit - push
        gap = FIRST_GAP if near is None else NEAR_GAP
        return _Point(a, torch.maximum(slack, gap / (a.shape[-1] * a)), unit, nu, fit, push)

    def step(self, at: _Point, curve: Tensor) -> _Point:
        """Mehrotra's predictor and corrector, with a Hessian of the likelihood from nearby.

        The norm's own curvature is that of  ||a_g|| y_g = a_g,  linearised in a and y together:
        with a alone, groups on their way to zero zigzag.
        """
        a, s, y, nu = at.entries, at.slack, at.direction, at.multiplier
        simplex, weight = self.simplex, self.simplex.weight
        eta = torch.where(simplex.penalised, self.eta, 0.0)
        norm, unit = self.unit(a)
        bend = eta / norm
        ridge = bend + s / a
        if simplex.groups:
            cross = unit[:, :, None] * y[:, None, :]
            bent = bend[:, :, None] * (cross + cross.mT) / 2
            curve = curve - torch.where(simplex.together, bent, 0.0)
        scale = (curve.diagonal(dim1=-2, dim2=-1) + ridge).rsqrt()
        matrix = curve * (scale[:, :, None] * scale[:, None, :])
        matrix.diagonal(dim1=-2, dim2=-1).add_(ridge * scale.square() + RIDGE)
        factor = torch.linalg.cholesky_ex(matrix, check_errors=False).L
        missing = 1 - (weight * a).sum(dim=-1, keepdim=True)
        slope = at.push - eta * unit - nu * weight

        def solve(right: Tensor) -> Tensor:
            return torch.cholesky_solve(right * scale[..., None], factor) * scale[..., None]

        along, downhill = solve(torch.stack([weight, slope], dim=-1)).unbind(-1)
        rate = (weight * along).sum(dim=-1, keepdim=True)

        def move(free: Tensor, barrier: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
            """Steps of entries, slack and multiplier towards entries * slack = a * barrier."""
            turn = ((weight * free).sum(dim=-1, keepdim=True) - missing) / rate
            da = free - turn * along
            return da, barrier - s - s / a * da, turn

        da, ds, _ = move(downhill, 0.0)
        gap = (a * s).sum(dim=-1, keepdim=True)
        left = (a + _room(a, da) * da) * (s + _room(s, ds) * ds)
        centre = (left.sum(dim=-1, keepdim=True) / gap).pow(3) * gap / a.shape[-1]
        barrier = (centre - da * ds) / a
        da, ds, turn = move(solve((slope + barrier)[..., None]).squeeze(-1), barrier)
        reach = TO_BOUNDARY * torch.minimum(_room(a, da), _room(s, ds))
        length = torch.where(reach > 0, reach, 0.0)  # A member that is not finite stays put.
        da, ds, turn = (torch.where(length > 0, length * move, 0.0) for move in (da, ds, turn))
        moved = y
        if simplex.groups:
            dy = (da + length * a - y * simplex.spread(simplex.sums(unit * da), free=0.0)) / norm
            moved = y + dy - length * y
            moved = moved / simplex.spread(simplex.norms(moved).clamp_min(1.0), free=1.0)
        fit = self.mixture.fit(a + da)
        return _Point(a + da, s + ds, moved, nu + turn, fit, self.push(fit))

    def cut(self, at: _Point) -> Tensor:
        """Entries with those set to zero that are smaller than their slack, in common units."""
        share, price = at.entries * self.simplex.weight, at.slack / self.simplex.weight
        kept = torch.where(share > price, at.entries, 0.0)
        return torch.where(
            (kept > 0).any(-1, keepdim=True), self.simplex.normalised(kept), at.entries
        )


def _room(values: Tensor, move: Tensor) -> Tensor:
    """(B, 1) the largest step, at most slightly above one, that keeps values >= 0."""
    reach = torch.where(move < 0, -values / move, torch.inf).amin(dim=-1, keepdim=True)
    return reach.clamp_max(1 / TO_BOUNDARY)


def group_likelihood(
    features: Tensor | Mixture,
    mass: Tensor,
    simplex: GroupSimplex,
    eta: Tensor,
    *,
    alike: bool = False,
    tolerance: float = 1e-9,
    max_steps: int = 150,
    near: Tensor | None = None,
) -> Solution:
    """Minimisers of the problem above.

    Args:
        features: (U, P) z >= 0, one row per distinct example, or the same as a Mixture.
        mass: (B or 1, U) mu, sums to one over U.
        simplex: constraint and groups.
        eta: (B, 1) penalty of every problem.
        alike: the problems differ so little that one mean Hessian of the likelihood serves all.
        tolerance: on the certificate, an upper bound of the suboptimality in objective units.
        max_steps: Newton steps.
        near: (B, P) entries >= 0 near the solution, to start from.

    Returns:
        Solution with value (B, P), multiplier and residual (B,).
    """
    mixture = features if isinstance(features, Mixture) else Mixture.plain(features)
    members = len(eta)
    simplex = replace(simplex, weight=simplex.weight.expand(members, -1))
    mass = mass.to(mixture.phi.dtype).expand(members, -1)
    whole = _Problem(mixture, mass, simplex, eta, alike)
    tolerance = attainable(tolerance, eta.dtype)
    problem, at = whole, whole.start(near)
    best = at.entries.clone()
    residual = whole.certificate(best, at.push)
    live = torch.arange(members, device=eta.device)
    steps, cheap = 0, mixture.cost <= CHEAP
    while steps < max_steps:
        # A member that is not finite is not above the tolerance either: it cannot recover.
        going = residual[live] > tolerance
        if bool((~going).all()):
            break
        if not bool(going.all()):
            live, problem, at = live[going], problem.of(going), at.of(going)
        curve = problem.curve(at.fit)
        for step in range(STEPS_A_ROUND):
            if cheap and step:
                curve = problem.curve(at.fit)
            at = problem.step(at, curve)
        steps += STEPS_A_ROUND
        cut = problem.cut(at)
        bound = problem.certificate(cut, problem.push(problem.mixture.fit(cut)))
        better = bound < residual[live]
        best[live] = torch.where(better[:, None], cut, best[live])
        residual[live] = torch.where(better, bound, residual[live])
    nu = 1 - (eta * simplex.norms(best)).sum(dim=-1)
    return Solution(best, nu, residual, residual <= tolerance, steps)
