"""KLIEP and DLU: against cvxpy and scikit-learn, and on rows that are merged or cut into pieces."""

import numpy as np
import pytest
import torch
from worlds import (
    drawn_world,
    mixed_frame,
    penalised_loss,
    penalised_optimum,
    row_weights,
    samples,
)

from sees_torch import DLU, KLIEP, FeatureBasis, SeesError, Source, Target

METHODS = {"kliep": KLIEP(), "kliep, few rows": KLIEP(centres=20, rows=50), "dlu": DLU()}
PAIR = drawn_world(4, 900, 700, features=4, levels=3, classes=2)


def build(pair, weight=(None, None), rows=(slice(None), slice(None))):
    here, there = rows
    source = Source(
        pair.source.iloc[here], pair.labels[here], pair.source_proba[here], weight=weight[0]
    )
    target = Target(pair.target.iloc[there], pair.target_proba[there], source, weight=weight[1])
    return source, target


def mixed():
    """Samples with continuous columns, no two rows alike."""
    rng = np.random.default_rng(0)
    frame, later = mixed_frame(rng, 300), mixed_frame(rng, 250)
    later["age"] += 5
    source = Source(frame, np.arange(300) % 2, rng.random(300))
    return source, Target(later, rng.random(250), source)


@pytest.mark.parametrize("name", METHODS)
def test_merged_rows_equal_repeated_rows(name):
    """Kernel centres and folds are drawn by what is in a row, not by where it is."""
    rng = np.random.default_rng(1)
    repeat = rng.integers(1, 6, 900), rng.integers(1, 6, 700)
    order = [rng.permutation(np.repeat(np.arange(len(r)), r)) for r in repeat]
    counted = build(PAIR, weight=[r.astype(float) for r in repeat])
    repeated = build(PAIR, rows=order)
    found, other = (METHODS[name].match(*samples) for samples in (counted, repeated))
    np.testing.assert_allclose(
        row_weights(other, repeated[0]), row_weights(found, counted[0])[order[0]], atol=1e-9
    )


@pytest.mark.parametrize("name", METHODS)
def test_rows_without_multiplicity_do_not_count(name):
    here, there = np.arange(900) < 800, np.arange(700) % 7 > 0
    some = build(PAIR, rows=(here, there))
    masked = build(PAIR, weight=(here.astype(float), there.astype(float)))
    found, other = (METHODS[name].match(*samples) for samples in (some, masked))
    np.testing.assert_allclose(
        row_weights(other, masked[0])[here], row_weights(found, some[0]), atol=1e-9
    )


@pytest.mark.parametrize("name", METHODS)
def test_pieces_do_not_change_the_answer(name, monkeypatch):
    pair = mixed()
    whole = row_weights(METHODS[name].match(*pair), pair[0])
    monkeypatch.setattr("sees_torch.statistics.basis.PIECE", 64)
    parts = row_weights(METHODS[name].match(*pair), pair[0])
    np.testing.assert_allclose(parts, whole, atol=1e-9)


def test_kliep_reaches_cvxpys_objective():
    source, target = mixed()
    match = KLIEP(centres=40).match(source, target)
    basis = match.weight_function.basis
    z, c = basis(target.rows).numpy(), basis(source.rows).numpy().mean(axis=0)
    free, mass = np.full(len(c), -1), np.full(len(z), 1 / len(z))
    a = match.weight_function.coefficient[:, 0].numpy()
    best = penalised_optimum(z, mass, c, free, 0.0)
    found, least = (penalised_loss(z, mass, free, 0.0, v) for v in (a, best))
    assert abs(c @ a - 1) < 1e-10
    assert found - least < 2e-6
    assert match.residual < 1e-6


def test_kliep_chooses_the_width_by_rows_left_out():
    """Two clusters that one wide kernel cannot tell apart."""
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(-3, 0.3, 400), rng.normal(3, 0.3, 400)])[:, None]
    y = np.concatenate([rng.normal(-3, 0.3, 100), rng.normal(3, 0.3, 500)])[:, None]
    source = Source(x, np.arange(800) % 2, np.full(800, 0.5))
    target = Target(y, np.full(600, 0.5), source)
    match = KLIEP(widths=(4.0, 1000.0)).match(source, target)
    weights = row_weights(match, source)
    # 1/6 over 1/2 and 5/6 over 1/2, within three standard errors of 600 rows.
    assert abs(weights[:400].mean() - 1 / 3) < 0.1
    assert abs(weights[400:].mean() - 5 / 3) < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_no_other_width_is_better_than_the_one_that_climbing_finds(seed):
    """Two candidates are compared outright."""
    source, target = samples(drawn_world(seed, 300, 250, features=3, levels=[4, 3, 5]))
    widths = KLIEP().widths
    found = {w: KLIEP(centres=30, widths=(w,)).match(source, target) for w in widths}
    width = {w: float(match.weight_function.basis.width) for w, match in found.items()}
    chosen = float(KLIEP(centres=30).match(source, target).weight_function.basis.width)
    best = next(w for w in widths if width[w] == chosen)
    for other in set(widths) - {best}:
        match = KLIEP(centres=30, widths=(other, best)).match(source, target)
        assert float(match.weight_function.basis.width) == chosen


def test_centres_are_rows_of_the_target():
    source, target = mixed()
    function = KLIEP(centres=30, widths=(1.0,)).match(source, target).weight_function
    apart = torch.cdist(function.basis.centres, FeatureBasis(source)(target.rows))
    assert float(apart.amin(dim=1).max()) < 1e-6


@pytest.mark.parametrize(
    "options", [{"centres": 0}, {"widths": ()}, {"widths": (-1.0,)}, {"rows": 0}]
)
def test_refused_settings(options):
    with pytest.raises(SeesError):
        KLIEP(**options)
