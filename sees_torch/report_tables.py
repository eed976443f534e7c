"""A report as plain values and tidy tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sees_torch.data import Source
from sees_torch.disclosure import POOLED, pooled
from sees_torch.errors import SeesError
from sees_torch.gap import Gap
from sees_torch.marginals import marginal_frame, marginals
from sees_torch.weight_cells import has_cells

if TYPE_CHECKING:
    import pandas as pd

    from sees_torch.report import ShiftReport

TABLES = ("metrics", "labels", "cells", "marginals", "hypotheses", "ranking")
WITHHELD = "{} notes on unusual values are withheld, they tell of single rows (min_cell_count)"


def plain_values(report: ShiftReport, least: int) -> dict[str, Any]:
    """Everything but the rows, as plain Python values."""
    return {
        "status": report.status,
        "reasons": list(report.reasons),
        "method": report.method,
        "hypothesis": report.hypothesis,
        "metric": report.metric,
        "estimator": report.gaps[0].estimator,
        "gap": report.gap,
        "interval": _listed(report.interval),
        "confidence": report.confidence,
        "interval_source": report.interval_source,
        "source_value": report.source_value,
        "target_value": report.target_value,
        "shifted_features": [_json_key(name) for name in report.shifted_features],
        "ties": [[_json_key(name) for name in tied] for tied in report.ties],
        "target_label_distribution": {
            _json_key(label): share for label, share in report.target_label_distribution.items()
        },
        "metrics": {
            name: {
                "source": source,
                "target": target,
                "gap": target - source,
                "interval": _listed(interval),
                "estimator": gap.estimator,
            }
            for (name, source, target), gap, interval in _by_metric(report)
        },
        "hypotheses": _hypothesis_records(report),
        "selection": [
            {"features": [_json_key(name) for name in features], "share": share}
            for features, share in report.selection.items()
        ],
        "cells": _cell_records(report, least),
        "diagnostics": dict(report.diagnostics),
        "notes": list(told_notes(report, least)),
        "settings": dict(report.settings),
    }


def told_notes(report: ShiftReport, least: int) -> tuple[str, ...]:
    """The notes; where rare cells are pooled, only how many there are."""
    if not least or not report.notes:
        return report.notes
    return (WITHHELD.format(len(report.notes)),)


def table(report: ShiftReport, of: str, least: int) -> pd.DataFrame:
    """One of the TABLES."""
    if of == "metrics":
        return _metric_frame(report)
    if of == "labels":
        return label_frame(report, least)
    if of == "cells":
        return report.cells(min_cell_count=least)
    if of == "marginals":
        return marginal_frame(marginals(report.source, report.target, least))
    if of == "hypotheses":
        return hypothesis_frame(report)
    if of == "ranking":
        return ranking_frame(report)
    raise SeesError(f"there is no table {of!r}: take one of {', '.join(TABLES)}.")


def label_share(source: Source) -> Tensor:
    """(L,) share of every class in the source."""
    one_hot = torch.nn.functional.one_hot(source.labels, len(source.classes))
    return source.mean(one_hot.to(torch.float64))


def metric_values(gaps: tuple[Gap, ...]) -> list[tuple[str, float, float]]:
    """Name, source and target value of every metric; equal names are numbered."""
    names = [gap.metric for gap in gaps]
    return [
        (
            name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}",
            float(gap.source_value.detach()),
            float(gap.target_value.detach()),
        )
        for place, (name, gap) in enumerate(zip(names, gaps, strict=True))
    ]


def ranking_frame(report: ShiftReport, best: int | None = None) -> pd.DataFrame:
    import pandas as pd

    found = report.match.ranking
    if found is None:
        raise SeesError(f"{report.method} does not rank feature subsets.")
    names = report.source.schema.names
    features = [tuple(names[j] for j in subset) for subset in found.subsets[:best]]
    figures = {"objective": found.objective[:best], "score": found.score[:best]}
    return pd.DataFrame(
        {"features": features} | {name: values.tolist() for name, values in figures.items()}
    )


def hypothesis_frame(report: ShiftReport) -> pd.DataFrame:
    import pandas as pd

    choice = report.match.choice
    if choice is None:
        raise SeesError(f"{report.method} compares no hypotheses: use method='auto'.")
    names = report.source.schema.names
    rows = []
    for other in report.alternatives:
        candidate = choice.candidates[other.place]
        rows.append(
            {
                "hypothesis": candidate.words,
                "features": tuple(names[j] for j in candidate.features),
                "score": other.score,
                "behind": other.behind,
                "gap": other.gap,
                "error": float("nan") if other.error is None else other.error,
                "chosen": other.place == choice.chosen,
                "rival": other.rival,
                "share": other.share,
            }
        )
    return pd.DataFrame(rows)


def foremost(found: pd.DataFrame, most: int) -> pd.DataFrame:
    """The rows of a hypothesis frame to show first.

    Up to half of them are those with the largest shares in the gap, then rivals, then the nearest.
    """
    sharing = found[found["share"] > 0].sort_values("share", ascending=False, kind="stable")
    first = sharing.index[: most // 2]
    others = found.drop(first).sort_values(
        ["rival", "share", "behind"], ascending=[False, False, True], kind="stable"
    )
    return found.loc[[*first, *others.index][:most]]


def _metric_frame(report: ShiftReport) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "metric": name,
            "source": source,
            "target": target,
            "gap": target - source,
            "low": float("nan") if interval is None else interval[0],
            "high": float("nan") if interval is None else interval[1],
            "method": report.method,
            "estimator": gap.estimator,
            "shifted_features": ", ".join(map(str, report.shifted_features)),
            "status": report.status,
        }
        for (name, source, target), gap, interval in _by_metric(report)
    ]
    return pd.DataFrame(rows).set_index("metric")


def label_frame(report: ShiftReport, least: int = 0) -> pd.DataFrame:
    """Share of every class in the source, and estimated in the target; rare classes pooled."""
    import pandas as pd

    before = label_share(report.source).cpu()
    after = torch.tensor(list(report.target_label_distribution.values()), dtype=before.dtype)
    hidden = pooled((before * float(report.source.total))[:, None], least)
    classes = report.target_label_distribution
    labels = [label for label, gone in zip(classes, hidden.tolist(), strict=True) if not gone]
    shares = [before[~hidden].tolist(), after[~hidden].tolist()]
    if bool(hidden.any()):
        labels.append(POOLED)
        for share, whole in zip(shares, (before, after), strict=True):
            share.append(float(whole[hidden].sum()))
    return pd.DataFrame({"label": labels, "source_share": shares[0], "target_share": shares[1]})


def _by_metric(report: ShiftReport) -> list[tuple[Any, Any, Any]]:
    intervals = report.intervals or (None,) * len(report.gaps)
    return list(zip(report.values(), report.gaps, intervals, strict=True))


def _hypothesis_records(report: ShiftReport) -> list[dict[str, Any]]:
    """The table of hypotheses as plain values."""
    if not report.alternatives:
        return []
    records = hypothesis_frame(report).to_dict("records")
    for record in records:
        record["features"] = [_json_key(name) for name in record["features"]]
        for name in ("behind", "error"):
            record[name] = record[name] if math.isfinite(record[name]) else None
    return [{str(name): value for name, value in record.items()} for record in records]


def _cell_records(report: ShiftReport, least: int) -> list[dict[str, Any]]:
    """The table of cells as plain values; empty for weights that are no table."""
    if not has_cells(report.weight_function):
        return []
    records = report.cells(min_cell_count=least).to_dict("records")
    # Sums over rows and over counted rows differ in their last digits.
    return [
        {str(k): round(v, 12) if isinstance(v, float) else _json_key(v) for k, v in r.items()}
        for r in records
    ]


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _json_key(name: Any) -> Any:
    """A name that JSON can hold: text and numbers as they are, anything else as text."""
    return name if isinstance(name, (str, int, float)) else str(name)
