"""The `sees` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sees_torch.data import Source, Target
from sees_torch.data.files import TableFile
from sees_torch.data.streams import MAX_ROWS
from sees_torch.errors import SchemaError, SeesError, SeesWarning
from sees_torch.estimate import estimate_shift
from sees_torch.matching import Method, SEESc, SEESd, SEESem
from sees_torch.matching.names import METHODS
from sees_torch.report import ShiftReport
from sees_torch.version import __version__

PICTURES = (".png", ".pdf", ".svg", ".jpg")
EXIT_CODES = {"identified": 0, "weak": 3, "not_identified": 4}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done (and identified), 2 input refused, 3 the estimate is weak, 4 it is not identified.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SeesWarning)
        try:
            result: int = options.run(options)
        except (SeesError, OSError) as error:
            if options.traceback:
                raise
            print(f"sees: {error}", file=sys.stderr)
            result = 2
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"sees: warning: {message}", file=sys.stderr)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sees",
        description="How much did a deployed model's performance change, and which features moved?",
    )
    parser.add_argument("--version", action="version", version=f"sees-torch {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    demo = commands.add_parser("demo", help="a churn story with a known answer, and its picture")
    demo.add_argument("--rows", type=int, default=5000, help="rows of each sample (5000)")
    demo.add_argument("--seed", type=int, default=0, help="which draw (0)")
    demo.set_defaults(run=_demo)

    estimate = commands.add_parser(
        "estimate",
        help="estimate the shift between two files",
        epilog="exit code: 0 identified, 3 weak, 4 not identified, 2 input refused",
    )
    estimate.add_argument(
        "--source", required=True, type=Path, help="labelled rows, CSV, Parquet or JSON lines"
    )
    estimate.add_argument("--target", required=True, type=Path, help="unlabelled rows")
    estimate.add_argument("--label", required=True, help="label column of the source")
    estimate.add_argument(
        "--proba",
        required=True,
        nargs="+",
        metavar="COLUMN",
        help="probability columns of both files: one per class, or one for the second class",
    )
    estimate.add_argument(
        "--classes", nargs="+", metavar="CLASS", help="classes in the order of --proba"
    )
    estimate.add_argument(
        "--drop", nargs="+", default=[], metavar="COLUMN", help="columns to ignore"
    )
    estimate.add_argument(
        "--method", default="auto", choices=["auto", *METHODS], help="how to match (auto)"
    )
    estimate.add_argument(
        "--sparsity", type=_auto_or(int), help="shifted features, or auto; for sees-em, -d and -c"
    )
    estimate.add_argument("--eta", type=_auto_or(float), help="penalty, or auto; for sees-c")
    estimate.add_argument(
        "--metric", nargs="+", default=["accuracy"], help="metrics, the headline first (accuracy)"
    )
    estimate.add_argument("--estimator", default="auto", help="gap estimator (auto)")
    estimate.add_argument(
        "--confidence", type=float, default=0.95, help="level of the interval (0.95)"
    )
    estimate.add_argument(
        "--replicates", type=int, default=200, help="resamples; 0 for the analytic interval (200)"
    )
    estimate.add_argument(
        "--max-rows",
        type=int,
        default=MAX_ROWS,
        help=f"distinct rows of a file to keep in memory ({MAX_ROWS})",
    )
    estimate.add_argument("--quiet", action="store_true", help="show no progress")
    estimate.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    estimate.set_defaults(run=_estimate)

    for command in (demo, estimate):
        command.add_argument(
            "--plot", type=Path, metavar="FILE", help="write a picture (.png, .pdf)"
        )
        command.add_argument("--force", action="store_true", help="overwrite existing files")
        command.add_argument("--traceback", action="store_true", help="show errors in full")
    return parser


def _demo(options: argparse.Namespace) -> int:
    from sees_torch.demo import churn_pair

    picture = options.plot or Path("sees_demo.png")
    _check_outputs([picture], picture, options.force)
    if options.rows < 100:
        raise SeesError(f"--rows must be at least 100, got {options.rows}.")
    if not 0 <= options.seed < 2**63:
        raise SeesError(f"--seed must be a whole number from 0 to 2^63 - 1, got {options.seed}.")
    pair = churn_pair(options.rows, options.rows, options.seed)
    report = estimate_shift(**pair.inputs())
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
    report.plot().savefig(picture, dpi=150)
    print(f"\npicture: {picture}")
    return 0


def _estimate(options: argparse.Namespace) -> int:
    outputs = [path for path in (options.plot, options.json) if path is not None]
    _check_outputs(outputs, options.plot, options.force, (options.source, options.target))
    report = _estimate_files(options)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and int(os.environ["RANK"]):
        return 0  # The first process reports.
    print(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report.to_dict(), indent=2, default=str) + "\n")
    if options.plot is not None:
        report.plot().savefig(options.plot, dpi=150)
    # torchrun would take any other exit code for a crash.
    return 0 if several else EXIT_CODES[report.status]


def _estimate_files(options: argparse.Namespace) -> ShiftReport:
    label, proba, drop = options.label, options.proba, options.drop
    distributed, shard = _join_processes()
    source_file = TableFile(options.source, proba, label, drop=drop, shard=shard)
    target_file = TableFile(options.target, proba, drop=[label, *drop], shard=shard)
    for name in drop:
        if name not in source_file.columns and name not in target_file.columns:
            raise SchemaError(f"--drop: neither file has a column {name!r}.")
    if label in target_file.columns:
        print(f"sees: ignoring the label column {label!r} of {options.target}", file=sys.stderr)
    classes = None
    if options.classes is not None:
        classes = _typed_classes(options.classes, TableFile(options.source, proba, label))
    more: Any = {"max_rows": options.max_rows, "distributed": distributed}
    with _Progress(options.quiet) as progress:
        source = Source.from_batches(
            source_file, classes=classes, progress=progress.of("source"), **more
        )
        target = Target.from_batches(target_file, source, progress=progress.of("target"), **more)
    return estimate_shift(
        source,
        target=target,
        method=_configured(options),
        metric=options.metric,
        estimator=options.estimator,
        confidence=options.confidence,
        replicates=options.replicates,
    )


def _join_processes() -> tuple[bool, tuple[int, int]]:
    """Whether torchrun started several processes, and which of how many this one is."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return False, (0, 1)
    from torch import distributed

    distributed.init_process_group("gloo")
    return True, (distributed.get_rank(), distributed.get_world_size())


class _Progress:
    """Rows read so far, on a terminal."""

    def __init__(self, quiet: bool) -> None:
        self.shown = sys.stderr.isatty() and not quiet
        self.width = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.width:
            print("\r" + " " * self.width, end="\r", file=sys.stderr, flush=True)

    def of(self, what: str) -> Callable[[int], None]:
        def show(rows: int) -> None:
            if self.shown:
                line = f"\r{what}: {rows:,} rows read"
                self.width = max(self.width, len(line))
                print(line, end="", file=sys.stderr, flush=True)

        return show


def _configured(options: argparse.Namespace) -> str | Method:
    given = {"sparsity": options.sparsity, "eta": options.eta}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return str(options.method)
    takes: dict[str, tuple[Any, set[str]]] = {
        "sees-em": (SEESem, {"sparsity"}),
        "sees-d": (SEESd, {"sparsity"}),
        "sees-c": (SEESc, {"sparsity", "eta"}),
    }
    if options.method not in takes:
        raise SeesError(
            f"method {options.method} has no {' and no '.join(sorted(given))}: choose --method "
            "sees-em, sees-d or sees-c."
        )
    method, known = takes[options.method]
    surplus = sorted(set(given) - known)
    if surplus:
        raise SeesError(f"method {options.method} has no {' and no '.join(surplus)}.")
    configured: Method = method(**given)
    return configured


def _auto_or(kind: type[Any]) -> Any:
    """An argument that is "auto" or a number."""

    def number(text: str) -> Any:
        return text if text == "auto" else kind(text)

    number.__name__ = kind.__name__
    return number


def _typed_classes(given: list[str], source: TableFile) -> list[Any]:
    """Classes from the command line in the type that the label column has."""
    by_text: dict[str, Any] = {}
    for _, labels, _ in source:
        by_text.update({str(value): value for value in labels.unique().tolist()})

    def typed(text: str) -> Any:
        if text in by_text:
            return by_text[text]
        for value in by_text.values():
            if isinstance(value, float) and _number(text) == value:
                return value
        return text

    return [typed(text) for text in given]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_outputs(
    paths: list[Path], picture: Path | None, force: bool, inputs: Sequence[Path] = ()
) -> None:
    """Refuse files that cannot or should not be written, before any work is done."""
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise SeesError(f"{picture} is no picture name: end it with one of {', '.join(PICTURES)}.")
    for path in paths:
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
