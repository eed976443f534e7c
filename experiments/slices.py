"""Do the intervals of `report.by` hold the gap inside slices when features are chosen as well?

    python -m experiments.slices

Simulated worlds under sparse joint shift; the truth of a slice comes from a target (and a source)
of many rows with their labels. The default method chooses the features; slices are cut by the
feature that shifted and by one that did not.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch

from sees_torch import estimate_shift, make_sparse_joint_shift

FEATURES = ("x0", "x1")
MANY = 200_000
"""Rows that stand for a population: the error of a slice's truth is about 0.2 points."""


def truth(pair: Any, rows: int, feature: str) -> pd.Series[float]:
    """The gap in accuracy inside every level, from the rows that no sample holds."""
    classes = np.asarray(pair.classes)

    def accuracy(table: pd.DataFrame, proba: Any, labels: Any) -> pd.Series[float]:
        right = pd.Series(classes[proba[rows:].argmax(axis=1)] == labels[rows:])
        level = table[feature][rows:].astype(str).reset_index(drop=True)
        return right.groupby(level).mean()

    after = accuracy(pair.target, pair.target_proba, pair.target_labels)
    return after - accuracy(pair.source, pair.source_proba, pair.labels)


def draw(seed: int, rows: int) -> list[dict[str, Any]]:
    """The slices of one world's report."""
    generator = torch.Generator().manual_seed(seed)
    pair = make_sparse_joint_shift(rows + MANY, rows + MANY, features=4, generator=generator)
    report = estimate_shift(
        pair.source[:rows],
        pair.labels[:rows],
        pair.target[:rows],
        source_proba=pair.source_proba[:rows],
        target_proba=pair.target_proba[:rows],
        replicates=0,
    )
    found = []
    for feature in FEATURES:
        expected = truth(pair, rows, feature)
        slices = report.by(feature).set_index(feature)
        for level in slices.index.intersection(expected.index):
            low, high, gap = slices.loc[level, ["low", "high", "gap"]]
            found.append(
                {
                    "status": report.status,
                    "covered": low <= expected[level] <= high,
                    "half-width": 100 * (high - low) / 2,
                    "error": 100 * (gap - expected[level]),
                }
            )
    return found


def summary(slices: pd.DataFrame) -> pd.DataFrame:
    """Coverage, half-width and root mean square error, by status and over all."""
    grouped = pd.concat([slices, slices.assign(status="all")]).groupby("status")
    return grouped.agg(
        slices=("covered", "size"),
        covered=("covered", "mean"),
        half_width=("half-width", "mean"),
        rmse=("error", lambda error: (error**2).mean() ** 0.5),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [row for seed in range(options.draws) for row in draw(seed, options.rows)]
    print(summary(pd.DataFrame(rows)).round(3).to_string())


if __name__ == "__main__":
    main()
