"""Inputs of the front door, drawn by hypothesis: structure is drawn, rows follow from a seed.

Shrinking then works on what matters (sizes, kinds, oddities), and a case prints as its recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

KINDS = ("int", "float", "text", "bool", "category", "date", "huge", "constant", "gone")
PROBABILITIES = ("soft", "sharp", "certain", "denormal", "flat", "blind")
LABELS = ("int", "text", "bool", "date")
WEIGHTS = (None, "whole", "zeros", "fractions")


def told(line: str) -> None:
    """Say how far a run is, so that one that is cut off leaves its count (`pytest -s`)."""
    print(line, flush=True)  # noqa: T201


@dataclass(frozen=True)
class Recipe:
    """How a case is made.

    Attributes:
        rows: of source and target.
        classes: number of classes; shown: how many of them the source shows.
        columns: (kind, levels, share of missing cells) of every column; "copy" repeats the first.
        proba: form of the probabilities, of source and target.
        label: type of the labels.
        weights: multiplicities of source and target.
        strange: share of target rows whose features the source need not show.
        seed: of everything else.
    """

    rows: tuple[int, int]
    classes: int
    shown: int
    columns: tuple[tuple[str, int, float], ...]
    proba: tuple[str, str]
    label: str
    weights: tuple[str | None, str | None]
    strange: float
    seed: int

    def make(self) -> Case:
        rng = np.random.default_rng(self.seed)
        n, m = self.rows
        k = self.classes
        labels = rng.integers(0, self.shown, n)
        # Every class that fits is shown: chance would leave small samples with a single one.
        fits = min(n, self.shown)
        labels[rng.permutation(n)[:fits]] = np.arange(fits)
        hidden = rng.integers(0, k, m)
        frames = _frames(self, rng, labels, hidden)
        return Case(
            frames[0],
            _names(self.label, k)[labels],
            frames[1],
            _proba(self.proba[0], labels, k, rng),
            _proba(self.proba[1], hidden, k, rng),
            list(_names(self.label, k)),
            _weight(self.weights[0], n, rng),
            _weight(self.weights[1], m, rng),
        )


@dataclass(frozen=True)
class Case:
    """The arguments of `estimate_shift` that are data."""

    source: pd.DataFrame
    labels: Any
    target: pd.DataFrame
    source_proba: np.ndarray
    target_proba: np.ndarray
    classes: list[Any]
    source_weight: np.ndarray | None
    target_weight: np.ndarray | None

    def inputs(self) -> dict[str, Any]:
        return dict(self.__dict__)


def _frames(
    recipe: Recipe, rng: np.random.Generator, labels: np.ndarray, hidden: np.ndarray
) -> tuple[pd.DataFrame, pd.DataFrame]:
    n = len(labels)
    columns: dict[str, pd.Series] = {}
    for place, (kind, levels, missing) in enumerate(recipe.columns):
        if kind == "copy" and columns:
            columns[f"c{place}"] = columns["c0"].copy()
            continue
        # Half of the columns know the label, so that weights have something to depend on.
        known = np.concatenate([labels, hidden]) if place % 2 else 0
        codes = (rng.integers(0, levels, n + len(hidden)) + known) % levels
        strange = rng.random(len(codes)) < recipe.strange
        strange[:n] = False
        column = _column(kind, np.where(strange, codes + levels, codes), rng)
        columns[f"c{place}"] = column.mask(rng.random(len(codes)) < missing)
    whole = pd.DataFrame(columns)
    return whole.iloc[:n].reset_index(drop=True), whole.iloc[n:].reset_index(drop=True)


def _column(kind: str, codes: np.ndarray, rng: np.random.Generator) -> pd.Series:
    values = pd.Series(codes)
    if kind in ("int", "copy"):
        return values
    if kind == "float":
        return values + rng.random(len(codes))
    if kind == "text":
        return values.map(lambda code: f"=level {code} <b>")
    if kind == "bool":
        return values % 2 == 1
    if kind == "category":
        return values.astype(str).astype("category")
    if kind == "date":
        return pd.to_datetime("2020-02-28") + pd.to_timedelta(values, unit="D")
    if kind == "huge":
        return pd.Series(np.array([1e300, -1e300, 5e-324, 0.0, 1e-300])[codes % 5] * (1 + codes))
    if kind == "constant":
        return pd.Series(np.full(len(codes), 7))
    return pd.Series(np.full(len(codes), np.nan))


def _names(kind: str, classes: int) -> np.ndarray:
    if kind == "text":
        return np.array([f"class {place:02d}" for place in range(classes)], dtype=object)
    if kind == "bool" and classes == 2:
        return np.array([False, True])
    if kind == "date":
        return pd.date_range("2021-01-01", periods=classes).to_numpy()
    return np.arange(classes)


def _proba(kind: str, labels: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    n = len(labels)
    right = np.eye(classes)[labels]
    if kind == "flat":
        return np.full((n, classes), 1 / classes)
    if kind == "certain":
        wrong = rng.random(n) < 0.2
        return np.eye(classes)[np.where(wrong, rng.integers(0, classes, n), labels)]
    if kind == "denormal":
        tiny = np.where(rng.random((n, classes)) < 0.5, 5e-324, 0.0)
        tiny[np.arange(n), labels] = 1.0
        return tiny
    if kind == "blind":
        # The first class is never predicted, nor thought possible.
        p = rng.dirichlet(np.ones(classes), n)
        p[:, 0] = 0.0
        p[:, -1] += 1e-12
        return p / p.sum(axis=1, keepdims=True)
    scale = 1.0 if kind == "soft" else 30.0
    scores = scale * (right + 0.5 * rng.standard_normal((n, classes)))
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _weight(kind: str | None, rows: int, rng: np.random.Generator) -> np.ndarray | None:
    if kind is None:
        return None
    if kind == "whole":
        return rng.integers(1, 5, rows).astype(float)
    if kind == "zeros":
        return rng.integers(0, 3, rows).astype(float)
    return rng.random(rows) * 10.0 ** rng.integers(-6, 6)


MISSING = st.sampled_from([0.0, 0.0, 0.1, 0.9, 1.0])
COLUMN = st.tuples(
    st.sampled_from((*KINDS, "copy")),
    st.one_of(st.integers(1, 4), st.sampled_from([12, 60, 500, 10_000])),
    MISSING,
)
WIDE = st.tuples(st.sampled_from(("int", "float", "text", "category")), st.just(10_000), MISSING)


@st.composite
def recipes(draw: Any, most: int = 250, many_classes: bool = True, plain: bool = False) -> Recipe:
    """Recipes of cases.

    Args:
        most: rows of a sample.
        many_classes: now and then up to 50 classes.
        plain: no probabilities at their limits, no rows without weight: where answers must agree
            with each other, and not only exist.
    """
    few = st.integers(2, 10 if not plain else 4)
    classes = draw(st.one_of(few, few, few, st.sampled_from([20, 50])) if many_classes else few)
    usual = st.integers(40, most)
    few_rows = st.sampled_from([12, 7, 4, 3, 2, 2, 1])
    sizes = usual if plain else st.one_of(usual, usual, usual, few_rows)
    forms = st.sampled_from(PROBABILITIES[:2] if plain else PROBABILITIES)
    weights = st.sampled_from((None, "whole") if plain else WEIGHTS)
    return Recipe(
        rows=(draw(sizes), draw(sizes)),
        classes=classes,
        shown=classes if plain else draw(st.one_of(st.integers(2, classes), st.just(classes))),
        columns=tuple(draw(st.lists(COLUMN, min_size=1, max_size=5))),
        proba=(draw(forms), draw(forms)),
        label=draw(st.sampled_from(LABELS)),
        weights=(draw(weights), draw(weights)),
        strange=draw(st.sampled_from([0.0, 0.0, 0.2, 1.0])) if not plain else 0.0,
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def large_recipes(draw: Any) -> Recipe:
    """Recipes with thousands of rows, and a column whose 10,000 levels are mostly shown."""
    rows = st.integers(10_000, 30_000)
    return Recipe(
        rows=(draw(rows), draw(rows)),
        classes=draw(st.integers(2, 4)),
        shown=2,
        columns=(draw(WIDE), *draw(st.lists(COLUMN, min_size=1, max_size=2))),
        proba=(draw(st.sampled_from(PROBABILITIES)), draw(st.sampled_from(PROBABILITIES))),
        label=draw(st.sampled_from(LABELS)),
        weights=(None, None),
        strange=draw(st.sampled_from([0.0, 0.2])),
        seed=draw(st.integers(0, 2**16)),
    )
