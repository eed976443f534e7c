"""Ridge logistic regression against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sees_torch.solvers.logistic import ridge_logistic


def make_rows(seed, rows=300, inputs=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs)) * 10.0 ** rng.uniform(-1, 1, inputs)
    truth = rng.normal(size=inputs) / np.abs(x).max(axis=0)
    outcome = (rng.random(rows) < 1 / (1 + np.exp(-3 * x @ truth))).astype(float)
    return x, outcome, rng.gamma(1.0, 1.0, (4, rows)) * (rng.random((4, rows)) > 0.2)


def fit(x, outcome, mass, ridge, alike=False):
    design = torch.tensor(np.c_[x, np.ones(len(x))].T.copy())
    return ridge_logistic(design, torch.tensor(outcome), torch.tensor(mass), ridge, alike=alike)


@pytest.mark.parametrize("ridge", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
def test_equals_scikit_learn(seed, ridge):
    x, outcome, mass = make_rows(seed)
    found = fit(x, outcome, mass, ridge)
    assert bool(found.converged.all())
    for row, weight in zip(found.value.numpy(), mass, strict=True):
        live = weight > 0
        model = LogisticRegression(C=1 / ridge, tol=1e-10, solver="newton-cholesky", max_iter=200)
        model.fit(x[live], outcome[live], sample_weight=weight[live])
        np.testing.assert_allclose(row[:-1], model.coef_[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(row[-1], model.intercept_[0], rtol=1e-6, atol=1e-6)


def test_batch_equals_loop_and_multiplicities_equal_repeated_rows():
    x, outcome, _ = make_rows(9)
    count = np.random.default_rng(0).integers(0, 4, (3, len(x))).astype(float)
    together = fit(x, outcome, count, 1.0).value
    for row in range(3):
        alone = fit(x, outcome, count[row : row + 1], 1.0).value[0]
        repeat = count[row].astype(int)
        longer = fit(
            x.repeat(repeat, axis=0), outcome.repeat(repeat), np.ones((1, repeat.sum())), 1.0
        ).value[0]
        torch.testing.assert_close(together[row], alone, rtol=0, atol=1e-7)
        torch.testing.assert_close(together[row], longer, rtol=0, atol=1e-7)


def test_separable_rows_stay_finite():
    x = np.linspace(-1, 1, 40)[:, None]
    found = fit(x, (x[:, 0] > 0).astype(float), np.ones((1, 40)), 1e-3)
    assert bool(found.value.isfinite().all())
    model = LogisticRegression(C=1e3, tol=1e-12, solver="newton-cholesky", max_iter=500)
    model.fit(x, x[:, 0] > 0)
    np.testing.assert_allclose(found.value[0, 0], model.coef_[0, 0], rtol=1e-5)


def test_equal_samples_have_log_odds_zero():
    x = np.random.default_rng(1).normal(size=(50, 3))
    twice = np.concatenate([x, x])
    outcome = np.repeat([0.0, 1.0], 50)
    assert float(fit(twice, outcome, np.ones((1, 100)), 1.0).value.abs().max()) < 1e-14


def test_masses_that_are_alike_may_share_a_hessian():
    x, outcome, _ = make_rows(3)
    mass = np.ones((5, len(x)))
    for fold in range(5):
        mass[fold, fold::5] = 0
    own, shared = (fit(x, outcome, mass, 1.0, alike=alike) for alike in (False, True))
    assert bool(shared.converged.all())
    torch.testing.assert_close(shared.value, own.value, rtol=0, atol=1e-4)
