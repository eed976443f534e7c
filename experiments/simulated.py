"""Error of every method under the paper's simulated shifts of real tables, on the same draws.

    python -m experiments.simulated --data FOLDER --order draw-first --depth 50
    python -m experiments.simulated --data FOLDER --order classifier-first --depth 3
    python -m experiments.simulated --data FOLDER --table case_study --rows 2500
    python -m experiments.simulated --data FOLDER --table credit-random --rows 2500

The first is the paper's protocol and classifier. The case study has its classifier's probabilities
given, so its rows are drawn with replacement from the table, the target by the true weights.
"-random" behind a table's name: another shift in every draw, of a random feature with the label.
Each draw is appended to a CSV as it finishes: run the same command again to resume.
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

from experiments.datasets import Shift, load_shift, load_table, random_shift
from experiments.methods import calibration_for
from sees_torch import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    Auto,
    KnownWeights,
    NoShift,
    SEESc,
    SEESd,
    SEESem,
    SeesWarning,
    ShiftedPair,
    ShiftReport,
    estimate_shift,
    resample_shift,
)

METHODS: dict[str, Any] = {
    "default": Auto(),
    "SEES-em": SEESem(),
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


def measure(
    pair: ShiftedPair, shifted: tuple[str, ...], only: str = "", calibrate: str = ""
) -> list[dict[str, Any]]:
    """Errors of every method on one draw, gaps in points."""
    forms = {"refined": True, "vector": "vector"}
    known = KnownWeights(pair.weight_table, pair.features)
    told = SEESem(features=pair.features)
    methods = {**METHODS, "SEES-em told the feature": told, "true weights": known}
    names = [name for name in methods if not only or name in only.split(",")]
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        # The limit: the least variance when the shifted features are known, at the true weights.
        oracle = estimate_shift(**pair.inputs(), method=known, estimator="eff", replicates=0)
        for name in names:
            chooses = name in ("default", "SEES-em")
            with_interval = chooses or isinstance(methods[name], SEESc)
            form = forms.get(calibrate, calibration_for(methods[name]))
            report = estimate_shift(
                **pair.inputs(),
                method=methods[name],
                confidence=0.9 if with_interval else None,
                calibrate=form,
            )
            gaps = {"own": report.gap}
            if not chooses:
                fitted = KnownWeights(report.weight_function)
                for estimator in ("ipw", "dr"):
                    again = estimate_shift(
                        **pair.inputs(),
                        method=fitted,
                        estimator=estimator,
                        confidence=None,
                        calibrate=form,
                    )
                    gaps[estimator] = again.gap
            rows.append(
                _errors(pair, report, gaps, shifted)
                | {"method": name, "limit": 100 * (oracle.analytic_errors[0] or np.nan)}
            )
    return rows


def _errors(
    pair: ShiftedPair, report: ShiftReport, gaps: dict[str, float], shifted: tuple[str, ...]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for estimator in ("own", "ipw", "dr"):
        gap = gaps.get(estimator, np.nan)
        row[f"{estimator} realised"] = 100 * (gap - pair.realised_gap)
        row[f"{estimator} population"] = 100 * (gap - pair.population_gap)
    weights = report.weights.numpy()
    spread = weights.std() > 0
    row["weight MSE"] = float(np.mean((weights - pair.weights) ** 2))
    row["weight PCC"] = float(np.corrcoef(weights, pair.weights)[0, 1]) if spread else np.nan
    match = report.match
    named = any(part is not None for part in (match.ranking, match.importance, match.choice))
    row["found"] = float(report.shifted_features == shifted) if named else np.nan
    row["status"] = report.status
    inside = report.interval is not None and (
        report.interval[0] <= pair.population_gap <= report.interval[1]
    )
    row["covered"] = float(inside) if report.interval is not None else np.nan
    return row


def case_study_table(folder: Path) -> pd.DataFrame:
    """The source of the COVID-19 case study, with its classifier's probabilities."""
    path = folder / "covid" / "case_study_source.csv.gz"
    if not path.exists():
        raise SystemExit(f"no {path}.")
    return pd.read_csv(path)


def case_study_pair(table: pd.DataFrame, shift: Shift, rows: int, seed: int) -> ShiftedPair:
    """A draw from the COVID-19 case study's source table, whose classifier is given."""
    (feature,) = shift.features
    law = shift.weights
    weight = np.array([law[cell] for cell in zip(table[feature], table["positive"], strict=True)])
    weight = weight / weight.mean()
    right = (table["proba_positive"] > 0.5) == table["positive"]
    generator = np.random.default_rng(seed)
    here = generator.integers(len(table), size=rows)
    there = generator.choice(len(table), size=rows, p=weight / weight.sum())
    features = table.drop(columns=["positive", "proba_positive"])
    proba = np.stack([1 - table["proba_positive"], table["proba_positive"]], axis=1)
    labels = table["positive"].to_numpy()
    return ShiftedPair(
        source=features.iloc[here].reset_index(drop=True),
        labels=labels[here],
        source_proba=proba[here],
        target=features.iloc[there].reset_index(drop=True),
        target_proba=proba[there],
        target_labels=labels[there],
        classes=(0, 1),
        features=(feature,),
        weight_table=law,
        weights=weight[here],
        population_gap=float(np.mean((weight - 1) * right)),
    )


def draw(
    name: str,
    folder: Path,
    only: str,
    calibrate: str,
    rows: int,
    order: Any,
    depth: int,
    seed: int,
) -> pd.DataFrame:
    """One draw of a table, measured."""
    torch.set_num_threads(1)
    table, _, random = name.partition("-")
    given = table == "case_study"
    frame, label = (case_study_table(folder), "positive") if given else load_table(table, folder)
    if random:
        hidden = frame.drop(columns="proba_positive", errors="ignore")
        shift = random_shift(hidden, label, seed)
    else:
        shift = load_shift("covid_case_study" if given else table)
    pair = (
        case_study_pair(frame, shift, rows, seed)
        if given
        else table_pair(table, folder, shift, rows, order, depth, seed)
    )
    result = pd.DataFrame(measure(pair, shift.shifted, only, calibrate))
    gaps = {"gap realised": 100 * pair.realised_gap, "gap population": 100 * pair.population_gap}
    return result.assign(table=name, rows=rows, order=order, depth=depth, seed=seed, **gaps)


def table_pair(
    name: str, folder: Path, shift: Shift, rows: int, order: Any, depth: int, seed: int
) -> ShiftedPair:
    """A draw of a real table under its simulated shift, with a classifier fitted to it."""
    frame, label = load_table(name, folder)
    return resample_shift(
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


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Root mean squares (and means) over the draws, per table and method."""
    errors = [column for column in results if column.endswith(("realised", "population"))]
    errors = [column for column in errors if not column.startswith("gap")]
    grouped = results.groupby(["table", "rows", "order", "depth", "method"], sort=False)
    table = grouped[errors].agg(lambda error: np.sqrt(np.mean(np.square(error))))
    table["weight MSE"] = grouped["weight MSE"].mean()
    table["weight PCC"] = grouped["weight PCC"].mean()
    table["limit"] = grouped["limit"].agg(lambda error: np.sqrt(np.mean(np.square(error))))
    table["found"] = grouped["found"].mean()
    table["covered"] = grouped["covered"].mean()
    identified = results[results["status"] == "identified"].groupby(grouped.keys, sort=False)
    table["identified"] = identified.size() / grouped.size()
    table["found, identified"] = identified["found"].mean()
    table["draws"] = grouped.size()
    return table


def main() -> None:
    """Run the draws that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--table", nargs="+", default=["bankchurn", "credit", "case_study"])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument(
        "--order", default="split-first", choices=["split-first", "classifier-first", "draw-first"]
    )
    parser.add_argument("--depth", type=int, default=3, help="of the boosted trees")
    parser.add_argument("--only", default="", help="methods, separated by commas")
    parser.add_argument(
        "--calibrate",
        default="",
        choices=["vector", "refined"],
        help="of p(y|x) for all methods; by default refined for the default method only",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="by default outputs/simulated*.csv")
    options = parser.parse_args()
    if options.out is None:
        options.out = Path(f"outputs/simulated{options.calibrate and '_' + options.calibrate}.csv")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    keys = ["table", "rows", "order", "depth", "seed"]
    done = set()
    if options.out.exists():
        finished = pd.read_csv(options.out)[keys].drop_duplicates()
        done = set(finished.itertuples(index=False, name=None))
    fixed = (options.rows, options.order, options.depth)
    seeds = range(options.first, options.first + options.draws)
    wanted = [(name, *fixed, seed) for name in options.table for seed in seeds]
    todo = [key for key in wanted if key not in done]
    fixed_too = options.data, options.only, options.calibrate
    work = (delayed(draw)(name, *fixed_too, *settings) for name, *settings in todo)
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
