"""What came of one chunk, and its row in the monitor's table."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from sees_torch.report import ShiftReport

NAN = float("nan")
SKIPPED = "skipped"
"""Status of a chunk that had too few rows to be estimated."""
JUDGEMENT = ("threshold", "p_value", "alert", "note")
"""Columns of the frame that say what an alert was judged by."""


@dataclass(frozen=True)
class Observation:
    """What came of one chunk.

    Attributes:
        name: of the chunk.
        report: None where the chunk was too small.
        alert: the chunk raised an alert.
        threshold: the gap beyond which it does, NaN where none is learnt.
        p_value: how rarely so large a drop is seen when nothing changed, NaN where unknown.
        note: why there is no report.
    """

    name: Hashable
    report: ShiftReport | None
    alert: bool = False
    threshold: float = NAN
    p_value: float = NAN
    note: str = ""


def report_row(found: Observation, report: ShiftReport) -> dict[str, Any]:
    """The headline of a report, and how it was judged."""
    low, high = report.interval or (NAN, NAN)
    return {
        "metric": report.metric,
        "source": report.source_value,
        "target": report.target_value,
        "gap": report.gap,
        "low": low,
        "high": high,
        "status": report.status,
        "hypothesis": report.hypothesis,
        "shifted_features": ", ".join(map(str, report.shifted_features)),
        "rows": report.diagnostics["target_rows"],
        "effective_rows": report.diagnostics["effective_rows"],
        "threshold": found.threshold,
        "p_value": found.p_value,
        "alert": found.alert,
        "note": found.note,
    }


def skipped_row(about: dict[str, Any], rows: int, note: str) -> dict[str, Any]:
    """The row of a chunk that was too small."""
    figures = dict.fromkeys(("target", "gap", "low", "high"), NAN)
    words = {"status": SKIPPED, "hypothesis": "", "shifted_features": ""}
    counts = {"rows": float(rows), "effective_rows": NAN}
    judged = dict(zip(JUDGEMENT, (NAN, NAN, False, note), strict=True))
    return about | figures | words | counts | judged
