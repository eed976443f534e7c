"""The picture of a monitor: the estimated metric over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sees_torch.errors import SeesError
from sees_torch.gap import is_rate
from sees_torch.report_plot import SOURCE, TARGET

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import pandas as pd

    from sees_torch.monitor.shift_monitor import ShiftMonitor

MOST_TICKS = 26


def plot_monitor(monitor: ShiftMonitor) -> matplotlib.figure.Figure:
    """Estimates with intervals, the source's value, thresholds, and alerts marked."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SeesError(
            "plots need matplotlib: install sees-torch[plots] (or matplotlib itself)."
        ) from None
    table = monitor.to_frame()
    if table.empty:
        raise SeesError("there is nothing to plot yet: add a chunk.")
    figure = Figure(figsize=(max(7.0, min(14.0, 3 + 0.4 * len(table))), 4.6), layout="constrained")
    axes = figure.subplots()
    rate = is_rate(monitor.metric)
    figures = ["source", "target", "gap", "low", "high", "threshold"]
    table[figures] = table[figures] * (100.0 if rate else 1.0)
    _draw_estimates(monitor, table, axes)
    _draw_thresholds(monitor, table, axes, 100.0 if rate else 1.0)
    step = -(-len(table) // MOST_TICKS)
    names = [str(name) for name in table.index]
    axes.set_xticks(range(0, len(table), step), names[::step], rotation=60, ha="right", fontsize=8)
    axes.set_xlim(-0.6, len(table) - 0.4)
    axes.set_xlabel("chunk")
    axes.set_ylabel(f"{monitor.metric} [%]" if rate else monitor.metric)
    axes.margins(y=0.12)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    handles, words = axes.get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    count = int(table["alert"].sum())
    said = "no alert" if not count else f"{count} alert{'s' if count > 1 else ''}"
    axes.set_title(f"estimated {monitor.metric} without labels: {said}", fontsize=11)
    return figure


def _draw_estimates(monitor: ShiftMonitor, table: pd.DataFrame, axes: matplotlib.axes.Axes) -> None:
    place = [float(number) for number in range(len(table))]
    level = monitor.estimation.confidence
    axes.plot(place, table["target"], color=TARGET, linewidth=1, zorder=2)
    known = table["target"].notna() & table["low"].notna()
    if known.any() and level is not None:
        x = [p for p, shown in zip(place, known, strict=True) if shown]
        shown = table[known]
        reach = [shown["gap"] - shown["low"], shown["high"] - shown["gap"]]
        axes.errorbar(
            x,
            shown["target"],
            yerr=reach,
            fmt="none",
            ecolor=TARGET,
            elinewidth=1.2,
            capsize=3,
            label=f"{100 * level:g} % interval",
            zorder=2,
        )
    quiet = table["target"].where(~table["alert"])
    axes.plot(place, quiet, "o", color=TARGET, markersize=5, label="estimate", zorder=3)
    if table["alert"].any():
        loud = table["target"].where(table["alert"])
        axes.plot(
            place, loud, "v", color="black", markersize=9, label="estimate with alert", zorder=4
        )
    skipped = table["target"].isna()
    if skipped.any():
        x = [p for p, gone in zip(place, skipped, strict=True) if gone]
        axes.plot(
            x,
            [0.02] * len(x),
            "x",
            color="#666666",
            transform=axes.get_xaxis_transform(),
            label="too few rows",
        )


def _draw_thresholds(
    monitor: ShiftMonitor, table: pd.DataFrame, axes: matplotlib.axes.Axes, scale: float
) -> None:
    if table["source"].isna().all():
        return
    base = float(table["source"].dropna().iloc[0])
    axes.axhline(base, color=SOURCE, linewidth=1.2, linestyle="--", label="source, measured")
    alerts = monitor.alerts
    if alerts is None:
        return
    if alerts.false_alarms is not None and table["threshold"].notna().any():
        axes.step(
            [float(number) for number in range(len(table))],
            table["source"] + table["threshold"],
            where="mid",
            color="black",
            linewidth=1,
            linestyle=":",
            label=f"threshold, {alerts.false_alarms:.0%} false alarms in {alerts.horizon} chunks",
        )
    if alerts.drop is not None:
        line = base + alerts.worse(monitor.metric) * alerts.drop * scale
        axes.axhline(line, color="#999933", linewidth=1, label="your drop")
    if alerts.floor is not None:
        axes.axhline(alerts.floor * scale, color="#882255", linewidth=1, label="your floor")
