"""What must not change the answer, does not: order, names, batches, multiplicities, precision."""

import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases import Case, recipes, told
from hypothesis import given, settings
from hypothesis import strategies as st

from sees_torch import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    NoShift,
    SEESc,
    SEESd,
    SEESem,
    SeesError,
    SeesWarning,
    Source,
    Target,
    estimate_shift,
)

TABLES = (SEESd(), SEESem(features=("c0",), shrinkage=10.0), BBSE(), CBPE(), NoShift())
LIKELIHOODS = (SEESc(), MLLS(), DLU(), KLIEP(centres=10, widths=(1.0,)))
"""Solved to 1e-9 of an objective, which is flat near its minimum."""
METHODS = st.sampled_from(TABLES + LIKELIHOODS)
short = settings(max_examples=6, derandomize=True, deadline=None, database=None)
long = settings(max_examples=150, deadline=None, database=None)


def gap(case: Case, method, **samples) -> float | None:
    """The gap, None if the input is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        try:
            given = samples or case.inputs()
            return estimate_shift(**given, method=method, calibrate=False, confidence=None).gap
        except SeesError:
            return None


def assert_same(case: Case, other: Case, method, slack: float = 1e-7, **samples) -> bool:
    """Both give the same gap, or both are refused; whether there was a gap."""
    before, after = gap(case, method), gap(other, method, **samples)
    if before is None or after is None:
        assert before == after
        return False
    assert after == pytest.approx(before, abs=max(slack, 1e-4 if method in LIKELIHOODS else 0.0))
    return True


def part(value, rows):
    if value is None:
        return None
    return value.iloc[rows] if isinstance(value, pd.DataFrame) else value[rows]


def rows_of(case: Case, here, there) -> Case:
    """Some of the rows, in some order."""
    return replace(
        case,
        source=part(case.source, here),
        labels=part(case.labels, here),
        source_proba=part(case.source_proba, here),
        source_weight=part(case.source_weight, here),
        target=part(case.target, there),
        target_proba=part(case.target_proba, there),
        target_weight=part(case.target_weight, there),
    )


def row_order(recipe, method):
    case, rng = recipe.make(), np.random.default_rng(recipe.seed)
    here, there = (rng.permutation(rows) for rows in recipe.rows)
    return assert_same(case, rows_of(case, here, there), method)


def column_order(recipe, method):
    case = recipe.make()
    names = list(case.source)[::-1]
    return assert_same(
        case, replace(case, source=case.source[names], target=case.target[names]), method
    )


def class_order(recipe, method):
    case = recipe.make()
    order = np.random.default_rng(recipe.seed).permutation(recipe.classes)
    other = replace(
        case,
        classes=[case.classes[place] for place in order],
        source_proba=case.source_proba[:, order],
        target_proba=case.target_proba[:, order],
    )
    return assert_same(case, other, method)


def class_names(recipe, method):
    """Other names, which sort the other way round."""
    case = recipe.make()
    names = {name: f"named {99 - place}" for place, name in enumerate(case.classes)}
    other = replace(
        case,
        classes=list(names.values()),
        labels=np.array([names[label] for label in case.labels], dtype=object),
    )
    return assert_same(case, other, method)


def level_names(recipe, method):
    """Text levels under other names, which sort the other way round."""
    if isinstance(method, KLIEP):  # Of equally frequent rows, centres go by their levels.
        method = replace(method, centres=sum(recipe.rows))
    case = recipe.make()
    texts = [f"c{place}" for place, (kind, _, _) in enumerate(recipe.columns) if kind == "text"]

    def renamed(frame):
        back = lambda text: f"level {10**6 - int(text.split()[1])}"  # noqa: E731
        return frame.assign(**{name: frame[name].map(back, na_action="ignore") for name in texts})

    other = replace(case, source=renamed(case.source), target=renamed(case.target))
    return assert_same(case, other, method)


def multiplicities(recipe, method):
    case = replace(recipe, weights=("whole", "whole")).make()
    here, there = (
        np.repeat(np.arange(len(weight)), weight.astype(int))
        for weight in (case.source_weight, case.target_weight)
    )
    repeated = replace(rows_of(case, here, there), source_weight=None, target_weight=None)
    return assert_same(case, repeated, method)


def batches(recipe, method):
    case = replace(recipe, weights=("whole", "whole")).make()

    def cut(rows):
        return [piece for piece in np.array_split(np.arange(rows), 3) if len(piece)]

    labelled = [
        (case.source.iloc[i], case.labels[i], case.source_proba[i], case.source_weight[i])
        for i in cut(recipe.rows[0])
    ]
    unlabelled = [
        (case.target.iloc[i], case.target_proba[i], case.target_weight[i])
        for i in cut(recipe.rows[1])
    ]
    try:
        source = Source.from_batches(labelled, classes=case.classes, weighted=True)
        target = Target.from_batches(unlabelled, source, weighted=True)
    except SeesError:
        assert gap(case, method) is None
        return False
    return assert_same(case, case, method, source=source, target=target)


def single_precision(recipe, method):
    case = recipe.make()
    other = replace(
        case,
        source_proba=case.source_proba.astype(np.float32),
        target_proba=case.target_proba.astype(np.float32),
    )
    return assert_same(case, other, method, slack=1e-4)


CHANGES = (
    row_order,
    column_order,
    class_order,
    class_names,
    level_names,
    multiplicities,
    batches,
    single_precision,
)


def compared(change, inputs, profile) -> None:
    """No drawn input's gap changes; prints how many there were."""
    tally = Counter()

    @profile
    @given(inputs, METHODS)
    def one(recipe, method):
        tally["gaps" if change(recipe, method) else "refused"] += 1
        if tally.total() % 25 == 0:
            told(f"{change.__name__}: {dict(tally)}")

    one()
    told(
        f"{change.__name__}: {tally['gaps']} pairs of gaps agree, {tally['refused']} refused twice"
    )
    assert tally["gaps"] > 0.7 * tally.total()


@pytest.mark.parametrize("change", CHANGES)
def test_the_gap_does_not_depend_on(change):
    compared(change, recipes(most=80, many_classes=False, plain=True), short)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_the_gap_does_not_depend_at_length_on(change):
    compared(change, recipes(most=250, plain=True), long)
