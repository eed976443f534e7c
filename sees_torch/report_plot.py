"""Pictures of a report; matplotlib is imported only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sees_torch.errors import SeesError
from sees_torch.gap import is_rate
from sees_torch.report_tables import foremost
from sees_torch.weights import ConstantWeights, TableWeights

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    from sees_torch.report import ShiftReport

SOURCE, TARGET = "#4477aa", "#cc6677"
"""Blue and rose that stay apart for colour-blind readers and in grey print."""
MOST_CELLS = 24
MOST_OTHERS = 7


def plot_report(report: ShiftReport) -> matplotlib.figure.Figure:
    """The verdict, source against target value, label shares, weights, and other hypotheses."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SeesError(
            "plots need matplotlib: install sees-torch[plots] (or matplotlib itself)."
        ) from None
    panels = 4 if report.alternatives else 3
    figure = Figure(figsize=(11 if panels == 3 else 15, 4.4), layout="constrained")
    axes = figure.subplots(1, panels, width_ratios=[1, 1.2, 2, 1.9][:panels])
    value, label, weight = axes[:3]
    figure.suptitle(f"status: {report.status.replace('_', ' ')}", fontsize=12, fontweight="bold")
    _plot_value(report, value)
    _plot_labels(report, label)
    function = report.weight_function
    if isinstance(function, TableWeights):
        _plot_table(report, function, weight)
    elif isinstance(function, ConstantWeights):
        _plot_constant(report, function, weight)
    elif report.match.importance is not None:
        _plot_importance(report, weight)
    else:
        _plot_histogram(report, weight)
    if report.alternatives:
        _plot_hypotheses(report, axes[3])
    return figure


def _plot_value(report: ShiftReport, axes: matplotlib.axes.Axes) -> None:
    rate = is_rate(report.metric)
    scale, unit = (100, "%") if rate else (1, "")
    values = [scale * report.source_value, scale * report.target_value]
    bars = axes.bar(["source", "target\n(estimated)"], values, color=[SOURCE, TARGET], width=0.6)
    shown = [f"{v:.1f}{unit}" if rate else f"{v:.4g}" for v in values]
    axes.bar_label(bars, labels=shown, label_type="center", color="white")
    axes.set_ylabel(f"{report.metric} [{unit}]" if unit else report.metric)
    change = f"{scale * report.gap:+.1f} points" if rate else f"{report.gap:+.4g}"
    title = f"gap {change}"
    if report.interval is not None and report.confidence is not None:
        below, above = (abs(end - report.gap) * scale for end in report.interval)
        axes.errorbar([1], values[1:], yerr=[[below], [above]], color="black", capsize=5)
        title += f"\n(bar: {100 * report.confidence:g} % interval)"
    axes.margins(y=0.12)
    axes.set_title(title, fontsize=11)


def _plot_hypotheses(report: ShiftReport, axes: matplotlib.axes.Axes) -> None:
    """Gaps that the foremost hypotheses would give, the best supported on top."""
    rate = is_rate(report.metric)
    scale = 100 if rate else 1
    found = report.hypotheses()
    others = foremost(found[~found["chosen"]], MOST_OTHERS)
    shared = bool((others["share"] > 0).any())
    table = found.loc[sorted([*found.index[found["chosen"]], *others.index], reverse=True)]
    names = [
        f"{words} ({', '.join(map(str, features))})" if features else words
        for words, features in zip(table["hypothesis"], table["features"], strict=True)
    ]
    names = [name if len(name) <= 34 else name[:33] + "…" for name in names]
    for place, (_, row) in enumerate(table.iterrows()):
        colour = TARGET if row["chosen"] else "#888888"
        reach = 0.0 if row["error"] != row["error"] else 1.96 * scale * row["error"]
        axes.errorbar([scale * row["gap"]], [place], xerr=[reach], fmt="o", color=colour, capsize=3)
        axes.annotate(
            f"{row['behind']:.1f}"
            + (f", {row['share']:.0%}" if shared and row["share"] > 0 else ""),
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
        )
    axes.axvline(0.0, color="black", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel(f"gap in {report.metric} [points]" if rate else f"gap in {report.metric}")
    told = "right: standard errors behind the best" + (",\nshare in the gap" if shared else "")
    axes.set_title(f"gap under each hypothesis (coloured: chosen;\n{told})", fontsize=10)


def _plot_labels(report: ShiftReport, axes: matplotlib.axes.Axes) -> None:
    classes = [str(label) for label in report.target_label_distribution]
    own = torch.nn.functional.one_hot(report.source.labels, len(classes)).to(torch.float64)
    before = (100 * report.source.mean(own)).tolist()
    after = [100 * share for share in report.target_label_distribution.values()]
    place = torch.arange(len(classes), dtype=torch.float64)
    axes.bar((place - 0.2).tolist(), before, 0.38, color=SOURCE, label="source")
    axes.bar((place + 0.2).tolist(), after, 0.38, color=TARGET, label="target (estimated)")
    axes.set_xticks(place.tolist(), classes, rotation=0 if len(classes) < 6 else 90)
    axes.set_ylabel("share of rows [%]")
    axes.set_xlabel("label")
    axes.set_title("label shares", fontsize=11)
    axes.margins(y=0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _plot_table(report: ShiftReport, function: TableWeights, axes: matplotlib.axes.Axes) -> None:
    columns = [report.source.schema.columns[j] for j in function.features]
    cells = function.cells()
    place = function.place(report.source.rows)
    mass = report.source.mass.new_zeros(len(cells)).index_add(0, place, report.source.mass)
    shown = mass.argsort(descending=True, stable=True)[:MOST_CELLS].sort().values
    names = [
        ", ".join(column.describe(code) for column, code in zip(columns, cell, strict=True))
        for cell in cells[shown].tolist()
    ]
    title = "weights by " + ", ".join(str(column.name) for column in columns)
    if len(shown) < len(cells):
        title += f" (the {len(shown)} largest of {len(cells)} cells)"
    _heat_map(axes, function.weight.detach()[shown], names, report, title)


def _plot_constant(
    report: ShiftReport, function: ConstantWeights, axes: matplotlib.axes.Axes
) -> None:
    _heat_map(axes, function.weight.detach()[None], ["all rows"], report, "weights by label")


def _heat_map(
    axes: matplotlib.axes.Axes, weight: Any, names: list[str], report: ShiftReport, title: str
) -> None:
    """Weights on a logarithmic scale around 1: blue lost rows, rose gained them."""
    import matplotlib
    from matplotlib.colors import LogNorm

    limit = max(2.0, min(10.0, float(weight.max())))
    image = axes.imshow(
        weight.clamp(1 / limit, limit).cpu().numpy(),
        cmap=matplotlib.colormaps["RdBu_r"],
        norm=LogNorm(1 / limit, limit),
        aspect="auto",
    )
    classes = [str(label) for label in report.source.classes]
    axes.set_xticks(range(len(classes)), classes, rotation=0 if len(classes) < 6 else 90)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("label")
    if weight.numel() <= 100:
        for row, values in enumerate(weight.tolist()):
            for column, value in enumerate(values):
                dark = max(value, 1 / max(value, 1e-9)) > limit**0.6
                axes.text(
                    column,
                    row,
                    f"{value:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
    axes.set_title(title, fontsize=11)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("target rows per source row (1 = unchanged)")
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10) if 1 / limit <= tick <= limit]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()


def _plot_importance(report: ShiftReport, axes: matplotlib.axes.Axes) -> None:
    assert report.match.importance is not None
    order = report.match.importance.argsort()[-MOST_CELLS:]
    names = [str(report.source.schema.names[j]) for j in order.tolist()]
    chosen = set(report.match.features)
    colours = [TARGET if j in chosen else "#bbbbbb" for j in order.tolist()]
    axes.barh(names, report.match.importance[order].tolist(), color=colours)
    axes.set_xlabel("importance [units of the weight]")
    axes.set_title("contribution to the weights (coloured: selected)", fontsize=11)


def _plot_histogram(report: ShiftReport, axes: matplotlib.axes.Axes) -> None:
    axes.hist(
        report.weights.detach().cpu().numpy(),
        bins=40,
        weights=(100 * report.source.mass).cpu().numpy(),
        color=SOURCE,
    )
    axes.axvline(1.0, color="black", linewidth=1, linestyle="--")
    axes.set_xlabel("weight (1 = unchanged)")
    axes.set_ylabel("share of source rows [%]")
    axes.set_title("weights of the source rows", fontsize=11)
