"""Draw a source and a target with a known shift from any labelled table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from sees_torch.data.pairs import ShiftedPair
from sees_torch.data.probabilities import model_classes, predict, read_proba
from sees_torch.errors import SchemaError, SeesError, SupportError

if TYPE_CHECKING:
    import pandas as pd

Cell = tuple[Hashable, ...]
Order = Literal["split-first", "classifier-first", "draw-first"]
ORDERS: tuple[Order, ...] = ("split-first", "classifier-first", "draw-first")


def resample_shift(
    frame: pd.DataFrame,
    label: str,
    features: Sequence[str],
    source_law: Mapping[Any, Any],
    target_law: Mapping[Any, Any],
    *,
    n: int = 5000,
    m: int = 5000,
    fit: Callable[[pd.DataFrame, np.ndarray], Any] | None = None,
    model: Any = None,
    order: Order = "split-first",
    generator: torch.Generator | None = None,
) -> ShiftedPair:
    """A source and a target in which (features, label) follow the given laws.

    Within each cell of (features, label) rows are drawn from the table with replacement, so
    everything else given the cell is the same in both: a sparse joint shift with known weights.

    Args:
        frame: the table, features and label.
        label: name of the label column.
        features: names of the features that shift together with the label.
        source_law, target_law: {(level of each feature ..., label): probability}, or the same
            nested, {level: {...: {label: probability}}}. They are normalised to sum to one.
        n, m: rows of source and target.
        fit: trains the classifier, (features, labels) -> model, on n more rows drawn by the source
            law.
        model: a finished classifier, instead of `fit`.
        order: "split-first" splits the table into parts for classifier, source and target before
            drawing, so that no row is in two of them; where a cell has few rows its part of the
            source and its part of the target then differ by chance. "classifier-first" sets only
            the classifier's rows apart and draws source and target from all others, so that the
            shift is exactly sparse. "draw-first" is the paper's protocol, which draws all three
            from the whole table and so lets the classifier see rows it is tested on.
        generator: source of randomness; by default a fixed one.

    Returns:
        The pair. Its population gap is that of the laws with, inside each cell, all rows that the
        classifier was not trained on (all rows under "draw-first").
    """
    if (fit is None) == (model is None):
        raise SeesError("give either fit, to train a classifier, or a finished model.")
    if order not in ORDERS:
        raise SeesError(f"order takes one of {', '.join(ORDERS)}, got {order!r}.")
    absent = [name for name in (label, *features) if name not in frame.columns]
    if absent:
        raise SchemaError(f"the table has no columns {absent}; it has {list(frame.columns)}.")
    generator = generator or torch.Generator().manual_seed(0)
    laws = [_flatten(law, len(features) + 1) for law in (source_law, target_law)]
    cells = _Cells(frame, [*features, label])
    parts = _parts(len(frame), 2 if fit is None else 3, order, generator)
    source_rows = cells.draw(laws[0], n, parts[0], generator)
    target_rows = cells.draw(laws[1], m, parts[1], generator)
    inputs = frame.drop(columns=label)
    truth = frame[label].to_numpy()
    if fit is not None:
        train = cells.draw(laws[0], n, parts[2], generator)
        model = fit(inputs.iloc[train], truth[train])
    untrained = np.zeros(len(frame), dtype=bool)
    untrained[parts[0]] = untrained[parts[1]] = True
    known = np.flatnonzero(untrained)
    classes = model_classes(model) or tuple(sorted(set(truth.tolist())))

    def probabilities(rows: np.ndarray) -> np.ndarray:
        output = predict(model, inputs.iloc[rows], "the table")
        matrix = read_proba(output, len(rows), "the model's output", torch.device("cpu"))
        return np.asarray(matrix)

    hit = np.asarray(classes, dtype=object)[probabilities(known).argmax(axis=1)] == truth[known]
    ratio = {cell: laws[1].get(cell, 0.0) / p for cell, p in laws[0].items() if p > 0}
    stranded = [cell for cell, p in laws[1].items() if p > 0 and cell not in ratio]
    if stranded:
        raise SupportError(f"the target law has cells that the source law lacks: {stranded[:3]}.")
    return ShiftedPair(
        source=inputs.iloc[source_rows].reset_index(drop=True),
        labels=truth[source_rows],
        source_proba=probabilities(source_rows),
        target=inputs.iloc[target_rows].reset_index(drop=True),
        target_proba=probabilities(target_rows),
        target_labels=truth[target_rows],
        classes=classes,
        features=tuple(features),
        weight_table=ratio,
        weights=np.array([ratio[cells.keys[cells.of_row[row]]] for row in source_rows]),
        population_gap=cells.mean(laws[1], hit, known) - cells.mean(laws[0], hit, known),
    )


class _Cells:
    """Which rows of a table are in which cell of a few columns."""

    def __init__(self, frame: pd.DataFrame, columns: list[str]) -> None:
        self.columns = columns
        grouped = frame[columns].groupby(columns, sort=False, dropna=False)
        self.of_row = grouped.ngroup().to_numpy()
        _, first = np.unique(self.of_row, return_index=True)
        self.keys: list[Cell] = list(frame[columns].iloc[first].itertuples(index=False, name=None))
        self.names = {key: place for place, key in enumerate(self.keys)}

    def draw(
        self, law: Mapping[Cell, float], count: int, part: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        """`count` rows of `part`: a cell by the law, then a row of it, with replacement."""
        listed = [cell for cell, probability in law.items() if probability > 0]
        pools = [part[self.of_row[part] == self.names.get(cell, -1)] for cell in listed]
        empty = [cell for cell, pool in zip(listed, pools, strict=True) if not len(pool)]
        if empty:
            raise SupportError(
                f"the table has no rows with {self.columns} = {empty[0]} to draw from "
                f"({len(empty)} such cells). Check the spelling of the levels, or use more rows."
            )
        share = torch.tensor([law[cell] for cell in listed], dtype=torch.float64)
        chosen = torch.multinomial(share, count, replacement=True, generator=generator).numpy()
        place = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
        sizes = np.array([len(pool) for pool in pools])
        starts = np.cumsum(sizes) - sizes
        within = np.minimum((place * sizes[chosen]).astype(np.int64), sizes[chosen] - 1)
        return np.concatenate(pools)[starts[chosen] + within]

    def mean(self, law: Mapping[Cell, float], value: np.ndarray, rows: np.ndarray) -> float:
        """Mean of a value of `rows` when cells follow the law and rows of a cell are alike."""
        size = np.bincount(self.of_row[rows], minlength=len(self.names))
        total = np.bincount(self.of_row[rows], weights=value, minlength=len(self.names))
        places = [(self.names[cell], p) for cell, p in law.items() if p > 0]
        return float(sum(p * total[place] / size[place] for place, p in places))


def _parts(rows: int, count: int, order: str, generator: torch.Generator) -> list[np.ndarray]:
    """Row numbers of the source, target and (third) classifier parts."""
    if order == "draw-first":
        return [np.arange(rows)] * count
    shuffled = torch.randperm(rows, generator=generator).numpy()
    parts = [np.sort(part) for part in np.array_split(shuffled, count)]
    if order == "classifier-first":
        both = np.sort(np.concatenate(parts[:2]))
        return [both, both, *parts[2:]]
    return parts


def _flatten(law: Mapping[Any, Any], depth: int) -> dict[Cell, float]:
    """A law as {cell: probability}, normalised; nested mappings are walked."""
    flat: dict[Cell, float] = {}

    def walk(prefix: Cell, node: Any) -> None:
        if isinstance(node, Mapping):
            for key, child in node.items():
                walk((*prefix, *(key if isinstance(key, tuple) else (key,))), child)
        else:
            flat[prefix] = float(node)

    walk((), law)
    wrong = [cell for cell in flat if len(cell) != depth]
    total = sum(flat.values())
    if wrong or not flat or min(flat.values()) < 0 or not total > 0:
        raise SeesError(
            f"a law maps the levels of the {depth - 1} features and then a label to a "
            f"probability; got {wrong[:1] or flat}."
        )
    return {cell: p / total for cell, p in flat.items()}
