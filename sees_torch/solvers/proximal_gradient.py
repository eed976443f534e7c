"""Maximum likelihood of a mixture under a group penalty, by accelerated proximal gradient.

    min_a  -sum_u mu_u log(z_u . a) + eta sum_g ||a_g||_2     s.t.  a >= 0,  c . a = 1

for a batch of eta (or of row masses mu) at once. The logarithm has no global Lipschitz constant,
so every problem backtracks on its own; momentum restarts when it points uphill. Once the support
has settled, Newton steps on it finish the solve. Its steps are matrix products and little else,
which is what a GPU is good at; on a CPU the interior-point method takes fewer passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sees_torch.solvers.design import Mixture
from sees_torch.solvers.group_simplex import GroupSimplex, certificate
from sees_torch.solvers.proximal import prox
from sees_torch.solvers.solution import Solution, attainable

CHECK_EVERY = 25
PROX_STEPS = 16
"""Newton steps of each proximal map, which starts from the multiplier of the one before."""
RIDGE = 1e-11
NEARNESS = 0.99
"""A start near the solution is moved inside: some row may be explained by entries at zero alone."""


def descend(
    features: Tensor | Mixture,
    mass: Tensor,
    simplex: GroupSimplex,
    eta: Tensor,
    *,
    tolerance: float = 1e-9,
    max_steps: int = 5000,
    near: Tensor | None = None,
) -> Solution:
    """Minimisers of the problem above.

    Args:
        features: (U, P) z >= 0, one row per distinct example, or the same as a Mixture.
        mass: (B or 1, U) mu, sums to one over U.
        simplex: constraint and groups.
        eta: (B, 1) penalty of every problem.
        tolerance: on the certificate, an upper bound of the suboptimality in objective units.
        max_steps: proximal gradient steps.
        near: (B, P) entries >= 0 near the solution, to start from.

    Returns:
        Solution with value (B, P), multiplier and residual (B,).
    """
    mixture = features if isinstance(features, Mixture) else Mixture.plain(features)
    solve = _Descent(mixture, mass.to(eta.dtype).expand(len(eta), -1), simplex, eta)
    tolerance = attainable(tolerance, eta.dtype)
    entries = simplex.flat(len(eta)).clone()
    if near is not None:
        entries = torch.lerp(entries, simplex.normalised(near), NEARNESS)
    best, residual = entries, solve.certificate(entries)
    previous, speed = entries, torch.ones_like(eta)
    stiffness = torch.ones_like(eta)
    multiplier = torch.zeros_like(eta)
    steps = 0
    while steps < max_steps and not bool((residual <= tolerance).all()):
        for _ in range(CHECK_EVERY):
            entries, previous, speed, stiffness, multiplier = solve.step(
                entries, previous, speed, stiffness, multiplier
            )
        steps += CHECK_EVERY
        # The search of a proximal map may end short of c . a = 1, which the certificate relies on.
        entries = simplex.normalised(entries)
        polished = solve.newton(entries)
        for candidate in (entries, polished):
            bound = solve.certificate(candidate)
            better = bound < residual
            best = torch.where(better[..., None], candidate, best)
            residual = torch.where(better, bound, residual)
        # Going on from the polished point is safe only where it lowered the objective.
        lower = (solve.objective(polished) <= solve.objective(entries))[..., None]
        entries = torch.where(lower, polished, entries)
        previous = torch.where(lower, polished, previous)
        speed = torch.where(lower, 1.0, speed)
    nu = 1 - (eta * simplex.norms(best)).sum(dim=-1)
    return Solution(best, nu, residual, residual <= tolerance, steps)


class _Descent:
    """The smooth part, its gradient, and one step; holds no state between calls."""

    def __init__(self, mixture: Mixture, mass: Tensor, simplex: GroupSimplex, eta: Tensor) -> None:
        self.mixture, self.mass, self.simplex, self.eta = mixture, mass, simplex, eta

    def fit(self, entries: Tensor) -> Tensor:
        """(..., B, U) r = z . a."""
        return self.mixture.fit(entries)

    def smooth(self, fit: Tensor) -> Tensor:
        """(..., B) minus log-likelihood; infinite where a row has no weight at all."""
        safe = torch.where(self.mass > 0, fit, 1.0)
        return -(self.mass * safe.clamp_min(0.0).log()).sum(dim=-1)

    def push(self, fit: Tensor) -> Tensor:
        """(..., B, P) E[z / r], minus the gradient."""
        safe = torch.where(self.mass > 0, fit, 1.0)
        return self.mixture.moments(torch.where(self.mass > 0, self.mass / safe, 0.0))

    def objective(self, entries: Tensor) -> Tensor:
        penalty = (self.eta * self.simplex.norms(entries)).sum(dim=-1)
        return self.smooth(self.fit(entries)) + penalty

    def certificate(self, entries: Tensor) -> Tensor:
        return certificate(self.simplex, entries, self.push(self.fit(entries)), self.eta)

    def step(
        self,
        entries: Tensor,
        previous: Tensor,
        speed: Tensor,
        stiffness: Tensor,
        multiplier: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """One FISTA step per problem; a step that overshoots stiffens instead of moving."""
        faster = (1 + torch.sqrt(1 + 4 * speed.square())) / 2
        ahead = entries + (speed - 1) / faster * (entries - previous)
        fit = self.fit(ahead)
        legal = ((fit > 0) | (self.mass == 0)).all(dim=-1, keepdim=True)
        ahead = torch.where(legal, ahead, entries)
        fit = torch.where(legal, fit, self.fit(entries))
        push = self.push(fit)
        candidate, nu = prox(
            self.simplex,
            ahead + push / stiffness,
            self.eta / stiffness,
            multiplier,
            steps=PROX_STEPS,
        )
        move = candidate - ahead
        model = self.smooth(fit)[..., None] - (push * move).sum(dim=-1, keepdim=True)
        model = model + stiffness / 2 * move.square().sum(dim=-1, keepdim=True)
        value = self.smooth(self.fit(candidate))[..., None]
        # The slack is rounding in the two values, not a licence to ascend.
        accept = value <= model + 1e-14 * model.abs()
        uphill = (move * (candidate - entries)).sum(dim=-1, keepdim=True) < 0
        restart = torch.where(uphill | ~legal, 1.0, faster)
        return (
            torch.where(accept, candidate, entries),
            torch.where(accept, entries, previous),
            torch.where(accept, restart, torch.ones_like(speed)),
            torch.where(accept, stiffness * 0.9, stiffness * 2),
            torch.where(accept, nu, multiplier),
        )

    def newton(self, entries: Tensor, steps: int = 4) -> Tensor:
        """Newton steps on the support of `entries`, kept feasible; the support may shrink."""
        for _ in range(steps):
            live = entries > 0
            fit = self.fit(entries)
            push = self.push(fit)
            norm = self.simplex.spread(self.simplex.norms(entries), free=0.0)
            direction = torch.where(norm > 0, entries / norm.clamp_min(1e-37), 0.0)
            gradient = -push + self.eta * direction
            step = self._newton_direction(fit, norm, direction, gradient, live)
            # Near the optimum the objective is flat to rounding while the certificate is not yet:
            # a step that does not raise it beyond rounding is let through.
            now = self.objective(entries)[..., None]
            now = now + 1e-15 * now.abs().clamp_min(1.0)
            # The full step cut off at zero settles many entries at once; where it does not
            # descend, go at most to the first entry that reaches zero and halve from there.
            trial = self._feasible(entries + step)
            worse = ~(self.objective(trial)[..., None] <= now)
            room = torch.where(step < 0, -entries / step, torch.inf).amin(dim=-1, keepdim=True)
            length = room.clamp_max(1.0)
            for _ in range(8):
                shorter = self._feasible(entries + length * step)
                trial = torch.where(worse, shorter, trial)
                worse = ~(self.objective(trial)[..., None] <= now)
                length = length / 2
            entries = torch.where(worse, entries, trial)
        return entries

    def _feasible(self, entries: Tensor) -> Tensor:
        """Entries cut off at zero and scaled back onto c . a = 1."""
        clipped = entries.clamp_min(0.0)
        total = (self.simplex.weight * clipped).sum(dim=-1, keepdim=True)
        return clipped / total.clamp_min(1e-37)

    def _newton_direction(
        self,
        fit: Tensor,
        norm: Tensor,
        direction: Tensor,
        gradient: Tensor,
        live: Tensor,
    ) -> Tensor:
        """Newton step on the live entries that keeps c . a, by a scaled Cholesky factor.

        Groups that share the constant make the Hessian singular; the ridge then picks a small
        step among the equivalent ones. A factor that fails gives a step that does not descend,
        which the line search turns down.
        """
        curve = torch.where(self.mass > 0, self.mass / fit.square().clamp_min(1e-37), 0.0)
        hessian = self.mixture.gram(curve)
        bend = torch.where(norm > 0, self.eta / norm.clamp_min(1e-37), 0.0)
        radial = direction[..., :, None] * direction[..., None, :] * self.simplex.together
        hessian = hessian + torch.diag_embed(bend) - radial * bend[..., None]
        diagonal = hessian.diagonal(dim1=-2, dim2=-1)
        scale = torch.where(live & (diagonal > 0), diagonal, 1.0).rsqrt()
        pair = live[..., :, None] & live[..., None, :]
        system = torch.where(pair, hessian * scale[..., :, None] * scale[..., None, :], 0.0)
        system = system + torch.diag_embed(torch.where(live, RIDGE, 1.0))
        weight = torch.where(live, self.simplex.weight * scale, 0.0)
        right = torch.stack([torch.where(live, -gradient * scale, 0.0), weight], dim=-1)
        factor = torch.linalg.cholesky_ex(system, check_errors=False).L
        free, along = torch.cholesky_solve(right, factor).unbind(-1)
        rate = (weight * along).sum(dim=-1, keepdim=True)
        multiplier = (weight * free).sum(dim=-1, keepdim=True) / rate.clamp_min(1e-37)
        return torch.where(live, (free - multiplier * along) * scale, 0.0)
