"""The batched quadratic program against exact enumeration, scipy and numpy."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from sees_torch.solvers.quadratic import least_squares, nonnegative_quadratic

KINDS = ["regular", "rank one", "absent label", "empty block", "ties", "scales", "unmatched"]


def make_problem(rng, blocks, labels, kind, rows=5):
    """Tables M >= 0 of every block with G = M'M, b = M't, c = M'1, as SEES-d has them."""
    tables = rng.random((blocks, rows, labels)) ** 2
    target = rng.random((blocks, rows)) ** 2
    if kind == "rank one":
        tables = tables[:, :, :1] * rng.random((blocks, 1, labels))
    if kind == "absent label":
        tables *= rng.random((blocks, 1, labels)) > 0.4
        tables[0, 0, 0] = 1.0
    if kind == "empty block" and blocks > 1:
        tables[rng.integers(1, blocks)] = 0.0
    if kind == "ties":
        tables = np.repeat(tables[:, :, :1], labels, axis=2)
        tables[0] = tables[-1]
        target[0] = target[-1]
    if kind == "scales":
        tables *= 10.0 ** rng.uniform(-6, 3, (blocks, 1, labels))
        target *= 10.0 ** rng.uniform(-3, 3)
    if kind == "unmatched":
        target[rng.integers(0, blocks)] = 0.0
    gram = np.einsum("arl,arm->alm", tables, tables)
    right = np.einsum("arl,ar->al", tables, target)
    return gram, right, tables.sum(axis=1)


def objective(gram, right, w):
    return np.einsum("...al,alm,...am->...", w, gram, w) - 2 * (right * w).sum(axis=(-2, -1))


def enumerate_supports(gram, right, weight, total):
    """The least objective, by solving the equality-constrained problem on every support.

    Some minimiser has a support on which the KKT system is regular, and every feasible point is
    an upper bound, so the least value over regular supports is the optimum.
    """
    labels = gram.shape[1]
    live = np.flatnonzero(weight.ravel() > 0)
    block, label = live // labels, live % labels
    scale = np.sqrt(gram[block, label, label])
    same = block[:, None] == block
    full = np.where(same, gram[block[:, None], label[:, None], label], 0) / np.outer(scale, scale)
    c = weight[block, label] / scale
    unit = np.abs(c).max()
    masks = np.array(list(product([False, True], repeat=len(live))))[1:]
    system = np.zeros((len(masks), len(live) + 1, len(live) + 1))
    pair = masks[:, :, None] & masks[:, None, :]
    system[:, :-1, :-1] = np.where(pair, full, np.eye(len(live)) * ~masks[:, :, None])
    system[:, -1, :-1] = system[:, :-1, -1] = np.where(masks, c / unit, 0.0)
    rhs = np.where(masks, right[block, label] / scale, 0.0)
    rhs = np.concatenate([rhs, np.full((len(masks), 1), total / unit)], axis=1)
    regular = np.linalg.svd(system, compute_uv=False).min(axis=1) > 1e-9
    x = np.linalg.solve(system[regular], rhs[regular, :, None])[:, :-1, 0]
    x = np.where(masks[regular], x, 0.0)
    size = np.abs(x).max(axis=1)
    x = x[(x.min(axis=1) >= -1e-9 * size) & (np.abs(x @ c - total) < 1e-9 * total)]
    w = np.zeros((len(x), weight.size))
    w[:, live] = x.clip(0.0) / scale
    return objective(gram, right, w.reshape(-1, *weight.shape)).min()


def stack(problems, totals, centre=None):
    """Arguments of the solver for a list of (gram, right, weight)."""
    gram, right, weight = (torch.tensor(np.concatenate(p)) for p in zip(*problems, strict=True))
    counts = torch.tensor([len(p[0]) for p in problems])
    owner = torch.arange(len(problems)).repeat_interleave(counts)
    centre = torch.ones_like(right) if centre is None else torch.tensor(centre)
    return gram, right, weight, torch.tensor(totals, dtype=torch.float64), owner, centre


def outside_residual(problem, total, w, nu):
    """KKT violation from the definition, in the solver's stated units."""
    gram, right, weight = problem
    free = weight > 0
    scale = np.sqrt(np.where(free, np.diagonal(gram, axis1=1, axis2=2), 1.0))
    pushed = np.where(free, (right + nu * weight) / scale, 0.0)
    gradient = np.einsum("alm,am->al", gram, w) / scale - pushed
    unit = np.maximum(np.abs(pushed).max(axis=1, keepdims=True), 1e-300)
    violation = np.where(free, np.abs(np.minimum(w * scale, gradient)) / unit, 0.0).max()
    return max(violation, abs((weight * w).sum() - total) / total)


@pytest.mark.parametrize("labels", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_reaches_the_enumerated_optimum_on_problems_of_unequal_size(kind, labels):
    """100 problems per case, 2,100 in all, each of one to six variables."""
    rng = np.random.default_rng(labels * 100 + KINDS.index(kind))
    sizes = rng.integers(1, {1: 6, 2: 3, 3: 2}[labels] + 1, 100)
    problems = [make_problem(rng, size, labels, kind) for size in sizes]
    totals = rng.uniform(0.2, 3.0, len(problems))
    found = nonnegative_quadratic(*stack(problems, totals))
    assert bool(found.converged.all())
    assert float(found.residual.max()) < 1e-10
    last = np.cumsum(sizes)
    for s, (problem, total) in enumerate(zip(problems, totals, strict=True)):
        w = found.value[last[s] - sizes[s] : last[s]].numpy()
        assert w.min() >= 0
        assert (w[problem[2] == 0] == 0).all()
        best = enumerate_supports(*problem, total)
        scale = abs(best) + np.einsum("al,alm,am->", w, problem[0], w)
        # Objectives are sums of a few products: 1e-9 of their size is far above rounding.
        assert abs(objective(problem[0], problem[1], w) - best) <= 1e-9 * scale
        nu = float(found.multiplier[s])
        assert outside_residual(problem, total, w, nu) < 1e-10


@pytest.mark.parametrize("labels", [2, 3, 5, 10])
def test_is_plain_nnls_where_the_equality_does_not_bind(labels):
    """With the total that scipy's NNLS solution has, the multiplier is 0 and w is that solution."""
    rng = np.random.default_rng(labels)
    problems, totals, expected = [], [], []
    for _ in range(60):
        blocks = int(rng.integers(1, 8))
        tables = rng.random((blocks, labels + 4, labels)) ** 3
        target = rng.random((blocks, labels + 4)) ** 3
        w = np.stack([nnls(m, t)[0] for m, t in zip(tables, target, strict=True)])
        gram = np.einsum("arl,arm->alm", tables, tables)
        weight = tables.sum(axis=1)
        problems.append((gram, np.einsum("arl,ar->al", tables, target), weight))
        totals.append((weight * w).sum())
        expected.append(w)
    found = nonnegative_quadratic(*stack(problems, totals))
    assert bool(found.converged.all())
    # The smallest eigenvalues are about 1e-5, so 1e-14 in the equations is 1e-9 in w.
    np.testing.assert_allclose(found.value, np.concatenate(expected), atol=1e-8)
    np.testing.assert_allclose(found.multiplier, 0.0, atol=1e-9)


def test_many_labels_and_blocks_satisfy_the_kkt_conditions():
    """The problem is convex, so a zero residual from outside is optimality at any size."""
    rng = np.random.default_rng(7)
    problems = [make_problem(rng, b, 8, k, rows=20) for b in (1, 40, 200) for k in KINDS]
    totals = rng.uniform(0.5, 2.0, len(problems))
    found = nonnegative_quadratic(*stack(problems, totals))
    last = np.cumsum([len(p[0]) for p in problems])
    for s, problem in enumerate(problems):
        w = found.value[last[s] - len(problem[0]) : last[s]].numpy()
        assert outside_residual(problem, totals[s], w, float(found.multiplier[s])) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_loop(kind):
    rng = np.random.default_rng(3)
    problems = [make_problem(rng, int(rng.integers(1, 6)), 3, kind) for _ in range(12)]
    totals = rng.uniform(0.5, 2.0, len(problems))
    together = nonnegative_quadratic(*stack(problems, totals))
    alone = [nonnegative_quadratic(*stack([p], [t])) for p, t in zip(problems, totals, strict=True)]
    # Frozen members of a batch do not move; only the order of sums may differ.
    value = torch.cat([a.value for a in alone])
    torch.testing.assert_close(together.value, value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        together.multiplier, torch.cat([a.multiplier for a in alone]), rtol=1e-9, atol=1e-10
    )


def test_blocks_of_a_problem_need_not_be_neighbours():
    rng = np.random.default_rng(11)
    gram, right, weight, total, owner, centre = stack(
        [make_problem(rng, 4, 3, "regular") for _ in range(10)], np.ones(10)
    )
    order = torch.randperm(len(owner), generator=torch.Generator().manual_seed(0))
    sorted_blocks = nonnegative_quadratic(gram, right, weight, total, owner, centre).value
    mixed = nonnegative_quadratic(
        gram[order], right[order], weight[order], total, owner[order], centre[order]
    ).value
    torch.testing.assert_close(mixed, sorted_blocks[order], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("constrained", [True, False])
def test_undetermined_directions_stay_at_the_centre(constrained):
    """Equal columns: only the sum of the scaled weights is determined, the split is the centre's.

    The minimiser nearest to the centre, in the scaled metric, differs from it along (1, ..., 1).
    """
    rng = np.random.default_rng(5)
    column = rng.random((50, 6, 1)) + 0.1
    scale = rng.uniform(0.5, 2.0, (50, 1, 4))
    tables = column * scale
    centre = rng.uniform(0.8, 1.2, (50, 4))
    wanted = rng.uniform(0.9, 1.1, 50) * (tables @ centre[..., None])[:, :, 0].sum(1)
    level = wanted / column[:, :, 0].sum(1)  # scale . w of the truth
    target = column[:, :, 0] * level[:, None]
    gram = np.einsum("arl,arm->alm", tables, tables)
    right = np.einsum("arl,ar->al", tables, target)
    s = scale[:, 0]
    nearest = centre + ((level - (s * centre).sum(1)) / 4)[:, None] / s
    assert nearest.min() > 0.2
    gram, right, weight, near = map(torch.tensor, (gram, right, tables.sum(1), centre))
    if constrained:
        found = nonnegative_quadratic(
            gram, right, weight, torch.tensor(wanted), torch.arange(50), near
        ).value
    else:
        found = least_squares(gram, right, weight > 0, near)
    # Rounding over the ridge, 1e-16 / 1e-9 with a factor of ten, in undetermined directions ...
    np.testing.assert_allclose(s * found.numpy(), s * nearest, atol=1e-5)
    # ... while what the data determine is exact.
    np.testing.assert_allclose((s * found.numpy()).sum(1), level, rtol=1e-12)


@pytest.mark.parametrize("constrained", [True, False])
def test_a_centre_that_is_optimal_is_not_left(constrained):
    """Rank-one blocks, labels of very unequal mass, b = G 1: w = 1 is optimal and the centre."""
    rng = np.random.default_rng(0)
    tables = (rng.random((500, 6, 1)) + 0.1) * 10.0 ** rng.uniform(-2, 0, (500, 1, 3))
    gram = torch.tensor(np.einsum("arl,arm->alm", tables, tables))
    right, weight = gram.sum(dim=-1), torch.tensor(tables.sum(1))
    ones = torch.ones_like(right)
    if constrained:
        found = nonnegative_quadratic(
            gram, right, weight, weight.sum(1), torch.arange(500), ones
        ).value
    else:
        found = least_squares(gram, right, weight > 0, ones)
    torch.testing.assert_close(found, ones, rtol=0, atol=1e-7)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_least_squares_equals_numpy(rank):
    """numpy's minimum-norm step from the centre, in the scaled metric."""
    rng = np.random.default_rng(rank)
    for _ in range(200):
        tables = rng.random((6, rank)) @ rng.random((rank, 4)) if rank < 4 else rng.random((6, 4))
        tables = tables * 10.0 ** rng.uniform(-4, 4, 4)
        target, centre = rng.normal(size=6), rng.normal(size=4)
        scale = np.linalg.norm(tables, axis=0)
        centre = centre / scale
        step = np.linalg.lstsq(tables / scale, target - tables @ centre, rcond=1e-7)[0]
        found = least_squares(
            torch.tensor(tables.T @ tables)[None],
            torch.tensor(tables.T @ target)[None],
            torch.ones(1, 4, dtype=torch.bool),
            torch.tensor(centre)[None],
        )
        w, expected = found[0].numpy() * scale, centre * scale + step
        # Undetermined directions carry rounding over the ridge, determined ones do not.
        size = 1 + np.abs(expected).max()
        np.testing.assert_allclose(w, expected, atol=size * (1e-7 if rank == 4 else 1e-5))
        np.testing.assert_allclose(tables / scale @ (w - expected), 0.0, atol=1e-9 * size)


def test_least_squares_keeps_fixed_entries_at_zero():
    rng = np.random.default_rng(2)
    tables, target = rng.random((30, 6, 3)), rng.random((30, 6))
    free = rng.random((30, 3)) > 0.4
    found = least_squares(
        torch.tensor(np.einsum("arl,arm->alm", tables, tables)),
        torch.tensor(np.einsum("arl,ar->al", tables, target)),
        torch.tensor(free),
        torch.zeros(30, 3, dtype=torch.float64),
    ).numpy()
    assert (found[~free] == 0).all()
    for m, t, live, w in zip(tables, target, free, found, strict=True):
        np.testing.assert_allclose(w[live], np.linalg.lstsq(m[:, live], t)[0], atol=1e-8)


def test_what_it_cannot_solve_is_not_called_converged():
    """c outside the range of G: not a problem of SEES-d. It may fail, but not silently."""
    rng = np.random.default_rng(0)
    problems = [make_problem(rng, 2, 3, "rank one")[:2] for _ in range(100)]
    problems = [(g, b, rng.random((2, 3))) for g, b in problems]
    found = nonnegative_quadratic(*stack(problems, np.ones(100)))
    assert bool(found.value.isfinite().all())
    for s, problem in enumerate(problems):
        w = found.value[2 * s : 2 * s + 2].numpy()
        residual = outside_residual(problem, 1.0, w, float(found.multiplier[s]))
        np.testing.assert_allclose(float(found.residual[s]), residual, rtol=1e-6, atol=1e-12)
        assert bool(found.converged[s]) == (float(found.residual[s]) <= 1e-10)
        if found.converged[s]:
            best = enumerate_supports(*problem, 1.0)
            assert abs(objective(problem[0], problem[1], w) - best) < 1e-8 * (1 + abs(best))


def test_float32_comes_back_as_float32():
    rng = np.random.default_rng(1)
    args = stack([make_problem(rng, 3, 2, "regular") for _ in range(20)], np.ones(20))
    exact = nonnegative_quadratic(*args).value
    single = nonnegative_quadratic(
        *(a.float() if a.is_floating_point() else a for a in args), tolerance=1e-3
    )
    assert single.value.dtype == torch.float32
    # RIDGE = 1e-9 is below float32's epsilon, and conditions reach 1e3: 1e-7 becomes 1e-3.
    torch.testing.assert_close(single.value.double(), exact, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("scale", "pull"), [(1e-6, 0.0), (1e-2, 0.0), (1.0, 0.0), (1e4, 0.0), (1e-2, 1e4)]
)
def test_the_multiplier_may_be_of_any_size(scale, pull):
    """min w^2 - 2 pull w with scale w = 1, so that w = pull + nu scale."""
    one = torch.ones(1, 1, dtype=torch.float64)
    found = nonnegative_quadratic(
        one[None], pull * one, scale * one, one[0], torch.zeros(1, dtype=torch.int64), 0 * one
    )
    assert bool(found.converged.all())
    assert found.value.item() == pytest.approx(1 / scale, rel=1e-9)
    assert found.multiplier.item() == pytest.approx((1 / scale - pull) / scale, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_problem_beside_one_that_is_many_decades_larger_is_solved_as_if_alone(seed):
    """Signs are judged by the size of their own problem."""
    rng = np.random.default_rng(seed)
    small, large = make_problem(rng, 3, 4, "regular"), make_problem(rng, 3, 4, "regular")
    large = (large[0], 1e14 * large[1], large[2])
    alone = nonnegative_quadratic(*stack([small], [0.3]))
    beside = nonnegative_quadratic(*stack([small, large], [0.3, 1e14]))
    torch.testing.assert_close(beside.value[:3], alone.value, rtol=1e-9, atol=1e-12)
    assert float(beside.residual[0]) <= 1e-10
