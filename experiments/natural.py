"""Error of every method under natural shifts of real tables: places, years and months.

    python -m experiments.natural --data FOLDER --cache CACHE
    python -m experiments.natural --data FOLDER --cache CACHE --method default --split report
    python -m experiments.natural --data FOLDER --cache CACHE --family credit-groups fars

Every pair has its classifier trained on rows of the source apart from those that are measured.
There are two truths: the gap of the drawn rows, and the gap between all rows of both tables (the
classifier's aside), which chance moves less. A pair is built once and kept in the cache; each
result is appended to a CSV as it finishes: run the same command again to resume.
"""

from __future__ import annotations

import argparse
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed

from experiments.families import FAMILIES, NATURAL
from experiments.methods import calibration_for
from experiments.simulated import METHODS as BASELINES
from experiments.simulated import boosted_trees
from sees_torch import Auto, SeesWarning, estimate_shift

ROWS = 8000
DEFAULT = "default"
SPLITS = {"all": slice(None), "tune": slice(0, None, 2), "report": slice(1, None, 2)}
METHODS: dict[str, Any] = {DEFAULT: Auto(), **BASELINES}
TRUTHS = ("realised", "table")


@dataclass(frozen=True)
class Pair:
    """A drawn pair with its classifier's probabilities.

    Attributes:
        name: source and target.
        inputs: keyword arguments of `estimate_shift`.
        realised: accuracy on the drawn target rows minus accuracy on the drawn source rows.
        table: the same on all rows of the tables but the classifier's.
        target_labels: of the drawn target rows.
    """

    name: str
    inputs: dict[str, Any]
    realised: float
    table: float
    target_labels: np.ndarray


def names(family: str) -> list[str]:
    """The pairs of a family, in the order that `--split` goes by."""
    chosen = FAMILIES[family].pairs
    return [f"{_short(source)}-to-{_short(target)}" for source, target in chosen]


def _short(sample: str) -> str:
    return sample.removesuffix(" adults").removesuffix("_sample20k").replace("_", "")


def build(family: str, position: int, folder: Path, seed: int, rows: int = ROWS) -> Pair:
    """Draw one pair and train its classifier."""
    chosen = FAMILIES[family]
    source_name, target_name = chosen.pairs[position]
    generator = np.random.default_rng([seed, position])
    try:
        known, other = (chosen.load(folder, name) for name in (source_name, target_name))
    except FileNotFoundError as error:
        raise SystemExit(f"no {error.filename}. Get it from: {chosen.where}.") from None
    known, other = (
        table.iloc[generator.permutation(len(table))].reset_index(drop=True)
        for table in (known, other)
    )
    half = min(len(known) // 2, rows)
    train, known = known[:half], known[half:].reset_index(drop=True)
    fitted, answers = train.drop(columns=chosen.label).fillna(-1), train[chosen.label].to_numpy()
    model = boosted_trees(fitted, answers, depth=3)
    drawn, right, inputs = {"source": half, "target": rows}, {}, {}
    for side, table in (("source", known), ("target", other)):
        labels = table.pop(chosen.label).to_numpy()
        proba = model.predict_proba(table.fillna(-1))
        right[side] = model.classes_[proba.argmax(axis=1)] == labels
        inputs |= {side: table[: drawn[side]], f"{side}_proba": proba[: drawn[side]]}
        if side == "source":
            inputs["labels"] = labels[:half]
    return Pair(
        names(family)[position],
        inputs | {"classes": tuple(model.classes_.tolist())},
        float(right["target"][:rows].mean() - right["source"][:half].mean()),
        float(right["target"].mean() - right["source"].mean()),
        labels[:rows],
    )


def load_pair(
    family: str, position: int, folder: Path, seed: int, cache: Path | None = None
) -> Pair:
    """A pair from the cache, built when it is not there."""
    if cache is None:
        return build(family, position, folder, seed)
    kept = cache / f"{family}_{names(family)[position]}_{seed}.pkl"
    if not kept.exists():
        pair = build(family, position, folder, seed)
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(vars(pair)))
        unfinished.replace(kept)  # Another process never sees half a file.
    return Pair(**pickle.loads(kept.read_bytes()))


def measure(
    family: str,
    position: int,
    seed: int,
    methods: list[str],
    folder: Path,
    cache: Path | None,
    confidence: float,
) -> pd.DataFrame:
    """Methods on one pair, gaps in points; only the default method is asked for an interval."""
    torch.set_num_threads(1)
    pair = load_pair(family, position, folder, seed, cache)
    rows = []
    for method in methods:
        level = confidence if method == DEFAULT else None
        generator = torch.Generator().manual_seed(seed)
        start = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeesWarning)
            report = estimate_shift(
                **pair.inputs,
                method=METHODS[method],
                confidence=level,
                calibrate=calibration_for(METHODS[method]),
                generator=generator,
            )
        seconds = perf_counter() - start
        low, high = report.interval or (np.nan, np.nan)
        row: dict[str, Any] = {"family": family, "pair": pair.name, "seed": seed, "method": method}
        gaps = {name: getattr(pair, name) for name in TRUTHS}
        gaps |= {"gap": report.gap, "low": low, "high": high}
        row |= {figure: 100 * value for figure, value in gaps.items()}
        row |= {"status": report.status, "features": " ".join(map(str, report.shifted_features))}
        rows.append(row | {"seconds": seconds})
    return pd.DataFrame(rows)


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Root mean square and largest error of the gap in points, per family and method.

    "behind" is by how much the default errs more than the method, with its standard error over
    pairs.
    """
    table: dict[tuple[str, str], dict[str, float]] = {}
    for (family, method), rows in results.groupby(["family", "method"], sort=False):
        own = results[(results["family"] == family) & (results["method"] == DEFAULT)]
        figures: dict[str, float] = {}
        for truth in TRUTHS:
            square = _squares(rows, truth)
            figures[f"RMSE {truth}"] = square.mean() ** 0.5
            figures[f"max {truth}"] = square.max() ** 0.5
            if len(own) == len(rows):
                behind, error = difference(_squares(own, truth), square)
                figures |= {f"behind {truth}": behind, f"± {truth}": error}
        table[str(family), str(method)] = figures | {
            "seconds": rows["seconds"].mean(),
            "draws": len(rows),
        }
    return pd.DataFrame(table).T


def _squares(rows: pd.DataFrame, truth: str) -> pd.Series:
    """Squared errors of one method, by pair and seed."""
    return ((rows["gap"] - rows[truth]) ** 2).set_axis([rows["pair"], rows["seed"]])


def difference(first: pd.Series, second: pd.Series) -> tuple[float, float]:
    """The difference of two root mean squares on the same draws, and its error over pairs."""

    def apart(without: str | None) -> float:
        kept = first.index.get_level_values(0) != without
        return first[kept].mean() ** 0.5 - second[first.index][kept].mean() ** 0.5

    names = first.index.get_level_values(0).unique()
    left = np.array([apart(name) for name in names])
    return apart(None), ((len(left) - 1) * left.var()) ** 0.5


def verdicts(results: pd.DataFrame) -> pd.DataFrame:
    """What the default method said of itself: intervals and counts of every status."""
    default = results[results["method"] == DEFAULT]
    given = default[default["low"].notna()]
    table = default.groupby(["family", "status"], sort=False).size().unstack(fill_value=0)
    for truth in TRUTHS:
        inside = given[truth].between(given["low"], given["high"])
        table[f"{truth} gap in interval"] = inside.groupby(given["family"]).mean()
    table["mean width"] = (given["high"] - given["low"]).groupby(given["family"]).mean()
    return table


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--cache", type=Path, help="folder to keep built pairs in")
    parser.add_argument("--family", nargs="+", default=list(NATURAL), choices=list(FAMILIES))
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--draws", type=int, default=1, help="seeds 0, 1, ... of every pair")
    parser.add_argument(
        "--split",
        default="all",
        choices=list(SPLITS),
        help="tune: the pairs at even places of a family's list, report: the others",
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="of the default's interval")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("outputs/natural.csv"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    keys = ["family", "pair", "seed", "method"]
    done = set()
    if options.out.exists():
        done = set(pd.read_csv(options.out)[keys].itertuples(index=False, name=None))
    wanted = []
    todo = []
    for family in options.family:
        for position, pair in list(enumerate(names(family)))[SPLITS[options.split]]:
            for seed in range(options.draws):
                wanted += [(family, pair, seed, method) for method in options.method]
                left = [m for m in options.method if (family, pair, seed, m) not in done]
                if left:
                    todo.append((family, position, seed, left))
    work = (delayed(measure)(*key, options.data, options.cache, options.confidence) for key in todo)
    for count, result in enumerate(
        Parallel(options.jobs, return_as="generator_unordered")(work), start=1
    ):
        result.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"\r{count} of {len(todo)} pairs", end="", flush=True)
    print()
    results = pd.read_csv(options.out)
    results = results[results.set_index(keys).index.isin(wanted)].copy()
    # Draws finish in any order; the tables keep the order asked for.
    for column, order in (("method", options.method), ("family", options.family)):
        results = results.sort_values(column, key=lambda c: c.map(order.index), kind="stable")
    pd.set_option("display.width", 250, "display.max_columns", 30)
    print(summary(results).round(2).to_string())
    if DEFAULT in options.method:
        print(verdicts(results).round(2).to_string())


if __name__ == "__main__":
    main()
