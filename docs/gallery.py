"""Draw the pictures of docs/gallery.md by running its examples.

python -m docs.gallery

Every picture `![...](gallery/NAME.png)` of the page shows what `figure` is at that place.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_suffix(".md")
DPI = 70


def draw(page: Path = PAGE) -> list[Path]:
    """The files that were written; an example that fails raises its own error."""
    known: dict[str, Any] = {}
    written = []
    parts = re.split(r"!\[[^\]]*\]\((gallery/[\w-]+\.png)\)", page.read_text(encoding="utf-8"))
    for said, name in zip(parts[::2], parts[1::2], strict=False):
        for example in doctest.DocTestParser().get_examples(said):
            exec(compile(example.source, str(page), "exec"), known)
        place = page.parent / name
        place.parent.mkdir(exist_ok=True)
        known["figure"].savefig(place, dpi=DPI)
        written.append(place)
    return written


if __name__ == "__main__":
    draw()
