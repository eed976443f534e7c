"""Error of every method under the paper's simulated shifts of real tables, on the same draws.

    python -m experiments.simulated --data FOLDER --order draw-first --depth 50
    python -m experiments.simulated --data FOLDER --order classifier-first --depth 3

The first is the paper's protocol and classifier. Each draw is appended to a CSV as it finishes:
run the same command again to resume.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from experiments.datasets import load_shift, load_table
from sees_torch import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    KnownWeights,
    NoShift,
    SEESc,
    SEESd,
    ShiftedPair,
    SupportWarning,
    estimate_shift,
    resample_shift,
)

METHODS: dict[str, Any] = {
    "SEES-d hard": SEESd(),
    "SEES-d soft": SEESd(soft=True),
    "SEES-d soft, plain": SEESd(soft=True, constrained=False),
    "SEES-c 0.001": SEESc(eta=1e-3, sparsity=1),
    "SEES-c 0.01": SEESc(eta=1e-2, sparsity=1),
    "SEES-c 0.01 intercept": SEESc(eta=1e-2, sparsity=1, intercept=True),
    "BBSE hard": BBSE(),
    "BBSE soft": BBSE(soft=True),
    "MLLS": MLLS(),
    "KLIEP": KLIEP(),
    "DLU": DLU(),
    "CBPE": CBPE(),
    "no shift": NoShift(),
}


def boosted_trees(features: pd.DataFrame, labels: np.ndarray, depth: int = 3) -> Any:
    """Gradient boosting on ordinal codes."""
    text = features.select_dtypes(exclude="number").columns
    coder = make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), text),
        remainder="passthrough",
    )
    model = make_pipeline(coder, GradientBoostingClassifier(max_depth=depth, random_state=0))
    return model.fit(features, labels)


def measure(pair: ShiftedPair, shifted: tuple[str, ...], only: str = "") -> list[dict[str, Any]]:
    """Errors of every method on one draw, gaps in points."""
    known = KnownWeights(pair.weight_table, pair.features)
    methods = {**METHODS, "true weights": known}
    rows = []
    for name, method in ((k, v) for k, v in methods.items() if k.startswith(only)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SupportWarning)
            report = estimate_shift(**pair.inputs(), method=method)
            fitted = KnownWeights(report.weight_function)
            gaps = {}
            for estimator in ("ipw", "dr"):
                again = estimate_shift(**pair.inputs(), method=fitted, estimator=estimator)
                gaps[estimator] = again.gap
        weights = report.weights.numpy()
        spread = weights.std() > 0
        row: dict[str, Any] = {"method": name}
        for estimator, gap in gaps.items():
            row[f"{estimator} realised"] = 100 * (gap - pair.realised_gap)
            row[f"{estimator} population"] = 100 * (gap - pair.population_gap)
        row["weight MSE"] = float(np.mean((weights - pair.weights) ** 2))
        row["weight PCC"] = float(np.corrcoef(weights, pair.weights)[0, 1]) if spread else np.nan
        named = report.match.ranking is not None or report.match.importance is not None
        row["found"] = float(report.shifted_features == shifted) if named else np.nan
        rows.append(row)
    return rows


def draw(
    name: str, folder: Path, only: str, rows: int, order: Any, depth: int, seed: int
) -> pd.DataFrame:
    """One draw of a table, measured."""
    torch.set_num_threads(1)
    frame, label = load_table(name, folder)
    shift = load_shift(name)
    pair = resample_shift(
        frame,
        label,
        shift.features,
        shift.source_law,
        shift.target_law,
        n=rows,
        m=rows,
        fit=partial(boosted_trees, depth=depth),
        order=order,
        generator=torch.Generator().manual_seed(seed),
    )
    result = pd.DataFrame(measure(pair, shift.shifted, only))
    gaps = {"gap realised": 100 * pair.realised_gap, "gap population": 100 * pair.population_gap}
    return result.assign(table=name, rows=rows, order=order, depth=depth, seed=seed, **gaps)


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Root mean squares (and means) over the draws, per table and method."""
    errors = [column for column in results if column.endswith(("realised", "population"))]
    errors = [column for column in errors if not column.startswith("gap")]
    grouped = results.groupby(["table", "rows", "order", "depth", "method"], sort=False)
    table = grouped[errors].agg(lambda error: np.sqrt(np.mean(np.square(error))))
    table["weight MSE"] = grouped["weight MSE"].mean()
    table["weight PCC"] = grouped["weight PCC"].mean()
    table["found"] = grouped["found"].mean()
    table["draws"] = grouped.size()
    return table


def main() -> None:
    """Run the draws that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--table", nargs="+", default=["bankchurn", "credit"])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument(
        "--order", default="split-first", choices=["split-first", "classifier-first", "draw-first"]
    )
    parser.add_argument("--depth", type=int, default=3, help="of the boosted trees")
    parser.add_argument("--only", default="", help="methods whose name starts so")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("outputs/simulated.csv"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    keys = ["table", "rows", "order", "depth", "seed"]
    done = set()
    if options.out.exists():
        finished = pd.read_csv(options.out)[keys].drop_duplicates()
        done = set(finished.itertuples(index=False, name=None))
    fixed = (options.rows, options.order, options.depth)
    wanted = [(name, *fixed, seed) for name in options.table for seed in range(options.draws)]
    todo = [key for key in wanted if key not in done]
    work = (delayed(draw)(name, options.data, options.only, *settings) for name, *settings in todo)
    for count, result in enumerate(
        Parallel(options.jobs, return_as="generator_unordered")(work), start=1
    ):
        result.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"\r{count} of {len(todo)} draws", end="", flush=True)
    print()
    results = pd.read_csv(options.out)
    picked = results.set_index(keys).index.isin(wanted)
    pd.set_option("display.width", 250, "display.max_columns", 30)
    print(summary(results[picked]).round(3).to_string())


if __name__ == "__main__":
    main()
