"""Small pictures in SVG, and bars in HTML; what they show also stands in words or in a table."""

from __future__ import annotations

from collections.abc import Sequence

from sees_torch.page.figures import Unit
from sees_torch.page.markup import Html, tag, text

WIDTH, MARGIN = 400.0, 24.0


class Axis:
    """A horizontal axis that holds zero and all given values, and spans at least `least`."""

    def __init__(
        self, values: Sequence[float], width: float, margin: float, least: float = 0.0
    ) -> None:
        low, high = min(0.0, *values), max(0.0, *values)
        spare = max(0.08 * (high - low), (least - (high - low)) / 2) or 0.01
        self.low, self.high = low - spare, high + spare
        self.width, self.margin = width, margin

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.margin + share * (self.width - 2 * self.margin), 1)


def interval_chart(gap: float, interval: tuple[float, float] | None, unit: Unit) -> Html:
    """The gap and its interval on an axis that holds zero."""
    low, high = interval or (gap, gap)
    axis = Axis([gap, low, high], WIDTH, MARGIN, unit.least)
    said = f"The gap is {unit.points(gap)}"
    said += f", interval from {unit.gap(low)} to {unit.gap(high)}." if interval else "."
    parts = [
        tag("title", "Gap and its interval"),
        tag("desc", said),
        tag("line", x1=MARGIN, x2=WIDTH - MARGIN, y1=44, y2=44, class_="axis"),
        tag("line", x1=axis.x(0), x2=axis.x(0), y1=20, y2=52, class_="zero"),
        tag("text", "no change", x=axis.x(0), y=14, class_="mid"),
    ]
    if interval is not None:
        left, right = axis.x(low), axis.x(high)
        parts += [
            tag("rect", x=left, y=31, width=max(right - left, 1), height=10, class_="reach"),
            *_ends(axis, low, high, unit),
        ]
    parts.append(tag("circle", cx=axis.x(gap), cy=36, r=6, class_="dot"))
    parts.append(
        tag("text", unit.gap(gap), x=axis.x(gap), y=26, class_="mid strong")
        if abs(axis.x(gap) - axis.x(0)) > 50
        else Html("")
    )
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} 70", role="img", class_="interval")


def _ends(axis: Axis, low: float, high: float, unit: Unit) -> list[Html]:
    """Figures under both ends, or side by side where they would meet."""
    left, right = axis.x(low), axis.x(high)
    if right - left < 60:
        middle = min(max((left + right) / 2, 70), WIDTH - 70)
        return [tag("text", f"{unit.gap(low)} to {unit.gap(high)}", x=middle, y=64, class_="mid")]
    return [
        tag("text", unit.gap(end), x=min(max(axis.x(end), 26), WIDTH - 26), y=64, class_="mid")
        for end in (low, high)
    ]


def forest_row(axis: Axis, gap: float, reach: float, chosen: bool) -> Html:
    """One gap with its reach, for a column of a table whose figures stand beside it."""
    left, right = (min(max(axis.x(end), 0), axis.width) for end in (gap - reach, gap + reach))
    return tag(
        "svg",
        tag("line", x1=axis.x(0), x2=axis.x(0), y1=0, y2=20, class_="zero"),
        tag("line", x1=left, x2=right, y1=10, y2=10, class_="whisker"),
        tag("circle", cx=axis.x(gap), cy=10, r=5, class_="dot" if chosen else "other"),
        viewBox=f"0 0 {axis.width:g} 20",
        class_="forest",
        aria_hidden="true",
    )


def bars(before: float, after: float, top: float) -> Html:
    """Two bars, source above target, as a table cell; their figures stand beside them."""
    widths = (round(100 * share / max(top, 1e-12), 1) for share in (before, after))
    spans = "".join(
        f'<span class="{kind}" style="width:{width:g}%"></span>'
        for kind, width in zip(("s", "t"), widths, strict=True)
    )
    return Html(f'<td class="bars" aria-hidden="true">{spans}</td>')


def bar(share: float) -> Html:
    """One bar, as a table cell."""
    width = round(100 * min(max(share, 0.0), 1.0), 1)
    return Html(
        f'<td class="bars" aria-hidden="true"><span class="t" style="width:{width:g}%"></span></td>'
    )


def key() -> Html:
    """Which bar is which."""
    return tag(
        "p",
        tag("span", "", class_="s swatch"),
        " source  ",
        tag("span", "", class_="t swatch"),
        text(" target"),
        class_="key",
    )
