"""The answer: the verdict in words, and every metric before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sees_torch.page.charts import interval_chart
from sees_torch.page.figures import Unit
from sees_torch.page.markup import Html, joined, listed, name, names, table, tag
from sees_torch.report_text import causes

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport

SAID = {
    "identified": ("✓", "Identified", "The data support this answer."),
    "weak": ("!", "Weak", "Take the figures below with care."),
    "not_identified": (
        "✕",
        "Not identified",
        "The data cannot answer. The figures below are one of several stories that fit them: "
        "do not act on them.",
    ),
}
DOUBT = {
    "identified": "",
    "weak": ", as far as the data can tell",
    "not_identified": ", if this story is the right one",
}
"""How surely features are named."""


def verdict(report: ShiftReport) -> Html:
    """What can be believed, why not more, and the headline figures as a sentence."""
    sign, word, meaning = SAID[report.status]
    reasons = [tag("p", "Because:"), listed(report.reasons)] if report.reasons else []
    return joined(
        [
            tag(
                "div",
                tag("strong", tag("span", sign, aria_hidden="true"), f" {word}"),
                tag("p", meaning),
                *reasons,
                class_=f"verdict {report.status}",
                role="group",
                aria_label="Verdict",
            ),
            tag("p", *_sentence(report), class_="answer"),
            tag("p", *_moved_sentence(report), class_="answer"),
        ]
    )


def _sentence(report: ShiftReport) -> list[Html | str]:
    unit = Unit(report.metric)
    before, after = unit.value(report.source_value), unit.value(report.target_value)
    if before == after:
        said = [name(report.metric), f" is estimated to be unchanged at {after}"]
    else:
        verb = "risen" if report.gap > 0 else "fallen"
        said = [name(report.metric), f" is estimated to have {verb} from {before} to {after}"]
    said.append(f", a gap of {unit.points(report.gap)}")
    interval = report.interval
    if interval is None or report.confidence is None:
        return [*said, "."]
    low, high = (unit.gap(end) for end in interval)
    said.append(f" ({100 * report.confidence:g} % interval {low} to {high}).")
    if interval[0] <= 0 <= interval[1]:
        said.append(" The interval holds zero: that nothing changed is not ruled out.")
    return said


def _moved_sentence(report: ShiftReport) -> list[Html | str]:
    if report.shifted_features:
        many = len(report.shifted_features) > 1
        said = "The features that moved" if many else "The feature that moved"
        return [
            f"{said}{DOUBT[report.status]}: ",
            tag("strong", names(report.shifted_features)),
            ".",
        ]
    if report.hypothesis and report.hypothesis != "nothing":
        return [f"No single feature is named; what moved: {report.hypothesis}."]
    return ["No feature is named: only the labels moved, or nothing did."]


def performance(report: ShiftReport) -> Html:
    """Every metric on both samples, and the headline gap on an axis."""
    intervals = report.intervals or (None,) * len(report.gaps)
    rows = []
    for (metric, before, after), gap, interval in zip(
        report.values(), report.gaps, intervals, strict=True
    ):
        unit = Unit(gap.metric)
        ends = "none" if interval is None else f"{unit.gap(interval[0])} to {unit.gap(interval[1])}"
        shown = unit.points(after - before)
        rows.append((name(metric), unit.value(before), unit.value(after), shown, ends))
    level = "" if report.confidence is None else f"{100 * report.confidence:g} % "
    parts = [
        interval_chart(report.gap, report.interval, Unit(report.metric)),
        table(
            "Every metric on the source, and estimated on the target",
            ["metric", "source", "target (estimated)", "gap", f"{level}interval of the gap"],
            rows,
            numbers=(1, 2, 3, 4),
        ),
    ]
    found = causes(report)
    if found:
        unit = Unit(report.metric)
        parts.append(
            table(
                f"The gap in {report.metric} by cause (model-based Shapley values)",
                ["cause", f"share of the gap, {unit.name}"],
                [(name(cause), unit.gap(share)) for cause, share in found.items()],
                numbers=(1,),
            )
        )
    return joined(parts)
