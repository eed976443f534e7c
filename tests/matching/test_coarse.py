"""Rows in one cell that hardly differ, as one: what that does to weights is measured."""

import numpy as np
import pytest
import torch

from sees_torch import SEESem, Source, Target
from sees_torch.matching import coarse as coarse_rows
from sees_torch.matching.batch import Batch
from sees_torch.matching.cells import fit_cells
from sees_torch.matching.coarse import coarse
from sees_torch.matching.sees_em import best_shrinkage
from sees_torch.statistics.subsets import subsets_of


def many_rows(labels=2, n=60_000):
    """Labels that depend on two features and a score; the first feature and the label shift."""
    rng = np.random.default_rng(0)
    samples = []
    for shares in ((0.3, 0.3, 0.4), (0.5, 0.3, 0.2)):
        x = np.stack([rng.choice(3, n, p=shares), rng.integers(0, 3, n)], axis=1)
        score = rng.normal(size=(n, labels - 1)) + 0.7 * x[:, :1] - 0.5 * x[:, 1:]
        score = np.concatenate([np.zeros((n, 1)), score + (0.4 if shares[0] > 0.4 else 0)], axis=1)
        proba = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
        y = (rng.random((n, 1)) > proba.cumsum(axis=1)).sum(axis=1).clip(0, labels - 1)
        samples.append((torch.tensor(x), y, proba))
    (x, y, p), (z, _, q) = samples
    source = Source(x, y, p)
    return source, Target(z, q, source)


SOURCE, TARGET = many_rows()


@pytest.mark.parametrize("members", [(), (0,), (1,), (0, 1)])
def test_weights_change_by_less_than_one_in_ten_thousand(monkeypatch, members):
    batch = Batch.of(SOURCE, TARGET)
    subset = subsets_of([members], batch.sizes, batch.codes.device)
    merged = coarse(batch, subset)
    assert len(merged.codes) < len(batch.codes) / 2
    torch.testing.assert_close(merged.source_count.sum(), SOURCE.total)
    torch.testing.assert_close(merged.target_count.sum(), TARGET.total)
    fast = fit_cells(batch, subset, 10.0)
    monkeypatch.setattr(coarse_rows, "MANY_ROWS", 10**9)
    exact = fit_cells(batch, subset, 10.0)
    assert float((fast.weight - exact.weight).abs().max()) < 1e-4
    torch.testing.assert_close(fast.ratio(batch), exact.ratio(batch), rtol=0, atol=1e-4)


def test_the_same_features_strength_and_weights(monkeypatch):
    fast, strength = SEESem(sparsity=1).match(SOURCE, TARGET), best_shrinkage(SOURCE, TARGET, (0,))
    monkeypatch.setattr(coarse_rows, "MANY_ROWS", 10**9)
    exact = SEESem(sparsity=1).match(SOURCE, TARGET)
    assert fast.features == exact.features
    assert strength == best_shrinkage(SOURCE, TARGET, (0,))
    weights = [m.weight_function.of_rows(SOURCE.rows, SOURCE.labels) for m in (fast, exact)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-4)


def test_left_alone():
    batch = Batch.of(SOURCE, TARGET)
    both = subsets_of([(0,), (1,)], batch.sizes, batch.codes.device)
    assert coarse(batch, both) is batch
    one = subsets_of([(0,)], batch.sizes, batch.codes.device)
    assert coarse(coarse(batch, one), one).codes.shape == coarse(batch, one).codes.shape
    few = Batch.of(*many_rows(n=1000))
    assert coarse(few, one) is few
    three = Batch.of(*many_rows(labels=3))
    assert coarse(three, one) is three


def test_known_labels_are_kept_apart():
    labels = np.full(len(TARGET), None, dtype=object)
    labels[:500] = 1
    target = Target(TARGET.rows.codes, TARGET.proba, SOURCE, labels=labels)
    batch = Batch.of(SOURCE, target)
    merged = coarse(batch, subsets_of([(0,)], batch.sizes, batch.codes.device))
    assert float(merged.target_count[0][merged.known == 1].sum()) == 500
