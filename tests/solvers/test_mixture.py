"""Shares and class offsets of many cells against EM, scipy, cvxpy and known mixtures."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from sees_torch.solvers.mixture import (
    cell_mixtures,
    cell_sums,
    class_offsets,
    label_sums,
    pair_sums,
)

TOLERANCE = 1e-8
"""What both solvers promise by default, in rows of the objective."""


def likelihood(score, mass, prior, share):
    """sum mu log(score . q) + sum prior log q of one cell; score is (N, L)."""
    live = prior > 0
    return mass @ np.log(score @ share) + prior[live] @ np.log(np.maximum(share[live], 1e-300))


def by_em(score, mass, prior):
    """Brute force: the EM algorithm from the prior."""
    share = prior / prior.sum()
    for _ in range(20_000):
        pull = (mass / (score @ share)) @ score
        moved = (share * pull + prior) / (mass.sum() + prior.sum())
        if np.abs(moved - share).max() < 1e-15:
            break
        share = moved
    return share


def by_cvxpy(score, mass, prior):
    share = cp.Variable(len(prior), nonneg=True)
    value = mass @ cp.log(score @ share) + prior @ cp.log(share)
    problem = cp.Problem(cp.Maximize(value), [cp.sum(share) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9)
    return share.value


def draw_cell(rng, classes, total=100.0, rows=40):
    """Ratios p(x|y) / p(x), target rows of a noisy mixture, and the centre of a prior."""
    given = rng.dirichlet(np.full(rows, 0.7), classes)
    centre = rng.dirichlet(np.ones(classes))
    mixture = rng.dirichlet(np.ones(classes)) @ given
    return (given / (centre @ given)).T, total * mixture * rng.uniform(0.5, 1.5, rows), centre


def flat(cells, strength):
    """Many cells as the arguments of cell_mixtures, their entries shuffled."""
    owner = np.repeat(np.arange(len(cells)), [len(mass) for _, mass, _ in cells])
    order = np.random.default_rng(0).permutation(len(owner))
    score = np.concatenate([score for score, _, _ in cells])[order]
    mass = np.concatenate([mass for _, mass, _ in cells])[order]
    prior = strength * np.stack([centre for _, _, centre in cells], axis=1)
    tensors = (score.T[None], mass[None], owner[order], prior[None])
    return tuple(torch.tensor(part) for part in tensors)


class TestFreeShares:
    """How many numbers of a cell its rows decide: the trace of data over data and prior."""

    @staticmethod
    def by_hand(score, mass, prior, share):
        """On the simplex, by explicit second derivatives."""
        live = prior > 0
        score, prior, share = score[:, live], prior[live], share[live]
        along = np.eye(len(share))[:, 1:] - np.eye(len(share))[:, :1]
        relative = score / (score @ share)[:, None]
        data = along.T @ (relative.T * mass) @ relative @ along
        both = data + along.T @ np.diag(prior / share**2) @ along
        return np.trace(np.linalg.solve(both, data))

    @pytest.mark.parametrize("strength", [100.0, 10.0, 0.1])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_equal_the_trace_on_the_simplex(self, classes, strength):
        rng = np.random.default_rng(classes)
        cells = [draw_cell(rng, classes, total) for total in (3.0, 30.0, 1000.0) * 3]
        given = flat(cells, strength)
        rows = torch.tensor([[mass.sum() for _, mass, _ in cells]])
        solution = cell_mixtures(*given, tolerance=1e-14)
        free = solution.free(given[3], rows)[0]
        for a, (score, mass, centre) in enumerate(cells):
            share = solution.value[0, :, a].numpy()
            expected = self.by_hand(score, mass, strength * centre, share)
            assert float(free[a]) == pytest.approx(expected, rel=1e-4, abs=1e-6)

    def test_a_strong_prior_leaves_none_and_a_weak_one_all_that_are_not_zero(self):
        rng = np.random.default_rng(0)
        cells = [draw_cell(rng, 3) for _ in range(4)]
        rows = torch.tensor([[mass.sum() for _, mass, _ in cells]])
        for strength in (1e7, 1e-7):
            given = flat(cells, strength)
            solution = cell_mixtures(*given, tolerance=1e-14)
            free = solution.free(given[3], rows)
            expected = (solution.value > 1e-4).sum(dim=1).double() - 1
            assert expected.max() == 2
            expected = torch.zeros_like(free) if strength > 1 else expected
            torch.testing.assert_close(free, expected, rtol=0, atol=1e-3)

    def test_known_labels_are_rows(self):
        """Many of them decide all shares, though they enter like a prior."""
        rng = np.random.default_rng(0)
        cells = [draw_cell(rng, 3, 1.0)]
        score, mass, cell, pseudo = flat(cells, 10.0)
        rows = cell_sums(mass, cell, 1)
        few = cell_mixtures(score, mass, cell, pseudo).free(pseudo, rows)
        known = torch.full_like(pseudo, 1e5)
        many = cell_mixtures(score, mass, cell, pseudo + known).free(pseudo, rows + 3e5)
        assert float(few) < 0.2
        assert float(many) == pytest.approx(2.0, abs=1e-3)


class TestShares:
    @pytest.mark.parametrize("strength", [10.0, 1.0, 1e-3])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_reach_the_likelihood_of_a_long_em_run(self, classes, strength):
        rng = np.random.default_rng(classes)
        cells = [draw_cell(rng, classes, total) for total in (1.0, 30.0, 1000.0) * 6]
        solution = cell_mixtures(*flat(cells, strength))
        assert bool(solution.converged.all())
        for a, (score, mass, centre) in enumerate(cells):
            share, prior = solution.value[0, :, a].numpy(), strength * centre
            best = by_em(score, mass, prior)
            reached = likelihood(score, mass, prior, share)
            assert reached >= likelihood(score, mass, prior, best) - TOLERANCE
            if strength >= 1:  # Otherwise EM itself is still on its way.
                np.testing.assert_allclose(share, best, atol=1e-6)

    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_equal_cvxpy(self, classes):
        rng = np.random.default_rng(classes)
        cells = [draw_cell(rng, classes) for _ in range(5)]
        solution = cell_mixtures(*flat(cells, 2.0))
        for a, (score, mass, centre) in enumerate(cells):
            best = by_cvxpy(score, mass, 2.0 * centre)
            # An objective within 1e-9 of the optimum puts shares within about 1e-5.
            np.testing.assert_allclose(solution.value[0, :, a], best, atol=2e-5)

    @pytest.mark.parametrize("strength", [1e-6, 1e-9, 1e-12])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_a_mixture_without_noise_comes_back(self, classes, strength):
        """400 cells, the prior next to nothing: then the shares of the mixture are the maximum."""
        rng = np.random.default_rng(0)
        cells, truth = [], []
        for _ in range(400):
            parts = [softmax(rng.normal(size=(classes, 3)), axis=1) for _ in range(3)]
            given = np.einsum("ya,yb,yc->yabc", *parts).reshape(classes, -1)
            centre, share = rng.dirichlet(np.ones(classes)), rng.dirichlet(np.ones(classes))
            cells.append(((given / (centre @ given)).T, 30 * share @ given, centre))
            truth.append(share)
        solution = cell_mixtures(*flat(cells, strength))
        assert bool(solution.converged.all())
        for a, (score, mass, centre) in enumerate(cells):
            prior, share = strength * centre, solution.value[0, :, a].numpy()
            reached = likelihood(score, mass, prior, share)
            assert reached >= likelihood(score, mass, prior, truth[a]) - TOLERANCE

    @pytest.mark.parametrize("start", [1e-1, 1e-3, 1e-6, 1e-9])
    def test_a_prior_far_from_the_data_does_not_hold_them_back(self, start):
        """Two classes that hardly overlap, 0.3 to 0.7; the prior starts one of them near zero."""
        given = np.array([[0.98, 0.01, 0.01], [0.01, 0.01, 0.98]])
        centre = np.array([start, 1 - start])
        cells = [((given / (centre @ given)).T, 1000 * np.array([0.3, 0.7]) @ given, centre)]
        solution = cell_mixtures(*flat(cells, 1e-6))
        assert bool(solution.converged.all())
        np.testing.assert_allclose(solution.value[0, :, 0], [0.3, 0.7], atol=1e-6)

    @pytest.mark.parametrize("strength", [10.0, 1e-3, 1e-9])
    def test_sum_to_one(self, strength):
        rng = np.random.default_rng(0)
        value = cell_mixtures(*flat([draw_cell(rng, 3) for _ in range(20)], strength)).value
        assert float(value.min()) >= 0
        np.testing.assert_allclose(value.sum(dim=1), 1.0, atol=1e-14)

    def test_the_likelihood_never_falls(self):
        """Stopped after every number of steps, from priors far off, until no step is left."""
        rng = np.random.default_rng(1)
        cells = [draw_cell(rng, 4, total) for total in (3.0, 1000.0) * 20]
        cells = [(score, mass, 10 ** rng.uniform(-6, 0, 4)) for score, mass, _ in cells]
        problem = flat(cells, 1e-3)

        def reached(steps):
            value = cell_mixtures(*problem, tolerance=0.0, max_steps=steps).value[0].numpy()
            return np.array([likelihood(*cell, value[:, a]) for a, cell in enumerate(scaled)])

        scaled = [(score, mass, 1e-3 * centre) for score, mass, centre in cells]
        start = [likelihood(*cell, cell[2] / cell[2].sum()) for cell in scaled]
        path = np.stack([start, *(reached(steps) for steps in range(1, 25))])
        assert np.diff(path, axis=0).min() > -1e-9
        assert (path[-1] - path[0]).min() > 0.01

    def test_a_class_without_prior_cannot_occur(self):
        rng = np.random.default_rng(2)
        cells = [draw_cell(rng, 4) for _ in range(12)]
        masked = []
        for place, (score, mass, centre) in enumerate(cells):
            centre = np.where(np.arange(4) == place % 4, 0.0, centre)
            masked.append((score, mass, centre))
        value = cell_mixtures(*flat(masked, 1.0)).value[0].numpy()
        for a, (score, mass, centre) in enumerate(masked):
            live = centre > 0
            assert value[a % 4, a] == 0
            best = by_em(score[:, live], mass, centre[live])
            np.testing.assert_allclose(value[live, a], best, atol=1e-6)

    def test_cells_without_rows_return_their_prior(self):
        rng = np.random.default_rng(3)
        score, mass, cell, prior = flat([draw_cell(rng, 3) for _ in range(4)], 2.0)
        mass = torch.where(cell == 1, 0.0, mass)
        solution = cell_mixtures(score, mass, cell, prior)
        torch.testing.assert_close(solution.value[0, :, 1], prior[0, :, 1] / 2.0)
        wider = torch.cat([prior, prior[..., :1]], dim=2)
        torch.testing.assert_close(
            cell_mixtures(score, mass, cell, wider).value[0, :, 4], prior[0, :, 0] / 2.0
        )
        nowhere = torch.cat([prior, torch.zeros(1, 3, 1)], dim=2)
        solution = cell_mixtures(score, mass, cell, nowhere)
        assert solution.value[0, :, 4].tolist() == [0.0, 0.0, 0.0]
        assert bool(solution.converged.all())

    def test_a_step_too_long_is_followed_by_shorter_ones(self):
        """Ten thousand rows that all but rule a class out: full Newton steps overshoot there."""
        rows = [1, 77, 2, 9307, 747, 1, 57, 3, 5, 3, 1, 5, 1, 1, 7, 1, 10623, 4, 2, 6, 3, 7, 2]
        second = [18.8, 4.6, 15.1, 0.99, 0.98, 3.7, 3.8, 13.6, 3.1, 16.9, 15.9, 20.5, 4.5, 62.2]
        second += [23.8, 56.0, 0.83, 19.8, 4.1, 5.8, 3.5, 4.9, 17.7]
        mass, other = (torch.tensor(v, dtype=torch.float64) for v in (rows, second))
        score = torch.stack([1 - 0.0068 * (other - 1), other])[None]
        cell = torch.zeros(len(rows), dtype=torch.int64)
        prior = torch.tensor([[[11.5], [0.5]]], dtype=torch.float64)
        found = cell_mixtures(score, mass[None], cell, prior)
        assert bool(found.converged.all())
        assert found.steps <= 16

    def test_batches_equal_a_loop(self):
        """Every batch member and every cell alone, other multiplicities and priors in each."""
        rng = np.random.default_rng(4)
        score, mass, cell, prior = flat([draw_cell(rng, 3) for _ in range(6)], 1.0)
        score = score * torch.tensor(rng.uniform(0.5, 2.0, (5, 3, 1)))
        mass = mass * torch.tensor(rng.integers(0, 4, (5, mass.shape[1])))
        prior = prior * torch.tensor(rng.uniform(0.1, 10, (5, 1, 6)))
        many = cell_mixtures(score, mass, cell, prior, tolerance=1e-12)
        for b in range(5):
            for a in range(6):
                here = cell == a
                one = cell_mixtures(
                    score[b : b + 1, :, here],
                    mass[b : b + 1, here],
                    torch.zeros(int(here.sum()), dtype=torch.int64),
                    prior[b : b + 1, :, a : a + 1],
                    tolerance=1e-12,
                )
                torch.testing.assert_close(
                    many.value[b, :, a], one.value[0, :, 0], rtol=0, atol=1e-7
                )

    def test_entries_may_be_merged(self):
        rng = np.random.default_rng(5)
        score, mass, cell, prior = flat([draw_cell(rng, 3) for _ in range(4)], 1.0)
        times = torch.tensor(rng.integers(1, 5, mass.shape[1]))
        rows = torch.repeat_interleave(torch.arange(mass.shape[1]), times)
        merged = cell_mixtures(score, mass * times, cell, prior)
        single = cell_mixtures(score[..., rows], mass[:, rows], cell[rows], prior)
        torch.testing.assert_close(merged.value, single.value, rtol=0, atol=1e-9)


def offset_loss(logits, labels, mass, ridge, delta):
    """Penalised negative likelihood of one cell; logits are (N, L)."""
    logs = log_softmax(logits + delta, axis=1)
    return -mass @ logs[np.arange(len(labels)), labels] + ridge / 2 * delta @ delta


def offset_slope(logits, labels, mass, ridge, delta):
    miss = softmax(logits + delta, axis=1) - np.eye(len(delta))[labels]
    return mass @ miss + ridge * delta


def draw_rows(rng, classes, cells, rows=400, spread=1.5):
    """Entries with labels that follow other odds in every cell."""
    logits = spread * rng.normal(size=(rows, classes))
    cell = rng.integers(0, cells, rows)
    truth = softmax(logits + rng.normal(size=(cells, classes))[cell], axis=1)
    labels = (rng.random((rows, 1)) > truth.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return logits, labels, rng.integers(1, 4, rows).astype(float), cell


def solve_offsets(logits, labels, mass, cell, cells, ridge):
    return class_offsets(
        torch.tensor(logits).T,
        torch.tensor(labels),
        torch.tensor(mass)[None],
        torch.tensor(cell),
        cells,
        ridge=torch.tensor([ridge], dtype=torch.float64),
    )


class TestOffsets:
    @pytest.mark.parametrize("ridge", [50.0, 2.0, 0.1])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_equal_scipy(self, classes, ridge):
        rng = np.random.default_rng(classes)
        logits, labels, mass, cell = draw_rows(rng, classes, 4)
        solution = solve_offsets(logits, labels, mass, cell, 4, ridge)
        assert bool(solution.converged.all())
        for a in range(4):
            here = cell == a
            given = (logits[here], labels[here], mass[here], ridge)
            best = minimize(
                lambda delta, given=given: offset_loss(*given, delta),
                np.zeros(classes),
                jac=lambda delta, given=given: offset_slope(*given, delta),
                options={"gtol": 1e-8},
            )
            np.testing.assert_allclose(solution.value[0, :, a], best.x, atol=1e-6)

    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_without_a_ridge_mean_probabilities_equal_label_shares(self, classes):
        rng = np.random.default_rng(classes)
        logits, labels, mass, cell = draw_rows(rng, classes, 3)
        delta = solve_offsets(logits, labels, mass, cell, 3, 1e-9).value[0].numpy()
        shifted = softmax(logits + delta.T[cell], axis=1)
        for a in range(3):
            here = cell == a
            share = np.bincount(labels[here], mass[here], minlength=classes) / mass[here].sum()
            mean = mass[here] @ shifted[here] / mass[here].sum()
            np.testing.assert_allclose(mean, share, atol=1e-9)

    def test_a_large_ridge_leaves_the_probabilities_alone(self):
        logits, labels, mass, cell = draw_rows(np.random.default_rng(0), 3, 3)
        delta = solve_offsets(logits, labels, mass, cell, 3, 1e9).value
        assert float(delta.abs().max()) < 1e-5

    def test_an_absent_class_gets_no_probability(self):
        logits, labels, mass, cell = draw_rows(np.random.default_rng(1), 4, 3)
        gone = (labels == cell) & (cell < 2)  # Class a is absent from cell a, for two cells.
        mass = np.where(gone, 0.0, mass)
        delta = solve_offsets(logits, labels, mass, cell, 3, 1e-9).value[0].numpy()
        assert (delta == -np.inf).tolist() == [[a == y < 2 for a in range(3)] for y in range(4)]
        for a in range(2):
            here = (cell == a) & ~gone
            shifted = softmax(logits[here] + delta[:, a], axis=1)
            assert (shifted[:, a] == 0).all()
            mean = mass[here] @ shifted / mass[here].sum()
            share = np.bincount(labels[here], mass[here], minlength=4) / mass[here].sum()
            np.testing.assert_allclose(mean, share, atol=1e-9)

    def test_a_single_class_takes_everything(self):
        logits = np.random.default_rng(2).normal(size=(10, 3))
        solution = solve_offsets(logits, np.ones(10, int), np.ones(10), np.zeros(10, int), 1, 2.0)
        assert bool(solution.converged.all())
        shifted = softmax(logits + solution.value[0, :, 0].numpy(), axis=1)
        assert shifted.tolist() == [[0.0, 1.0, 0.0]] * 10

    def test_cells_without_rows_keep_offsets_of_zero(self):
        logits, labels, mass, cell = draw_rows(np.random.default_rng(3), 3, 2)
        mass = np.where(cell == 1, 0.0, mass)
        delta = solve_offsets(logits, labels, mass, cell, 3, 2.0).value[0]
        assert delta[:, 1:].abs().max() == 0
        assert delta[:, 0].abs().max() > 0.1

    @pytest.mark.parametrize("ridge", [2.0, 2e-9])
    @pytest.mark.parametrize("reach", [5.0, 14.0, 27.6])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_far_off_starts_converge(self, classes, reach, ridge):
        """A classifier that is sure and wrong in every cell, up to the floor of 1e-12."""
        rng = np.random.default_rng(classes)
        logits, labels, mass, cell = draw_rows(rng, classes, 6, rows=600)
        logits[:, 0] += np.where(cell < 3, reach, -reach)
        logits[:, -1] += np.where(cell % 2 == 0, 0.0, -reach)
        solution = solve_offsets(logits, labels, mass, cell, 6, ridge)
        assert bool(solution.converged.all())
        delta = solution.value[0].numpy()
        for a in range(6):
            here = cell == a
            slope = offset_slope(logits[here], labels[here], mass[here], ridge, delta[:, a])
            assert np.abs(slope).max() < 1e-4 * mass[here].sum()

    @pytest.mark.parametrize("classes", [2, 4])
    def test_rows_that_are_sure_of_different_classes_converge(self, classes):
        """One-hot logits, right for half of the rows: the curvature is next to nothing at 0."""
        rng = np.random.default_rng(classes)
        sure, labels = rng.integers(0, classes, 300), rng.integers(0, classes, 300)
        labels = np.where(rng.random(300) < 0.3, 0, labels)
        logits = 27.6 * np.eye(classes)[sure]
        cell = np.zeros(300, int)
        solution = solve_offsets(logits, labels, np.ones(300), cell, 1, 2.0)
        assert bool(solution.converged.all())
        slope = offset_slope(logits, labels, np.ones(300), 2.0, solution.value[0, :, 0].numpy())
        assert np.abs(slope).max() < 1e-3

    def test_batches_equal_a_loop(self):
        rng = np.random.default_rng(5)
        logits, labels, mass, cell = draw_rows(rng, 3, 4)
        masses = mass * rng.integers(0, 3, (5, len(mass)))
        ridge = torch.tensor([0.1, 1.0, 2.0, 10.0, 100.0], dtype=torch.float64)
        many = class_offsets(
            torch.tensor(logits).T,
            torch.tensor(labels),
            torch.tensor(masses),
            torch.tensor(cell),
            4,
            ridge=ridge,
        )
        for b in range(5):
            one = solve_offsets(logits, labels, masses[b], cell, 4, float(ridge[b]))
            torch.testing.assert_close(many.value[b], one.value[0], rtol=0, atol=1e-7)


def test_sums_over_cells_equal_numpy():
    rng = np.random.default_rng(6)
    left, cell = rng.random((2, 3, 50)), rng.integers(0, 4, 50)
    labels, mass = rng.integers(-1, 3, 50), rng.random((2, 50))
    factor = rng.random((2, 1, 50))
    pairs = pair_sums(*(torch.tensor(x) for x in (left, left * factor, cell)), 4)
    shares = label_sums(*(torch.tensor(x) for x in (mass, labels, cell)), 4, 3)
    for a in range(4):
        here = cell == a
        by_hand = np.einsum("byn,bzn->byz", left[..., here], (left * factor)[..., here])
        np.testing.assert_allclose(pairs[:, a], by_hand, rtol=1e-13)
        for y in range(3):
            chosen = here & (labels == y)
            np.testing.assert_allclose(shares[:, y, a], mass[:, chosen].sum(axis=1), rtol=1e-13)
