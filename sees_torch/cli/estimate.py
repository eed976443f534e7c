"""`sees estimate`: the shift between two files."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from sees_torch.cli.models import load_model
from sees_torch.cli.outputs import (
    EXIT_CODES,
    add_manners,
    add_outputs,
    check_outputs,
    write_outputs,
)
from sees_torch.cli.predictions import add_predictions
from sees_torch.cli.progress import Progress
from sees_torch.cli.settings import add_settings, settings
from sees_torch.cli.tables import classes_of, named_columns, one_column
from sees_torch.data import Source, Target
from sees_torch.data.files import TableFile
from sees_torch.data.streams import MAX_ROWS
from sees_torch.errors import SchemaError, SeesError
from sees_torch.estimate import estimate_shift
from sees_torch.report import ShiftReport


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "estimate",
        help="estimate the shift between two files",
        epilog="exit code: 0 identified, 3 weak, 4 not identified, 2 refused, 130 interrupted",
    )
    parser.add_argument(
        "--source", required=True, type=Path, help="labelled rows, CSV, Parquet or JSON lines"
    )
    parser.add_argument("--target", required=True, type=Path, help="unlabelled rows")
    parser.add_argument(
        "--label", required=True, help="label column of the source, by name or pattern"
    )
    parser.add_argument(
        "--target-labels",
        action="store_true",
        help="use the target's labels too, in a column of the same name, empty where unknown",
    )
    add_predictions(parser)
    parser.add_argument(
        "--drop",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns to ignore, by name or pattern",
    )
    add_settings(parser)
    parser.add_argument(
        "--metric", nargs="+", default=["accuracy"], help="metrics, the headline first (accuracy)"
    )
    parser.add_argument("--estimator", default="auto", help="gap estimator (auto)")
    parser.add_argument(
        "--max-rows",
        type=int,
        default=MAX_ROWS,
        help=f"distinct rows of a file to keep in memory ({MAX_ROWS})",
    )
    add_outputs(parser)
    add_manners(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, estimate, print, write; the exit code says the status."""
    check_outputs(options, [p for p in (options.source, options.target, options.model) if p])
    report = _estimated(options)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and int(os.environ["RANK"]):
        return 0  # The first process reports.
    write_outputs(report, options)
    print(report)
    # torchrun would take any other exit code for a crash.
    return 0 if several else EXIT_CODES[report.status]


def _estimated(options: argparse.Namespace) -> ShiftReport:
    distributed, shard = _join_processes()
    if options.logits and options.model is None:
        raise SeesError("--logits belongs to --model: columns of --proba must be probabilities.")
    separator = options.separator
    plain = [TableFile(path, [], separator=separator) for path in (options.source, options.target)]
    columns = [table.columns for table in plain]
    known = list(dict.fromkeys([*columns[0], *columns[1]]))
    label = one_column(options.label, known, "--label", options.source)
    drop = named_columns(options.drop, known, "--drop", options.source)
    if label not in columns[0] and label in columns[1]:
        raise SchemaError(
            f"{options.source} has no column {label!r}, but {options.target} has: are --source and "
            "--target swapped? The source is the file with labels."
        )
    proba = named_columns(options.proba or [], columns[0], "--proba", options.source)
    more: Any = {"shard": shard, "separator": separator}
    source_file = TableFile(options.source, proba, label, drop=drop, **more)
    told_label = label if options.target_labels else None
    aside = drop if options.target_labels else [label, *drop]
    target_file = TableFile(options.target, proba, told_label, drop=aside, **more)
    for name in drop:
        if name not in known:
            raise SchemaError(f"--drop: neither file has a column {name!r}.")
    if label in columns[1] and not options.target_labels:
        print(
            f"sees: ignoring the label column {label!r} of {options.target}; --target-labels uses "
            "it",
            file=sys.stderr,
        )
    whole = TableFile(options.source, proba, label, separator=separator)
    classes = classes_of(options.classes, options.proba or [], proba, whole)
    model = None if options.model is None else load_model(options.model)
    told: Any = {"max_rows": options.max_rows, "distributed": distributed, "logits": options.logits}
    with Progress(options) as progress:
        progress.step(f"reading {options.source}")
        source = Source.from_batches(
            source_file, model, classes=classes, progress=progress.of("source"), **told
        )
        progress.step(f"reading {options.target}")
        target = Target.from_batches(
            target_file,
            source,
            model,
            labelled=options.target_labels,
            progress=progress.of("target"),
            **told,
        )
        progress.step(
            f"estimating from {len(source):,} and {len(target):,} distinct rows, "
            f"{len(source.schema.columns)} features, {len(source.classes)} classes"
        )
        report = estimate_shift(
            source,
            target=target,
            metric=options.metric,
            estimator=options.estimator,
            **settings(options),
        )
        progress.step("done")
    return report


def _join_processes() -> tuple[bool, tuple[int, int]]:
    """Whether torchrun started several processes, and which of how many this one is."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return False, (0, 1)
    from torch import distributed

    distributed.init_process_group("gloo")
    return True, (distributed.get_rank(), distributed.get_world_size())
