"""`sees monitor`: chunk after chunk of files against one source."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sees_torch.cli.models import load_model
from sees_torch.cli.outputs import add_manners, check_files, csv_text
from sees_torch.cli.predictions import add_predictions
from sees_torch.cli.settings import add_settings, settings
from sees_torch.cli.tables import classes_of, named_columns, one_column
from sees_torch.data import Source
from sees_torch.data.files import TableFile
from sees_torch.errors import SchemaError, SeesError
from sees_torch.gap import is_rate
from sees_torch.monitor import Alerts, Observation, ShiftMonitor
from sees_torch.monitor.chunks import PERIODS, Chunk, file_chunks, row_chunks, time_chunks
from sees_torch.monitor.folder import state_folder
from sees_torch.saving.atomic import write_atomically

QUIET, ALERT, INTERRUPTED = 0, 5, 130
FALSE_ALARMS = 0.05
SAVE_EVERY = 25
"""Splits after which a threshold that is being learnt is saved."""


def add_parser(commands: Any) -> None:
    """Add `monitor` to the commands of `sees`."""
    parser = commands.add_parser(
        "monitor",
        help="watch a model's performance over chunks of rows",
        epilog="exit code: 0 no alert in this run, 5 alert, 2 input refused, 130 interrupted (run "
        "the same command with --state to go on)",
    )
    parser.add_argument("source", type=Path, help="labelled rows, CSV, Parquet or JSON lines")
    parser.add_argument("target", type=Path, nargs="+", help="unlabelled rows, in order of time")
    parser.add_argument(
        "--label", required=True, help="label column of the source, by name or pattern"
    )
    add_predictions(parser)
    parser.add_argument(
        "--drop",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns to ignore, by name or pattern",
    )
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--chunk-rows", type=int, help="rows of a chunk (each file is one)")
    cut.add_argument("--time-column", metavar="COLUMN", help="dates to cut chunks by")
    parser.add_argument("--every", choices=PERIODS, help="period, with --time-column (month)")
    parser.add_argument("--floor", type=float, help="alert when the metric is worse than this")
    parser.add_argument(
        "--max-drop", type=float, help="alert when it is worse than on the source by more than this"
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        help="probability of any alert in --horizon chunks when nothing changed; the threshold is "
        f"learnt from splits of the source ({FALSE_ALARMS} unless --floor or --max-drop is given)",
    )
    parser.add_argument("--horizon", type=int, default=24, help="chunks that it holds for (24)")
    parser.add_argument("--draws", type=int, help="splits to learn from (as few as it needs)")
    parser.add_argument("--window", type=int, default=1, help="chunks to pool (1)")
    parser.add_argument("--half-life", type=float, help="chunks after which a row counts half")
    parser.add_argument("--min-rows", type=int, default=50, help="skip smaller chunks (50)")
    add_settings(parser)
    parser.add_argument("--metric", default="accuracy", help="(accuracy)")
    parser.add_argument("--state", type=Path, metavar="DIR", help="go on where DIR ended")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table, a row per chunk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (.png, .pdf)")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    add_manners(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Watch the files; returns the exit code."""
    try:
        with contextlib.ExitStack() as stack:
            state = None
            if options.state is not None:
                state = stack.enter_context(state_folder(options.state))
            return _watch(options, state)
    except KeyboardInterrupt:
        kept = "" if options.state is None else ": the same command goes on from there"
        print(f"\nsees: interrupted{kept}", file=sys.stderr)
        return INTERRUPTED


def _watch(options: argparse.Namespace, state: Path | None) -> int:
    outputs = [path for path in (options.csv, options.json, options.plot) if path is not None]
    inputs = [options.source, *options.target, *([] if not options.model else [options.model])]
    check_files(outputs, options.plot, options.force, inputs)
    _name_columns(options)
    chunks = _chunks(options)
    monitor = _monitor(options)
    if state is not None and state.exists():
        monitor.resume(state)
    learning = _Learning(monitor, state, options.quiet)
    monitor.progress = learning.show
    alert = False
    for chunk in chunks:
        if chunk.name in monitor.rows:
            _compare(chunk, monitor)
            continue
        found = monitor.observe(chunk.features, chunk.proba, name=chunk.name)
        if state is not None:
            monitor.save(state)
        learning.clear()
        print(_line(found), flush=True)
        alert |= found.alert
    _write(options, monitor)
    return ALERT if alert else QUIET


def _name_columns(options: argparse.Namespace) -> None:
    """Patterns of columns as the names in the source that they stand for."""
    if options.logits and options.model is None:
        raise SeesError("--logits belongs to --model: columns of --proba must be probabilities.")
    asked, separator = options.proba or [], options.separator
    columns = TableFile(options.source, [], separator=separator).columns
    options.label = one_column(options.label, columns, "--label", options.source)
    options.proba = named_columns(asked, columns, "--proba", options.source)
    options.drop = named_columns(options.drop, columns, "--drop", options.source)
    for name in options.drop:
        if name not in columns:
            raise SchemaError(f"--drop: {options.source} has no column {name!r}.")
    whole = TableFile(options.source, options.proba, options.label, separator=separator)
    options.classes = classes_of(options.classes, asked, options.proba, whole)


def _chunks(options: argparse.Namespace) -> Iterator[Chunk]:
    if options.every is not None and options.time_column is None:
        raise SeesError("--every needs --time-column.")
    names = [path.name for path in options.target]
    if len(set(names)) < len(names):
        raise SeesError("two target files have one name: chunks are told apart by it.")
    more: Any = {"drop": [options.label, *options.drop], "separator": options.separator}
    files = [TableFile(path, options.proba, **more) for path in options.target]
    if options.time_column is not None:
        return time_chunks(files, options.time_column, options.every or "month")
    if options.chunk_rows is not None:
        return row_chunks(files, options.chunk_rows)
    return file_chunks(files)


def _monitor(options: argparse.Namespace) -> ShiftMonitor:
    rate = options.false_alarms
    if rate is None and options.floor is None and options.max_drop is None:
        rate = FALSE_ALARMS
    alerts = Alerts(
        options.floor, options.max_drop, rate, options.horizon, options.draws if rate else None
    )
    drop = list(options.drop)
    if options.time_column is not None:
        drop.append(options.time_column)
    more: Any = {"drop": drop, "separator": options.separator}
    file = TableFile(options.source, options.proba, options.label, **more)
    model = None if options.model is None else load_model(options.model)
    return ShiftMonitor(
        Source.from_batches(file, model, classes=options.classes, logits=options.logits),
        model=model,
        logits=options.logits,
        metric=options.metric,
        **settings(options),
        alerts=alerts,
        window=options.window,
        half_life=options.half_life,
        min_rows=options.min_rows,
    )


def _compare(chunk: Chunk, monitor: ShiftMonitor) -> None:
    """Say when a chunk that was observed in an earlier run has grown since."""
    before = monitor.rows[chunk.name]["rows"]
    if monitor.window.length == 1 and before != len(chunk.features):
        print(
            f"sees: {chunk.name} was observed with {before:g} rows, the files now have "
            f"{len(chunk.features)}: left as it was",
            file=sys.stderr,
        )


def _line(found: Observation) -> str:
    report = found.report
    if report is None:
        return f"{found.name}: skipped, {found.note}"
    rate = is_rate(report.metric)
    scale, form, unit = (100, ".1f", " %") if rate else (1, ".4g", "")
    said = f"{found.name}: {report.metric} {scale * report.target_value:{form}}{unit}"
    if report.interval is not None:
        low, high = (scale * (report.source_value + end) for end in report.interval)
        said += f" ({low:{form}} to {high:{form}})"
    said += f", gap {scale * report.gap:+{form}}, {report.status.replace('_', ' ')}"
    if report.shifted_features:
        said += f", shifted: {', '.join(map(str, report.shifted_features))}"
    return said + (" ALERT" if found.alert else "")


def _write(options: argparse.Namespace, monitor: ShiftMonitor) -> None:
    table = monitor.to_frame().rename_axis("chunk")
    if options.csv is not None:
        write_atomically(options.csv, csv_text(table.reset_index()).encode())
    if options.json is not None:
        records = [
            {str(name): None if value != value else value for name, value in record.items()}
            for record in table.reset_index().to_dict("records")
        ]
        write_atomically(options.json, (json.dumps(records, indent=2) + "\n").encode())
    if options.plot is not None:
        picture = io.BytesIO()
        form = options.plot.suffix.lower().removeprefix(".")
        monitor.plot().savefig(picture, format=form, dpi=150)
        write_atomically(options.plot, picture.getvalue())


class _Learning:
    """Progress of learning a threshold, on a terminal, and its state on disk."""

    def __init__(self, monitor: ShiftMonitor, state: Path | None, quiet: bool) -> None:
        self.monitor, self.state = monitor, state
        self.shown = sys.stderr.isatty() and not quiet
        self.width = 0

    def show(self, done: int, of: int) -> None:
        if self.state is not None and done % SAVE_EVERY == 0:
            self.monitor.save(self.state)
        if self.shown:
            line = f"\rlearning what chance does: {done} of {of} splits"
            self.width = max(self.width, len(line))
            print(line, end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.width:
            print("\r" + " " * self.width, end="\r", file=sys.stderr, flush=True)
            self.width = 0
