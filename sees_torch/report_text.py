"""A report in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sees_torch.data.tables import Name
from sees_torch.gap import is_rate
from sees_torch.report_tables import foremost, label_share
from sees_torch.weight_cells import has_cells
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport


SAID = {
    "identified": "identified: the data support this answer",
    "weak": "WEAK: take the figures below with care",
    "not_identified": "NOT IDENTIFIED: the data cannot answer; below is one of several stories",
}
MOST_OTHERS = 4
SURE = 0.95
"""Belief in an average that goes without saying."""


def report_lines(report: ShiftReport) -> list[str]:
    """The verdict first, then the gap, what moved, and the evidence."""
    d = report.diagnostics
    moved = ", ".join(map(str, report.shifted_features)) or "none (labels only, or nothing)"
    lines = [f"status: {SAID[report.status]}"]
    lines += [f"  because {reason}" for reason in report.reasons]
    lines += [_metric_line(report, place) for place in range(len(report.gaps))]
    lines.append(f"shifted features: {moved}")
    if len(report.ties) > 1:
        others = "; ".join(", ".join(map(str, tied)) for tied in report.ties[1:])
        lines.append(f"  fits exactly as well: {others}")
    lines += _hypothesis_lines(report)
    parts = causes(report)
    if parts:
        shares = ", ".join(f"{name} {_shown(report, part, '+')}" for name, part in parts.items())
        lines.append(f"gap by cause (model-based Shapley values): {shares}")
    before = dict(zip(report.source.classes, label_share(report.source).tolist(), strict=True))
    lines.append("label shares, source to target:")
    for label, share in report.target_label_distribution.items():
        lines.append(f"  {label}: {before[label]:.1%} to {share:.1%}")
    worth = d.get("label_equivalent", math.inf)
    lines += [
        f"method {report.method}, estimator {report.gaps[0].estimator}, interval "
        f"{report.interval_source}"
        + (f"; worth {worth:.0f} labelled target rows" if math.isfinite(worth) else ""),
        f"rows: {d['source_rows']:g} source, {d['target_rows']:g} target"
        + (f", {d['labelled_rows']:g} of them labelled" if "labelled_rows" in d else "")
        + f"; effective source rows "
        f"{d['effective_rows']:.0f}; largest weight {d['largest_weight']:.3g}; "
        f"target in unseen cells {d['unseen_mass']:.2%}",
    ]
    return lines + [f"note: {note}" for note in report.notes]


def causes(report: ShiftReport) -> dict[Name, float]:
    """The gap by cause; empty where nothing can be split."""
    whole = report.metric in WEIGHTED_METRICS
    if whole or not report.shifted_features or not has_cells(report.weight_function):
        return {}
    return report.attribution()


def _part(share: float) -> str:
    return f"{share:.0%} of the average" if share < 1 else "the gap above"


def _shown(report: ShiftReport, value: float, sign: str = "") -> str:
    """A difference of the headline metric."""
    return f"{100 * value:{sign}.1f}" if is_rate(report.metric) else f"{value:{sign}.4g}"


def _metric_line(report: ShiftReport, place: int) -> str:
    name, source, target = report.values()[place]
    rate = is_rate(report.gaps[place].metric)
    scale, form, unit = (100, ".1f", " %") if rate else (1, ".4g", "")
    line = (
        f"{name}: {scale * source:{form}}{unit} on the source, {scale * target:{form}}{unit} "
        f"estimated on the target, gap {scale * (target - source):+{form}}"
        + (" points" if rate else "")
    )
    interval = report.intervals[place] if report.intervals else None
    if interval is None or report.confidence is None:
        return line
    low, high = (f"{scale * end:+{form}}" for end in interval)
    return f"{line} ({100 * report.confidence:g} % interval {low} to {high})"


def _hypothesis_lines(report: ShiftReport) -> list[str]:
    """The chosen hypothesis, and the gaps that others would give."""
    if not report.alternatives:
        return []
    chosen = f"hypothesis: {report.hypothesis}"
    if "stability" in report.diagnostics:
        share = report.diagnostics["stability"]
        chosen += f" (chosen in {share:.0%} of the resamples)"
    found = report.hypotheses()
    choice = report.match.choice
    if choice is not None and choice.stories:
        own = found.loc[found["chosen"], "share"].sum()
        chosen += (
            f"; the gap averages {choice.stories} hypotheses that the data leave open, this "
            f"one by {own:.0%}"
            if choice.stories > 1
            else "; the gap is that of another hypothesis, the likeliest that can tell it"
        )
    said = []
    for _, other in foremost(found[~found["chosen"]], MOST_OTHERS).iterrows():
        names = f" ({', '.join(map(str, other['features']))})" if other["features"] else ""
        said.append(
            f"  beside it: {other['hypothesis']}{names}, gap {_shown(report, other['gap'], '+')}, "
            f"{other['behind']:.1f} standard errors behind the best"
            + (f", {_part(other['share'])}" if other["share"] > 0 else "")
        )
    if "drift" in report.diagnostics:
        allowed = _shown(report, report.diagnostics["drift"], "+")
        said.append(f"  added to the average for labels that drift given the features: {allowed}")
    if "told" in report.diagnostics:
        said.append(
            f"  {report.diagnostics['told']:.0%} of the gap is that of the labelled target rows "
            "alone, under no hypothesis"
        )
    belief = report.diagnostics.get("belief", 1.0)
    if belief < SURE:
        said.append(
            f"  {belief:.0%} of the average is taken for a change: it is known no better than from "
            "a few labelled rows, and gaps are seldom large"
        )
    return [chosen, *said]
