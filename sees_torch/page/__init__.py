"""A report as one HTML file: no network, no scripts, every word of the data escaped."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from sees_torch.errors import SeesError
from sees_torch.page.answer import performance, verdict
from sees_torch.page.evidence import diagnostics, hypotheses, notes, reproduce
from sees_torch.page.features import labels, marginal_charts, moved
from sees_torch.page.markup import Html, joined, section, tag
from sees_torch.page.weights import weights
from sees_torch.saving.atomic import write_atomically
from sees_torch.version import __version__

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself refuses whatever the page would fetch or run."""


def page(report: ShiftReport, title: str, least: int) -> str:
    """The page; `least` is the smallest count of rows that it may show."""
    parts = [
        ("performance", "Performance", performance(report)),
        ("moved", "What moved", moved(report)),
        ("weights", "Weights", weights(report, least)),
        ("features", "Features", marginal_charts(report, least)),
        ("labels", "Labels", labels(report, least)),
        ("hypotheses", "Other hypotheses", hypotheses(report)),
        ("trust", "How far to trust it", diagnostics(report)),
        ("notes", "Notes", notes(report, least)),
        ("reproduce", "Reproduce and cite", reproduce(report)),
    ]
    links = [tag("li", tag("a", word, href=f"#{anchor}")) for anchor, word, _ in parts]
    body = [
        tag("a", "Skip to the answer", href="#answer", class_="skip"),
        tag(
            "header",
            tag("h1", title),
            tag(
                "p",
                "How a classifier's performance changed, estimated "
                + ("with a few" if "labelled_rows" in report.diagnostics else "without")
                + " target labels",
                class_="soft",
            ),
        ),
        tag(
            "main",
            verdict(report),
            tag("nav", tag("ul", *links), aria_label="Sections"),
            joined(section(anchor, word, content) for anchor, word, content in parts),
            id="answer",
            tabindex="-1",
        ),
        tag("footer", f"Made by sees-torch {__version__}."),
    ]
    return "<!doctype html>\n" + tag("html", _head(title), tag("body", *body), lang="en") + "\n"


def _head(title: str) -> Html:
    style = files("sees_torch.page").joinpath("style.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"sees-torch {__version__}"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(style)),
    )


def write_page(content: str, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write the file whole or not at all; an existing one only if asked."""
    place = Path(path)
    if place.is_dir():
        raise SeesError(f"{place} is a folder: give the name of a file.")
    if not place.parent.is_dir():
        raise SeesError(f"there is no folder {place.parent} to write {place.name} into.")
    if place.exists() and not overwrite:
        raise SeesError(f"{place} exists: choose another name, or say overwrite=True.")
    write_atomically(place, content.encode("utf-8"))
