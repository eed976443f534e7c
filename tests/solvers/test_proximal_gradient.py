"""Penalised mixture likelihood against cvxpy, and the habits of a batched solver."""

import numpy as np
import pytest
import torch
from worlds import penalised_loss, penalised_optimum

from sees_torch.solvers.proximal import GroupSimplex
from sees_torch.solvers.proximal_gradient import group_likelihood
from sees_torch.solvers.solution import Status

GROUPS = {
    "groups": [0, 0, 0, 1, 1, 2, 2, 2],
    "intercept": [0, 0, 0, 1, 1, 1, -1, -1],
    "unpenalised": [-1] * 8,
}
ETAS = [0.0, 1e-3, 1e-2, 5.0]


def mixture(seed, group, rows=60, indicators=False):
    """Rows z, their mass, the constraint; indicators give zeros and collinear columns."""
    rng = np.random.default_rng(seed)
    z = rng.random((rows, len(group))) ** 2
    if indicators:
        z = np.zeros((rows, len(group)))
        posterior = rng.random(rows)
        levels = rng.integers(0, 2, (rows, 2))
        for j in range(2):
            for level in range(2):
                here = levels[:, j] == level
                z[:, 4 * j + 2 * level] = here * posterior
                z[:, 4 * j + 2 * level + 1] = here * (1 - posterior)
    mass = rng.dirichlet(np.ones(rows))
    return z, mass, z.T @ rng.dirichlet(np.ones(rows))


def solve(z, mass, c, group, etas, **options):
    group = torch.tensor(group)
    simplex = GroupSimplex(torch.tensor(c)[None], group, max(int(group.max()) + 1, 0))
    eta = torch.tensor(etas, dtype=torch.float64)[:, None]
    mass = torch.tensor(np.atleast_2d(mass))
    return group_likelihood(torch.tensor(z), mass, simplex, eta, **options)


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize("indicators", [False, True], ids=["dense", "indicators"])
def test_reaches_cvxpys_objective(group, eta, indicators):
    for seed in (0, 1):
        z, mass, c = mixture(seed, group, rows=40, indicators=indicators)
        found = solve(z, mass, c, group, [eta])
        assert found.status() is Status.CONVERGED
        assert float(found.residual) < 1e-8
        a = found.value[0].numpy()
        assert a.min() >= 0
        assert abs(c @ a - 1) < 1e-12
        kinds = np.array(group)
        best = penalised_loss(z, mass, kinds, eta, penalised_optimum(z, mass, c, kinds, eta))
        # cvxpy's own point is good to 1e-8 or so: neither may be better by more than that.
        assert abs(penalised_loss(z, mass, kinds, eta, a) - best) < 1e-6
        norms = sum(np.linalg.norm(a[kinds == g]) for g in range(kinds.max() + 1))
        assert abs(float(found.multiplier) - (1 - eta * norms)) < 1e-12


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_batch_over_eta_equals_one_at_a_time(group):
    z, mass, c = mixture(3, group)
    together = solve(z, mass, c, group, ETAS, tolerance=1e-12)
    for row, eta in enumerate(ETAS):
        alone = solve(z, mass, c, group, [eta], tolerance=1e-12)
        # Objectives within 1e-12; entries follow at its square root.
        torch.testing.assert_close(together.value[row], alone.value[0], rtol=0, atol=2e-6)
        assert abs(float(together.residual[row])) < 1e-11


def test_batch_over_masses_equals_one_at_a_time():
    group = GROUPS["intercept"]
    z, mass, c = mixture(4, group)
    masses = np.stack([mass, np.roll(mass, 7), np.full(len(mass), 1 / len(mass))])
    together = solve(z, masses, c, group, [1e-2] * 3, tolerance=1e-12)
    for row in range(3):
        alone = solve(z, masses[row], c, group, [1e-2], tolerance=1e-12)
        torch.testing.assert_close(together.value[row], alone.value[0], rtol=0, atol=2e-6)


def test_rows_without_mass_are_ignored():
    """Even rows that no coefficient can explain."""
    group = GROUPS["groups"]
    z, mass, c = mixture(5, group)
    more = np.concatenate([z, np.zeros((3, z.shape[1])), 1e6 * z[:3]])
    padded = np.concatenate([mass, np.zeros(6)])
    plain, with_zeros = solve(z, mass, c, group, ETAS), solve(more, padded, c, group, ETAS)
    torch.testing.assert_close(with_zeros.value, plain.value, rtol=0, atol=1e-9)
    assert bool(with_zeros.converged.all())


def test_the_answer_does_not_depend_on_the_start():
    group = GROUPS["intercept"]
    z, mass, c = mixture(6, group)
    start = np.random.default_rng(0).dirichlet(np.ones(len(c)), size=2) / c
    flat = solve(z, mass, c, group, [1e-3, 1e-2], tolerance=1e-12)
    other = solve(z, mass, c, group, [1e-3, 1e-2], tolerance=1e-12, start=torch.tensor(start))
    torch.testing.assert_close(other.value, flat.value, rtol=0, atol=2e-6)


def test_a_single_column_needs_no_steps():
    found = solve(np.ones((4, 1)), np.full(4, 0.25), np.array([0.5]), [0], [0.1])
    torch.testing.assert_close(found.value, torch.tensor([[2.0]], dtype=torch.float64))
    assert found.steps == 0


def test_running_out_of_steps_is_a_status():
    group = GROUPS["groups"]
    z, mass, c = mixture(7, group)
    found = solve(z, mass, c, group, [1e-3], tolerance=-1.0, max_steps=25)
    assert found.status() is Status.MAX_STEPS
    assert not bool(found.converged.any())
