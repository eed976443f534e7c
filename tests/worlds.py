"""Small worlds with a known answer, shared by the tests."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pandas as pd
import torch

from sees_torch import ShiftedPair, Source, Target, make_sparse_joint_shift


def exact_world(seed: int, **options) -> ShiftedPair:
    """A population under sparse joint shift, every row with its probability: no sampling."""
    generator = torch.Generator().manual_seed(seed)
    return make_sparse_joint_shift(exact=True, generator=generator, **options)


def drawn_world(seed: int, n: int, m: int, **options) -> ShiftedPair:
    generator = torch.Generator().manual_seed(seed)
    return make_sparse_joint_shift(n, m, generator=generator, **options)


def samples(pair: ShiftedPair) -> tuple[Source, Target]:
    """The two samples of a pair, uncalibrated."""
    source = Source(
        pair.source,
        pair.labels,
        pair.source_proba,
        classes=pair.classes,
        weight=pair.source_weight,
    )
    return source, Target(pair.target, pair.target_proba, source, weight=pair.target_weight)


def shifted_by(pair: ShiftedPair, weights: np.ndarray) -> tuple[Source, Target]:
    """The source of an exact world, and the target that has these density ratios exactly."""
    moved = pair.source_weight * weights
    source = samples(pair)[0]
    return source, Target(pair.source, pair.source_proba, source, weight=moved / moved.sum())


def unshifted(pair: ShiftedPair) -> tuple[Source, Target]:
    """The source of a pair, once with and once without its labels."""
    source = samples(pair)[0]
    return source, Target(pair.source, pair.source_proba, source, weight=pair.source_weight)


def row_weights(match, source: Source) -> np.ndarray:
    return match.weight_function.of_rows(source.rows, source.labels).numpy()


def mixed_frame(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Two categorical columns (one of text) and two continuous ones."""
    return pd.DataFrame(
        {
            "town": rng.choice(["Bern", "Genf", "Chur"], rows),
            "size": rng.integers(0, 4, rows),
            "age": rng.normal(40, 10, rows),
            "income": rng.lognormal(0, 1, rows),
        }
    )


def penalised_loss(z, mass, group, eta: float, a) -> float:
    """-E[log z.a] + eta sum_g ||a_g||, group -1 unpenalised, in numpy."""
    norms = sum(np.linalg.norm(a[group == g]) for g in range(group.max() + 1))
    return -mass @ np.log(z @ a) + eta * norms


def penalised_optimum(z, mass, c, group, eta: float) -> np.ndarray:
    """Its minimiser on {a >= 0, c.a = 1} by cvxpy, made exactly feasible.

    A point that cvxpy calls inaccurate is still feasible, so an upper bound of the optimum; tests
    that compare from both sides notice when it is a bad one.
    """
    a = cp.Variable(z.shape[1], nonneg=True)
    penalty = sum(cp.norm(a[np.flatnonzero(group == g)]) for g in range(group.max() + 1))
    loss = -mass @ cp.log(z @ a) + eta * penalty
    problem = cp.Problem(cp.Minimize(loss), [c @ a == 1])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9)
    value = np.maximum(a.value, 0.0)
    return value / (c @ value)
