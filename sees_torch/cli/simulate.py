"""`sees simulate`: a shift with a known answer, drawn from a user's own table."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sees_torch.cli.demo import check_draw
from sees_torch.cli.models import load_model
from sees_torch.cli.outputs import add_manners, add_outputs, check_outputs, write_outputs
from sees_torch.cli.predictions import add_predictions
from sees_torch.cli.progress import Progress
from sees_torch.cli.settings import add_settings, settings
from sees_torch.cli.tables import classes_of, named_columns, one_column
from sees_torch.data import Schema
from sees_torch.data.files import TableFile
from sees_torch.data.pairs import ShiftedPair
from sees_torch.data.probabilities import predict
from sees_torch.data.resampling import resample_shift
from sees_torch.errors import SchemaError, SeesError
from sees_torch.estimate import estimate_shift
from sees_torch.report import ShiftReport

if TYPE_CHECKING:
    import pandas as pd

DESCRIPTION = (
    "Draw a source and a target from one labelled table. The label and the features of --shift "
    "move together at random, everything else given them stays. Then estimate the shift without "
    "the target's labels, and print the truth beside the estimate: would SEES notice?"
)
CELL = "cell of the shift"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="a shift with a known answer from a table of yours",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "--table", required=True, type=Path, help="labelled rows, CSV, Parquet or JSON lines"
    )
    parser.add_argument("--label", required=True, help="label column, by name or pattern")
    add_predictions(parser)
    parser.add_argument(
        "--shift", nargs="*", default=[], metavar="COLUMN", help="features that move with the label"
    )
    parser.add_argument("--strength", type=float, default=1.0, help="of the shift; 0 for none (1)")
    parser.add_argument("--rows", type=int, help="rows of each sample (as many as the table has)")
    parser.add_argument("--seed", type=int, default=0, help="which shift and which draw (0)")
    parser.add_argument(
        "--drop",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns to ignore, by name or pattern",
    )
    add_settings(parser)
    add_outputs(parser)
    add_manners(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Draw, estimate, and print the truth beside the estimate."""
    check_outputs(options, [p for p in (options.table, options.model) if p])
    check_draw(options)
    if not options.strength >= 0:
        raise SeesError(f"--strength must be 0 or more, got {options.strength}.")
    with Progress(options) as progress:
        progress.step(f"reading {options.table}")
        pair = _drawn(options)
        progress.step(f"estimating from {len(pair.source):,} rows of each sample")
        report = estimate_shift(**pair.inputs(), **settings(options))
    write_outputs(report, options)
    print(report)
    print()
    print("\n".join(_truth(pair, report, options.strength)))
    return 0


def _drawn(options: argparse.Namespace) -> ShiftedPair:
    """The pair: the table's own law, and that law with every (cell, label) moved at random."""
    table, label, proba, model = _read(options)
    generator = torch.Generator().manual_seed(options.seed)
    cells = _cells(table, options.shift)
    law = _law(cells, table[label].tolist())
    tilt = torch.randn(len(law), generator=generator, dtype=torch.float64)
    factors = (options.strength * tilt).exp().tolist()
    moved = {
        cell: share * factor for (cell, share), factor in zip(law.items(), factors, strict=True)
    }
    rows = options.rows or len(table)
    pair = resample_shift(
        table.assign(**{CELL: cells}),
        label,
        [CELL],
        law,
        moved,
        n=rows,
        m=rows,
        model=model,
        order="classifier-first",
        generator=generator,
    )
    source, target = (part.drop(columns=[CELL, *proba]) for part in (pair.source, pair.target))
    return replace(pair, source=source, target=target, features=tuple(options.shift))


def _read(options: argparse.Namespace) -> tuple[pd.DataFrame, str, list[str], _Predictions]:
    """The labelled table, the names of its label and probabilities, and what predicts."""
    import pandas as pd

    path, separator = options.table, options.separator
    known = TableFile(path, [], separator=separator).columns
    proba = named_columns(options.proba or [], known, "--proba", path)
    label = one_column(options.label, known, "--label", path)
    drop = named_columns(options.drop, known, "--drop", path)
    absent = [name for name in (*options.shift, *drop) if name not in known]
    if absent:
        raise SchemaError(f"{path} has no columns {absent}; it has {known}.")
    file = TableFile(path, proba, label, separator=separator)
    classes = classes_of(options.classes, options.proba or [], proba, file)
    parts = []
    for features, labels, *given in file:
        part = features.assign(**{label: labels})
        parts.append(part.join(_named(given[0], proba, features)) if given else part)
    if not parts:
        raise SeesError(f"{path} has no rows.")
    table = pd.concat(parts, ignore_index=True).drop(columns=drop)
    table = table[table[label].notna()]
    classes = classes or sorted(set(table[label].tolist()))
    return table, label, proba, _Predictions(options, proba, classes)


def _named(values: Any, proba: list[str], features: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    matrix = np.asarray(values).reshape(len(features), len(proba))
    return pd.DataFrame(matrix, columns=pd.Index(proba), index=features.index)


class _Predictions:
    """What the model says of rows of the table: its columns, or a saved model's output."""

    def __init__(self, options: argparse.Namespace, proba: list[str], classes: list[Any]) -> None:
        self.proba, self.logits = proba, options.logits
        self.model = None if options.model is None else load_model(options.model)
        self.classes_ = np.empty(len(classes), dtype=object)
        self.classes_[:] = classes

    def __call__(self, table: pd.DataFrame) -> Any:
        if self.model is not None:
            return predict(self.model, table.drop(columns=CELL), "the table", logits=self.logits)
        found = table[self.proba]
        return (found.iloc[:, 0] if len(self.proba) == 1 else found).to_numpy()


def _cells(table: pd.DataFrame, features: list[str]) -> list[str]:
    """The cell of every row: levels of the shifted features, continuous ones by their quantiles."""
    if not features:
        return ["all rows"] * len(table)
    chosen = table[features]
    schema = Schema.learn(chosen)
    codes = schema.encode(chosen, "the table").codes.tolist()
    return [
        ", ".join(c.describe(code) for c, code in zip(schema.columns, row, strict=True))
        for row in codes
    ]


def _law(cells: list[str], labels: list[Any]) -> dict[tuple[Any, ...], float]:
    """Share of every (cell, label) of the table."""
    counts = Counter(zip(cells, labels, strict=True))
    ordered = sorted(counts, key=lambda key: (key[0], str(key[1])))
    return {key: counts[key] / len(cells) for key in ordered}


def _truth(pair: ShiftedPair, report: ShiftReport, strength: float) -> list[str]:
    """What really happened, and whether the estimate noticed."""
    moved = strength > 0
    names = ", ".join(pair.features) or "none (labels only)"
    said = [
        "what really happened (the estimate saw no target label):",
        f"  shifted features: {names if moved else 'nothing shifted'}",
        f"  gap: {100 * pair.population_gap:+.1f} points in the population, "
        f"{100 * pair.realised_gap:+.1f} in these rows",
    ]
    wanted = set(pair.features) if moved else set()
    found = set(report.shifted_features)
    if found == wanted:
        said.append("  features: found" if wanted else "  features: none named, rightly")
    else:
        missed = ", ".join(sorted(wanted - found)) or "none"
        extra = ", ".join(sorted(map(str, found - wanted))) or "none"
        said.append(f"  features: missed {missed}; named though they did not shift: {extra}")
    if report.interval is not None:
        low, high = report.interval
        inside = low <= pair.population_gap <= high
        said.append(f"  the interval {'holds' if inside else 'MISSES'} the population gap")
    return said
