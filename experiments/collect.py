"""One tidy table of the runs in a folder, and a summary of it.

    python -m experiments.collect outputs/runs
    python -m experiments.collect outputs/sweep --by data rows

Writes results.csv (a row a draw and method), cells.csv and marginals.csv (what was drawn) and
summary.csv into the folder: of all runs, or of one sweep.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.records import paths, read
from sees_torch import SeesError

SETTINGS = ("rows", "order", "seed")


def collect(folder: Path, only: Iterable[str] | None = None) -> dict[str, pd.DataFrame]:
    """The tables of the runs in a folder, each row with its run's settings.

    Args:
        folder: of runs, or of a sweep.
        only: keys of the runs to take; by default all.

    Raises:
        SeesError: there are none.
    """
    found = paths(folder) if only is None else [folder / f"{name}.json" for name in only]
    records = [read(path) for path in found]
    if not records:
        raise SeesError(f"no runs in {folder}: python -m experiments.run saves them.")
    settings = _settings(records)
    tables: dict[str, list[dict[str, Any]]] = {}
    for record, known in zip(records, settings, strict=True):
        for name, rows in record["tables"].items():
            tables.setdefault(name, []).extend(known | row for row in rows)
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}
    if "marginals" in frames:  # Every method's run of a draw has them.
        others = frames["marginals"].columns.drop("key")
        frames["marginals"] = frames["marginals"].drop_duplicates([*others])
    if "results" in frames and "gap" in frames["results"]:
        frames["results"] = _with_errors(frames["results"])
    return frames


def _settings(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The usual settings of every run, and all others in which the runs differ."""
    leaves = [dict(_leaves(record["config"])) for record in records]
    names = dict.fromkeys(name for leaf in leaves for name in leaf)
    named = ("data.", "method.", "eta", "sparsity")  # Shown by their own columns already.
    differ = [
        name
        for name in names
        if name not in SETTINGS
        and not name.startswith(named)
        and len({str(leaf.get(name)) for leaf in leaves}) > 1
    ]
    shown = []
    for record, leaf in zip(records, leaves, strict=True):
        chosen = record["choices"]
        usual = {"key": record["key"], "draw": record["draw"]}
        usual |= {"data": record["config"]["data"]["name"]}
        usual |= {group: chosen.get(group, "") for group in ("classifier", "shift")}
        usual |= {name: leaf[name] for name in SETTINGS}
        shown.append(usual | {name: leaf.get(name) for name in differ if "law." not in name})
    return shown


def _leaves(node: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        shown = ", ".join(map(str, node)) if isinstance(node, list) else node
        yield prefix.rstrip("."), shown


def _with_errors(results: pd.DataFrame) -> pd.DataFrame:
    numbers = ["gap", "gap ipw", "low", "high", "realised", "population"]
    results[numbers] = results[numbers].astype(float)
    return results.assign(
        **{
            "error": results["gap"] - results["realised"],
            "error ipw": results["gap ipw"] - results["realised"],
            "error population": results["gap"] - results["population"],
        }
    )


def summarise(results: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Errors over the draws, per method and setting, in points unless said otherwise.

    RMSE against the realised gap by the method's own estimator, with its standard error, and by
    weighted source rows (ipw), the paper's; RMSE against the population gap; loss is the paper's
    squared loss of the accuracy (a share, not points), by ipw; variance that of the estimated
    accuracy gap; then the weights, and how often exactly the shifted features were named.
    """
    known = [name for name in by if name in results]
    grouped = results.groupby([*known, "method"], sort=False, dropna=False)
    squares = results.assign(square=results["error"] ** 2)
    square = squares.groupby(grouped.keys, sort=False, dropna=False)["square"]
    table = pd.DataFrame({"RMSE": np.sqrt(square.mean())})
    table["se"] = square.sem() / (2 * table["RMSE"])
    for name, column in (("RMSE ipw", "error ipw"), ("RMSE population", "error population")):
        table[name] = grouped[column].agg(lambda error: np.sqrt(np.mean(np.square(error))))
    table["loss ipw"] = (table["RMSE ipw"] / 100) ** 2
    table["loss"] = (table["RMSE"] / 100) ** 2
    table["gap"] = grouped["gap"].mean()
    table["true gap"] = grouped["realised"].mean()
    table["variance"] = grouped["gap"].var() / 100**2
    table["variance ipw"] = grouped["gap ipw"].var() / 100**2
    for name in ("weight MSE", "weight PCC", "found"):
        if name in results:
            table[name] = grouped[name].agg(lambda values: values.astype(float).mean())
    table["identified"] = grouped["status"].agg(lambda status: (status == "identified").mean())
    table["seconds"] = grouped["seconds"].median()
    table["draws"] = grouped.size()
    return _in_order(table)


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Settings ascending, methods in the order in which they were run."""
    methods = list(dict.fromkeys(table.index.get_level_values("method")))
    settings = [name for name in table.index.names if name != "method"]
    frame = table.reset_index()
    frame["place"] = frame["method"].map(methods.index)
    frame = frame.sort_values([*settings, "place"], kind="stable").drop(columns="place")
    return frame.set_index([*settings, "method"])


def varying(results: pd.DataFrame) -> list[str]:
    """Settings in which the runs differ, besides the seed."""
    measured = results.columns.get_loc("method")
    settings = [name for name in results.columns[:measured] if name not in ("key", "draw", "seed")]
    parameters = [name for name in ("eta", "sparsity") if name in results]
    return [name for name in [*settings, *parameters] if results[name].nunique(dropna=False) > 1]


def save(tables: dict[str, pd.DataFrame], folder: Path, by: Sequence[str] | None) -> str:
    """Write the tables beside the runs; returns the summary as text."""
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    if "results" not in tables or "error" not in tables["results"]:
        table = next(iter(tables.values()))
        aside = {"key", "draw", "classifier", *SETTINGS, *(name for name in table if "." in name)}
        return table.drop(columns=[*aside & set(table)]).to_string(index=False)
    table = summarise(tables["results"], varying(tables["results"]) if by is None else by)
    table.to_csv(folder / "summary.csv")
    digits = {"loss": 5, "loss ipw": 5, "variance": 6, "variance ipw": 6}
    return table.round({name: digits.get(name, 2) for name in table}).to_string()


def main() -> None:
    """Collect and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", nargs="+", help="settings to tell apart; all that differ if absent")
    options = parser.parse_args()
    try:
        text = save(collect(options.folder), options.folder, options.by)
    except SeesError as error:
        raise SystemExit(str(error)) from None
    pd.set_option("display.width", 250, "display.max_columns", 40)
    print(text)


if __name__ == "__main__":
    main()
