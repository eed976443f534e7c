"""Promises of the documentation: the reference is current, links lead somewhere, code runs."""

import re
from pathlib import Path

import pytest

import sees_torch
from docs.reference import PLACE, SECTIONS, reference

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
MOST_BYTES = 150_000


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_reference_is_what_the_docstrings_say():
    said = PLACE.read_text(encoding="utf-8")
    assert said == reference(), "run python -m docs.reference"


def test_the_reference_has_every_public_name_once():
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted([*listed, "__version__"]) == sorted(sees_torch.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        place, _, anchor = link.partition("#")
        there = page.parent / place if place else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


@pytest.mark.parametrize("page", [p for p in PAGES if p != PLACE], ids=lambda page: page.name)
def test_python_blocks_are_doctests(page):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert all(block.startswith(">>> ") for block in blocks)
    assert all(block.endswith("\n\n") for block in blocks), "an empty line ends the last output"


def test_the_index_names_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [p.name for p in PAGES if p.name != "index.md" and f"({p.name})" not in index] == []


def test_pictures_are_small_and_shown():
    said = (DOCS / "gallery.md").read_text(encoding="utf-8")
    pictures = sorted((DOCS / "gallery").glob("*.png"))
    assert pictures
    for picture in pictures:
        assert f"(gallery/{picture.name})" in said
        assert picture.stat().st_size < MOST_BYTES
