"""The certificate against true optima, and sums over groups against loops."""

import numpy as np
import pytest
import torch
from worlds import penalised_loss, penalised_optimum

from sees_torch.solvers.group_simplex import GroupSimplex, certificate

SIZES = {"two groups": [0, 0, 0, 1, 1], "intercept": [0, 0, 1, 1, 2, -1, -1], "one": [0, 0, 0, 0]}


def make_simplex(weight, group):
    group = np.asarray(group)
    return GroupSimplex(torch.tensor(weight), torch.tensor(group), int(group.max()) + 1)


@pytest.mark.parametrize("group", SIZES.values(), ids=SIZES.keys())
def test_sums_norms_and_maxima_equal_loops(group):
    rng = np.random.default_rng(0)
    entries = rng.normal(size=(3, 4, len(group)))
    simplex = make_simplex(rng.uniform(0.1, 2, (1, len(group))), group)
    kinds = np.array(group)
    for found, by_hand in (
        (simplex.sums, lambda part: part.sum(-1)),
        (simplex.norms, lambda part: np.linalg.norm(part, axis=-1)),
        (simplex.largest, lambda part: part.max(-1)),
    ):
        expected = [by_hand(entries[..., kinds == g]) for g in range(kinds.max() + 1)]
        values = found(torch.tensor(entries))
        np.testing.assert_allclose(values, np.stack(expected, axis=-1), atol=1e-14)
    spread = simplex.spread(values, free=7.0).numpy()
    np.testing.assert_array_equal(spread, np.where(kinds < 0, 7.0, values.numpy()[..., kinds]))


def test_flat_and_normalised_points_are_feasible():
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.1, 2, (3, 5))
    simplex = make_simplex(weight, SIZES["two groups"])
    flat = simplex.flat(3).numpy()
    assert (flat == flat[:, :1]).all()
    np.testing.assert_allclose((flat * weight).sum(1), 1, atol=1e-14)
    scaled = simplex.normalised(torch.tensor(rng.random((3, 5)))).numpy()
    np.testing.assert_allclose((scaled * weight).sum(1), 1, atol=1e-14)


def mixture(rng, size, rows=30):
    """Rows z, their mass, and a constraint that is the mean of rows."""
    z = rng.random((rows, size)) ** 2 + 1e-3
    mass = rng.dirichlet(np.ones(rows))
    return z, mass, z.T @ rng.dirichlet(np.ones(rows))


@pytest.mark.parametrize("group", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("eta", [0.0, 1e-3, 0.05, 1.0])
def test_certificate_bounds_the_suboptimality_and_vanishes_at_the_optimum(group, eta):
    rng = np.random.default_rng(5)
    group = np.array(group)
    for _ in range(4):
        z, mass, c = mixture(rng, len(group))
        simplex = make_simplex(c[None], group)
        best = penalised_optimum(z, mass, c, group, eta)
        least = penalised_loss(z, mass, group, eta, best)
        strength = torch.tensor([[eta]], dtype=torch.float64)

        def bound(a, z=z, mass=mass, simplex=simplex, strength=strength):
            push = torch.tensor((mass / (z @ a)) @ z)
            return float(certificate(simplex, torch.tensor(a)[None], push[None], strength)[0])

        # cvxpy's point is within about 1e-8; the bound is first order in the distance.
        assert -1e-9 <= bound(best) < 1e-4
        for spread in (0.01, 0.3, 3.0):
            a = best * np.exp(spread * rng.normal(size=len(best)))
            a = a / (c @ a)
            true = penalised_loss(z, mass, group, eta, a) - least
            assert bound(a) >= true - 1e-9
        a = rng.dirichlet(np.ones(len(c))) / c
        assert bound(a) >= penalised_loss(z, mass, group, eta, a) - least - 1e-9


def test_certificate_is_finite_at_zero_groups():
    simplex = make_simplex(np.ones((1, 4)) / 2, [0, 0, 1, 1])
    entries = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    push = torch.tensor([[0.5, 0.5, 0.1, 0.1]], dtype=torch.float64)
    bound = certificate(simplex, entries, push, torch.tensor([[0.1]], dtype=torch.float64))
    assert bool(bound.isfinite().all())


@pytest.mark.parametrize("group", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("eta", [0.0, 1e-8, 1e-3, 0.3, 50.0])
def test_certificate_equals_bisection(group, eta):
    """The smallest dual feasible multiplier, over ten decades of the gradient."""
    rng = np.random.default_rng(6)
    kinds = np.array(group)
    weight = 10.0 ** rng.uniform(-3, 1, (400, len(group)))
    push = weight * 10.0 ** rng.uniform(-5, 5, (400, 1)) * rng.exponential(1, weight.shape)
    entries = rng.random(weight.shape)
    low, high = np.zeros(400), (push / weight).max(axis=1)
    for _ in range(200):
        middle = (low + high) / 2
        excess = np.maximum(push - middle[:, None] * weight, 0)
        norms = [np.linalg.norm(excess[:, kinds == g], axis=1) for g in range(kinds.max() + 1)]
        feasible = (np.stack(norms) <= eta).all(0) & (excess[:, kinds < 0] <= 0).all(1)
        low, high = np.where(feasible, low, middle), np.where(feasible, middle, high)
    simplex = make_simplex(weight, group)
    strength = torch.full((400, 1), eta, dtype=torch.float64)
    found = certificate(simplex, torch.tensor(entries), torch.tensor(push), strength).numpy()
    penalty = eta * simplex.norms(torch.tensor(entries)).sum(dim=1).numpy()
    # Where eta is so large that no multiplier is needed, the bound may go below zero.
    dual = np.maximum(found + 1 - penalty, 0)
    np.testing.assert_allclose(dual, high, rtol=1e-9, atol=1e-9)
