"""Do the intervals cover, and are they as narrow as an oracle's? Six settings, simulated.

    python -m experiments.coverage --draws 200 --rows 3000

Every draw is a new world and a new sample from it. The oracle knows which features shifted and
takes the efficient estimate with its analytic error. Each draw is appended to a CSV as it finishes:
run the same command again to resume.
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

from sees_torch import SEESem, estimate_shift, make_sparse_joint_shift

SETTINGS: dict[str, dict[str, Any]] = {
    "no shift": {"strength": 0.0, "shifted": 0},
    "label shift": {"shifted": 0, "strength": 0.7},
    "sparse covariate shift": {"shifted": 1, "with_labels": False},
    "1-SJS, two classes": {"shifted": 1},
    "1-SJS, four classes": {"shifted": 1, "classes": 4},
    "2-SJS": {"shifted": 2},
}


def draw(setting: str, rows: int, seed: int, confidence: float) -> dict[str, Any]:
    """One world: the default's interval and the oracle's, gaps in points."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    pair = make_sparse_joint_shift(rows, rows, generator=generator, **SETTINGS[setting])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = estimate_shift(**pair.inputs(), confidence=confidence)
        oracle = estimate_shift(
            **pair.inputs(),
            method=SEESem(features=pair.features),
            confidence=confidence,
            replicates=0,
        )
    low, high = report.interval or (np.nan, np.nan)
    oracle_low, oracle_high = oracle.interval or (np.nan, np.nan)
    return {
        "setting": setting,
        "rows": rows,
        "seed": seed,
        "population": 100 * pair.population_gap,
        "realised": 100 * pair.realised_gap,
        "gap": 100 * report.gap,
        "low": 100 * low,
        "high": 100 * high,
        "oracle gap": 100 * oracle.gap,
        "oracle low": 100 * oracle_low,
        "oracle high": 100 * oracle_high,
        "status": report.status,
        "hypothesis": report.hypothesis,
        "found": report.shifted_features == pair.features,
    }


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Coverage of the population gap, mean widths, errors, verdicts, per setting and size."""
    r = results.assign(
        covered=(results["low"] <= results["population"] + 1e-9)
        & (results["population"] <= results["high"] + 1e-9),
        width=results["high"] - results["low"],
        oracle_covered=(results["oracle low"] <= results["population"])
        & (results["population"] <= results["oracle high"]),
        oracle_width=results["oracle high"] - results["oracle low"],
        error=(results["gap"] - results["population"]) ** 2,
        oracle_error=(results["oracle gap"] - results["population"]) ** 2,
        identified=results["status"] == "identified",
        weak=results["status"] == "weak",
    )
    grouped = r.groupby(["setting", "rows"], sort=False)
    table = grouped[["covered", "oracle_covered", "width", "oracle_width"]].mean()
    table["width ratio"] = table["width"] / table["oracle_width"]
    table["RMSE"] = grouped["error"].mean() ** 0.5
    table["oracle RMSE"] = grouped["oracle_error"].mean() ** 0.5
    table[["identified", "weak", "found"]] = grouped[["identified", "weak", "found"]].mean()
    table["draws"] = grouped.size()
    return table


def main() -> None:
    """Run the draws that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--setting", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("coverage.csv"))
    options = parser.parse_args()
    done: set[tuple[str, int, int]] = set()
    if options.out.exists():
        old = pd.read_csv(options.out)
        done = set(zip(old["setting"], old["rows"], old["seed"], strict=True))
    wanted = [
        (setting, options.rows, seed)
        for seed in range(options.first, options.first + options.draws)
        for setting in options.setting
        if (setting, options.rows, seed) not in done
    ]
    jobs = (delayed(draw)(*key, options.confidence) for key in wanted)
    runner = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for count, row in enumerate(runner(jobs), start=1):
        frame = pd.DataFrame([row])
        frame.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"{count} of {len(wanted)}", end="\r", flush=True)
    print(summary(pd.read_csv(options.out)).round(3).to_string())


if __name__ == "__main__":
    main()
