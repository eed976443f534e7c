"""Penalised mixture likelihood against cvxpy, and the habits of a batched solver."""

import numpy as np
import pytest
import torch
from worlds import penalised_loss, penalised_optimum

from sees_torch.solvers.design import Mixture, weighted_gram
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import group_likelihood
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


@pytest.mark.parametrize("spread", [0, 6])
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_the_scale_of_columns_does_not_matter(group, spread):
    """Twelve decades apart; a penalty would not scale along, so there is none."""
    z, mass, c = mixture(6, group)
    scale = 10.0 ** np.random.default_rng(0).uniform(-spread, spread, len(c))
    plain, scaled = solve(z, mass, c, group, [0.0]), solve(z * scale, mass, c * scale, group, [0.0])
    assert bool(scaled.converged.all())
    torch.testing.assert_close(scaled.value * torch.tensor(scale), plain.value, rtol=0, atol=1e-3)


def test_rows_far_from_every_column_are_reached():
    """Kernels so narrow that a row starts hundreds of decades below its final likelihood."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(300, 8)), 0.8 * rng.normal(size=(300, 8)) + 0.5
    for width in (0.35, 1.0, 4.0):
        z, other = (
            np.exp(-((rows[:, None] - x[:40]) ** 2).sum(-1) / (2 * width**2)) for rows in (x, y)
        )
        reached = z.max(axis=1) > 1e-200
        c = other.mean(axis=0)
        usable = c > 1e-12 * c.max()
        z = z[reached][:, usable]
        z = z[z.max(axis=1) > 1e-200]
        found = solve(z, np.full(len(z), 1 / len(z)), c[usable], [-1] * usable.sum(), [0.0])
        assert found.status() is Status.CONVERGED
        assert found.steps < 60


def test_problems_that_are_alike_may_share_a_hessian():
    group = GROUPS["intercept"]
    z, mass, c = mixture(8, group)
    masses = mass * np.random.default_rng(0).uniform(0.8, 1.2, (4, len(mass)))
    masses = masses / masses.sum(axis=1, keepdims=True)
    own = solve(z, masses, c, group, [1e-2] * 4, tolerance=1e-12)
    shared = solve(z, masses, c, group, [1e-2] * 4, tolerance=1e-12, alike=True)
    torch.testing.assert_close(shared.value, own.value, rtol=0, atol=2e-6)


def test_products_equal_the_rows_written_out(monkeypatch):
    """Any subset of the columns, and rows in several chunks."""
    monkeypatch.setattr("sees_torch.solvers.design.CHUNK", 1)
    rng = np.random.default_rng(9)
    phi, share = torch.tensor(rng.random((4, 700))), torch.tensor(rng.random((3, 700)))
    kept = torch.tensor([0, 2, 3, 7, 10, 11])
    rows = Mixture(phi, share, kept)
    z = (phi.T[:, :, None] * share.T[:, None, :]).flatten(1)[:, kept]
    entries, mass = torch.tensor(rng.random((2, 6))), torch.tensor(rng.random((2, 700)))
    torch.testing.assert_close(rows.fit(entries), entries @ z.T)
    torch.testing.assert_close(rows.moments(mass), mass @ z)
    torch.testing.assert_close(rows.gram(mass), torch.einsum("bu,ui,uj->bij", mass, z, z))
    torch.testing.assert_close(
        weighted_gram(phi, mass), torch.einsum("bu,iu,ju->bij", mass, phi, phi)
    )


def test_float32_reaches_its_own_accuracy():
    group = GROUPS["groups"]
    z, mass, c = mixture(10, group)
    double = solve(z, mass, c, group, [1e-2])
    simplex = GroupSimplex(torch.tensor(c).float()[None], torch.tensor(group), 3)
    single = group_likelihood(
        torch.tensor(z).float(), torch.tensor(mass).float()[None], simplex, torch.full((1, 1), 1e-2)
    )
    assert single.value.dtype == torch.float32
    assert bool(single.converged.all())
    # Within 1e-5 of the objective, so within its square root of the entries.
    torch.testing.assert_close(single.value.double(), double.value, rtol=0, atol=1e-2)


def test_a_single_column_needs_no_steps():
    found = solve(np.ones((4, 1)), np.full(4, 0.25), np.array([0.5]), [0], [0.1])
    torch.testing.assert_close(found.value, torch.tensor([[2.0]], dtype=torch.float64))
    assert found.steps == 0


def test_converged_members_stay_as_they_are():
    """A member ends with the steps that it would take alone, whatever the others need."""
    group = GROUPS["groups"]
    z, mass, c = mixture(7, group)
    together = solve(z, mass, c, group, [0.0, 5.0])
    for row, eta in enumerate([0.0, 5.0]):
        alone = solve(z, mass, c, group, [eta])
        torch.testing.assert_close(together.value[row], alone.value[0], rtol=0, atol=1e-12)


def test_running_out_of_steps_is_a_status():
    group = GROUPS["groups"]
    z, mass, c = mixture(7, group)
    found = solve(z, mass, c, group, [1e-3], max_steps=3)
    assert found.status() is Status.MAX_STEPS
    assert not bool(found.converged.any())


def test_a_member_that_is_not_finite_leaves_the_others_alone():
    """Row 1 cannot be explained; the member with mass on it says so, the other is solved."""
    z = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    mass = torch.tensor([[0.5, 0.0, 0.5], [0.4, 0.2, 0.4]], dtype=torch.float64)
    simplex = GroupSimplex(torch.ones(1, 2, dtype=torch.float64), torch.tensor([-1, -1]), 0)
    found = group_likelihood(z, mass, simplex, torch.zeros(2, 1, dtype=torch.float64))
    assert found.converged.tolist() == [True, False]
    assert found.status() is Status.NOT_FINITE
    # (1 + b) (3 - 2b) is largest at b = 1/4.
    assert found.value[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-6)
