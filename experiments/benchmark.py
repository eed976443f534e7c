"""Speed against named opponents, as ratios measured in one run.

    python -m experiments.benchmark

The first opponent is the paper read literally: for every subset of features a loop over its cells
and over the marginal tables that contain it, and a cvxpy solve. Both get coded tensors and must
agree on the answer.
"""

from __future__ import annotations

import argparse
import time
from itertools import combinations, product

import cvxpy
import numpy as np
import pandas as pd
import torch

from sees_torch import SEESd, Source, Target, make_sparse_joint_shift


def naive_sees_d(source: Source, target: Target, sparsity: int) -> tuple[tuple[int, ...], float]:
    """The best subset and its objective, by loops over subsets, tables and cells."""
    codes, other = source.rows.codes.numpy(), target.rows.codes.numpy()
    labels, predicted = source.labels.numpy(), source.predictions.numpy()
    predicted_target = target.predictions.numpy()
    n_labels, d = len(source.classes), codes.shape[1]
    levels = [sorted(set(codes[:, j]) | set(other[:, j])) for j in range(d)]
    best: tuple[tuple[int, ...], float] = ((), np.inf)
    for subset in combinations(range(d), sparsity):
        cells = list(product(*(levels[j] for j in subset)))
        weight = cvxpy.Variable((len(cells), n_labels), nonneg=True)
        terms = []
        rest = [j for j in range(d) if j not in subset]
        for extra in combinations(rest, min(2 * sparsity, d) - sparsity):
            table: dict[tuple[int, ...], np.ndarray] = {}
            for row, f, y in zip(codes, predicted, labels, strict=True):
                key = (*row[list(subset)], *row[list(extra)], f)
                table.setdefault(key, np.zeros(n_labels + 1))[y] += 1 / len(codes)
            for row, f in zip(other, predicted_target, strict=True):
                key = (*row[list(subset)], *row[list(extra)], f)
                table.setdefault(key, np.zeros(n_labels + 1))[-1] += 1 / len(other)
            place = {cell: number for number, cell in enumerate(cells)}
            for key, mass in table.items():
                terms.append((place[key[:sparsity]], mass))
        rows = np.zeros((len(terms), len(cells) * n_labels))
        goal = np.zeros(len(terms))
        for number, (cell, mass) in enumerate(terms):
            rows[number, cell * n_labels : (cell + 1) * n_labels] = mass[:-1]
            goal[number] = mass[-1]
        share = np.zeros((len(cells), n_labels))
        for row, y in zip(codes, labels, strict=True):
            share[cells.index(tuple(row[list(subset)])), y] += 1 / len(codes)
        flat = cvxpy.reshape(weight, (len(cells) * n_labels,), order="C")
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.sum_squares(rows @ flat - goal)),
            [cvxpy.sum(cvxpy.multiply(share, weight)) == 1],
        )
        problem.solve(solver="CLARABEL")
        if problem.value < best[1]:
            best = (subset, float(problem.value))
    return best


def compare(n: int, features: int, sparsity: int, classes: int) -> dict[str, float | int | str]:
    """One world: seconds of both, and whether they agree."""
    pair = make_sparse_joint_shift(
        n,
        n,
        features=features,
        classes=classes,
        shifted=min(sparsity, 2),
        generator=torch.Generator().manual_seed(1),
    )
    source = Source(
        torch.tensor(pair.source.to_numpy()), torch.tensor(pair.labels), pair.source_proba
    )
    target = Target(torch.tensor(pair.target.to_numpy()), pair.target_proba, source)
    start = time.perf_counter()
    repeats = 3
    for _ in range(repeats):
        match = SEESd(sparsity=sparsity).match(source, target)
    ours = (time.perf_counter() - start) / repeats
    start = time.perf_counter()
    subset, objective = naive_sees_d(source, target, sparsity)
    naive = time.perf_counter() - start
    assert match.ranking is not None
    close = abs(float(match.ranking.objective[0]) - objective) < 1e-6
    return {
        "n": n,
        "d": features,
        "s": sparsity,
        "L": classes,
        "sees_torch [s]": ours,
        "naive loop [s]": naive,
        "ratio": naive / ours,
        "same answer": "yes" if match.ranking.subsets[0] == subset and close else "no",
    }


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 5000])
    options = parser.parse_args()
    worlds = [(n, d, s, 2) for n in options.rows for d, s in ((10, 1), (23, 1), (10, 2))]
    table = pd.DataFrame([compare(*world) for world in worlds])
    print(table.round(4).to_string(index=False))


if __name__ == "__main__":
    main()
