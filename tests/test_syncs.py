"""Inner loops never wait for the device: reads of a value are counted as they are dispatched."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import drawn_world, samples

from sees_torch.data.counting import scatter_folds
from sees_torch.matching.batch import Batch
from sees_torch.matching.cells import fit_cells
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import STEPS_A_ROUND, group_likelihood
from sees_torch.solvers.logistic import ridge_logistic
from sees_torch.solvers.mixture import CHECK_EVERY, cell_mixtures, class_offsets
from sees_torch.solvers.proximal import prox
from sees_torch.solvers.proximal_gradient import CHECK_EVERY as DESCENT_CHECK
from sees_torch.solvers.proximal_gradient import descend
from sees_torch.solvers.quadratic import nonnegative_quadratic
from sees_torch.statistics.subsets import subsets_of

WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "bincount",
    "equal",
}


class Waits(TorchDispatchMode):
    """Counts operations that would make the host wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in WAITS
        return func(*args, **(kwargs or {}))


def waits(run, *args, **options) -> int:
    with Waits() as mode:
        run(*args, **options)
    return mode.count


def test_the_counter_counts():
    value = torch.ones(3)
    assert waits(lambda: bool(value.all())) == 1
    assert waits(lambda: value.nonzero()) == 1
    assert waits(lambda: value + 1) == 0


def likelihood(rows=50, columns=9):
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    mass = torch.full((1, rows), 1 / rows, dtype=torch.float64)
    group = torch.arange(columns) // 3
    eta = torch.tensor([[1e-3], [1e-2]], dtype=torch.float64)
    return z, mass, GroupSimplex(z.mean(dim=0)[None], group, 3), eta


def per_step(solve, few: int, many: int) -> float:
    """Waits that each further step costs, when no tolerance is ever reached."""
    return (waits(solve, many) - waits(solve, few)) / (many - few)


def test_interior_point_waits_once_a_round():
    def solve(steps):
        group_likelihood(*likelihood(), tolerance=-1.0, max_steps=steps)

    assert per_step(solve, 30, 60) <= 4 / STEPS_A_ROUND


def test_proximal_gradient_waits_once_in_many_steps():
    def solve(steps):
        descend(*likelihood(), tolerance=-1.0, max_steps=steps)

    assert per_step(solve, 50, 100) <= 2 / DESCENT_CHECK


def test_the_proximal_map_never_waits():
    z, _, simplex, eta = likelihood()
    assert waits(prox, simplex, z[:2], eta, torch.zeros_like(eta)) == 0


def test_mixtures_wait_once_in_a_few_steps():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 60, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (60,), generator=generator)
    mass = torch.ones(3, 60, dtype=torch.float64)
    cell = torch.arange(60) % 4
    ridge = torch.ones(3, dtype=torch.float64)

    def offsets(steps):
        class_offsets(logits, labels, mass, cell, 4, ridge=ridge, tolerance=-1.0, max_steps=steps)

    def mixtures(steps):
        score = logits.exp().expand(3, -1, -1)
        prior = torch.ones(3, 2, 4, dtype=torch.float64)
        cell_mixtures(score, mass, cell, prior, tolerance=-1.0, max_steps=steps)

    for solve in (offsets, mixtures):
        assert per_step(solve, 20, 40) <= 1 / CHECK_EVERY


def test_logistic_waits_at_most_once_a_step():
    generator = torch.Generator().manual_seed(0)
    design = torch.randn(4, 80, generator=generator, dtype=torch.float64)
    design[-1] = 1.0
    outcome = torch.randint(0, 2, (80,), generator=generator).double()
    mass = torch.ones(5, 80, dtype=torch.float64)

    def solve(steps):
        ridge_logistic(design, outcome, mass, 1e-3, tolerance=-1.0, max_steps=steps)

    assert per_step(solve, 20, 40) <= 1


def test_quadratic_solves_wait_a_few_times_whatever_the_batch():
    generator = torch.Generator().manual_seed(0)

    def solve(problems):
        half = torch.rand(problems * 3, 2, 4, generator=generator, dtype=torch.float64)
        gram, right = half @ half.mT, half.sum(dim=2)
        problem = torch.arange(problems).repeat_interleave(3)
        share = torch.full((problems * 3, 2), 1 / 6, dtype=torch.float64)
        total = torch.ones(problems, dtype=torch.float64)
        nonnegative_quadratic(gram, right, share, total, problem, torch.ones_like(right))

    assert waits(solve, 400) <= 3 * max(waits(solve, 4), 10)


def test_all_cells_of_all_subsets_wait_like_one():
    source, target = samples(drawn_world(0, 400, 400, features=6))
    share = scatter_folds(torch.arange(400), source.count, 5)
    counts = (source.count[:, None] * (1 - share)).T, target.count.expand(5, -1)
    batch = Batch.of(source, target, *counts)

    def fit(members):
        fit_cells(batch, subsets_of(members, batch.sizes, batch.codes.device), 10.0)

    one = waits(fit, [(0,)])
    assert waits(fit, [(j,) for j in range(6)]) <= 2 * one + 4
