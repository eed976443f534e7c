"""What are a few target labels worth, and do suggested rows beat random ones?

    python -m experiments.few_labels --draws 25
    python -m experiments.few_labels --draws 2 --natural --data FOLDER --cache CACHE

The default on worlds that the data decide, and on worlds that they cannot decide without labels; or
on the pairs that `experiments.natural` reports. Errors and half-widths of the 90 % interval in
points, against the population. Each world is appended to a CSV as it finishes: run the same command
again to resume.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed

from experiments.families import FAMILIES, NATURAL
from experiments.natural import SPLITS, load_pair, names
from experiments.verdict import Maker, bernoulli, fading, library, mute, twin_labels
from sees_torch import (
    Auto,
    SEESem,
    SeesWarning,
    ShiftedPair,
    estimate_shift,
    make_sparse_joint_shift,
)


def blunt(seed: int, rows: int) -> ShiftedPair:
    """One feature in three shifts, and the classifier says little."""
    generator = torch.Generator().manual_seed(seed)
    return make_sparse_joint_shift(rows, rows, features=3, quality=0.6, generator=generator)


WORLDS: dict[str, Maker] = {
    "feature known": blunt,
    "1-SJS": library(),
    "two features fit": bernoulli(2),
    "features fade": fading(0.1),
    "two labels alike": twin_labels(6),
    "mute, seen": mute(6, visible=True),
    "mute, unseen": mute(6, visible=False),
    "3 of 5 shifted": library(features=5, shifted=3),
}
LABELS = (0, 50, 150, 400)


def simulated(world: str, rows: int, seed: int, replicates: int) -> list[dict[str, Any]]:
    """Estimates of one simulated world."""
    pair = WORLDS[world](seed, rows)
    method = SEESem(features=pair.features) if world == "feature known" else Auto()
    settings = {"method": method, "confidence": 0.9, "replicates": replicates}
    found = measure(
        {**pair.inputs(), **settings}, pair.target_labels, pair.population_gap, rows, seed
    )
    return [{"world": world, "pair": "", "seed": seed, **row} for row in found]


def natural(
    family: str, position: int, seed: int, replicates: int, folder: Path, cache: Path | None
) -> list[dict[str, Any]]:
    """Estimates of one natural pair."""
    pair = load_pair(family, position, folder, seed, cache)
    settings = {"confidence": 0.9, "replicates": replicates}
    labels = pair.target_labels
    found = measure({**pair.inputs, **settings}, labels, pair.table, len(labels), seed)
    return [{"world": family, "pair": pair.name, "seed": seed, **row} for row in found]


def measure(
    inputs: dict[str, Any], labels: np.ndarray, truth: float, rows: int, seed: int
) -> list[dict[str, Any]]:
    """Estimates without labels, with random ones and with suggested ones."""
    torch.set_num_threads(1)
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        plain = estimate_shift(**inputs)
        for number in LABELS:
            for how in ("random", "suggested") if number else ("none",):
                report = plain
                if how != "none":
                    places = (
                        np.random.default_rng(seed).choice(rows, number, replace=False)
                        if how == "random"
                        else plain.suggest_labels(number)
                    )
                    known = pd.Series(labels).where(np.isin(np.arange(rows), places))
                    report = estimate_shift(**inputs, target_labels=known)
                low, high = report.interval or (np.nan, np.nan)
                results.append(
                    {
                        "labels": number,
                        "chosen": how,
                        "error": 100 * (report.gap - truth),
                        "half-width": 50 * (high - low),
                        "covered": float(low <= truth <= high),
                        "identified": float(report.status == "identified"),
                        "reasons": "; ".join(report.reasons),
                    }
                )
    return results


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Root mean square error, mean half-width, coverage and verdict."""
    grouped = results.groupby(["world", "labels", "chosen"], sort=False)
    table = grouped[["half-width", "covered", "identified"]].mean()
    table.insert(0, "RMSE", grouped["error"].agg(lambda e: np.sqrt(np.mean(np.square(e)))))
    table["draws"] = grouped.size()
    return table.sort_index(level=["world", "labels"], sort_remaining=False)


def main() -> None:
    """Run the draws that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--rows", type=int, default=4000, help="of simulated worlds")
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--natural", action="store_true", help="pairs of real tables")
    parser.add_argument("--data", type=Path, help="folder with the tables")
    parser.add_argument("--cache", type=Path, help="folder to keep built pairs in")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="by default few_labels*.csv")
    options = parser.parse_args()
    if options.natural and options.data is None:
        parser.error("--natural needs --data, the folder with the tables.")
    if options.out is None:
        options.out = Path(f"few_labels{'_natural' if options.natural else ''}.csv")
    seeds = range(options.first, options.first + options.draws)
    worlds = (
        [(f, k) for f in NATURAL for k in range(len(FAMILIES[f].pairs))[SPLITS["report"]]]
        if options.natural
        else [(world, options.rows) for world in WORLDS]
    )
    done: set[tuple[str, str, int]] = set()
    if options.out.exists():
        old = pd.read_csv(options.out, dtype={"pair": str}, keep_default_na=False)
        done = set(zip(old["world"], old["pair"], old["seed"], strict=True))
    wanted = []
    for seed in seeds:
        for world, which in worlds:
            pair = names(world)[which] if options.natural else ""
            if (world, pair, seed) in done:
                continue
            given = (options.data, options.cache) if options.natural else ()
            run = natural if options.natural else simulated
            wanted.append(delayed(run)(world, which, seed, options.replicates, *given))
    runner = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for count, found in enumerate(runner(wanted), start=1):
        frame = pd.DataFrame(found)
        frame.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"{count} of {len(wanted)}", end="\r", flush=True)
    print(summary(pd.read_csv(options.out)).round(2).to_string())


if __name__ == "__main__":
    main()
