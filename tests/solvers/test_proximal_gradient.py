"""Proximal gradient reaches what the interior-point method reaches, on the same certificate."""

import numpy as np
import pytest
import torch
from worlds import penalised_loss

from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import group_likelihood
from sees_torch.solvers.proximal_gradient import descend
from sees_torch.solvers.solution import Status

GROUPS = {
    "groups": [0, 0, 0, 1, 1, 2, 2, 2],
    "intercept": [0, 0, 0, 1, 1, 1, -1, -1],
    "unpenalised": [-1] * 8,
}
ETAS = [0.0, 1e-3, 1e-2, 5.0]


def problem(seed, group, rows=60, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    z = rng.random((rows, len(group))) ** 2
    mass = rng.dirichlet(np.ones(rows), 1)
    place = torch.tensor(group)
    weight = torch.tensor(z.T @ rng.dirichlet(np.ones(rows)), dtype=dtype)
    simplex = GroupSimplex(weight[None], place, max(int(place.max()) + 1, 0))
    eta = torch.tensor(ETAS, dtype=dtype)[:, None]
    return torch.tensor(z, dtype=dtype), torch.tensor(mass, dtype=dtype), simplex, eta


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_both_solvers_agree(group):
    for seed in range(4):
        z, mass, simplex, eta = problem(seed, group)
        found, other = (solve(z, mass, simplex, eta) for solve in (descend, group_likelihood))
        for solution in (found, other):
            assert solution.status() is Status.CONVERGED
            assert float(solution.residual.max()) <= 1e-9
        for row, strength in enumerate(ETAS):
            values = [
                penalised_loss(z.numpy(), mass[0].numpy(), np.array(group), strength, a.numpy())
                for a in (found.value[row], other.value[row])
            ]
            assert abs(values[0] - values[1]) < 3e-9
        feasible = (found.value * simplex.weight).sum(dim=1)
        torch.testing.assert_close(feasible, torch.ones(len(ETAS)).double(), atol=1e-12, rtol=0)
        assert bool((found.value >= 0).all())


def test_float32_reaches_its_own_accuracy():
    z, mass, simplex, eta = problem(0, GROUPS["groups"], dtype=torch.float32)
    found = descend(z, mass, simplex, eta)
    assert found.value.dtype == torch.float32
    assert float(found.residual.max()) < 1e-4


def test_running_out_of_steps_is_a_status():
    z, mass, simplex, eta = problem(0, GROUPS["groups"])
    found = descend(z, mass, simplex, eta, max_steps=0)
    assert found.status() is Status.MAX_STEPS


def test_newton_steps_end_the_search_at_its_first_look():
    """Of a wrong Hessian the line search makes the right answer too, in many more steps."""
    for seed in range(4):
        z, mass, simplex, _ = problem(seed, GROUPS["groups"])
        eta = torch.tensor([1e-3, 1e-2, 5e-2]).double()[:, None]
        assert descend(z, mass, simplex, eta).steps <= 25
