"""Files that a command writes: refused before any work, written whole or not at all."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sees_torch.errors import SeesError
from sees_torch.page import page
from sees_torch.report import ShiftReport
from sees_torch.saving.atomic import write_atomically

if TYPE_CHECKING:
    import pandas as pd

PICTURES = (".png", ".pdf", ".svg", ".jpg")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""
EXIT_CODES = {"identified": 0, "weak": 3, "not_identified": 4}


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Options for the files of a report."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (.png, .pdf)")
    parser.add_argument(
        "--min-cell-count",
        type=int,
        default=0,
        metavar="N",
        help="page and JSON: pool cells with fewer rows (0)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def add_manners(parser: argparse.ArgumentParser) -> None:
    """Options of every command for what it says besides its result."""
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="show no progress")
    loudness.add_argument("--verbose", action="store_true", help="say what is being done")
    parser.add_argument("--traceback", action="store_true", help="show errors in full")


def check_outputs(options: argparse.Namespace, inputs: Sequence[Path] = ()) -> None:
    """Refuse files of a report that cannot or should not be written, before any work is done."""
    paths = [path for path in (options.plot, options.json, options.html) if path is not None]
    check_files(paths, options.plot, options.force, inputs)
    if options.min_cell_count < 0:
        raise SeesError(f"--min-cell-count must be 0 or more, got {options.min_cell_count}.")


def check_files(
    paths: Sequence[Path], picture: Path | None, force: bool, inputs: Sequence[Path] = ()
) -> None:
    """Refuse files that cannot or should not be written."""
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise SeesError(f"{picture} is no picture name: end it with one of {', '.join(PICTURES)}.")
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise SeesError(f"{path} is named for two outputs: give each its own file.")
        if path.exists() and any(path.samefile(read) for read in inputs if read.exists()):
            raise SeesError(f"{path} is an input: choose another name for the output.")
        if path.is_dir():
            raise SeesError(f"{path} is a folder: give the name of a file.")
        if path.exists() and not force:
            raise SeesError(f"{path} exists: choose another name, or add --force to overwrite it.")
        if not path.parent.is_dir():
            raise SeesError(f"there is no folder {path.parent} to write {path.name} into.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise SeesError(f"{path} cannot be written: no permission.")


def write_outputs(report: ShiftReport, options: argparse.Namespace) -> None:
    """The files that were asked for."""
    least = options.min_cell_count
    if options.json is not None:
        plain = report.to_dict(min_cell_count=least)
        write_atomically(options.json, (json.dumps(plain, indent=2, default=str) + "\n").encode())
    if options.html is not None:
        write_atomically(options.html, page(report, "Shift report", least).encode())
    if options.plot is not None:
        drawn = io.BytesIO()
        report.plot().savefig(drawn, dpi=150, format=options.plot.suffix[1:].lower())
        write_atomically(options.plot, drawn.getvalue())


def csv_text(table: pd.DataFrame) -> str:
    """The table as CSV without its index; text that a spreadsheet would run as a formula is told.

    Names of files, columns and levels are the user's, or whoever wrote the data: such a cell gets
    a leading apostrophe, which spreadsheets show as text. Numbers stay numbers, minus signs too.
    """

    def told(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell

    return table.rename(columns=told).map(told).to_csv(index=False)
