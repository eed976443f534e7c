"""A model whose probability columns stand for other classes than they are taken for."""

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import SeesWarning, Source, estimate_shift, make_sparse_joint_shift
from sees_torch.data.class_order import doubt_about_order


def sample(labels, proba, classes=None):
    return Source(pd.DataFrame({"x": np.arange(len(labels)) % 3}), labels, proba, classes=classes)


def judged(classes, n, order=None, seed=0, temperature=1.0):
    """Labels drawn from probabilities, whose columns then come in another order."""
    generator = torch.Generator().manual_seed(seed)
    proba = (2 * torch.randn(n, classes, generator=generator)).softmax(dim=1)
    labels = torch.multinomial(proba, 1, generator=generator).squeeze(1)
    shown = (proba.log() / temperature).softmax(dim=1)
    return sample(labels, shown if order is None else shown[:, order])


@pytest.mark.parametrize(("classes", "order"), [(2, [1, 0]), (3, [2, 0, 1]), (5, [0, 1, 2, 4, 3])])
def test_another_order_is_noticed_and_named(classes, order):
    said = doubt_about_order(judged(classes, 1000, order))
    assert f"probability columns stood for {order} in this order" in said
    now, then = judged(classes, 1000, order), judged(classes, 1000)
    for one in (now, then):
        accuracy = float(one.mean((one.predictions == one.labels).double()))
        assert f"{accuracy:.0%}" in said


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_the_right_order_raises_no_doubt(classes, temperature):
    assert not doubt_about_order(judged(classes, 1000, temperature=temperature))


def test_models_that_know_nothing_or_misjudge_shares_raise_no_doubt():
    generator = torch.Generator().manual_seed(0)
    for seed in range(50):
        proba = torch.rand(300, 2, generator=generator).softmax(dim=1)
        labels = torch.randint(2, (300,), generator=generator)
        assert not doubt_about_order(sample(labels, proba)), seed
    # A rare class that is predicted far too often: right on a third of the rows, and yet in order.
    signal = torch.randn(1000, generator=generator)
    labels = (signal > 1.3).long()
    positive = (signal + 1.0).sigmoid()
    skewed = sample(labels, torch.stack([1 - positive, positive], dim=1))
    assert float((skewed.predictions == skewed.labels).double().mean()) < 0.4
    assert not doubt_about_order(skewed)


def test_a_class_without_rows_or_few_rows_leave_it_open():
    proba = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    assert not doubt_about_order(sample([0, 1, 0, 1], proba))
    three = torch.cat([proba, torch.zeros(4, 1)], dim=1)
    assert not doubt_about_order(sample([0, 1, 0, 1], three, classes=[0, 1, 2]))


def test_the_report_warns_and_notes_it():
    pair = make_sparse_joint_shift(n=500, m=300)
    with pytest.warns(SeesWarning, match="would be on"):
        report = estimate_shift(
            pair.source,
            pair.labels,
            pair.target,
            source_proba=pair.source_proba[:, [1, 0]],
            target_proba=pair.target_proba[:, [1, 0]],
            replicates=0,
        )
    assert "give `classes`" in report.notes[0]
    assert "give `classes`" in str(report)
