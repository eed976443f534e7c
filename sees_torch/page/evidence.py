"""The evidence: other hypotheses, diagnostics in words, notes, and how to repeat the call."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from sees_torch.page.charts import Axis, forest_row
from sees_torch.page.figures import Unit, count, percent
from sees_torch.page.markup import Html, folded, joined, listed, names, table, tag
from sees_torch.report_tables import told_notes
from sees_torch.report_text import SURE
from sees_torch.version import __version__
from sees_torch.weight_cells import has_cells

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport

PAPER = (
    "L. Chen, M. Zaharia and J. Zou. Estimating and Explaining Model Performance When Both "
    "Covariates and Labels Shift. Advances in Neural Information Processing Systems 35, 2022."
)
SHOWN_NOTES, MOST_NOTES = 8, 200


def hypotheses(report: ShiftReport) -> Html:
    """The gap that every other hypothesis would mean, and how well it explains the target."""
    if not report.alternatives:
        return tag(
            "p",
            f"The method {report.method} compares no hypotheses: what it assumes "
            "is unchecked. The method auto compares them.",
        )
    found = report.hypotheses()
    unit = Unit(report.metric)
    reach = 1.96 * found["error"].fillna(0.0)
    axis = Axis([*(found["gap"] - reach), *(found["gap"] + reach)], 180, 8, unit.least)
    rows = []
    for (_, row), far in zip(found.iterrows(), reach, strict=True):
        said: list[Any] = [str(row["hypothesis"])]
        said += [": ", names(row["features"])] if row["features"] else []
        said += [tag("strong", " (chosen)")] if row["chosen"] else []
        said += [" (rival)"] if row["rival"] else []
        rows.append(
            (
                tag("span", *said),
                forest_row(axis, row["gap"], far, bool(row["chosen"])),
                unit.gap(row["gap"]),
                "unknown" if math.isnan(row["error"]) else unit.reach(1.96 * row["error"]),
                f"{row['behind']:.1f}" if math.isfinite(row["behind"]) else "out of reach",
                f"{row['share']:.0%}",
            )
        )
    return joined(
        [
            tag(
                "p",
                "Chosen is the simplest hypothesis that is less than 1.5 standard errors, or 2 % "
                "of its score, behind the best of those whose gap the data can resolve."
                + _averaged(report),
                class_="soft",
            ),
            table(
                f"Gap in {report.metric} under each hypothesis, in {unit.name}; the dashed line is "
                "no change",
                [
                    "hypothesis",
                    "",
                    "gap",
                    "1.96 errors",
                    "errors behind the best",
                    "share",
                ],
                rows,
                numbers=(2, 3, 4, 5),
            ),
        ]
    )


def _averaged(report: ShiftReport) -> str:
    choice = report.match.choice
    if choice is None or not choice.stories:
        return ""
    if choice.stories == 1:
        return (
            " It names what moved. The gap is not its own but that of another hypothesis, the "
            "likeliest that can tell it; its share is 100%."
        )
    said = (
        " It names what moved. The gap is not its own but an average over "
        f"{choice.stories} hypotheses that the data leave open, by how well they explain "
        "them; their shares stand at the end of the rows, those of the largest are listed."
    )
    if choice.hedge:
        part = (1 - choice.unexplained) * choice.hedge
        said += (
            f" Of it, {part:.0%} is that of penalised shifts of many features, which vary less: "
            "the data hardly decide the weights of the others."
        )
    if choice.unexplained:
        said += (
            f" No hypothesis explains the target fully, so {choice.unexplained:.0%} is the mean of "
            "the simplest stories: labels alone, features alone, many of both."
        )
    if "drift" in report.diagnostics:
        allowed = Unit(report.metric).points(report.diagnostics["drift"])
        said += (
            f" Where so little is explained labels drift given the features, too: {allowed} is "
            "added for that."
        )
    return said


def diagnostics(report: ShiftReport) -> Html:
    """Sample sizes and diagnostics in words; all the figures folded below."""
    figures = [
        (word.replace("_", " "), f"{value:.4g}") for word, value in report.diagnostics.items()
    ]
    return joined(
        [
            listed(_sentences(report.diagnostics, has_cells(report.weight_function))),
            tag(
                "p",
                f"Method {report.method}, estimator {report.gaps[0].estimator}, "
                f"interval: {report.interval_source}.",
            ),
            folded(
                "All figures",
                table(
                    "Named figures behind the verdict", ["figure", "value"], figures, numbers=(1,)
                ),
            ),
        ]
    )


def _sentences(d: dict[str, float], cells: bool) -> list[str]:
    n, m, effective = d["source_rows"], d["target_rows"], d["effective_rows"]
    said = [f"{count(n)} source rows and {count(m)} target rows were compared."]
    if "labelled_rows" in d:
        alone = d.get("told", 0.0)
        said.append(
            f"The label of {count(d['labelled_rows'])} target rows was given"
            + (f"; {percent(alone)} of the gap is theirs alone." if alone else ".")
        )
    if d.get("population"):
        said.append("Multiplicities below one describe populations: there is no sampling error.")
    else:
        said.append(
            f"The weights leave the precision of {count(effective)} source rows, "
            f"{percent(effective / n)} of them; the largest weight is {d['largest_weight']:.3g}."
        )
    worth = d.get("label_equivalent", math.inf)
    if math.isfinite(worth):
        said.append(f"The estimate is worth about {count(worth)} labelled target rows.")
    if d.get("belief", 1.0) < SURE:
        said.append(
            f"{percent(d['belief'])} of the averaged gap is taken for a change: it is known no "
            "better than from a few labelled rows, and gaps are seldom large."
        )
    said.append(_unseen(d["unseen_mass"], cells))
    if "stability" in d:
        said.append(f"{percent(d['stability'])} of the resamples choose the same features.")
    if "unresolved" in d:
        said.append(
            f"Inside the cells, {percent(d['unresolved'])} of the metric's range stays unresolved "
            "because labels cannot be told apart (0 is best; above 10 % the answer is weak)."
        )
    if "blind_spot" in d:
        said.append(
            f"Had the most telling feature shifted with the label, {percent(d['blind_spot'])} of "
            "the range would be unresolved (above 80 % nobody could see such a shift)."
        )
    if math.isfinite(d.get("power", math.inf)):
        said.append(
            "Had the feature shifted with the label that would tell least, the gap would be known "
            f"as well as from {count(d['power'])} labelled target rows (500 are enough)."
        )
    before, after = d.get("calibration_error_before"), d.get("calibration_error_after")
    if before is not None and after is not None:
        said.append(
            f"The calibration error of the probabilities on the source was {percent(before)} as "
            f"given and is {percent(after)} as used."
        )
    said.append(f"The weights average {d['mean_weight']:.3f} over the source; 1 is right.")
    return said


def _unseen(share: float, cells: bool) -> str:
    """What the target holds that the source never showed."""
    if share > 0:
        where = "cells of the shifted features" if cells else "rows with a level"
        return (
            f"{percent(share)} of the target is in {where} that the source never showed; nothing "
            "is known of the labels there."
        )
    if cells:
        return "No target row is in a cell of the shifted features that the source lacks."
    return "No target row has a level that the source lacks."


def notes(report: ShiftReport, least: int) -> Html:
    """What was done to unusual input."""
    found = told_notes(report, least)
    if not found:
        return tag("p", "Nothing in the input needed treatment.")
    parts = [listed(found[:SHOWN_NOTES])]
    if len(found) > SHOWN_NOTES:
        rest = found[SHOWN_NOTES:MOST_NOTES]
        parts.append(folded(f"{len(found) - SHOWN_NOTES} more notes", listed(rest)))
    return joined(parts)


def reproduce(report: ShiftReport) -> Html:
    """The call, the versions, and the paper."""
    settings = report.settings
    lines = ["estimate_shift("]
    lines += ["    source, labels, target,", "    source_proba=..., target_proba=...,"]
    for word in ("method", "metric", "estimator", "confidence", "calibrate", "replicates"):
        if word in settings:
            value = settings[word] if word == "method" else repr(settings[word])
            lines.append(f"    {word}={value},")
    versions = [
        f"sees-torch {__version__}",
        f"torch {torch.__version__}",
        f"numpy {np.__version__}",
        f"pandas {pd.__version__}",
        f"Python {platform.python_version()}",
    ]
    d = report.diagnostics
    shape = (
        f"{count(d['source_rows'])} source rows, {count(d['target_rows'])} target rows, "
        f"{len(report.source.schema.columns)} features, {len(report.source.classes)} classes."
    )
    return joined(
        [
            tag("p", "The call:"),
            tag("pre", tag("code", "\n".join([*lines, ")"]))),
            tag(
                "p",
                f"Data: {shape} Point estimates use no randomness; resamples come from a "
                "generator with a fixed seed unless another was given.",
            ),
            tag("p", f"Versions: {', '.join(versions)}."),
            tag("p", f"The method's paper: {PAPER}"),
        ]
    )
