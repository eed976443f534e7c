"""The picture of one or several values of `PerformanceShift`; matplotlib is imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sees_torch.errors import SeesError
from sees_torch.gap import Metric, is_rate, metric_name
from sees_torch.report_plot import SOURCE, TARGET

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


def plot_values(
    values: Sequence[dict[str, Any]], metric: Metric, ax: matplotlib.axes.Axes | None
) -> tuple[matplotlib.figure.FigureBase, matplotlib.axes.Axes]:
    """(figure, axes): source and target value of one result, or of each of several.

    The bars are the interval of the gap, put at the source value.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SeesError(
            "plots need matplotlib: install sees-torch[plots] (or matplotlib itself)."
        ) from None
    if not values:
        raise SeesError("there is nothing to plot: give a value of compute, or a list of them.")
    axes = Figure(figsize=(4.5, 4), layout="constrained").subplots() if ax is None else ax
    name = metric_name(metric)
    scale = 100.0 if is_rate(name) else 1.0
    numbers = {
        key: [scale * float(value[key]) for value in values]
        for key in ("source_value", "target_value", "gap", "low", "high")
    }
    place = [float(number) for number in range(len(values))]
    single = len(values) == 1
    style: dict[str, Any] = {"linestyle": "none" if single else "-", "marker": "o"}
    axes.plot(place, numbers["source_value"], color=SOURCE, label="source", **style)
    at = [1.0] if single else place
    reach = [
        [gap - low for gap, low in zip(numbers["gap"], numbers["low"], strict=True)],
        [high - gap for gap, high in zip(numbers["gap"], numbers["high"], strict=True)],
    ]
    axes.errorbar(
        at,
        numbers["target_value"],
        # A gap outside its own percentile interval has no bar on that side.
        yerr=[[max(length, 0.0) for length in side] for side in reach],
        color=TARGET,
        capsize=5,
        label="target (estimated)",
        **style,
    )
    if single:
        axes.set_xticks([0, 1], ["source", "target\n(estimated)"])
        axes.set_xlim(-0.5, 1.5)
        axes.set_title(f"status: {str(values[0]['status']).replace('_', ' ')}")
    else:
        axes.set_xticks(place)
        axes.set_xlabel("step")
        axes.legend()
    axes.set_ylabel(f"{name} [%]" if scale > 1 else name)
    return axes.figure, axes
