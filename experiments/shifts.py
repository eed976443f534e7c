"""Shifts of an experiment: from a table to pairs of source and target with their classifier."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch

from experiments.classifiers import Classifier, Fitted
from experiments.tables import Table
from sees_torch import SeesError, ShiftedPair, resample_shift


@dataclass(frozen=True)
class Draw:
    """What the methods see, and what they do not.

    Attributes:
        pair: names of source and target, empty where a table is drawn twice.
        inputs: keyword arguments of `estimate_shift`.
        target_labels: None where they are not known.
        realised_gap: accuracy on these target rows minus accuracy on these source rows.
        truth: the simulated shift; None where it is natural.
    """

    pair: str
    inputs: dict[str, Any]
    target_labels: np.ndarray | None
    realised_gap: float
    truth: ShiftedPair | None = None


@dataclass(frozen=True)
class Drawing:
    """How many rows, in which order, by which seed (see `resample_shift`)."""

    rows: int = 5000
    target_rows: int | None = None
    order: str = "classifier-first"
    seed: int = 0


class Shift(Protocol):
    """Draws from a table."""

    def draws(self, table: Table, classifier: Classifier, how: Drawing) -> Iterator[Draw]:
        """One draw, or one a pair of samples."""


@dataclass(frozen=True)
class Laws:
    """A sparse joint shift by the laws of (features, label) in source and target."""

    features: Sequence[str]
    source_law: Mapping[Any, Any]
    target_law: Mapping[Any, Any]
    shifted: Sequence[str] | None = None

    def draws(self, table: Table, classifier: Classifier, how: Drawing) -> Iterator[Draw]:
        pair = resample_shift(
            table.load(),
            table.label,
            list(self.features),
            self.source_law,
            self.target_law,
            n=how.rows,
            m=how.target_rows or how.rows,
            fit=classifier.fit,
            order=how.order,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(how.seed),
        )
        hidden = list(classifier.hidden)
        source, target = (part.drop(columns=hidden) for part in (pair.source, pair.target))
        pair = replace(pair, source=source, target=target)
        shifted = tuple(self.features if self.shifted is None else self.shifted)
        yield Draw("", pair.inputs(), pair.target_labels, pair.realised_gap, _trim(pair, shifted))


def _trim(pair: ShiftedPair, shifted: tuple[str, ...]) -> ShiftedPair:
    """The pair described by the features that really shift: a law may name more."""
    if shifted == pair.features:
        return pair
    kept = [pair.features.index(name) for name in shifted]
    weights = {(*(key[j] for j in kept), key[-1]): w for key, w in pair.weight_table.items()}
    return replace(pair, features=shifted, weight_table=weights)


@dataclass(frozen=True)
class Rates:
    """The first `count` of some features shift with a binary label.

    Every cell of the levels is equally likely in source and target; the rate of the second label
    is `source_rate` in every cell of the source and, in the target, by cell (the last feature
    varies fastest).
    """

    levels: Mapping[str, Sequence[Hashable]]
    labels: tuple[Hashable, Hashable]
    source_rate: float
    target_rates: Mapping[int, Sequence[float]]
    count: int = 1

    def laws(self) -> Laws:
        """The laws of the chosen number of features."""
        if self.count not in self.target_rates:
            raise SeesError(f"count takes one of {sorted(self.target_rates)}, got {self.count}.")
        features = list(self.levels)[: self.count]
        cells = list(product(*(self.levels[name] for name in features)))
        rates = self.target_rates[self.count]
        if len(rates) != len(cells):
            raise SeesError(f"{features} have {len(cells)} cells, target_rates {len(rates)}.")
        source = self._law(cells, [self.source_rate] * len(cells))
        return Laws(features, source, self._law(cells, rates))

    def _law(
        self, cells: Sequence[tuple[Hashable, ...]], rates: Sequence[float]
    ) -> dict[tuple[Hashable, ...], float]:
        shares = {}
        for cell, rate in zip(cells, rates, strict=True):
            shares[(*cell, self.labels[0])] = 1 - rate
            shares[(*cell, self.labels[1])] = rate
        return shares

    def draws(self, table: Table, classifier: Classifier, how: Drawing) -> Iterator[Draw]:
        return self.laws().draws(table, classifier, how)


@dataclass(frozen=True)
class Tilted:
    """The table's own law of (features, label), in the target times exp(strength x noise).

    For a table of one's own: name the features that should shift with the label.
    """

    features: Sequence[str]
    strength: float = 1.0
    seed: int = 0

    def draws(self, table: Table, classifier: Classifier, how: Drawing) -> Iterator[Draw]:
        columns = [*self.features, table.label]
        source = table.load().value_counts(columns, normalize=True, dropna=False).sort_index()
        noise = np.random.default_rng(self.seed).normal(size=len(source))
        target = source * np.exp(self.strength * noise)
        laws = Laws(self.features, source.to_dict(), target.to_dict())
        return laws.draws(table, classifier, how)


@dataclass(frozen=True)
class Natural:
    """Samples of a table from several places or times; the classifier learns on half a sample.

    Args:
        pairs: [source, target] names; by default all pairs of the table's samples.
    """

    pairs: Sequence[Sequence[str]] | None = None

    def draws(self, table: Table, classifier: Classifier, how: Drawing) -> Iterator[Draw]:
        if self.pairs is None and len(table.samples) < 2:
            raise SeesError(f"{table.name} has no samples to compare: set data.samples or a shift.")
        pairs = [tuple(pair) for pair in self.pairs or permutations(table.samples, 2)]
        for source in dict.fromkeys(pair[0] for pair in pairs):
            place = list(table.samples).index(source) if source in table.samples else 0
            random = np.random.default_rng([how.seed, place])
            known = table.load(source)
            # A finished classifier leaves all rows to the source.
            known = _shuffled(known, how.rows if classifier.hidden else 2 * how.rows, random)
            half = 0 if classifier.hidden else len(known) // 2
            train, known = known[: half or None], known[half:].reset_index(drop=True)
            model = classifier.fit(train.drop(columns=table.label), train[table.label].to_numpy())
            for _, target in (pair for pair in pairs if pair[0] == source):
                other = _shuffled(table.load(target), how.target_rows or how.rows, random)
                yield _natural(f"{source} → {target}", table.label, known, other, model, classifier)


def _shuffled(frame: pd.DataFrame, rows: int, random: np.random.Generator) -> pd.DataFrame:
    return frame.iloc[random.permutation(len(frame))[:rows]].reset_index(drop=True)


def _natural(
    name: str,
    label: str,
    known: pd.DataFrame,
    other: pd.DataFrame,
    model: Fitted,
    classifier: Classifier,
) -> Draw:
    hidden = list(classifier.hidden)
    source, target = (part.drop(columns=label, errors="ignore") for part in (known, other))
    proba = [model.predict_proba(part) for part in (source, target)]
    labels = known[label].to_numpy()
    answers = other[label].to_numpy() if label in other and other[label].notna().all() else None
    classes = np.array(model.classes_)
    gap = float("nan")
    if answers is not None:
        right = [
            float(np.mean(classes[p.argmax(axis=1)] == y))
            for p, y in zip(proba, (labels, answers), strict=True)
        ]
        gap = right[1] - right[0]
    inputs = {
        "source": source.drop(columns=hidden),
        "labels": labels,
        "target": target.drop(columns=hidden),
        "source_proba": proba[0],
        "target_proba": proba[1],
        "classes": model.classes_,
    }
    return Draw(name, inputs, answers, gap)
