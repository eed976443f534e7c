"""A report in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sees_torch.data import Source

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport


def report_lines(report: ShiftReport) -> list[str]:
    rate = report.metric == "accuracy"

    def shown(value: float, sign: str = "") -> str:
        return f"{100 * value:{sign}.1f} %" if rate else f"{value:{sign}.4g}"

    unit = " points" if rate else ""
    change = f"{100 * report.gap:+.1f}{unit}" if rate else f"{report.gap:+.4g}"
    moved = ", ".join(map(str, report.shifted_features)) or "none (labels only, or nothing)"
    lines = [
        f"{report.metric}: {shown(report.source_value)} on the source, "
        f"{shown(report.target_value)} estimated on the target, gap {change}",
        f"shifted features: {moved}",
    ]
    if len(report.ties) > 1:
        others = "; ".join(", ".join(map(str, tied)) for tied in report.ties[1:])
        lines.append(f"  fits exactly as well: {others}")
    for name, source, target in report.values()[1:]:
        lines.append(
            f"{name}: {source:.4g} on the source, {target:.4g} on the target, "
            f"gap {target - source:+.4g}"
        )
    before = dict(zip(report.source.classes, _label_share(report.source).tolist(), strict=True))
    lines.append("label shares, source to target:")
    for label, share in report.target_label_distribution.items():
        lines.append(f"  {label}: {before[label]:.1%} to {share:.1%}")
    d = report.diagnostics
    lines += [
        f"method {report.match.method}, estimator {report.gaps[0].estimator}, "
        f"status {report.status}",
        f"rows: {d['source_rows']:g} source, {d['target_rows']:g} target; effective source rows "
        f"{d['effective_rows']:.0f}; largest weight {d['largest_weight']:.3g}; "
        f"target in unseen cells {d['unseen_mass']:.2%}",
    ]
    return lines + [f"note: {note}" for note in report.notes]


def _label_share(source: Source) -> Tensor:
    one_hot = torch.nn.functional.one_hot(source.labels, len(source.classes))
    return source.mean(one_hot.to(torch.float64))
