"""How often is a shift named where there is none? Twelve settings, simulated.

    python -m experiments.false_alarms --draws 100

Every draw is a new world and two samples from the same law of it. Each draw is appended to a CSV as
it finishes: run the same command again to resume.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed

from sees_torch import estimate_shift, make_sparse_joint_shift

FEATURES = 8
MIXED = (2, 3, 5, 8, 12, 20, 30, 40)
SIZES = ((1000, 1000), (400, 4000), (4000, 400))
"""Rows of source and target."""


def levels(
    sizes: int | tuple[int, ...], classes: int = 2
) -> Callable[[int, int, int], dict[str, Any]]:
    """Categorical columns with so many levels."""

    def make(n: int, m: int, seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        world = {"features": FEATURES, "levels": sizes, "classes": classes}
        pair = make_sparse_joint_shift(n, m, shifted=0, strength=0.0, generator=generator, **world)
        return pair.inputs() | {"kinds": dict.fromkeys(pair.source.columns, "categorical")}

    return make


def continuous(n: int, m: int, seed: int) -> dict[str, Any]:
    """Two classes with normal columns, and their Bayes rule."""
    rng = np.random.default_rng(seed)
    prior, centre = rng.uniform(0.35, 0.65), rng.normal(scale=0.4, size=(2, FEATURES))
    labels = (rng.random(n + m) < prior).astype(int)
    rows = centre[labels] + rng.normal(size=(n + m, FEATURES))
    distance = ((rows[:, None] - centre) ** 2).sum(axis=2)
    odds = np.log(prior / (1 - prior)) + (distance[:, 0] - distance[:, 1]) / 2
    proba = 1 / (1 + np.exp(-odds))
    frame = pd.DataFrame(rows, columns=[f"x{j}" for j in range(FEATURES)])
    return {
        "source": frame[:n],
        "labels": labels[:n],
        "target": frame[n:].reset_index(drop=True),
        "source_proba": proba[:n],
        "target_proba": proba[n:],
    }


COLUMNS: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "3 levels": levels(3),
    "2 to 40 levels": levels(MIXED),
    "continuous": continuous,
    "10 classes": levels(3, classes=10),
}


def draw(
    columns: str, n: int, m: int, seed: int, confidence: float, replicates: int
) -> dict[str, Any]:
    """The report on two samples of one law, gaps in points."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = estimate_shift(
            **COLUMNS[columns](n, m, seed), confidence=confidence, replicates=replicates
        )
    low, high = report.interval or (np.nan, np.nan)
    return {
        "columns": columns,
        "n": n,
        "m": m,
        "seed": seed,
        "hypothesis": report.hypothesis,
        "features": " ".join(report.shifted_features),
        "status": report.status,
        "gap": 100 * report.gap,
        "low": 100 * low,
        "high": 100 * high,
        "reasons": "; ".join(report.reasons),
    }


def alarms(results: pd.DataFrame) -> pd.DataFrame:
    """What a user would take for a sign of shift, per draw."""
    return results.assign(
        features=results["features"] != "",
        hypothesis=results["hypothesis"] != "nothing",
        interval=~((results["low"] <= 0) & (results["high"] >= 0)),
        identified=results["status"] == "identified",
        width=results["high"] - results["low"],
    )


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Shares of draws with a false alarm, each with its binomial standard error."""
    grouped = alarms(results).groupby(["columns", "n", "m"], sort=False)
    draws = grouped.size()
    table = pd.DataFrame(index=draws.index)
    for name in ("features", "hypothesis", "interval"):
        table[name] = share = grouped[name].mean()
        table[f"+- {name}"] = (share * (1 - share) / draws) ** 0.5
    table[["identified", "width"]] = grouped[["identified", "width"]].mean()
    table["draws"] = draws
    return table


def main() -> None:
    """Run the draws that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--columns", nargs="+", default=list(COLUMNS), choices=COLUMNS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("false_alarms.csv"))
    options = parser.parse_args()
    done: set[tuple[str, int, int, int]] = set()
    if options.out.exists():
        old = pd.read_csv(options.out)
        done = set(zip(old["columns"], old["n"], old["m"], old["seed"], strict=True))
    wanted = [
        (columns, *sizes, seed)
        for seed in range(options.first, options.first + options.draws)
        for columns in options.columns
        for sizes in SIZES
        if (columns, *sizes, seed) not in done
    ]
    jobs = (delayed(draw)(*key, options.confidence, options.replicates) for key in wanted)
    runner = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for count, row in enumerate(runner(jobs), start=1):
        frame = pd.DataFrame([row])
        frame.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"{count} of {len(wanted)}", end="\r", flush=True)
    words = ("features", "reasons")
    results = pd.read_csv(options.out, dtype=dict.fromkeys(words, str))
    results = results.fillna(dict.fromkeys(words, ""))
    print(summary(results).round(3).to_string())
    named = results[results["hypothesis"] != "nothing"].drop(columns="reasons")
    print("", named.round(2).to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
