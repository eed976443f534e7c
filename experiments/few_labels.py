"""What are a few target labels worth, and do suggested rows beat random ones?

    python -m experiments.few_labels --draws 40

Worlds under sparse joint shift with a blunt classifier; the shifted feature is known, so that only
the labels differ. Errors and half-widths of the 90 % interval in points, against the population.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

from sees_torch import SEESem, estimate_shift, make_sparse_joint_shift


def draw(rows: int, labels: int, seed: int) -> list[dict[str, float | str]]:
    """Estimates of one world without labels, with random ones and with suggested ones."""
    generator = torch.Generator().manual_seed(seed)
    pair = make_sparse_joint_shift(rows, rows, features=3, quality=0.6, generator=generator)
    inputs = {
        **pair.inputs(),
        "method": SEESem(features=pair.features),
        "confidence": 0.9,
        "replicates": 0,
    }
    plain = estimate_shift(**inputs)
    taken = {
        "none": np.array([], dtype=int),
        "random": np.random.default_rng(seed).choice(rows, labels, replace=False),
        "suggested": plain.suggest_labels(labels),
    }
    results = []
    for name, places in taken.items():
        known = np.full(rows, np.nan)
        known[places] = pair.target_labels[places]
        report = estimate_shift(**inputs, target_labels=known)
        low, high = report.interval or (np.nan, np.nan)
        results.append(
            {
                "labels": name,
                "error": 100 * (report.gap - pair.population_gap),
                "half-width": 50 * (high - low),
                "covered": float(low <= pair.population_gap <= high),
            }
        )
    return results


def main() -> None:
    """Print root mean square error, mean half-width and coverage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--labels", type=int, default=150)
    options = parser.parse_args()
    results = pd.DataFrame(
        [row for seed in range(options.draws) for row in draw(options.rows, options.labels, seed)]
    )
    grouped = results.groupby("labels", sort=False)
    table = grouped[["half-width", "covered"]].mean()
    table.insert(0, "RMSE", grouped["error"].agg(lambda e: np.sqrt(np.mean(np.square(e)))))
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
