"""`sees methods`: what there is, what each method assumes, and its options."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import fields
from typing import Any

from sees_torch.cli.outputs import add_manners
from sees_torch.matching import Auto
from sees_torch.matching.names import METHODS

ASSUMES = {
    "auto": "one of the hypotheses below holds; takes the simplest that the data do not speak "
    "against, and says what the others would mean",
    "sees-em": "the label and a few features moved in any way, everything else given them stayed",
    "sees-c": "the same, and weights that are a sum of functions of one feature each; also many "
    "features",
    "sees-d": "the same as sees-em, by matching tables of counts; the paper's discrete method",
    "bbse": "only the labels moved: features given the label stayed",
    "mlls": "only the labels moved; uses the probabilities, not just the predicted classes",
    "kliep": "only the features moved: labels given the features stayed",
    "dlu": "only the features moved; weights from a classifier of target against source",
    "cbpe": "labels given the features stayed, and the calibrated model knows them",
    "none": "nothing moved",
}
WIDTH = 96


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("methods", help="the methods, what each assumes, their options")
    add_manners(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    kinds: dict[str, Any] = {"auto": Auto, **METHODS}
    indent = " " * 9
    for name, kind in kinds.items():
        print(textwrap.fill(f"{name:8} assumes {ASSUMES[name]}", WIDTH, subsequent_indent=indent))
        settings = ", ".join(
            f"{field.name}={field.default!r}"
            for field in fields(kind)
            if field.name != "memory_budget"
        )
        if settings:
            print(
                textwrap.fill(
                    f"{indent}{kind.__name__}({settings})", WIDTH, subsequent_indent=indent + "  "
                )
            )
    print("\nOn the command line: --sparsity (sees-em, sees-d, sees-c), --eta (sees-c); the other")
    print("options are those of the Python classes, for method=.")
    return 0
