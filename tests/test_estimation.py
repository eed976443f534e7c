"""Estimates on merged rows: repeating rows is counting them; reports keep the user's rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world
from worlds import samples as both_samples

from sees_torch import KnownWeights, SeesError, Source, Target, estimate_shift
from sees_torch.estimation import Estimation

METHODS = ("auto", "mlls", "sees-em", "cbpe")
COPIES = 5


def world(seed: int, rows: int, share: float) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Two features and a continuous one; labels shift by `share`."""
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < share).astype(int)
    table = pd.DataFrame(
        {
            "a": rng.random(rows) < 0.25 + 0.5 * y,
            "b": rng.integers(0, 3, rows),
            "c": rng.normal(size=rows) + y,
        }
    )
    proba = np.clip(0.25 + 0.5 * table["a"] + rng.choice([-0.2, -0.1, 0.2], rows), 0.01, 0.99)
    return table, y, proba.to_numpy()


@pytest.fixture(scope="module")
def here():
    return world(0, 400, 0.4)


@pytest.fixture(scope="module")
def there():
    return world(1, 300, 0.7)


def report(here, there, method="auto", **options):
    (table, labels, proba), (target, _, target_proba) = here, there
    options = {"replicates": 20, "method": method, **options}
    return estimate_shift(
        table, labels, target, source_proba=proba, target_proba=target_proba, **options
    )


def repeated(table, labels, proba):
    """Every row COPIES times, shuffled."""
    order = np.random.default_rng(2).permutation(np.repeat(np.arange(len(table)), COPIES))
    return (table.iloc[order].reset_index(drop=True), labels[order], proba[order]), order


@pytest.mark.parametrize("method", METHODS)
def test_repeated_rows_are_multiplicities(here, there, method):
    times = np.full(len(here[0]), float(COPIES)), np.full(len(there[0]), float(COPIES))
    counted = report(here, there, method, source_weight=times[0], target_weight=times[1])
    (source, at), (target, at_target) = repeated(*here), repeated(*there)
    found = report(source, target, method)
    assert found.gap == pytest.approx(counted.gap, abs=1e-12)
    assert found.interval == pytest.approx(counted.interval, abs=1e-12)
    assert found.status == counted.status
    assert found.shifted_features == counted.shifted_features
    assert found.diagnostics == pytest.approx(counted.diagnostics, nan_ok=True)
    torch.testing.assert_close(found.weights, counted.weights[at], atol=1e-12, rtol=0)
    torch.testing.assert_close(found.source.posterior, counted.source.posterior[at])
    torch.testing.assert_close(found.target.posterior, counted.target.posterior[at_target])


@pytest.mark.parametrize("copies", [False, True], ids=["distinct rows", "repeated rows"])
@pytest.mark.parametrize("method", METHODS)
def test_a_report_speaks_of_the_rows_of_the_user(here, there, method, copies):
    if copies:
        here, there = repeated(*here)[0], repeated(*there)[0]
    found = report(here, there, method, replicates=0)
    table, labels, proba = here
    assert found.source.labels.tolist() == labels.tolist()
    np.testing.assert_allclose(found.source.proba[:, 1], proba)
    np.testing.assert_allclose(found.target.proba[:, 1], there[2])
    assert torch.equal(found.source.rows.codes, found.source.schema.encode(table).codes)
    assert torch.equal(found.target.rows.codes, found.source.schema.encode(there[0]).codes)
    torch.testing.assert_close(found.weights, found.weight_function(table, labels))
    assert len(found.source.posterior) == len(table)
    assert len(found.target.posterior) == len(there[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_rows_does_not_matter(here, there, method):
    table, labels, proba = here
    order = np.random.default_rng(3).permutation(len(table))
    found = report(here, there, method)
    moved = report((table.iloc[order], labels[order], proba[order]), there, method)
    assert moved.gap == pytest.approx(found.gap, abs=1e-12)
    assert moved.interval == pytest.approx(found.interval, abs=1e-12)
    torch.testing.assert_close(moved.weights, found.weights[order], atol=1e-12, rtol=0)


def test_rows_that_count_nothing_change_nothing(here, there):
    table, labels, proba = here
    extra = table.iloc[:50].assign(b=2)
    more = (pd.concat([extra, table]), np.r_[1 - labels[:50], labels], np.r_[proba[:50], proba])
    weight = np.r_[np.zeros(50), np.ones(len(table))]
    found, plain = report(more, there, source_weight=weight), report(here, there)
    assert found.gap == pytest.approx(plain.gap, abs=1e-12)
    assert found.interval == pytest.approx(plain.interval, abs=1e-12)
    assert found.weights.shape == (450,)
    torch.testing.assert_close(found.weights[50:], plain.weights, atol=1e-12, rtol=0)


# What reports do with rows


@pytest.mark.parametrize("k", [1, 50, 300])
def test_suggested_labels_are_rows_of_the_user(here, there, k):
    few = there[0].iloc[:60], there[1][:60], there[2][:60]
    target, _ = repeated(*few)
    found = report(here, target, replicates=0)
    rows = found.suggest_labels(k)
    assert len(set(rows.tolist())) == k
    assert rows.min() >= 0
    assert rows.max() < 300


def test_suggested_labels_are_taken_back(here, there):
    target, _ = repeated(*there)
    rows = report(here, target, replicates=0).suggest_labels(60)
    labels = np.full(len(target[0]), np.nan)
    labels[rows] = target[1][rows]
    found = report(here, target, replicates=0, target_labels=labels)
    known = found.target.labels >= 0
    assert known.nonzero().squeeze(1).tolist() == sorted(rows.tolist())
    assert found.target.labels[known].tolist() == target[1][np.sort(rows)].tolist()


def test_reports_of_repeated_rows_answer_alike(here, there):
    times = np.full(len(here[0]), float(COPIES)), np.full(len(there[0]), float(COPIES))
    options = {"method": "sees-em", "replicates": 0}
    counted = report(here, there, source_weight=times[0], target_weight=times[1], **options)
    found = report(repeated(*here)[0], repeated(*there)[0], **options)
    pd.testing.assert_frame_equal(found.cells(), counted.cells(), check_exact=False)
    assert found.attribution() == pytest.approx(counted.attribution())
    assert found.rows_needed(0.02) == pytest.approx(counted.rows_needed(0.02))


# Gradients and weights by row


@pytest.mark.parametrize("method", ["mlls", "sees-em", "cbpe"])
def test_gradients_flow_through_repeated_rows(here, there, method):
    source, target = repeated(*here)[0], repeated(*there)[0]
    p = torch.tensor(source[2], requires_grad=True)
    q = torch.tensor(target[2], requires_grad=True)
    options = {"metric": "log_loss", "replicates": 0}
    found = report((*source[:2], p), (*target[:2], q), method, **options)
    assert found.gap_tensor.requires_grad
    found.gap_tensor.backward()
    assert p.grad.shape == (2000,)
    assert bool(p.grad.isfinite().all())
    assert float(p.grad.abs().sum()) > 0
    plain = report(source, target, method, **options)
    assert found.gap == pytest.approx(plain.gap, abs=1e-12)
    torch.testing.assert_close(found.weights, plain.weights, atol=1e-12, rtol=0)


def test_equal_rows_have_equal_gradients(here, there):
    source, at = repeated(*here)
    p = torch.tensor(source[2], requires_grad=True)
    found = report((*source[:2], p), there, "mlls", metric="log_loss", replicates=0)
    found.gap_tensor.backward()
    first = torch.zeros(400, dtype=torch.float64)
    first[at] = p.grad
    torch.testing.assert_close(first[at], p.grad)


def test_known_weights_stay_with_their_rows(here, there):
    source, _ = repeated(*here)
    weights = np.random.default_rng(4).random(2000) + 0.5
    found = report(source, there, KnownWeights(weights), replicates=0, estimator="ipw")
    assert found.weights.shape == (2000,)
    scaled = found.weights.numpy() / found.weights.mean().item()
    np.testing.assert_allclose(scaled, weights / weights.mean())
    right = (source[2] > 0.5) == source[1]
    expected = (found.weights.numpy() * right).mean() - right.mean()
    assert found.gap == pytest.approx(expected, abs=1e-9)


# Ready samples


def samples(here, there) -> tuple[Source, Target]:
    source = Source(*here)
    return source, Target(there[0], there[2], source)


def test_ready_samples_give_the_same_report(here, there):
    source, target = samples(here, there)
    found, plain = estimate_shift(source, target=target, replicates=20), report(here, there)
    assert found.to_dict() == plain.to_dict()
    assert torch.equal(found.weights, plain.weights)


def test_samples_are_left_as_they_were(here, there):
    source, target = samples(here, there)
    codes, proba = source.rows.codes.clone(), source.proba.clone()
    estimate_shift(source, target=target, replicates=0)
    assert torch.equal(source.rows.codes, codes)
    assert torch.equal(source.proba, proba)
    assert source.posterior is source.proba
    assert target.posterior is target.proba


def test_a_prepared_source_serves_several_targets(here, there):
    settings = Estimation.checked("mlls", "accuracy", "auto", 0.95, True, 0, None)
    source, target = samples(here, there)
    other = Target(here[0], here[2], source)
    prepared = settings.prepare(source)
    for one in (target, other, target):
        again = estimate_shift(source, target=one, method="mlls", replicates=0)
        assert settings.report(prepared, one).to_dict() == again.to_dict()


def test_the_target_of_another_source_is_refused(here, there):
    source, _ = samples(here, there)
    other, target = samples((here[0].assign(b=here[0]["b"] + 1), *here[1:]), there)
    assert other.schema != source.schema
    with pytest.raises(SeesError, match="coded for another Source"):
        estimate_shift(source, target=target)


def test_the_target_of_other_classes_is_refused(here, there):
    source, _ = samples(here, there)
    _, target = samples((here[0], here[1] + 1, here[2]), there)
    with pytest.raises(SeesError, match="coded for another Source"):
        estimate_shift(source, target=target)


@pytest.mark.parametrize(
    "extra",
    [
        {"labels": [0, 1]},
        {"source_proba": [0.5]},
        {"target_proba": [0.5]},
        {"model": len},
        {"classes": [0, 1]},
        {"kinds": {}},
        {"source_weight": [1.0]},
        {"target_weight": [1.0]},
        {"target_labels": [0]},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_what_a_sample_brings_along_is_not_given_twice(here, there, extra):
    source, target = samples(here, there)
    with pytest.raises(SeesError, match="bring labels"):
        estimate_shift(source, target=target, **extra)


def test_a_sample_and_a_table_are_refused(here, there):
    source, target = samples(here, there)
    for one, other in ((source, there[0]), (here[0], target), (source, None)):
        with pytest.raises(SeesError, match="give a Source together with a Target"):
            estimate_shift(one, target=other)


@pytest.mark.parametrize(
    "method", ["auto", "sees-em", "sees-d", "sees-c", "bbse", "mlls", "cbpe", "kliep", "dlu"]
)
def test_single_precision(method):
    """A clear shift: the same features, and the gap to a hundredth of a point."""
    pair = drawn_world(1, 3000, 3000, features=6, strength=1.5)
    source, target = both_samples(pair)
    double = estimate_shift(source, target=target, method=method, confidence=None)
    single = estimate_shift(
        source.to(torch.float32), target=target.to(torch.float32), method=method, replicates=20
    )
    assert single.shifted_features == double.shifted_features
    assert abs(single.gap - double.gap) < 1e-4
