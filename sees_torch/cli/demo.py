"""`sees demo`: a churn story with a known answer, its picture and its page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sees_torch.cli.outputs import add_manners, add_outputs, check_outputs, write_outputs
from sees_torch.cli.progress import Progress
from sees_torch.demo import churn_pair
from sees_torch.errors import SeesError
from sees_torch.estimate import estimate_shift


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo", help="a churn story with a known answer, its picture and its page"
    )
    parser.add_argument("--rows", type=int, default=5000, help="rows of each sample (5000)")
    parser.add_argument("--seed", type=int, default=0, help="which draw (0)")
    add_outputs(parser)
    add_manners(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Estimate, print the truth beside it, and leave a picture and a page."""
    options.plot = options.plot or Path("sees_demo.png")
    options.html = options.html or options.plot.with_suffix(".html")
    check_outputs(options)
    check_draw(options)
    with Progress(options) as progress:
        progress.step(f"drawing {options.rows:,} customers before and after")
        pair = churn_pair(options.rows, options.rows, options.seed)
        progress.step("estimating")
        report = estimate_shift(**pair.inputs())
    write_outputs(report, options)
    print(report)
    print()
    print("what really happened (the estimate saw no target label):")
    print(f"  shifted features: {', '.join(pair.features)}")
    print(
        f"  gap: {100 * pair.population_gap:+.1f} points in the population, "
        f"{100 * pair.realised_gap:+.1f} in these rows"
    )
    share = (pair.target_labels == "yes").mean()
    print(f"  churn in the target: {share:.1%}")
    print(f"\npicture: {options.plot}")
    print(f"page: {options.html}")
    return 0


def check_draw(options: argparse.Namespace) -> None:
    """Refuse sizes and seeds that nothing can be drawn with."""
    if options.rows is not None and options.rows < 100:
        raise SeesError(f"--rows must be at least 100, got {options.rows}.")
    if not 0 <= options.seed < 2**63:
        raise SeesError(f"--seed must be a whole number from 0 to 2^63 - 1, got {options.seed}.")
