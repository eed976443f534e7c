"""The figures, drawn from collected tables; a configuration chooses one and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.panels import (
    bar_panel,
    line_panel,
    methods_of,
    plain_numbers,
    share_panel,
    style,
)

Tables = dict[str, pd.DataFrame]


def lines(
    tables: Tables, *, x: str, words: str, measures: Sequence[str], logarithmic: bool = False
) -> Figure:
    """Measures against a setting: a row a data set, a column a measure; "shift" shows the laws.

    With a single measure the data sets stand side by side.
    """
    results = tables["results"]
    names = list(dict.fromkeys(results["data"]))
    single = len(measures) == 1
    down, across = (1, len(names)) if single else (len(names), len(measures))
    figure = Figure(figsize=(2.9 * across + 0.6, 2.5 * down + 0.7), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    places = [(name, measure) for name in names for measure in measures]
    handles: dict[str, object] = {}
    for axes, (name, measure) in zip(grid.flat, places, strict=True):
        axes.set_title(name, fontsize=10)
        if measure == "shift":
            cells = tables["cells"][tables["cells"]["data"] == name]
            share_panel(axes, cells.drop_duplicates(["draw", "cell"]), "cell")
            axes.set_xlabel("shifted feature, label", fontsize=8)
            continue
        line_panel(axes, results[results["data"] == name], x, measure, logarithmic)
        axes.set_xlabel(words)
        ticks = sorted(results[x].dropna().unique())
        if logarithmic:
            axes.set_xscale("log")
            plain_numbers(axes.xaxis)
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        handles |= {
            label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
    legend(figure, handles, across)
    return figure


def legend(figure: Figure, handles: dict[str, object], across: int) -> None:
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=min(len(handles), max(3 * across, 4)),
        fontsize=8,
        frameon=False,
    )


def bars(
    tables: Tables,
    *,
    measures: Sequence[str] = ("error",),
    down: str | None = None,
    across: str | None = None,
    dots: str | None = None,
    words: Mapping[str, str] | None = None,
) -> Figure:
    """Measures of every method as bars, a panel a setting; dots are the single draws or pairs.

    `words` says settings in titles as a reader would.
    """
    results = tables["results"]
    rows = [None] if down is None else list(dict.fromkeys(results[down]))
    columns = [None] if across is None else list(dict.fromkeys(results[across]))
    panels = [(column, measure) for column in columns for measure in measures]
    figure = Figure(figsize=(3.4 * len(panels) + 0.4, 3.1 * len(rows) + 0.2), layout="constrained")
    grid = figure.subplots(len(rows), len(panels), squeeze=False)
    for line, row in zip(grid, rows, strict=True):
        for axes, (column, measure) in zip(line, panels, strict=True):
            part = results
            for name, value in ((down, row), (across, column)):
                part = part if value is None else part[part[name] == value]
            if part.empty:
                axes.set_axis_off()
                continue
            bar_panel(axes, part, measure, dots)
            if measure == "gap":
                _true_gap(axes, part)
            shown = [
                (words or {}).get(str(value), str(value).replace("_", " "))
                for value in (column, row)
                if value is not None
            ]
            axes.set_title(", ".join(shown) or part["data"].iloc[0], fontsize=10)
    return figure


def _true_gap(axes: object, results: pd.DataFrame) -> None:
    gap = results["realised"].mean()
    axes.axhline(gap, color="black", linestyle=":", label=f"true gap {gap:.1f}")  # type: ignore[attr-defined]
    axes.legend(fontsize=7)  # type: ignore[attr-defined]


def spread(tables: Tables) -> Figure:
    """The estimated gaps of all draws as boxes, beside the true ones."""
    results = tables["results"]
    methods = methods_of(results)
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    values = [results.loc[results["method"] == method, "gap"].dropna() for method in methods]
    truth = results.drop_duplicates("draw")["realised"]
    boxes = axes.boxplot([*values, truth], patch_artist=True, widths=0.6, showfliers=True)
    colours = [*(style(method, methods)[0] for method in methods), "white"]
    for box, colour in zip(boxes["boxes"], colours, strict=True):
        box.set(facecolor=colour, alpha=0.8)
    for middle in boxes["medians"]:
        middle.set(color="black")
    variances = [f"{name}\n{v.var() / 1e4:.2g}" for name, v in zip(methods, values, strict=True)]
    names = [*variances, f"true gap\n{truth.var() / 1e4:.2g}"]
    axes.set_xticks(range(1, len(names) + 1), names, fontsize=8)
    axes.axhline(truth.mean(), color="black", linestyle=":", linewidth=1)
    axes.set_ylabel("accuracy gap [points]")
    axes.set_xlabel("method and variance of its estimate (of the accuracy as a share)")
    axes.set_title(f"{results['data'].iloc[0]}, {len(truth)} draws", fontsize=10)
    axes.grid(alpha=0.25, axis="y", linewidth=0.5)
    return figure


def sensitivity(tables: Tables) -> Figure:
    """Squared error of SEES-d against its sparsity, the other methods beside it.

    The band is one standard deviation over the draws, as in the paper; bars are standard errors.
    """
    results = tables["results"].assign(loss=(tables["results"]["error ipw"] / 100) ** 2)
    told = results["method"].str.startswith("SEES-d s=")
    loss = results[told].groupby("sparsity")["loss"]
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    mean, deviation = loss.mean(), loss.std().fillna(0.0)
    colour, marker = style("SEES-d", [])
    below = (mean - deviation).clip(lower=mean / 10)  # A log scale has no zero.
    axes.fill_between(mean.index, below, mean + deviation, color=colour, alpha=0.2, linewidth=0)
    axes.errorbar(
        mean.index, mean, yerr=loss.sem().fillna(0.0), color=colour, marker=marker, capsize=3
    )
    others = list(dict.fromkeys(results.loc[~told, "method"]))
    first = float(mean.index.max()) + 1.5
    for place, method in enumerate(others):
        part = results.loc[results["method"] == method, "loss"]
        colour, marker = style(method, others)
        error = part.sem() if len(part) > 1 else 0.0
        look = {"color": colour, "marker": marker, "capsize": 3}
        axes.errorbar(first + place, part.mean(), yerr=error, **look)  # type: ignore[arg-type]
    axes.axvline(first - 0.75, color="black", linewidth=0.8)
    places = [*mean.index, *(first + place for place in range(len(others)))]
    names = [*(f"{s:g}" for s in mean.index), *others]
    axes.set_xticks(places, names)
    for label in axes.get_xticklabels()[len(mean) :]:
        label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlabel("sparsity that SEES-d is told; other methods")
    axes.set_ylabel("squared error of the accuracy gap,\nipw (of the accuracy as a share)")
    draws = results["draw"].nunique()
    title = f"{results['data'].iloc[0]}, labels and 3 features shift; draws: {draws}"
    axes.set_title(title, fontsize=10)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, axis="y", linewidth=0.5)
    return figure


def case_study(tables: Tables) -> Figure:
    """(a) marginals, (b) the joint shift, (c) errors of the weights, (d) estimated gaps."""
    results, cells, marginals = (tables[name] for name in ("results", "cells", "marginals"))
    figure = Figure(figsize=(13, 7), layout="constrained")
    top, bottom = figure.subfigures(2, 1)
    left, right = top.subplots(1, 2, width_ratios=[2.2, 1])
    binary = marginals.groupby("feature")["level"].transform("nunique") == 2
    last = marginals[binary].groupby(["draw", "feature"], sort=False).tail(1)
    others = marginals[~binary]
    shown = pd.concat([others, last])
    names = shown["feature"] + " = " + shown["level"]
    share_panel(left, shown.assign(name=names), "name")
    left.set_title("(a) marginals of features and label", fontsize=10)
    share_panel(right, cells.drop_duplicates(["draw", "cell"]), "cell")
    right.set_xlabel("shifted feature, label", fontsize=8)
    right.set_title("(b) joint shift of feature and label", fontsize=10)
    panels = bottom.subplots(1, 3)
    titles = ("(c) error of the weights", "(c) correlation of the weights", "(d) estimated gap")
    for axes, measure, title in zip(panels, ("weights", "correlation", "gap"), titles, strict=True):
        bar_panel(axes, results, measure)
        axes.set_title(title, fontsize=10)
    _true_gap(panels[2], results)
    return figure


def statistics(tables: Tables) -> Figure:
    """Rows and features of every data set."""
    table = tables["results"]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    rows, features, share = figure.subplots(1, 3, sharey=True)
    place = np.arange(len(table))
    panels: list[tuple[object, str, str]] = [
        (rows, "instances", "rows"),
        (features, "features", "features"),
        (share, "rarest label", "share of the rarest label [%]"),
    ]
    for axes, column, words in panels:
        bars_drawn = axes.barh(place, table[column], color="#0072b2")  # type: ignore[attr-defined]
        axes.bar_label(bars_drawn, fmt="{:,.0f}", fontsize=7, padding=2)  # type: ignore[attr-defined]
        axes.set_xlabel(words)  # type: ignore[attr-defined]
        axes.margins(x=0.25)  # type: ignore[attr-defined]
    rows.set_xscale("log")
    rows.set_xlim(100, 20 * table["instances"].max())
    rows.set_yticks(place, table["data"])
    rows.invert_yaxis()
    return figure
