"""Every solver on random instances of a hundred decades, near-singular, tied, empty.

What a solver calls converged is checked from outside, by conditions written here a second time;
what it does not, must say so. The short run is a sample of the long one (`-m slow`).
"""

import numpy as np
import pytest
import torch

from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import group_likelihood
from sees_torch.solvers.logistic import ridge_logistic
from sees_torch.solvers.mixture import cell_mixtures, class_offsets
from sees_torch.solvers.proximal import prox
from sees_torch.solvers.proximal_gradient import descend
from sees_torch.solvers.quadratic import nonnegative_quadratic
from sees_torch.solvers.solution import Status

SHORT = [pytest.param(seed, 8, id=f"seed {seed}") for seed in range(2)]
LONG = [pytest.param(s, 200, id=f"long {s}", marks=pytest.mark.slow) for s in range(100, 110)]
DECADES = (0, 3, 50)
"""Half the range of the scales."""


def scales(rng, *shape):
    """Factors over up to a hundred decades."""
    half = rng.choice(DECADES)
    return 10.0 ** rng.uniform(-half, half, shape)


def honest(found) -> np.ndarray:
    """Members that claim convergence; no member may be neither finite nor named."""
    claimed = found.converged.numpy()
    if not claimed.all():
        assert found.status() in (Status.MAX_STEPS, Status.NOT_FINITE)
    assert found.residual[found.converged].isfinite().all()
    return claimed


def quadratic_instance(rng):
    """Tables M of every block; columns may repeat, vanish, nearly repeat, or differ in scale."""
    blocks, labels, rows = rng.integers(1, 6), rng.integers(2, 6), rng.integers(1, 7)
    tables = rng.random((blocks, rows, labels)) ** 2
    kind = rng.integers(0, 4)
    if kind == 1:
        tables[..., 1] = tables[..., 0]
    if kind == 2:
        tables[..., 1] = tables[..., 0] * (1 + 10.0 ** rng.uniform(-16, -6))
    if kind == 3:
        tables *= rng.random((blocks, 1, labels)) > 0.5
        tables[0, 0, 0] = 1.0
    tables = tables * scales(rng, blocks, 1, labels)
    return tables, rng.random((blocks, rows)) ** 2 * 10.0 ** rng.uniform(-3, 3)


@pytest.mark.parametrize(("seed", "count"), SHORT + LONG)
def test_quadratic(seed, count):
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(count):
        tables, target = quadratic_instance(rng)
        gram = np.einsum("arl,arm->alm", tables, tables)
        right = np.einsum("arl,ar->al", tables, target)
        weight = tables.sum(axis=1)
        problem = torch.zeros(len(gram), dtype=torch.int64)
        live = weight > 0
        # All shares alike: the preferred value must have the scale of the others.
        centre = torch.tensor(np.where(live, 1 / np.where(live, weight, 1.0), 0.0) / live.sum())
        total = torch.ones(1, dtype=torch.float64)
        given = (torch.tensor(part) for part in (gram, right, weight))
        found = nonnegative_quadratic(*given, total, problem, centre)
        if not honest(found)[0]:
            continue
        right_answers += 1
        w, nu = found.value.numpy(), float(found.multiplier[0])
        assert (w >= 0).all()
        assert abs((weight * w).sum() - 1) < 1e-9
        norm = np.where(live, np.sqrt(np.einsum("all->al", gram)), 1.0)
        slope = (np.einsum("alm,am->al", gram, w) - right - nu * weight) / norm
        unit = np.abs((right + nu * weight) / norm).max(axis=1, keepdims=True)
        violation = np.where(live, np.abs(np.minimum(w * norm, slope)), 0.0)
        assert (violation <= 1e-9 * unit + 1e-300).all()
    assert right_answers > 0.8 * count


def likelihood_instance(rng):
    size, rows = rng.integers(2, 9), rng.integers(1, 40)
    group = np.sort(rng.integers(-1, 3, size))
    group = np.unique(group, return_inverse=True)[1] - int((group == -1).any())
    z = rng.random((rows, size)) ** 2
    kind = rng.integers(0, 4)
    if kind == 1:
        z = (z > 0.4).astype(float)
        z[:, 0] = 1.0
    if kind == 2:
        z[:, 1] = z[:, 0]
    if kind == 3:
        z[:, 1] = z[:, 0] * (1 + 10.0 ** rng.uniform(-16, -6))
    # A penalty is no longer one where entries differ by many decades: rows do instead.
    eta = rng.choice([0.0, 1e-3, 1e-1, 5.0])
    z = z * (scales(rng, size) if eta == 0.0 else scales(rng, rows, 1))
    mass = rng.dirichlet(np.ones(rows))
    return z, mass, z.T @ rng.dirichlet(np.ones(rows)), group, eta


def dual_bound(z, mass, c, group, eta, a):
    """nu_f - (1 - eta sum ||a_g||): nu_f by 200 halvings; an upper bound of the suboptimality."""
    push = (mass / (z @ a)) @ z

    def feasible(nu):
        over = np.maximum(push / c - nu, 0) * c
        limits = [np.linalg.norm(over[group == g]) <= eta for g in range(group.max() + 1)]
        return all(limits) and (over[group == -1] <= 0).all()

    norms = sum(np.linalg.norm(a[group == g]) for g in range(group.max() + 1))
    primal = 1 - eta * norms
    low, high = primal - 1.0, max(float((push / c).max()), primal)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high - primal


@pytest.mark.parametrize(
    ("solver", "options", "tolerance", "least", "part"),
    [
        pytest.param(group_likelihood, {}, 1e-7, 0.8, 1, id="interior point"),
        pytest.param(descend, {"max_steps": 300}, 1e-4, 0.0, 4, id="proximal gradient"),
    ],
)
@pytest.mark.parametrize(("seed", "count"), SHORT + LONG)
def test_likelihood(solver, options, tolerance, least, part, seed, count):
    """First-order steps need many more of them on such instances, and are cut off early here."""
    rng = np.random.default_rng(seed)
    right_answers, count = 0, count // part
    for _ in range(count):
        z, mass, c, group, eta = likelihood_instance(rng)
        simplex = GroupSimplex(torch.tensor(c)[None], torch.tensor(group), int(group.max()) + 1)
        penalty = torch.full((1, 1), eta, dtype=torch.float64)
        rows = (torch.tensor(z), torch.tensor(mass)[None])
        found = solver(*rows, simplex, penalty, tolerance=tolerance, **options)
        if not honest(found)[0]:
            continue
        right_answers += 1
        a = found.value[0].numpy()
        assert (a >= 0).all()
        assert abs(c @ a - 1) < 1e-9
        assert dual_bound(z, mass, c, group, eta, a) < 2 * tolerance
    assert right_answers > least * count


@pytest.mark.parametrize(("seed", "count"), SHORT + LONG)
def test_prox(seed, count):
    """Entries are those of the formula at their multiplier, and lie on the simplex."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = rng.integers(1, 8)
        group = np.unique(rng.integers(0, 3, size), return_inverse=True)[1]
        c = 10.0 ** rng.uniform(-2, 2, size)
        point = rng.standard_normal(size) * 10.0 ** rng.uniform(-6, 2)
        shrink = float(10.0 ** rng.uniform(-6, 1))
        simplex = GroupSimplex(torch.tensor(c)[None], torch.tensor(group), int(group.max()) + 1)
        start = torch.zeros(1, 1, dtype=torch.float64)
        entries, nu = prox(simplex, torch.tensor(point)[None], start + shrink, start)
        a = entries[0].numpy()
        assert np.isfinite(a).all()
        assert (a >= 0).all()
        assert abs(c @ a - 1) < 1e-8
        u = np.maximum(point - float(nu) * c, 0)
        for g in range(group.max() + 1):
            norm = np.linalg.norm(u[group == g])
            u[group == g] *= max(1 - shrink / norm, 0) if norm > 0 else 0.0
        np.testing.assert_allclose(a, u, atol=1e-9 / c.min(), rtol=1e-8)


def cell_instance(rng):
    classes, cells, rows = rng.integers(2, 7), rng.integers(1, 6), rng.integers(1, 60)
    cell = rng.integers(0, cells, rows)
    mass = rng.random(rows) * 10.0 ** rng.uniform(-3, 5) * (rng.random(rows) > 0.1)
    return classes, cells, rows, cell, mass


@pytest.mark.parametrize(("seed", "count"), SHORT + LONG)
def test_cell_mixtures(seed, count):
    """The decrement bounds the gradient, |s|^2 <= decrement times the largest curvature."""
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(count):
        classes, cells, rows, cell, mass = cell_instance(rng)
        score = rng.random((classes, rows)) ** 3
        if rng.random() < 0.3:
            score[1] = score[0]
        if rng.random() < 0.3:
            score = score * 10.0 ** rng.uniform(-12, 12, rows)
        prior = rng.dirichlet(np.ones(classes), cells).T * 10.0 ** rng.uniform(-3, 3)
        given = (score[None], mass[None], cell, prior[None])
        found = cell_mixtures(*(torch.tensor(part) for part in given))
        claimed = honest(found)[0]
        right_answers += bool(claimed.all())
        share = found.value[0].numpy()
        assert (share >= 0).all()
        np.testing.assert_allclose(share.sum(axis=0), 1.0, atol=1e-9)
        for a in np.flatnonzero(claimed):
            here = cell == a
            q, s, mu = share[:, a], score[:, here], mass[here]
            slope = q * (mu.sum() + prior[:, a].sum() - s @ (mu / (q @ s))) - prior[:, a]
            limit = 1e-8 * (mu.sum() + prior[:, a].max())
            assert slope @ slope <= 4 * limit + 1e-20 * mu.sum() ** 2
    assert right_answers > 0.8 * count


@pytest.mark.parametrize(("seed", "count"), SHORT + LONG)
def test_class_offsets(seed, count):
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(count):
        classes, cells, rows, cell, mass = cell_instance(rng)
        labels = rng.integers(0, classes, rows)
        logits = rng.standard_normal((classes, rows)) * rng.choice([0.1, 3.0, 30.0])
        ridge = 10.0 ** rng.uniform(-2, 3)
        found = class_offsets(
            torch.tensor(logits),
            torch.tensor(labels),
            torch.tensor(mass)[None],
            torch.tensor(cell),
            int(cells),
            ridge=torch.tensor([ridge]),
        )
        claimed = honest(found)[0]
        right_answers += bool(claimed.all())
        for a in np.flatnonzero(claimed):
            here = (cell == a) & (mass > 0)
            delta = found.value[0, :, a].numpy()
            seen = np.isin(np.arange(classes), labels[here])
            assert not np.isnan(delta).any()
            assert (np.isfinite(delta) == (seen | ~seen.any())).all()
            scores = logits[:, here] + delta[:, None]
            p = np.exp(scores - scores.max(axis=0, initial=-np.inf)) * seen[:, None]
            p = p / p.sum(axis=0) * mass[here]
            one_hot = labels[here] == np.arange(classes)[:, None]
            slope = p.sum(axis=1) - (one_hot * mass[here]).sum(axis=1)
            slope = np.where(seen, slope + ridge * np.where(seen, delta, 0.0), 0.0)
            limit = 1e-8 * (mass[here].sum() / 2 + ridge)
            assert slope @ slope <= 4 * limit + 1e-20 * mass[here].sum() ** 2
    assert right_answers > 0.8 * count


@pytest.mark.parametrize(("seed", "count"), SHORT + LONG)
def test_logistic(seed, count):
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(count):
        rows, inputs = rng.integers(2, 60), rng.integers(1, 6)
        x = rng.standard_normal((inputs, rows))
        if rng.random() < 0.3:
            x[0] = x[-1]
        x = np.concatenate([x * scales(rng, inputs, 1), np.ones((1, rows))])
        outcome = (rng.random(rows) < rng.choice([0.5, 0.05])).astype(float)
        outcome[:2] = [0.0, 1.0]
        mass = rng.random(rows) * 10.0 ** rng.uniform(-2, 3)
        ridge = float(10.0 ** rng.uniform(-3, 2))
        given = (torch.tensor(part) for part in (x, outcome, mass[None]))
        found = ridge_logistic(*given, ridge)
        if not honest(found)[0]:
            continue
        right_answers += 1
        beta = found.value[0].numpy()
        assert np.isfinite(beta).all()
        penalty = np.where(np.arange(len(x)) < inputs, ridge, 0.0)
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(-(beta @ x)))
        slope = x @ (mass * (p - outcome)) + penalty * beta
        # In units of each input's own curvature, which one Newton step is bounded by.
        curve = (x**2) @ mass / 4 + penalty
        decrement = slope**2 / curve / (2 * mass.sum())
        assert (decrement <= 4e-10).all()
    assert right_answers > 0.8 * count
