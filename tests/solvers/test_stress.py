"""Every solver on random instances of a hundred decades, near-singular, tied, empty.

What a solver calls converged is checked from outside, by conditions written here a second time;
what it does not, must say so. Instances come fifty at a time, as the solvers take them. The short
run is a sample of the long one (`-m slow`), which has 20,000 instances a solver.
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

MEMBERS = 50
# In 103 the proximal gradient once was 1e-6 off its constraint, and called it converged.
SHORT = [pytest.param(seed, 1, id=f"seed {seed}") for seed in (0, 1, 103)]
LONG = [pytest.param(s, 40, id=f"long {s}", marks=pytest.mark.slow) for s in range(100, 110)]
BATCHES = pytest.mark.parametrize(("seed", "batches"), SHORT + LONG)
DECADES = (0, 3, 50)
"""Half the range of the scales."""


def scales(rng, members, *shape):
    """(members, *shape) factors over up to a hundred decades, the range each member's own."""
    half = rng.choice(DECADES, members).reshape(members, *(1 for _ in shape))
    return 10.0 ** (half * rng.uniform(-1, 1, (members, *shape)))


def honest(found) -> np.ndarray:
    """Members that claim convergence; no member may be neither finite nor named."""
    claimed = found.converged.numpy()
    if not claimed.all():
        assert found.status() in (Status.MAX_STEPS, Status.NOT_FINITE)
    assert found.residual[found.converged].isfinite().all()
    return claimed


def some(rng, least: int, most: int) -> np.ndarray:
    """(members, most) bool: the first of them, as many as each member has."""
    return np.arange(most) < rng.integers(least, most + 1, MEMBERS)[:, None]


def quadratic_instances(rng):
    """Tables M of every block; columns may repeat, vanish, nearly repeat, or differ in scale."""
    blocks, rows, labels = some(rng, 1, 5), some(rng, 1, 6), some(rng, 2, 5)
    tables = rng.random((MEMBERS, 5, 6, 5)) ** 2
    kind = rng.integers(0, 4, MEMBERS)
    tables[kind == 1, ..., 1] = tables[kind == 1, ..., 0]
    near = 1 + 10.0 ** rng.uniform(-16, -6, (MEMBERS, 1, 1))
    tables[kind == 2, ..., 1] = (tables[..., 0] * near)[kind == 2]
    keep = (rng.random((MEMBERS, 5, 1, 5)) > 0.5) | (kind != 3)[:, None, None, None]
    keep[:, 0, 0, 0] = True
    tables = tables * keep * scales(rng, MEMBERS, 5, 1, 5)
    tables = tables * blocks[:, :, None, None] * rows[:, None, :, None] * labels[:, None, None]
    tables[:, 0, 0, 0] = np.maximum(tables[:, 0, 0, 0], 1e-3 * tables[:, 0, :, 0].max(axis=1))
    target = rng.random((MEMBERS, 5, 6)) ** 2 * 10.0 ** rng.uniform(-3, 3, (MEMBERS, 1, 1))
    return tables, target * rows[:, None]


@BATCHES
def test_quadratic(seed, batches):
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(batches):
        tables, target = quadratic_instances(rng)
        gram = np.einsum("barl,barm->balm", tables, tables)
        right = np.einsum("barl,bar->bal", tables, target)
        weight = tables.sum(axis=2)
        live = weight > 0
        # All shares alike: the preferred value must have the scale of the others.
        count = live.sum(axis=(1, 2), keepdims=True)
        centre = np.where(live, 1 / np.where(live, weight, 1.0), 0.0) / count
        given = (torch.tensor(part).flatten(0, 1) for part in (gram, right, weight))
        total = torch.ones(MEMBERS, dtype=torch.float64)
        problem = torch.arange(MEMBERS).repeat_interleave(5)
        found = nonnegative_quadratic(*given, total, problem, torch.tensor(centre).flatten(0, 1))
        claimed = honest(found)
        right_answers += claimed.sum()
        w = found.value.numpy().reshape(weight.shape)
        nu = found.multiplier.numpy()[:, None, None]
        assert (w[claimed] >= 0).all()
        assert (np.abs((weight * w).sum(axis=(1, 2)) - 1)[claimed] < 1e-9).all()
        norm = np.where(live, np.sqrt(np.einsum("ball->bal", gram)), 1.0)
        slope = (np.einsum("balm,bam->bal", gram, w) - right - nu * weight) / norm
        unit = np.abs((right + nu * weight) / norm).max(axis=2, keepdims=True)
        violation = np.where(live, np.abs(np.minimum(w * norm, slope)), 0.0)
        assert (violation <= 1e-9 * unit + 1e-300)[claimed].all()
    assert right_answers > 0.8 * batches * MEMBERS


def likelihood_instances(rng):
    """Rows and groups that all members share, masses, constraints and penalties of each."""
    size, rows = rng.integers(2, 9), rng.integers(1, 40)
    group = np.sort(rng.integers(-1, 3, size))
    group = np.unique(group, return_inverse=True)[1] - int((group == -1).any())
    z = rng.random((rows, size)) ** 2
    kind = rng.integers(0, 4)
    if kind == 1:
        z = (z > 0.4).astype(float)
        z[:, 0] = 1.0
        z[0, ~z.any(axis=0)] = 1.0  # Solvers are not given entries that no row has.
    if kind == 2:
        z[:, 1] = z[:, 0]
    if kind == 3:
        z[:, 1] = z[:, 0] * (1 + 10.0 ** rng.uniform(-16, -6))
    # A penalty is no longer one where entries differ by many decades: rows do instead.
    free = rng.random() < 0.25
    eta = np.zeros(MEMBERS) if free else rng.choice([1e-3, 1e-1, 5.0], MEMBERS)
    z = z * (scales(rng, 1, size) if free else scales(rng, 1, rows).T)
    mass, other = rng.dirichlet(np.ones(rows), (2, MEMBERS))
    return z, mass, other @ z, group, eta


def dual_bounds(z, mass, c, group, eta, a):
    """nu_f - (1 - eta sum ||a_g||): nu_f by 200 halvings; an upper bound of the suboptimality."""
    push = (mass / (a @ z.T)) @ z
    groups = [group == g for g in range(group.max() + 1)]

    def feasible(nu):
        over = np.maximum(push / c - nu[:, None], 0) * c
        limits = [np.linalg.norm(over[:, here], axis=1) <= eta for here in groups]
        return np.all([*limits, (over[:, group == -1] <= 0).all(axis=1)], axis=0)

    norms = sum((np.linalg.norm(a[:, here], axis=1) for here in groups), start=np.zeros(len(a)))
    primal = 1 - eta * norms
    low, high = primal - 1.0, np.maximum((push / c).max(axis=1), primal)
    for _ in range(200):
        middle = (low + high) / 2
        fine = feasible(middle)
        low, high = np.where(fine, low, middle), np.where(fine, middle, high)
    return high - primal


@pytest.mark.parametrize(
    ("solver", "options", "tolerance", "least"),
    [
        pytest.param(group_likelihood, {}, 1e-7, 0.8, id="interior point"),
        pytest.param(descend, {"max_steps": 300}, 1e-4, 0.1, id="proximal gradient"),
    ],
)
@BATCHES
def test_likelihood(solver, options, tolerance, least, seed, batches):
    """First-order steps need many more of them on such instances, and are cut off early here."""
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(batches):
        z, mass, c, group, eta = likelihood_instances(rng)
        simplex = GroupSimplex(torch.tensor(c), torch.tensor(group), int(group.max()) + 1)
        rows = (torch.tensor(z), torch.tensor(mass))
        found = solver(*rows, simplex, torch.tensor(eta)[:, None], tolerance=tolerance, **options)
        claimed = honest(found)
        right_answers += claimed.sum()
        a = found.value.numpy()[claimed]
        assert (a >= 0).all()
        assert (np.abs((c[claimed] * a).sum(axis=1) - 1) < 1e-9).all()
        bounds = dual_bounds(z, mass[claimed], c[claimed], group, eta[claimed], a)
        assert (bounds < 2 * tolerance).all()
    assert right_answers > least * batches * MEMBERS


@BATCHES
def test_prox(seed, batches):
    """Entries are those of the formula at their multiplier, and lie on the simplex."""
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        size = rng.integers(1, 8)
        group = np.unique(rng.integers(0, 3, size), return_inverse=True)[1]
        c = 10.0 ** rng.uniform(-2, 2, (MEMBERS, size))
        point = rng.standard_normal((MEMBERS, size)) * 10.0 ** rng.uniform(-6, 2, (MEMBERS, 1))
        shrink = 10.0 ** rng.uniform(-6, 1, (MEMBERS, 1))
        simplex = GroupSimplex(torch.tensor(c), torch.tensor(group), int(group.max()) + 1)
        start = torch.zeros(MEMBERS, 1, dtype=torch.float64)
        entries, nu = prox(simplex, torch.tensor(point), torch.tensor(shrink), start)
        a = entries.numpy()
        assert np.isfinite(a).all()
        assert (a >= 0).all()
        assert (np.abs((c * a).sum(axis=1) - 1) < 1e-8).all()
        u = np.maximum(point - nu.numpy() * c, 0)
        for here in (group == g for g in range(group.max() + 1)):
            norm = np.linalg.norm(u[:, here], axis=1, keepdims=True)
            u[:, here] *= np.maximum(1 - shrink / np.where(norm > 0, norm, 1.0), 0)
        slack = 1e-9 / c.min(axis=1, keepdims=True) + 1e-8 * np.abs(u)
        assert (np.abs(a - u) <= slack).all()


def cell_instances(rng):
    """Rows in cells, every cell an instance; some of them have no rows."""
    classes, rows = rng.integers(2, 7), MEMBERS * rng.integers(1, 20)
    cell = rng.integers(0, MEMBERS, rows)
    scale = 10.0 ** rng.uniform(-3, 5, MEMBERS)
    mass = rng.random(rows) * scale[cell] * (rng.random(rows) > 0.1)
    return classes, rows, cell, mass


@BATCHES
def test_cell_mixtures(seed, batches):
    """The decrement bounds the gradient, |s|^2 <= decrement times the largest curvature."""
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(batches):
        classes, rows, cell, mass = cell_instances(rng)
        score = rng.random((classes, rows)) ** 3
        tied, spread = (rng.random((2, MEMBERS)) < 0.3)[:, cell]
        score[1] = np.where(tied, score[0], score[1])
        score = score * np.where(spread, 10.0 ** rng.uniform(-12, 12, rows), 1.0)
        prior = rng.dirichlet(np.ones(classes), MEMBERS).T * 10.0 ** rng.uniform(-3, 3, MEMBERS)
        given = (score[None], mass[None], cell, prior[None])
        found = cell_mixtures(*(torch.tensor(part) for part in given))
        claimed = honest(found)[0]
        right_answers += claimed.sum()
        share = found.value[0].numpy()
        assert (share >= 0).all()
        np.testing.assert_allclose(share.sum(axis=0), 1.0, atol=1e-9)
        for a in np.flatnonzero(claimed):
            here = cell == a
            q, s, mu = share[:, a], score[:, here], mass[here]
            slope = q * (mu.sum() + prior[:, a].sum() - s @ (mu / (q @ s))) - prior[:, a]
            limit = 1e-8 * (mu.sum() + prior[:, a].max())
            assert slope @ slope <= 4 * limit + 1e-20 * mu.sum() ** 2
    assert right_answers > 0.8 * batches * MEMBERS


@BATCHES
def test_class_offsets(seed, batches):
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(batches):
        classes, rows, cell, mass = cell_instances(rng)
        labels = rng.integers(0, classes, rows)
        strength = rng.choice([0.1, 3.0, 30.0], MEMBERS)[cell]
        logits = rng.standard_normal((classes, rows)) * strength
        ridge = 10.0 ** rng.uniform(-2, 3)
        found = class_offsets(
            torch.tensor(logits),
            torch.tensor(labels),
            torch.tensor(mass)[None],
            torch.tensor(cell),
            MEMBERS,
            ridge=torch.tensor([ridge]),
        )
        claimed = honest(found)[0]
        right_answers += claimed.sum()
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
    assert right_answers > 0.8 * batches * MEMBERS


@BATCHES
def test_logistic(seed, batches):
    rng = np.random.default_rng(seed)
    right_answers = 0
    for _ in range(batches):
        rows, inputs = rng.integers(2, 60), rng.integers(1, 6)
        x = rng.standard_normal((inputs, rows))
        if rng.random() < 0.3:
            x[0] = x[-1]
        x = np.concatenate([x * scales(rng, 1, inputs).T, np.ones((1, rows))])
        outcome = (rng.random(rows) < rng.choice([0.5, 0.05])).astype(float)
        outcome[:2] = [0.0, 1.0]
        mass = rng.random((MEMBERS, rows)) * 10.0 ** rng.uniform(-2, 3, (MEMBERS, 1))
        ridge = float(10.0 ** rng.uniform(-3, 2))
        found = ridge_logistic(*(torch.tensor(part) for part in (x, outcome, mass)), ridge)
        claimed = honest(found)
        right_answers += claimed.sum()
        beta, mass = found.value.numpy()[claimed], mass[claimed]
        assert np.isfinite(beta).all()
        penalty = np.where(np.arange(len(x)) < inputs, ridge, 0.0)
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(-(beta @ x)))
        slope = (mass * (p - outcome)) @ x.T + penalty * beta
        # In units of each input's own curvature, which one Newton step is bounded by.
        curve = mass @ (x**2).T / 4 + penalty
        decrement = slope**2 / curve / (2 * mass.sum(axis=1, keepdims=True))
        assert (decrement <= 4e-10).all()
    assert right_answers > 0.8 * batches * MEMBERS
