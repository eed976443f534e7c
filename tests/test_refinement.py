"""Probabilities that miss what the features say: refined where that pays, else left alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import sees_torch.refinement
from sees_torch import MLLS, CorrectedClassifier, Source, Target, estimate_shift
from sees_torch.calibration import MANY, Calibration, _apply, _Folds, _minimum, fold_shares
from sees_torch.gap import estimate_gap, row_values
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.refinement import LEAST_ROWS, Refinement
from sees_torch.uncertainty import bootstrap


def softmax(scores: np.ndarray) -> np.ndarray:
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def world(seed: int, rows: int, classes: int = 2, strength: float = 1.5, rates=(0.4, 0.3, 0.3)):
    """Features, labels, the probabilities of a model that does not know `city`, and the truth."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["a", "b", "c"], rows, p=rates),
            "plan": rng.choice(["x", "y"], rows),
        }
    )
    known = 1.5 * rng.normal(size=(rows, classes))
    effect = strength * np.array([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]])
    missed = np.zeros((rows, classes))
    missed[:, :2] = effect[frame["city"].map({"a": 0, "b": 1, "c": 2})]
    truth = softmax(known + missed)
    labels = (rng.random((rows, 1)) > truth.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return frame, labels, softmax(known), truth


def samples(frame, labels, proba, weight=None, classes=None):
    source = Source(frame, labels, proba, classes=classes or range(proba.shape[1]), weight=weight)
    return source, Target(frame, proba, source)


def posteriors(frame, labels, proba, weight=None, classes=None):
    source, target = samples(frame, labels, proba, weight, classes)
    fitted = Calibration.fit(source)
    assert fitted.refinement is not None
    return fitted.source(source).posterior, fitted.target(target).posterior


def excess(posterior, truth) -> float:
    """Mean log loss above the truth's, in expectation over labels."""
    return float((truth * (np.log(truth) - np.log(posterior))).sum(axis=1).mean())


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_that_misses_a_feature_is_refined(classes):
    frame, labels, proba, truth = world(classes, 3000, classes)
    source, target = samples(frame, labels, proba)
    refined, plain = Calibration.fit(source), Calibration.fit(source, "vector")
    assert refined.refinement is not None
    assert plain.refinement is None
    for side, sample in (("source", source), ("target", target)):
        after, before = (getattr(c, side)(sample).posterior.numpy() for c in (refined, plain))
        np.testing.assert_allclose(after.sum(axis=1), 1, rtol=1e-12)
        assert excess(after, truth) < 0.05 * excess(before, truth)


def test_the_gain_is_that_of_rows_held_out():
    frame, labels, proba, _ = world(0, 4000)
    fresh, fresh_labels, fresh_proba, _ = world(1, 4000)
    source, _ = samples(frame, labels, proba)
    other = Target(fresh, fresh_proba, source)
    refined, plain = Calibration.fit(source), Calibration.fit(source, "vector")
    after, before = (
        -np.log(c.target(other).posterior.numpy()[np.arange(4000), fresh_labels]).mean()
        for c in (refined, plain)
    )
    assert refined.refinement.gain == pytest.approx((before - after) / before, abs=0.05)


@pytest.mark.parametrize("rows", [1000, 6000])
def test_a_model_that_knows_is_left_alone(rows):
    frame, labels, _, truth = world(rows, rows)
    source, target = samples(frame, labels, truth)
    fitted, plain = Calibration.fit(source), Calibration.fit(source, "vector")
    assert fitted.refinement is None
    assert torch.equal(fitted.target(target).posterior, plain.target(target).posterior)


def test_a_little_that_the_model_misses_is_left_to_it():
    """Clear beyond doubt with so many rows, but worth less than one percent."""
    frame, labels, proba, truth = world(3, 30_000, strength=0.1)
    source, _ = samples(frame, labels, proba)
    plain = Calibration.fit(source, "vector").source(source).posterior.numpy()
    assert excess(plain, truth) > 5e-4
    assert Calibration.fit(source).refinement is None


def test_levels_of_noise_are_no_gain():
    """As many levels as a tenth of the rows, none of which says anything."""
    rng = np.random.default_rng(0)
    _, labels, _, truth = world(0, 1000)
    frame = pd.DataFrame({f"x{j}": rng.integers(10, size=1000).astype(str) for j in range(10)})
    assert Calibration.fit(samples(frame, labels, truth)[0]).refinement is None


def test_few_rows_cannot_tell():
    frame, labels, proba, _ = world(0, LEAST_ROWS - 1, strength=5.0)
    assert Calibration.fit(samples(frame, labels, proba)[0]).refinement is None


def test_many_classes_are_not_refined():
    frame, labels, proba, _ = world(0, 3000, classes=MANY + 1, strength=3.0)
    assert Calibration.fit(samples(frame, labels, proba)[0]).refinement is None


def test_row_order_changes_nothing():
    frame, labels, proba, _ = world(4, 1500)
    order = np.random.default_rng(0).permutation(1500)
    before, after = posteriors(frame, labels, proba)
    moved, moved_after = posteriors(frame.iloc[order], labels[order], proba[order])
    np.testing.assert_allclose(moved, before[order], atol=1e-10)
    np.testing.assert_allclose(moved_after, after[order], atol=1e-10)


def test_multiplicities_equal_repeated_rows():
    frame, labels, proba, _ = world(5, 1200)
    weight = np.random.default_rng(0).integers(1, 4, 1200)
    once, _ = posteriors(frame, labels, proba, weight)
    place = np.repeat(np.arange(1200), weight)
    repeated, _ = posteriors(frame.iloc[place], labels[place], proba[place])
    np.testing.assert_allclose(repeated, once[place], atol=1e-10)


def test_class_order_changes_nothing():
    frame, labels, proba, _ = world(6, 1500, classes=3)
    here, there = posteriors(frame, labels, proba)
    turned, turned_there = posteriors(frame, labels, proba[:, ::-1].copy(), classes=[2, 1, 0])
    np.testing.assert_allclose(turned.numpy()[:, ::-1], here, atol=1e-8)
    np.testing.assert_allclose(turned_there.numpy()[:, ::-1], there, atol=1e-8)


def test_many_rows_are_fitted_by_a_part_of_them(monkeypatch):
    frame, labels, proba, truth = world(7, 6000)
    source, target = samples(frame, labels, proba)
    whole = Calibration.fit(source).target(target).posterior.numpy()
    monkeypatch.setattr(sees_torch.refinement, "MOST_ROWS", 1500)
    part = Calibration.fit(source)
    plain = Calibration.fit(source, "vector").target(target).posterior.numpy()
    found = part.target(target).posterior.numpy()
    assert not np.array_equal(found, whole)
    assert excess(found, truth) < 0.1 * excess(plain, truth)
    fitted_to = source, part.share, _apply(part.models, source.proba)
    felt = part.refinement.influence(*fitted_to, torch.ones_like(part.refinement.table))
    assert 1000 < int((felt != 0).sum()) < 2000


def test_the_commonest_levels_have_an_offset(monkeypatch):
    """Of `a` 40 %, `b` and `c` fewer, `x` and `y` half of the rows each."""
    monkeypatch.setattr(sees_torch.refinement, "MOST_LEVELS", 3)
    frame, labels, proba, _ = world(8, 3000)
    source, _ = samples(frame, labels, proba)
    fitted = Calibration.fit(source).refinement
    assert fitted.table.shape[1] == 3 + 1
    place = fitted.column[source.rows.codes + fitted.start]
    with_one = pd.concat(
        [frame["city"][(place[:, 0] < 3).numpy()], frame["plan"][(place[:, 1] < 3).numpy()]]
    )
    assert set(with_one) == {"a", "x", "y"}


def test_levels_that_the_source_never_showed_add_nothing():
    frame, labels, proba, _ = world(9, 2000)
    source, _ = samples(frame, labels, proba)
    fitted = Calibration.fit(source)
    new = pd.DataFrame({"city": ["z"] * 5, "plan": ["w"] * 5})
    target = Target(new, proba[:5], source)
    only_stretched = fitted.refinement.table.clone()
    only_stretched[:, :-1] = 0.0
    plain = replace(fitted, refinement=replace(fitted.refinement, table=only_stretched))
    assert torch.equal(fitted.target(target).posterior, plain.target(target).posterior)


def test_offsets_are_the_minimum():
    frame, labels, proba, _ = world(10, 1500, classes=3)
    source, _ = samples(frame, labels, proba)
    share = fold_shares(source)
    models = Calibration.fit(source).models
    p = _apply(models, source.proba)
    found = Refinement.fit(source, share, p)
    levels = found._levels(source, share, p)
    slope = levels.slope(found.table, levels.fitted(found.table))
    assert float(slope.abs().max()) < 1e-6


@pytest.mark.parametrize("classes", [2, 3])
def test_influence_is_what_fitting_to_a_little_more_of_a_row_does(classes):
    """To a few percent: the folds share one curvature, and labels' curvatures are told apart."""
    frame, labels, proba, _ = world(11, 800, classes)
    source, _ = samples(frame, labels, proba)
    share = fold_shares(source)
    fitted = Calibration.fit(source)
    p = _apply(fitted.models, source.proba)
    slope = torch.zeros_like(fitted.refinement.table)
    slope[:, 0, 1], slope[:, 1, 1] = 1.0, -0.5
    found = fitted.refinement.influence(source, share, p, slope)

    def table(count):
        other = source.select(torch.arange(800), count)
        return Refinement.fit(other, share, p).table

    by_hand = []
    for row in range(12):
        more = torch.zeros_like(source.count)
        more[row] = 1e-2
        change = table(source.count + more) - table(source.count - more)
        by_hand.append(float((change * slope).sum()) / 2e-2)
    scale = np.abs(by_hand).max()
    limit = 0.05 if classes == 2 else 0.4
    np.testing.assert_allclose(found[:12].numpy(), by_hand, atol=limit * scale)


def test_the_posterior_has_its_gradient_in_the_probabilities():
    frame, labels, proba, _ = world(12, 600)
    source, target = samples(frame, labels, proba)
    direction = torch.tensor(np.random.default_rng(0).normal(size=600))
    raw = torch.tensor(proba[:, 1]).logit()

    def figure(t):
        p = (raw + t * direction).sigmoid()
        both = torch.stack([1 - p, p], dim=1)
        here, there = (s.with_posterior(s.posterior) for s in (source, target))
        here.proba = there.proba = both
        fitted = Calibration.fit(here)
        assert fitted.refinement is not None
        weight = torch.linspace(0, 1, 600, dtype=torch.float64)
        total = fitted.source(here).posterior[:, 1] + fitted.target(there).posterior[:, 1]
        return (total * weight).sum()

    at = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(figure(at), at)
    step = 1e-6  # So small that no row changes its fold.
    with torch.no_grad():
        by_hand = (figure(torch.tensor(step)) - figure(torch.tensor(-step))) / (2 * step)
    assert float(found) == pytest.approx(float(by_hand), rel=0.02)


def test_a_resample_is_refined_anew():
    """Against resamples that are calibrated, refined and matched from scratch, folds kept."""
    frame, labels, proba, _ = world(14, 800)
    later, _, seen, _ = world(15, 800, rates=(0.2, 0.5, 0.3))
    source = Source(frame, labels, proba)
    target, share = Target(later, seen, source), fold_shares(source)
    every = torch.arange(800)

    def estimated(source, target):
        folds = _Folds.of(source, share, tied=False)
        models = folds.models(_minimum(folds))
        refinement = Refinement.fit(source, share, _apply(models, source.proba))
        assert refinement is not None
        fitted = Calibration(models, share, refinement)
        source, target = fitted.source(source), fitted.target(target)
        match = MLLS().match(source, target)
        gap = estimate_gap(source, target, match.weight_function, "accuracy", "plugin")
        return source, target, match, gap, fitted

    *given, match, gap, fitted = estimated(source, target)
    found = [
        bootstrap(
            *given,
            Hypotheses(*given, match, MLLS()),
            [row_values(*given, "accuracy")],
            [gap],
            [None],
            replicates=30,
            calibration=calibration,
            generator=torch.Generator().manual_seed(2),
        ).gaps[:, 0]
        for calibration in (fitted, replace(fitted, refinement=None), None)
    ]
    generator = torch.Generator().manual_seed(2)
    resamples = [
        torch.poisson(sample.count.expand(30, -1), generator=generator)
        for sample in (source, target)
    ]
    anew = [
        estimated(source.select(every, here), target.select(every, there))[3].gap
        for here, there in zip(*resamples, strict=True)
    ]
    off = [float((gaps - torch.stack(anew)).square().mean()) for gaps in found]
    assert off[0] < 0.3 * min(off[1:])


@pytest.fixture(scope="module")
def drawn():
    """Labels and `plan` shift; the model does not know `city`, which did not."""
    frame, labels, proba, _ = world(20, 4000)
    pool, later, seen, _ = world(21, 20_000)
    likely = np.where(later == 1, np.where(pool["plan"] == "x", 1.0, 0.3), 0.4)
    kept = np.flatnonzero(np.random.default_rng(2).random(20_000) < likely)[:4000]
    assert len(kept) == 4000
    target = pool.iloc[kept].reset_index(drop=True)
    truth = (seen[kept].argmax(axis=1) == later[kept]).mean()
    inputs = {
        "source": frame,
        "labels": labels,
        "target": target,
        "source_proba": proba,
        "target_proba": seen[kept],
    }
    return inputs, truth - (proba.argmax(axis=1) == labels).mean(), later[kept]


class TestEndToEnd:
    def test_the_right_feature_is_named(self, drawn):
        inputs, truth, _ = drawn
        report = estimate_shift(**inputs)
        plain = estimate_shift(**inputs, calibrate="vector")
        assert report.shifted_features == ("plan",)
        assert "city" in plain.shifted_features
        assert abs(report.gap - truth) < 0.03
        low, high = report.interval
        assert low < truth < high
        (note,) = [note for note in report.notes if "less log loss" in note]
        assert note in str(report)
        assert not any("less log loss" in note for note in plain.notes)

    def test_a_corrected_classifier_is_refined_as_well(self, drawn):
        inputs, _, labels = drawn
        report = estimate_shift(**inputs, replicates=0)
        found = CorrectedClassifier(lambda table: inputs["target_proba"], report)
        again = CorrectedClassifier(
            lambda table: inputs["target_proba"], estimate_shift(**inputs, replicates=0)
        )
        again.load_state_dict(found.state_dict())
        after = found(inputs["target"])
        assert torch.equal(after, again(inputs["target"]))
        plain = CorrectedClassifier(
            lambda table: inputs["target_proba"],
            estimate_shift(**inputs, replicates=0, calibrate="vector"),
        )(inputs["target"])
        lost, before = (-np.log(p.numpy()[np.arange(4000), labels]).mean() for p in (after, plain))
        assert lost < before - 0.02

    @pytest.mark.parametrize("method", ["sees-d", "cbpe", "bbse"])
    def test_every_method_profits(self, method, drawn):
        inputs, _, _ = drawn
        report = estimate_shift(**inputs, method=method, replicates=0)
        assert any("less log loss" in note for note in report.notes)
