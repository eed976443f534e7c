"""Which features moved and how sure that is; how every feature and the label are spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sees_torch.disclosure import POOLED
from sees_torch.marginals import Marginal, marginals
from sees_torch.page.charts import bar, bars, key
from sees_torch.page.figures import percent, signed
from sees_torch.page.markup import Html, folded, joined, listed, name, names, table, tag
from sees_torch.report_tables import label_frame

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport

MOST_SETS = 10
SHOWN, MOST_CHARTS, MOST_NAMED = 6, 36, 300
"""Features whose charts stand open, are drawn at all, and are named in a table."""
MOST_LEVELS, MOST_LABELS = 12, 30
LONGEST_LEVEL = 36


def moved(report: ShiftReport) -> Html:
    """The features, how often resamples choose them, and what fits as well."""
    said = []
    if report.shifted_features:
        said.append(
            tag(
                "p",
                "Shifted together with the label: " if _with_label(report) else "Shifted: ",
                tag("strong", names(report.shifted_features)),
                ".",
            )
        )
    else:
        said.append(tag("p", "No feature is named as shifted."))
    if report.hypothesis:
        said.append(tag("p", f"Chosen hypothesis: {report.hypothesis}."))
    if len(report.ties) > 1:
        said.append(tag("p", "These sets fit exactly as well, the data cannot tell them apart:"))
        said.append(listed(names(tied) if tied else "no feature" for tied in report.ties[:20]))
    rivals = _rivals(report)
    if rivals:
        said.append(tag("p", "These rivals are as simple and explain the target as well:"))
        said.append(listed(rivals))
    elif report.alternatives:
        said.append(tag("p", "Nothing as simple explains the target as well."))
    said.append(_selection(report))
    return joined(said)


def _with_label(report: ShiftReport) -> bool:
    """The weights differ between labels."""
    weight = report.weight_function.table(report.source.rows).detach()
    return bool((weight != weight[:, :1]).any())


def _rivals(report: ShiftReport) -> list[Html]:
    if not report.alternatives:
        return []
    found = report.hypotheses()
    return [
        names(features) or tag("span", words)
        for features, words in found.loc[found["rival"], ["features", "hypothesis"]].itertuples(
            index=False
        )
    ]


def _selection(report: ShiftReport) -> Html:
    if not report.selection:
        return tag(
            "p",
            "How sure the choice is cannot be said: no resamples chose between features.",
            class_="soft",
        )
    rows = [
        (names(features) if features else "no feature", bar(share), percent(share))
        for features, share in list(report.selection.items())[:MOST_SETS]
    ]
    rest = len(report.selection) - len(rows)
    more = f"; {rest} rarer ones left out" if rest > 0 else ""
    return table(
        f"How often resamples of both samples choose each set of features{more}",
        ["features", "", "share of resamples"],
        rows,
        numbers=(2,),
    )


def marginal_charts(report: ShiftReport, least: int) -> Html:
    """Shares of every level before and after, the features that moved most first."""
    chosen = set(report.shifted_features)
    found = marginals(report.source, report.target, least)
    found.sort(key=lambda one: (one.feature not in chosen, -one.distance))
    shown = max(SHOWN, len(chosen))
    first = [_chart(one, one.feature in chosen) for one in found[:shown]]
    more = [_chart(one, False) for one in found[shown:MOST_CHARTS]]
    parts = [
        tag(
            "p",
            "How rows are spread over each feature's levels, or over the source's quantiles: "
            "shifted features first, then those whose spread changed most. A feature may move "
            "because a shifted one does.",
            class_="soft",
        ),
        key(),
        tag("div", *first, class_="many"),
    ]
    if more:
        parts.append(folded(f"{len(more)} more features", tag("div", *more, class_="many")))
    rest = found[MOST_CHARTS:]
    if rest:
        parts.append(folded(f"The other {len(rest)} features, in figures", _distances(rest)))
    return joined(parts)


def _distances(rest: list[Marginal]) -> Html:
    listed_all = len(rest) <= MOST_NAMED
    said = "" if listed_all else f"; the {MOST_NAMED} that moved most of {len(rest)}"
    return table(
        f"Distance between source and target, 0 for equal and 100 % for disjoint{said}",
        ["feature", "distance"],
        [(name(one.feature), percent(one.distance)) for one in rest[:MOST_NAMED]],
        numbers=(1,),
    )


def _chart(one: Marginal, chosen: bool) -> Html:
    levels = list(zip(one.levels, one.source, one.target, strict=True))
    left_out = len(levels) - MOST_LEVELS
    if left_out > 0:
        kept = set(sorted(range(len(levels)), key=lambda k: -max(levels[k][1:]))[: MOST_LEVELS - 1])
        rest = [level for k, level in enumerate(levels) if k not in kept]
        levels = [level for k, level in enumerate(levels) if k in kept]
        others = f"{len(rest)} others"
        levels.append((others, sum(r[1] for r in rest), sum(r[2] for r in rest)))
    top = max(max(before, after) for _, before, after in levels)
    rows = [
        (name(level, LONGEST_LEVEL), bars(before, after, top), percent(before), percent(after))
        for level, before, after in levels
    ]
    mark = tag("span", " shifted", class_="moved") if chosen else ""
    said = f"distance {percent(one.distance)}"
    heads = ["level", "", "source", "target"]
    return tag(
        "div",
        tag("h3", name(one.feature), mark),
        table(said, heads, rows, numbers=(2, 3), scrolls=False),
    )


def labels(report: ShiftReport, least: int) -> Html:
    """Label shares before, and estimated after."""
    frame = label_frame(report, least)
    rows = [tuple(row) for row in frame.itertuples(index=False)]
    order = sorted(range(len(rows)), key=lambda k: -abs(rows[k][2] - rows[k][1]))
    kept = set(order[:MOST_LABELS])
    top = max(max(row[1:]) for row in rows)
    shown = [
        (
            name(label),
            bars(before, after, top),
            percent(before),
            percent(after),
            signed(100 * (after - before), ".1f"),
        )
        for k, (label, before, after) in enumerate(rows)
        if k in kept
    ]
    rest = len(rows) - len(shown)
    said = f"; the {len(shown)} that changed most of {len(rows)}" if rest else ""
    note = " Rare labels are pooled." if POOLED in frame["label"].tolist() else ""
    return joined(
        [
            key(),
            table(
                f"Label shares in the source, and estimated in the target{said}.{note}",
                ["label", "", "source", "target (estimated)", "change, points"],
                shown,
                numbers=(2, 3, 4),
            ),
        ]
    )
