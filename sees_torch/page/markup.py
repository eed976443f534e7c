"""HTML from Python values: text is escaped unless it is markup already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

LONGEST = 90
"""Characters of a name that are shown; the rest stands in its tooltip."""
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_VOID = ("meta", "link", "br", "line", "rect", "circle")


class Html(str):
    """Text that is markup: what went into it is escaped."""

    __slots__ = ()


def text(value: Any) -> Html:
    """Any value as text of a page; forbidden and text-turning characters are replaced."""
    if isinstance(value, Html):
        return value
    return Html(escape(_CONTROL.sub("\ufffd", str(value))))


def name(value: Any, longest: int = LONGEST) -> Html:
    """A name that the user gave, kept apart from its surroundings, shortened if it is long."""
    said = str(value)
    if len(said) <= longest:
        return tag("bdi", said)
    return tag("bdi", said[: longest - 1] + "…", title=said[: 4 * LONGEST])


def names(values: Iterable[Any], between: str = ", ") -> Html:
    return Html(text(between).join(name(value) for value in values))


def tag(kind: str, *children: Any, **attributes: Any) -> Html:
    """An element; `class_` is the attribute class, other underscores are hyphens.

    >>> tag("p", "a < b", class_="note", hidden=True, title=None)
    '<p class="note" hidden>a &lt; b</p>'
    """
    said = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        said += f" {key}" if value is True else f' {key}="{text(value)}"'
    if kind in _VOID and not children:
        return Html(f"<{kind}{said}>" if kind in ("meta", "link", "br") else f"<{kind}{said}/>")
    return Html(f"<{kind}{said}>{''.join(text(child) for child in children)}</{kind}>")


def joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def table(
    caption: str,
    heads: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    class_: str | None = None,
    numbers: Sequence[int] = (),
    scrolls: bool = True,
) -> Html:
    """A table whose first column names its rows; it scrolls by itself where it is wide.

    Args:
        caption: what it shows.
        heads: of the columns.
        rows: cells, markup `<td>` taken as it is.
        class_: of the table.
        numbers: columns that are numbers, set to the right.
        scrolls: it may be too wide for its place.
    """

    def cell(place: int, value: Any) -> Html:
        if isinstance(value, Html) and value.startswith("<td"):
            return value
        if place == 0:
            return tag("th", value, scope="row")
        return tag("td", value, class_="n" if place in numbers else None)

    def head(place: int, value: Any) -> Html:
        if not value:  # Above bars, which only repeat the figures beside them.
            return tag("td", aria_hidden="true")
        return tag("th", value, scope="col", class_="n" if place in numbers else None)

    body = joined(tag("tr", *(cell(k, value) for k, value in enumerate(row))) for row in rows)
    inner = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", tag("tr", *(head(k, value) for k, value in enumerate(heads)))),
        tag("tbody", body),
        class_=class_,
    )
    if not scrolls:
        return inner
    return tag("div", inner, class_="scroll", role="region", tabindex="0", aria_label=caption)


def folded(summary: Any, *content: Html, open_: bool = False) -> Html:
    return tag("details", tag("summary", summary), *content, open=open_)


def section(anchor: str, title: str, *content: Html) -> Html:
    return tag(
        "section",
        tag("h2", title, id=f"{anchor}-h"),
        *content,
        id=anchor,
        aria_labelledby=f"{anchor}-h",
    )


def listed(items: Iterable[Any]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))
