"""Options for what the model says of the rows: columns of the files, or a saved model."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_predictions(parser: argparse.ArgumentParser) -> None:
    """Options for what the model says of the rows."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--proba",
        nargs="+",
        metavar="COLUMN",
        help="probability columns of the files, by name or pattern ('p_*'): one per class, or one "
        "for the second class",
    )
    what.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="saved model instead: torch.export (.pt2) or TorchScript; pickles are refused",
    )
    parser.add_argument("--logits", action="store_true", help="the model returns logits")
    parser.add_argument(
        "--classes", nargs="+", metavar="CLASS", help="classes in the order of the probabilities"
    )
    parser.add_argument(
        "--separator",
        type=_one_character,
        default=",",
        metavar="S",
        help="of the columns of a CSV file, or tab (,)",
    )


def _one_character(text: str) -> str:
    """A separator; the shell makes a tab hard to type."""
    found = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one character, nor the word tab")
    return found
