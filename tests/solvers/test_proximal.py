"""The proximal map against bisection and cvxpy, and the certificate against true optima."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.proximal import prox

SIZES = {"two groups": [0, 0, 0, 1, 1], "intercept": [0, 0, 1, 1, 2, -1, -1], "one": [0, 0, 0, 0]}


def make_simplex(weight, group):
    group = np.asarray(group)
    return GroupSimplex(torch.tensor(weight), torch.tensor(group), int(group.max()) + 1)


def shrunk(point, nu, weight, group, shrink):
    """The entries for a multiplier, by the formula, for rows of points."""
    u = np.maximum(point - nu[:, None] * weight, 0.0)
    for g in range(group.max() + 1):
        norm = np.linalg.norm(u[:, group == g], axis=1)
        factor = np.where(norm > 0, np.maximum(1 - shrink / np.where(norm > 0, norm, 1), 0), 0)
        u[:, group == g] *= factor[:, None]
    return u


def bisected(point, weight, group, shrink):
    """Brute force: 200 halvings of a bracket grown from nothing."""
    low, high = np.full(len(point), -1.0), np.full(len(point), 1.0)

    def excess(nu):
        return (weight * shrunk(point, nu, weight, group, shrink)).sum(axis=1) - 1

    while (excess(low) < 0).any():
        low = np.where(excess(low) < 0, 2 * low, low)
    while (excess(high) > 0).any():
        high = np.where(excess(high) > 0, 2 * high, high)
    for _ in range(200):
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return shrunk(point, (low + high) / 2, weight, group, shrink)


def run(simplex, point, shrink, start=0.0):
    point, shrink = torch.tensor(point), torch.tensor(shrink)[:, None]
    return prox(simplex, point, shrink, torch.full_like(shrink, start))


@pytest.mark.parametrize("group", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e2, 1e6])
@pytest.mark.parametrize("shrinkage", [0.0, 1e-3, 1.0])
def test_equals_bisection(group, scale, shrinkage):
    """200 points a case, 9,000 in all; the first ones are the zero point and equal entries."""
    rng = np.random.default_rng(len(group))
    group = np.array(group)
    weight = 10.0 ** rng.uniform(-2, 1, (1, len(group)))
    point = scale * rng.normal(size=(200, len(group)))
    point[0], point[1], point[2] = 0.0, scale, -scale
    shrink = shrinkage * scale * rng.random(200)
    entries, nu = run(make_simplex(weight, group), point, shrink)
    expected = bisected(point, weight, group, shrink)
    # Entries are differences of numbers of the size of the point and of nu c: their rounding.
    size = np.abs(point).max() + np.abs(nu.numpy() * weight).max()
    np.testing.assert_allclose(entries, expected, rtol=1e-10, atol=1e-13 * size)
    assert float(entries.min()) >= 0
    miss = (torch.tensor(weight) * entries).sum(dim=1) - 1
    assert float(miss.abs().max()) < 1e-12 * (1 + size * np.abs(weight).sum())


@pytest.mark.parametrize("start", [-1e9, 0.0, 1e9])
def test_the_start_of_the_search_does_not_matter(start):
    rng = np.random.default_rng(0)
    simplex = make_simplex(rng.uniform(0.01, 2, (1, 5)), SIZES["two groups"])
    point, shrink = rng.normal(size=(100, 5)), rng.random(100)
    torch.testing.assert_close(
        run(simplex, point, shrink, start)[0], run(simplex, point, shrink)[0], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("group", SIZES.values(), ids=SIZES.keys())
def test_equals_cvxpy(group):
    rng = np.random.default_rng(1)
    group = np.array(group)
    for _ in range(15):
        weight = rng.uniform(0.05, 2.0, len(group))
        point, shrink = rng.normal(size=len(group)), rng.uniform(0, 1.5)
        a = cp.Variable(len(group), nonneg=True)
        penalty = sum(cp.norm(a[np.flatnonzero(group == g)]) for g in range(group.max() + 1))
        problem = cp.Problem(
            cp.Minimize(cp.sum_squares(a - point) / 2 + shrink * penalty), [weight @ a == 1]
        )
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        entries, _ = run(make_simplex(weight[None], group), point[None], np.array([shrink]))
        # An objective within 1e-10 of a strongly convex optimum puts entries within 2e-5.
        np.testing.assert_allclose(entries[0], a.value, atol=2e-5)


@pytest.mark.parametrize("group", SIZES.values(), ids=SIZES.keys())
def test_is_firmly_non_expansive(group):
    """||prox x - prox y||^2 <= <prox x - prox y, x - y> for every pair."""
    rng = np.random.default_rng(2)
    simplex = make_simplex(rng.uniform(0.05, 2.0, (1, len(group))), group)
    x, y = (rng.normal(size=(2000, len(group))) * rng.exponential(2, (2000, 1)) for _ in range(2))
    shrink = rng.exponential(0.5, 2000)
    apart = run(simplex, x, shrink)[0] - run(simplex, y, shrink)[0]
    inner = (apart * torch.tensor(x - y)).sum(dim=1)
    assert float((apart.square().sum(dim=1) - inner).max()) <= 1e-11


def test_is_an_idempotent_projection_without_shrinkage():
    rng = np.random.default_rng(3)
    simplex = make_simplex(rng.uniform(0.05, 2.0, (1, 7)), SIZES["intercept"])
    nothing = np.zeros(500)
    once = run(simplex, 3 * rng.normal(size=(500, 7)), nothing)[0]
    twice = run(simplex, once.numpy(), nothing)[0]
    torch.testing.assert_close(twice, once, rtol=0, atol=1e-12)


def test_batches_of_constraints_and_leading_dimensions():
    rng = np.random.default_rng(4)
    weight, point = torch.tensor(rng.uniform(0.1, 2, (3, 1, 5))), rng.normal(size=(3, 4, 5))
    group = torch.tensor(SIZES["two groups"])
    shrink = torch.tensor(rng.random((3, 4, 1)))
    many = prox(GroupSimplex(weight, group, 2), torch.tensor(point), shrink, 0 * shrink)[0]
    for i in range(3):
        one = prox(
            GroupSimplex(weight[i], group, 2), torch.tensor(point[i]), shrink[i], 0 * shrink[i]
        )[0]
        torch.testing.assert_close(many[i], one, rtol=0, atol=1e-13)
