"""Parts of the figures: one set of axes each, drawn from the collected tables.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; every method also has a
marker, and every estimate an error bar (one standard error over the draws).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

STYLES: dict[str, tuple[str, str]] = {
    "SEES-c": ("#0072b2", "o"),
    "SEES-d": ("#d55e00", "s"),
    "default": ("#009e73", "D"),
    "BBSE": ("#e69f00", "^"),
    "KLIEP": ("#cc79a7", "v"),
    "DLU": ("#56b4e9", "P"),
    "CBPE": ("#7f7f7f", "X"),
    "true weights": ("#000000", "_"),
}
OTHERS = ("#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255")
SOURCE, TARGET = "#0072b2", "#d55e00"
Measure = Callable[[pd.DataFrame], tuple[float, float]]


def style(method: str, methods: Sequence[str]) -> tuple[str, str]:
    """Colour and marker of a method, the same in every figure."""
    if method in STYLES:
        return STYLES[method]
    others = [name for name in methods if name not in STYLES]
    return OTHERS[others.index(method) % len(OTHERS)], "o"


def _rmse(column: str) -> Measure:
    def measure(rows: pd.DataFrame) -> tuple[float, float]:
        squares = rows[column].astype(float) ** 2
        root = float(np.sqrt(squares.mean()))
        return root, float(squares.sem() / (2 * root)) if len(rows) > 1 and root else 0.0

    return measure


def _mean(column: str) -> Measure:
    def measure(rows: pd.DataFrame) -> tuple[float, float]:
        values = rows[column].astype(float).dropna()
        return float(values.mean()), float(values.sem()) if len(values) > 1 else 0.0

    return measure


MEASURES: dict[str, tuple[str, Measure, bool]] = {
    "error": ("error of the accuracy gap\n(RMSE) [points]", _rmse("error"), True),
    "error ipw": ("error of the accuracy gap, ipw\n(RMSE) [points]", _rmse("error ipw"), True),
    "weights": ("mean squared error\nof the weights", _mean("weight MSE"), True),
    "correlation": ("correlation with\nthe true weights", _mean("weight PCC"), False),
    "found": ("draws that name exactly\nthe shifted features [share]", _mean("found"), False),
    "gap": ("estimated accuracy gap\n[points]", _mean("gap"), False),
}
"""Name -> (words with unit, value and standard error over the draws, on a log scale?)."""


CUT = 4.0
"""A bar so many times as high as the next one is cut."""


def methods_of(results: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(results["method"]))


def line_panel(
    axes: Axes, results: pd.DataFrame, x: str, measure: str, logarithmic_x: bool = False
) -> None:
    """A measure against a setting, one line a method, moved aside so that error bars can be told.

    The moves are up to a quarter of the distance between neighbouring settings.
    """
    words, level, logarithmic = MEASURES[measure]
    methods = methods_of(results)
    shown = 0
    for method in methods:
        rows = results[results["method"] == method]
        points = [(value, *level(part)) for value, part in rows.groupby(x)]
        points = [point for point in points if np.isfinite(point[1])]
        if not points or (measure == "weights" and method == "true weights"):
            continue
        colour, marker = style(method, methods)
        settings, height, bar = zip(*points, strict=True)
        place = _aside(
            settings, methods.index(method) / max(len(methods) - 1, 1) - 0.5, logarithmic_x
        )
        floor = method == "true weights"
        axes.errorbar(
            place,
            height,
            yerr=bar,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.2 if floor else 1.6,
            linestyle="--" if floor else "-",
            capsize=2.5,
            label=method,
        )
        shown += 1
    if logarithmic and shown:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    if measure == "found":
        axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel(words, fontsize=9)
    axes.grid(alpha=0.25, which="both", linewidth=0.5)


def _aside(settings: Sequence[float], move: float, logarithmic: bool) -> np.ndarray:
    """Settings moved by a share of the least distance between them."""
    place = np.log(settings) if logarithmic else np.asarray(settings, dtype=float)
    step = float(np.diff(np.sort(place)).min()) if len(place) > 1 else 0.0
    moved = place + 0.5 * move * step
    return np.exp(moved) if logarithmic else moved


def plain_numbers(axis: Any) -> None:
    """0.1, 0.2, 0.5, 1 on a logarithmic axis instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def bar_panel(axes: Axes, results: pd.DataFrame, measure: str, dots: str | None = None) -> None:
    """A measure of every method as bars; dots show the single draws or pairs.

    A bar far above all others is cut, with its height written on it, so that these can be read.
    """
    words, level, _ = MEASURES[measure]
    methods = methods_of(results)
    tops: dict[int, float] = {}
    for place, method in enumerate(methods):
        rows = results[results["method"] == method]
        height, bar = level(rows)
        if not np.isfinite(height):
            continue
        colour, _ = style(method, methods)
        axes.bar(place, height, yerr=bar, color=colour, width=0.72, capsize=3, alpha=0.85)
        tops[place] = height
        if dots is not None:
            single = rows[dots].abs() if measure.startswith("error") else rows[dots]
            tops[place] = max(height, float(single.max()))
            spread = np.linspace(-0.22, 0.22, len(single)) if len(single) > 1 else [0.0]
            axes.plot(place + np.array(spread), single, ".", color="black", ms=3, alpha=0.45)
    axes.set_xticks(range(len(methods)), methods, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_ylabel(words, fontsize=9)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(alpha=0.25, axis="y", linewidth=0.5)
    if len(tops) > 2:
        highest = max(tops, key=lambda place: tops[place])
        next_top = max(top for place, top in tops.items() if place != highest)
        if 0 < CUT * next_top < tops[highest]:
            height, bar = level(results[results["method"] == methods[highest]])
            axes.set_ylim(top=1.25 * next_top)
            axes.text(
                highest,
                1.2 * next_top,
                f"{height:.3g} ± {bar:.2g}",
                rotation=90,
                ha="center",
                va="top",
                fontsize=8,
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
            )


def share_panel(axes: Axes, table: pd.DataFrame, names: str) -> None:
    """Shares in source and target side by side, with their spread over the draws."""
    grouped = table.groupby(names, sort=False)[["source", "target"]]
    mean, spread = 100 * grouped.mean(), 100 * grouped.std().fillna(0.0)
    place = np.arange(len(mean))
    for side, colour, move in (("source", SOURCE, -0.2), ("target", TARGET, 0.2)):
        axes.bar(
            place + move, mean[side], 0.4, yerr=spread[side], color=colour, capsize=2, label=side
        )
    axes.set_xticks(place, mean.index, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_ylabel("share of rows [%]")
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])  # Room for the legend.
    axes.grid(alpha=0.25, axis="y", linewidth=0.5)
    axes.legend(fontsize=7, loc="upper center", ncols=2)
