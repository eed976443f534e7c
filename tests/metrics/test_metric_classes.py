"""The weighted metric classes: scikit-learn's values, however the rows are dealt out."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from test_weighted_metrics import by_sklearn, tied_rows
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

from sees_torch import SeesError, weighted_metrics
from sees_torch.errors import ShapeError
from sees_torch.gap import ROW_METRICS
from sees_torch.metrics import (
    WeightedAccuracy,
    WeightedAUROC,
    WeightedAveragePrecision,
    WeightedBalancedAccuracy,
    WeightedBrier,
    WeightedCalibrationError,
    WeightedF1,
    WeightedLogLoss,
    WeightedPrecision,
    WeightedRecall,
)
from sees_torch.weighted_metrics import METRICS

MEANS = (WeightedAccuracy, WeightedLogLoss, WeightedBrier)
CONFUSED = (WeightedPrecision, WeightedRecall, WeightedF1, WeightedBalancedAccuracy)
RANKED = (WeightedAUROC, WeightedAveragePrecision, WeightedCalibrationError)
EVERY = (*MEANS, *CONFUSED, *RANKED)


def made(kind, classes=2):
    return kind() if kind in MEANS else kind(classes)


def filled(kind, proba, labels, weight, parts=1):
    metric = made(kind, proba.shape[1])
    for rows in torch.arange(len(proba)).tensor_split(parts):
        metric.update(proba[rows], labels[rows], None if weight is None else weight[rows])
    return metric


def reference(kind, proba, labels, weight):
    p, y, w = proba.numpy(), labels.numpy(), weight.numpy()
    if kind is WeightedAccuracy:
        return sk.accuracy_score(y, p.argmax(axis=1), sample_weight=w)
    if kind is WeightedLogLoss:
        return sk.log_loss(y, p, sample_weight=w)
    if kind is WeightedBrier:
        return np.average(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1), weights=w)
    return by_sklearn(kind.metric, proba, labels, weight)


def by_function(kind, proba, labels, weight):
    if kind in MEANS:
        return weighted_metrics.weighted_mean(ROW_METRICS[kind.metric](proba, labels), weight)
    return METRICS[kind.metric](proba, labels, weight)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("classes", [2, 4])
def test_values_are_those_of_scikit_learn_and_of_the_functions(kind, classes):
    rows = tied_rows(1, classes)
    value = filled(kind, *rows).compute()
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert float(value) == pytest.approx(reference(kind, *rows), abs=1e-10)
    exact = 0.0 if kind in RANKED else 1e-15
    torch.testing.assert_close(value, by_function(kind, *rows), rtol=0, atol=exact)


@pytest.mark.parametrize("kind", EVERY)
def test_batches_merged_states_and_copies_make_no_difference(kind):
    proba, labels, weight = tied_rows(2, 3)
    whole = filled(kind, proba, labels, weight).compute()
    batched = filled(kind, proba, labels, weight, parts=7)
    for other in (batched, pickle.loads(pickle.dumps(batched)), copy.deepcopy(batched)):
        torch.testing.assert_close(other.compute(), whole, rtol=0, atol=1e-12)
    first = filled(kind, proba[:60], labels[:60], weight[:60])
    first.compute()
    first.merge_state(filled(kind, proba[60:], labels[60:], weight[60:]))
    torch.testing.assert_close(first.compute(), whole, rtol=0, atol=1e-12)
    fresh = made(kind, 3)
    fresh.merge_state(batched)
    torch.testing.assert_close(fresh.compute(), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", EVERY)
def test_reset_forgets_every_row(kind):
    proba, labels, weight = tied_rows(3, 2)
    metric = filled(kind, proba, labels, weight)
    before = metric.compute()
    metric.reset()
    metric.update(proba[:9], labels[:9], weight[:9])
    metric.reset()
    metric.update(proba, labels, weight)
    assert torch.equal(metric.compute(), before)


@pytest.mark.parametrize("kind", EVERY)
def test_no_weights_are_equal_weights_and_no_rows_are_nan(kind):
    proba, labels, _ = tied_rows(4, 3)
    plain = filled(kind, proba, labels, None).compute()
    scaled = filled(kind, proba, labels, torch.full((len(labels),), 3.0)).compute()
    torch.testing.assert_close(plain, scaled, rtol=0, atol=1e-12)
    assert filled(kind, proba, labels, torch.zeros(len(labels))).compute().isnan()
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert made(kind).compute().isnan()


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), r"weight must have shape \(4,\)"),
        (torch.ones(4, 1), r"weight must have shape \(4,\)"),
        (torch.tensor(1.0), r"weight must have shape \(4,\)"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), "weight must be non-negative, finite"),
        (torch.tensor([1.0, torch.nan, 1.0, 1.0]), "weight must be non-negative, finite"),
        (torch.tensor([1.0, torch.inf, 1.0, 1.0]), "weight must be non-negative, finite"),
    ],
)
def test_a_weight_that_makes_no_sense_is_refused(kind, weight, message):
    metric = made(kind)
    proba, labels = torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])
    with pytest.raises(SeesError, match=message):
        metric.update(proba, labels, weight)
    metric.update(proba, labels)
    assert metric.compute().isfinite()


def test_rows_that_make_no_sense_are_refused():
    metric = WeightedF1(num_classes=2)
    proba = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    with pytest.raises(ShapeError, match=r"labels must have shape \(2,\)"):
        metric.update(proba, torch.tensor([0]))
    with pytest.raises(SeesError, match="labels must lie in 0 to 1"):
        metric.update(proba, torch.tensor([0, 2]))
    with pytest.raises(SeesError, match="labels must be whole numbers"):
        metric.update(proba, torch.tensor([0.0, 1.0]))
    with pytest.raises(SeesError, match="probabilities lie in"):
        metric.update(torch.tensor([[-2.0, 3.0]]), torch.tensor([0]))
    with pytest.raises(ShapeError, match="give num_classes=3"):
        metric.update(torch.full((2, 3), 1 / 3), torch.tensor([0, 1]))
    with pytest.raises(ShapeError, match="proba must have shape"):
        metric.update(torch.tensor(0.5), torch.tensor([0]))
    with pytest.raises(SeesError, match="num_classes must be at least 2"):
        WeightedAUROC(1)
    with pytest.raises(SeesError, match="n_bins must be at least 1"):
        WeightedCalibrationError(n_bins=0)


def test_one_column_is_the_second_class():
    proba, labels, weight = tied_rows(5, 2)
    for kind in EVERY:
        whole = filled(kind, proba, labels, weight).compute()
        for column in (proba[:, 1], proba[:, 1:]):
            metric = made(kind)
            metric.update(column, labels, weight)
            torch.testing.assert_close(metric.compute(), whole, rtol=0, atol=1e-14)


def test_float32_and_arrays_are_taken():
    proba, labels, weight = tied_rows(6, 3)
    for kind in EVERY:
        short = proba.float()
        metric = made(kind, 3)
        metric.update(short.numpy(), labels.tolist(), weight.float().numpy())
        expected = by_function(kind, short.double(), labels, weight.float().double())
        torch.testing.assert_close(metric.compute(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_bins", [1, 5])
def test_bins(n_bins):
    proba, labels, weight = tied_rows(7, 3)
    metric = WeightedCalibrationError(3, n_bins=n_bins)
    metric.update(proba, labels, weight)
    expected = weighted_metrics.expected_calibration_error(proba, labels, weight, n_bins)
    assert torch.equal(metric.compute(), expected)


def test_a_collection_shares_states_only_where_they_are_the_same():
    """Sure and right in the first batch: log loss, Brier and error are all zero there."""
    proba, labels, weight = tied_rows(8, 2)
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), torch.ones(2)
    together = MetricCollection([made(kind) for kind in EVERY])
    alone = {kind.__name__: made(kind) for kind in EVERY}
    for batch in (first, (proba, labels, weight)):
        named = dict(zip(("proba", "labels", "weight"), batch, strict=True))
        together.update(**named)
        for metric in alone.values():
            metric.update(**named)
    assert len(together.compute_groups) == len(MEANS) + 2
    found = together.compute()
    assert found == {name: metric.compute() for name, metric in alone.items()}


def test_a_collection_with_metrics_of_torchmetrics():
    proba, labels, weight = tied_rows(9, 2)
    together = MetricCollection([WeightedAccuracy(), BinaryAccuracy()])
    named = {"proba": proba, "labels": labels, "weight": weight}
    found = together(**named, preds=proba[:, 1], target=labels)
    assert found["WeightedAccuracy"] == filled(WeightedAccuracy, proba, labels, weight).compute()
    expected = float((proba.argmax(dim=1) == labels).double().mean())
    tied = proba[:, 0] == proba[:, 1]
    assert float(found["BinaryAccuracy"]) == pytest.approx(expected, abs=float(tied.sum()))


@pytest.mark.parametrize("kind", EVERY)
def test_forward_is_the_value_of_the_batch(kind):
    proba, labels, weight = tied_rows(10, 2)
    metric = made(kind)
    for rows in torch.arange(len(proba)).tensor_split(3):
        value = metric(proba[rows], labels[rows], weight[rows])
        expected = by_function(kind, proba[rows], labels[rows], weight[rows])
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-14)
    whole = by_function(kind, proba, labels, weight)
    torch.testing.assert_close(metric.compute(), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", EVERY)
def test_forward_in_a_collection_that_shares_states(kind):
    proba, labels, weight = tied_rows(11, 2)
    together = MetricCollection({"one": made(kind), "two": made(kind)})
    for rows in torch.arange(len(proba)).tensor_split(3):
        named = {"proba": proba[rows], "labels": labels[rows], "weight": weight[rows]}
        together.update(**named) if not rows[0] else together(**named)
    whole = by_function(kind, proba, labels, weight)
    for value in together.compute().values():
        torch.testing.assert_close(value, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", EVERY)
def test_gradients_flow_only_where_promised_and_states_carry_none(kind):
    proba, labels, weight = tied_rows(12, 3)
    logits = proba.log().requires_grad_()
    metric = made(kind, 3)
    value = metric(logits.softmax(dim=1), labels, weight)
    assert value.requires_grad == metric.is_differentiable
    if metric.is_differentiable:
        value.backward()
        assert bool(logits.grad.abs().max() > 0)
    metric.update(logits.softmax(dim=1), labels, weight)
    assert not metric.compute().requires_grad
    copy.deepcopy(metric)
    with torch.no_grad():
        metric.update(logits.softmax(dim=1), labels, weight)
        torch.testing.assert_close(metric.compute(), value.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", EVERY)
def test_states_move_between_devices_and_keep_their_precision(kind):
    proba, labels, weight = tied_rows(13, 2)
    metric = filled(kind, proba, labels, weight)
    value = metric.compute()
    metric.to(torch.float16)
    metric.half().float()
    metric.set_dtype(torch.float32)
    metric._computed = None
    assert torch.equal(metric.compute(), value)
    metric.to("meta")
    held = metric.metric_state.values()
    held = [part for state in held for part in (state if isinstance(state, list) else [state])]
    assert {part.device.type for part in held} == {"meta"}
    assert metric.device.type == "meta"


def test_plot():
    pytest.importorskip("matplotlib").use("Agg")
    metric = filled(WeightedAUROC, *tied_rows(14, 2))
    figure, axes = metric.plot()
    assert figure is axes.figure
    metric.plot([metric.compute(), metric.compute()], ax=axes)
