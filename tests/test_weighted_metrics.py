"""The weighted metrics against scikit-learn and torchmetrics, and what must not change them."""

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from sees_torch import weighted_metrics
from sees_torch.errors import ShapeError
from sees_torch.weighted_metrics import (
    METRICS,
    auroc,
    average_precision,
    balanced_accuracy,
    cost,
    expected_calibration_error,
    f1,
    precision,
    recall,
    weighted_mean,
)

EXACT = {"rtol": 0, "atol": 1e-12}


def tied_rows(seed, classes, n=150):
    """Probabilities of few distinct values, labels that lean towards them, weights partly zero."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, (n, classes)).astype(float)
    proba = counts / counts.sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(classes, p=p) for p in proba])
    weight = rng.exponential(size=n) * (rng.random(n) < 0.7)
    return torch.tensor(proba), torch.tensor(labels), torch.tensor(weight)


def distinct_rows(seed, classes, n=60):
    rng = np.random.default_rng(seed)
    proba = torch.tensor(rng.dirichlet(np.ones(classes), n))
    labels = torch.tensor(rng.permutation(np.arange(n) % classes))
    return proba, labels, torch.tensor(rng.exponential(size=n) + 0.1)


def one_vs_rest(score, p, y, w):
    """Mean of a binary score over the classes that are neither absent nor alone."""
    classes = [1] if p.shape[1] == 2 else np.unique(y)
    return np.mean([score(y == c, p[:, c], sample_weight=w) for c in classes])


def by_sklearn(name, proba, labels, weight):
    """The reference value from the rows that have weight."""
    kept = weight > 0
    p, y, w = proba[kept].numpy(), labels[kept].numpy(), weight[kept].numpy()
    macro = {"average": "macro", "zero_division": 0}
    predicted = p.argmax(axis=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "y_pred contains classes not in y_true")
        return {
            "balanced_accuracy": lambda: sk.balanced_accuracy_score(y, predicted, sample_weight=w),
            "precision": lambda: sk.precision_score(y, predicted, sample_weight=w, **macro),
            "recall": lambda: sk.recall_score(y, predicted, sample_weight=w, **macro),
            "f1": lambda: sk.f1_score(y, predicted, sample_weight=w, **macro),
            "auroc": lambda: one_vs_rest(sk.roc_auc_score, p, y, w),
            "average_precision": lambda: one_vs_rest(sk.average_precision_score, p, y, w),
            "expected_calibration_error": lambda: calibration_by_hand(p, y, w),
        }[name]()


def calibration_by_hand(p, y, w):
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    total = 0.0
    for low, high in zip(np.linspace(0, 1, 16)[:-1], np.linspace(0, 1, 16)[1:], strict=True):
        rows = (confidence >= low) & ((confidence < high) | (high == 1))
        if rows.any():
            gap = np.average(correct[rows], weights=w[rows]) - np.average(
                confidence[rows], weights=w[rows]
            )
            total += abs(gap) * w[rows].sum() / w.sum()
    return total


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("rows", [tied_rows, distinct_rows])
@pytest.mark.parametrize("name", METRICS)
def test_equals_the_reference(name, rows, classes, seed):
    proba, labels, weight = rows(seed, classes)
    expected = by_sklearn(name, proba, labels, weight)
    assert METRICS[name](proba, labels, weight).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("without", ["true", "true and predicted"])
def test_absent_class_equals_the_reference(without, name):
    proba, labels, weight = tied_rows(4, 4)
    absent = labels == 2
    if without == "true and predicted":
        absent = absent | (proba.argmax(dim=1) == 2)
    weight = weight * ~absent
    expected = by_sklearn(name, proba, labels, weight)
    assert METRICS[name](proba, labels, weight).item() == pytest.approx(expected, abs=1e-12)


def test_equals_sklearns_own_one_vs_rest():
    proba, labels, weight = tied_rows(5, 4)
    p, y, w = proba.numpy(), labels.numpy(), weight.numpy()
    area = sk.roc_auc_score(y, p, multi_class="ovr", average="macro", sample_weight=w)
    assert auroc(proba, labels, weight).item() == pytest.approx(area, abs=1e-12)
    mean_precision = sk.average_precision_score(np.eye(4)[y], p, sample_weight=w)
    assert average_precision(proba, labels, weight).item() == pytest.approx(
        mean_precision, abs=1e-12
    )


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("rows", [tied_rows, distinct_rows])
def test_calibration_error_equals_torchmetrics(rows, classes):
    """Its multiclass error is of single precision; its binary one is told what the top label is."""
    proba, labels, _ = rows(6, classes)
    confidence, predicted = proba.max(dim=1)
    expected = binary_calibration_error(confidence, (predicted == labels).long(), n_bins=15)
    torch.testing.assert_close(expected_calibration_error(proba, labels), expected, **EXACT)
    single = proba.float()
    expected = multiclass_calibration_error(single, labels, classes, n_bins=15)
    got = expected_calibration_error(single, labels)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_full_confidence_shares_the_last_bin():
    """0.96 right and 1 wrong offset each other; with a bin for 1 alone the error would be 0.52."""
    proba = torch.tensor([[0.96, 0.04], [1.0, 0.0]], dtype=torch.float64)
    error = expected_calibration_error(proba, torch.tensor([0, 1]))
    assert error.item() == pytest.approx(0.48, abs=1e-12)


def test_values_by_hand():
    """Class 1 scores 3 3 1, class 0 scores 3 2 1 1 in tenths; weights double the first row."""
    score = torch.tensor([0.3, 0.3, 0.1, 0.3, 0.2, 0.1, 0.1], dtype=torch.float64)
    proba = torch.stack([1 - score, score], dim=1)
    labels = torch.tensor([1, 1, 1, 0, 0, 0, 0])
    weight = torch.tensor([2, 1, 1, 1, 1, 1, 1])
    wins = 3 * (0.5 + 3) + (0.5 + 0.5)
    assert auroc(proba, labels, weight).item() == pytest.approx(wins / 16)
    assert average_precision(proba, labels, weight).item() == pytest.approx((3 * 3 / 4 + 4 / 8) / 4)
    assert balanced_accuracy(proba, labels, weight).item() == 0.5
    assert recall(proba, labels, weight).item() == 0.5
    assert precision(proba, labels, weight).item() == 0.25
    assert f1(proba, labels, weight).item() == pytest.approx(1 / 3)


def test_recall_counts_a_class_that_is_only_predicted():
    proba = torch.eye(3, dtype=torch.float64)[[0, 1, 2]]
    labels = torch.tensor([0, 1, 1])
    assert balanced_accuracy(proba, labels).item() == 0.75
    assert recall(proba, labels).item() == 0.5


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", METRICS)
class TestInvariance:
    def test_batch_equals_loop(self, name, classes):
        proba, labels, weight = tied_rows(7, classes)
        rng = np.random.default_rng(8)
        batch = weight * torch.tensor(rng.integers(0, 3, (3, 2, len(weight))))
        got = METRICS[name](proba, labels, batch)
        loop = [[METRICS[name](proba, labels, w) for w in pair] for pair in batch]
        assert len(got.unique()) == 6
        torch.testing.assert_close(got, torch.stack([torch.stack(p) for p in loop]), **EXACT)

    def test_integer_weights_are_repeated_rows(self, name, classes):
        proba, labels, _ = tied_rows(9, classes)
        times = torch.tensor(np.random.default_rng(10).integers(0, 4, len(labels)))
        repeated = METRICS[name](proba.repeat_interleave(times, 0), labels.repeat_interleave(times))
        torch.testing.assert_close(METRICS[name](proba, labels, times), repeated, **EXACT)
        assert abs(repeated - METRICS[name](proba, labels)) > 1e-6

    def test_scale_of_weights(self, name, classes):
        """Powers of two, so that the results are equal to the last bit."""
        proba, labels, weight = tied_rows(11, classes)
        scaled = torch.stack([weight * 2.0**power for power in (-600, 0, 600)])
        assert len(METRICS[name](proba, labels, scaled).unique()) == 1

    def test_order_of_rows(self, name, classes):
        proba, labels, weight = tied_rows(12, classes)
        order = torch.tensor(np.random.default_rng(13).permutation(len(labels)))
        got = METRICS[name](proba[order], labels[order], weight[order])
        torch.testing.assert_close(got, METRICS[name](proba, labels, weight), **EXACT)

    def test_single_precision(self, name, classes):
        """On rows whose scores and bins are too far from each other to change by rounding."""
        proba, labels, weight = distinct_rows(14, classes)
        expected = METRICS[name](proba, labels, weight)
        single = METRICS[name](proba.float(), labels, weight.float())
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), expected, rtol=0, atol=2e-6)
        assert METRICS[name](proba.float(), labels, weight).dtype == torch.float64

    def test_needs_no_data_on_the_host(self, name, classes):
        """A meta tensor has no values, so any branch on them or shape from them raises."""
        proba, labels, weight = (rows.to("meta") for rows in tied_rows(15, classes))
        assert METRICS[name](proba, labels, weight.expand(5, -1)).shape == (5,)
        assert METRICS[name](proba, labels).shape == ()

    def test_gradient_in_the_weights(self, name, classes):
        proba, labels, weight = distinct_rows(16, classes, n=30)
        weight.requires_grad_()
        assert torch.autograd.gradcheck(lambda w: METRICS[name](proba, labels, w), weight)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", [name for name in METRICS if name != "expected_calibration_error"])
def test_gradient_at_zero_weights(name, classes):
    """The right derivative, also for the rows of the highest scores.

    Not of the calibration error, which has a kink where a bin is empty.
    """
    proba, labels, weight = distinct_rows(17, classes, n=40)
    top = proba.argsort(dim=0, descending=True)[:3].flatten()
    weight[top] = 0
    weight.requires_grad_()
    value = METRICS[name](proba, labels, weight)
    (gradient,) = torch.autograd.grad(value, weight)
    step = 1e-7
    moved = METRICS[name](proba, labels, weight.detach() + step * torch.eye(len(weight)))
    assert gradient[top].abs().max() > 1e-3
    torch.testing.assert_close(gradient, (moved - value.detach()) / step, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_names_of_classes_do_not_matter(name):
    proba, labels, weight = distinct_rows(18, 4)
    new_name = torch.tensor([2, 0, 3, 1])
    got = METRICS[name](proba[:, new_name.argsort()], new_name[labels], weight)
    torch.testing.assert_close(got, METRICS[name](proba, labels, weight), **EXACT)


def test_calibration_error_has_a_gradient_in_the_probabilities():
    proba, labels, weight = distinct_rows(19, 3, n=20)
    proba.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda p: expected_calibration_error(p, labels, weight), proba, eps=1e-8, atol=1e-6
    )
    (gradient,) = torch.autograd.grad(expected_calibration_error(proba, labels, weight), proba)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("name", METRICS)
def test_no_weight_is_nan_and_stays_in_its_own_set(name):
    proba, labels, weight = tied_rows(20, 3)
    batch = torch.stack([weight, 0 * weight]).requires_grad_()
    values = METRICS[name](proba, labels, batch)
    assert values[1].isnan()
    torch.testing.assert_close(values[0], METRICS[name](proba, labels, weight), **EXACT)
    (gradient,) = torch.autograd.grad(values[0], batch)
    assert gradient.isfinite().all()
    assert METRICS[name](proba[:0], labels[:0]).isnan()


def test_ranking_with_a_single_class():
    proba, labels, weight = tied_rows(21, 2)
    assert auroc(proba, labels, weight * (labels == 1)).isnan()
    assert auroc(proba, labels, weight * (labels == 0)).isnan()
    assert average_precision(proba, labels, weight * (labels == 1)).item() == pytest.approx(1)
    assert average_precision(proba, labels, weight * (labels == 0)).isnan()


@pytest.mark.parametrize("metric", [auroc, average_precision])
def test_gradient_with_an_absent_class(metric):
    proba, labels, weight = distinct_rows(22, 4)
    weight = (weight * (labels != 3)).requires_grad_()
    (gradient,) = torch.autograd.grad(metric(proba, labels, weight), weight)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 1e-4


def test_scores_that_differ_in_the_last_digits_are_no_ties():
    score = torch.tensor([0.5, 0.5 + 1e-15], dtype=torch.float64)
    proba = torch.stack([1 - score, score], dim=1)
    assert auroc(proba, torch.tensor([0, 1])).item() == 1
    assert average_precision(proba, torch.tensor([0, 1])).item() == 1


def test_names_of_metrics():
    for name, metric in METRICS.items():
        assert metric is getattr(weighted_metrics, name)
        assert metric.__name__ == name


def test_weighted_mean():
    _, _, weight = tied_rows(23, 2)
    values = torch.tensor(np.random.default_rng(24).normal(size=len(weight)))
    batch = torch.stack([weight, weight.flip(0)])
    expected = [np.average(values.numpy(), weights=w.numpy()) for w in batch]
    np.testing.assert_allclose(weighted_mean(values, batch).numpy(), expected, atol=1e-12)
    torch.testing.assert_close(weighted_mean(values), values.mean(), **EXACT)
    assert weighted_mean(values, 0 * weight).isnan()
    assert weighted_mean(torch.tensor([True, False, True, True])).item() == 0.75
    assert weighted_mean(torch.tensor([1, 2]), torch.tensor([1, 3])).item() == 1.75


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_cost_of_rows(kind):
    entries = [[0.0, 1.0, 0.1], [5.0, -2.0, 1.0], [9.0, 3.0, 0.5]]
    proba, labels, weight = tied_rows(25, 3)
    metric = cost(kind(entries) if kind is not torch.tensor else kind(entries, dtype=proba.dtype))
    expected = np.array(entries)[labels.numpy(), proba.numpy().argmax(axis=1)]
    rows = metric(proba, labels)
    np.testing.assert_array_equal(rows.numpy(), expected)
    mean = weighted_mean(rows, weight).item()
    assert mean == pytest.approx(np.average(expected, weights=weight.numpy()), abs=1e-12)
    assert metric.__name__ == "cost"


def test_cost_has_a_gradient_in_the_matrix():
    proba, labels, weight = tied_rows(26, 3)
    matrix = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    mean = weighted_mean(cost(matrix)(proba, labels), weight)
    (gradient,) = torch.autograd.grad(mean, matrix)
    confusion = sk.confusion_matrix(
        labels, proba.argmax(dim=1), sample_weight=weight, normalize="all"
    )
    np.testing.assert_allclose(gradient.numpy(), confusion, atol=1e-12)


def test_refuses_shapes_that_do_not_fit():
    proba, labels, weight = tied_rows(27, 3)
    for metric in METRICS.values():
        with pytest.raises(ShapeError, match=r"at least two; got \(150, 1\)"):
            metric(proba[:, :1], labels)
        with pytest.raises(ShapeError, match=r"labels must have shape \(150,\)"):
            metric(proba, labels[:-1])
        with pytest.raises(ShapeError, match=r"shape \(\.\.\., 150\).* got \(150, 2\)"):
            metric(proba, labels, weight[:, None].expand(-1, 2))
        with pytest.raises(ShapeError, match=r"got \(\)"):
            metric(proba, labels, weight[0])
    with pytest.raises(ShapeError, match="one per row"):
        weighted_mean(proba)
    with pytest.raises(ShapeError, match=r"square matrix.*got \(2, 3\)"):
        cost([[0, 1, 2], [1, 0, 2]])
    with pytest.raises(ShapeError, match="2 classes do not fit probabilities of 3"):
        cost([[0, 1], [1, 0]])(proba, labels)
