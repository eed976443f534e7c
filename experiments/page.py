"""Markdown tables of a sweep's saved runs, as experiments/PAPER.md shows them.

    python -m experiments.page outputs/sample_size-full --by data rows --show error "error ipw"
    python -m experiments.page outputs/sample_size-full --by data rows --behind SEES-c SEES-d

A row a setting, a column a method; a cell is a measure with its standard error over the draws.
With --behind a cell is how many points the column's method is behind the named one: the
difference of their errors, draws paired.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.collect import collect
from experiments.panels import MEASURES, Measure, methods_of
from sees_torch import SeesError

Cell = Callable[[pd.DataFrame], str]


def _loss(rows: pd.DataFrame) -> tuple[float, float]:
    """The paper's squared loss (of the accuracy as a share, by ipw), in units of 0.0001."""
    loss = rows["error ipw"].astype(float) ** 2
    return float(loss.mean()), float(loss.sem())


def _variance(column: str) -> Measure:
    """Variance of the estimated gap in units of 0.0001, and its standard error."""

    def measure(rows: pd.DataFrame) -> tuple[float, float]:
        values = rows[column].astype(float).to_numpy()
        if len(values) < 2:
            return float("nan"), float("nan")
        squares = (values - values.mean()) ** 2
        variance = float(values.var(ddof=1))
        return variance, float(np.sqrt(max(np.mean(squares**2) - variance**2, 0) / len(values)))

    return measure


SHOWN: dict[str, tuple[Measure, int]] = {
    **{name: (measure, 1) for name, (_, measure, _) in MEASURES.items()},
    "weights": (MEASURES["weights"][1], 3),
    "correlation": (MEASURES["correlation"][1], 2),
    "found": (MEASURES["found"][1], 2),
    "loss ipw": (_loss, 2),
    "variance": (_variance("gap"), 2),
    "variance ipw": (_variance("gap ipw"), 2),
}
"""Name -> (value and standard error, digits)."""


def table(
    results: pd.DataFrame, by: Sequence[str], methods: Sequence[str], cell: Cell
) -> Iterator[str]:
    """Lines of a Markdown table: a row a setting, a column a method, and how many draws."""
    yield f"| {' | '.join([*by, *methods, 'draws'])} |"
    yield "|---" * (len(by) + len(methods) + 1) + "|"
    settings = results.groupby(list(by), sort=False) if by else [((), results)]
    for setting, part in settings:
        draws = part.groupby("method").size()
        least, most = draws.min(), draws.max()
        count = f"{least}" if least == most else f"{least} to {most}"
        cells = [cell(part[part["method"] == method]) for method in methods]
        shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in setting]
        yield f"| {' | '.join([*shown, *cells, count])} |"


def shown(names: Sequence[str], errors: bool = True) -> Cell:
    """A cell of several measures, each with its standard error where there is one."""

    def cell(rows: pd.DataFrame) -> str:
        words = []
        for name in names:
            measure, digits = SHOWN[name]
            value, error = measure(rows) if len(rows) else (np.nan, np.nan)
            if np.isfinite(value):
                bar = f" ± {error:.{digits}f}" if errors and len(rows) > 1 else ""
                words.append(f"{value:.{digits}f}{bar}")
        return " / ".join(words)

    return cell


def behind(results: pd.DataFrame, best: str, column: str) -> Cell:
    """How far a method's RMSE is behind that of `best` on the same draws, to first order."""
    pairing = ["draw", "pair"]
    first = results[results["method"] == best].set_index(pairing)[column].astype(float)

    def cell(rows: pd.DataFrame) -> str:
        second = rows.set_index(pairing)[column].astype(float)
        here, there = first.align(second, join="inner")
        if len(here) < 2 or rows["method"].iloc[0] == best:
            return ""
        roots = [float(np.sqrt((part**2).mean())) for part in (here, there)]
        if min(roots) == 0:
            return ""
        change = there**2 / (2 * roots[1]) - here**2 / (2 * roots[0])
        return f"{roots[1] - roots[0]:+.1f} ± {change.sem():.1f}"

    return cell


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", nargs="*", default=["data"], help="settings to tell apart")
    parser.add_argument("--show", nargs="+", choices=SHOWN, default=["error"])
    parser.add_argument("--behind", nargs="+", help="methods to measure the others against")
    parser.add_argument("--column", default="error", help="of --behind: error or 'error ipw'")
    parser.add_argument("--only", nargs="+", help="methods to show; all if absent")
    parser.add_argument("--plain", action="store_true", help="no standard errors")
    options = parser.parse_args()
    try:
        results = collect(options.folder)["results"]
    except SeesError as error:
        raise SystemExit(str(error)) from None
    results = results.assign(pair=results["pair"].fillna(""))
    methods = options.only or methods_of(results)
    if options.behind is None:
        print(
            *table(results, options.by, methods, shown(options.show, not options.plain)), sep="\n"
        )
        return
    for best in options.behind:
        print(f"behind {best}, points\n")
        cell = behind(results, best, options.column)
        print(*table(results, options.by, methods, cell), "", sep="\n")


if __name__ == "__main__":
    main()
