"""The gap estimators but the efficient one against numpy, and the metrics."""

import numpy as np
import pytest
import torch
from worlds import drawn_world, exact_world, samples

from sees_torch import (
    BBSE,
    CBPE,
    DLU,
    ConstantWeights,
    KnownWeights,
    NoShift,
    SEESc,
    SEESd,
    SeesError,
    ShapeError,
    estimate_shift,
)
from sees_torch.gap import (
    ROW_METRICS,
    estimate_gap,
    metric_name,
    own_estimator,
    row_values,
    target_posterior,
)
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS

ESTIMATORS = ["ipw", "self-normalised", "plugin", "dr"]


def metric_by_hand(name, proba, labels):
    own = proba[np.arange(len(proba)), labels]
    if name == "accuracy":
        return (proba.argmax(axis=1) == labels).astype(float)
    if name == "log_loss":
        return -np.log(np.maximum(own, 1e-15))
    return ((proba - np.eye(proba.shape[1])[labels]) ** 2).sum(axis=1)


@pytest.mark.parametrize("metric", ROW_METRICS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equals_the_formula(estimator, metric):
    """Any weights and posteriors, right or wrong, multiplicities included."""
    rng = np.random.default_rng(0)
    pair = drawn_world(3, 200, 150, features=3, classes=3)
    u, v = rng.integers(0, 4, 200).astype(float), rng.integers(0, 4, 150).astype(float)
    pair = pair.__class__(**{**vars(pair), "source_weight": u, "target_weight": v})
    source, target = samples(pair)
    p, q = rng.dirichlet(np.ones(3), 200), rng.dirichlet(np.ones(3), 150)
    source, target = source.with_posterior(torch.tensor(p)), target.with_posterior(torch.tensor(q))
    raw = {(a, y): rng.exponential() for a in range(3) for y in range(3)}
    function = KnownWeights(raw, ("x1",)).match(source, target).weight_function
    gap = estimate_gap(source, target, function, metric, estimator)

    def table(frame):
        return np.array([[raw[a, y] for y in range(3)] for a in frame["x1"]])

    def expected_loss(frame, posterior, proba):
        joint = posterior * table(frame)
        joint = joint / joint.sum(axis=1, keepdims=True)
        by_label = [metric_by_hand(metric, proba, np.full(len(proba), y)) for y in range(3)]
        return (joint * np.stack(by_label, axis=1)).sum(axis=1)

    value = metric_by_hand(metric, pair.source_proba, pair.labels)
    w = table(pair.source)[np.arange(200), pair.labels]
    on_target = expected_loss(pair.target, q, pair.target_proba)
    on_source = expected_loss(pair.source, p, pair.source_proba)
    by_hand = {
        "ipw": np.average(w * value, weights=u),
        "self-normalised": (u * w * value).sum() / (u * w).sum(),
        "plugin": np.average(on_target, weights=v),
        "dr": np.average(on_target, weights=v) + np.average(w * (value - on_source), weights=u),
    }[estimator]
    assert gap.metric == metric
    assert gap.estimator == estimator
    np.testing.assert_allclose(float(gap.target_value), by_hand, rtol=1e-12)
    np.testing.assert_allclose(float(gap.source_value), np.average(value, weights=u), rtol=1e-12)
    assert float(gap.gap) == float(gap.target_value) - float(gap.source_value)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("metric", ROW_METRICS)
def test_exact_weights_and_posterior_give_the_population_gap(estimator, metric):
    for seed in range(3):
        pair = exact_world(seed, features=3, classes=3, shifted=2)
        source, target = samples(pair)
        function = KnownWeights(pair.weight_table, pair.features).match(source, target)
        gap = estimate_gap(source, target, function.weight_function, metric, estimator)
        value = metric_by_hand(metric, pair.source_proba, pair.labels)
        truth = (pair.target_weight - pair.source_weight) @ value
        np.testing.assert_allclose(float(gap.gap), truth, atol=1e-12)
        if metric == "accuracy":
            np.testing.assert_allclose(pair.population_gap, truth, atol=1e-12)


def test_dr_forgives_a_wrong_posterior_but_plugin_does_not():
    pair = exact_world(1, features=3, classes=2)
    source, target = samples(pair)
    flat = torch.full_like(source.posterior, 0.5)
    source, target = source.with_posterior(flat), target.with_posterior(flat)
    weights = KnownWeights(pair.weight_table, pair.features).match(source, target).weight_function
    error = {
        e: abs(float(estimate_gap(source, target, weights, estimator=e).gap) - pair.population_gap)
        for e in ("dr", "plugin")
    }
    assert error["dr"] < 1e-12
    assert error["plugin"] > 0.01


@pytest.mark.parametrize("metric", WEIGHTED_METRICS)
def test_a_metric_that_is_no_mean_is_computed_on_weighted_source_rows(metric):
    """Whatever estimator was asked for; multiplicities included."""
    pair = drawn_world(3, 200, 150, features=3, classes=3)
    u = np.random.default_rng(0).integers(0, 4, 200).astype(float)
    pair = pair.__class__(**{**vars(pair), "source_weight": u})
    source, target = samples(pair)
    match = KnownWeights(pair.weight_table, pair.features).match(source, target)
    function = WEIGHTED_METRICS[metric]
    proba, labels, count = (torch.tensor(a) for a in (pair.source_proba, pair.labels, u))
    before = function(proba, labels, count)
    after = function(proba, labels, count * torch.tensor(pair.weights))
    assert abs(float(after - before)) > 1e-6
    for estimator in (*ESTIMATORS, "eff"):
        gap = estimate_gap(source, target, match.weight_function, metric, estimator)
        assert (gap.metric, gap.estimator) == (metric, "self-normalised")
        torch.testing.assert_close(gap.source_value, before, rtol=0, atol=1e-12)
        torch.testing.assert_close(gap.target_value, after, rtol=0, atol=1e-12)


def test_the_estimator_that_belongs_to_the_weights():
    source, target = samples(drawn_world(2, 100, 80, features=2))
    own = {
        method.name: own_estimator(method.match(source, target))
        for method in (SEESd(1), BBSE(), NoShift(), SEESc(), DLU(), CBPE())
    }
    assert own == {
        "sees-d": "eff",
        "bbse": "eff",
        "none": "ipw",
        "sees-c": "dr",
        "dlu": "dr",
        "cbpe": "plugin",
    }


def test_rows_without_any_weight_keep_their_posterior():
    posterior = torch.tensor([[0.3, 0.7], [0.4, 0.6]], dtype=torch.float64)
    weights = torch.tensor([[0.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.3, 0.7], [2 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(target_posterior(weights, posterior), expected)


class TestMetrics:
    pair = drawn_world(2, 100, 80, features=2)

    def test_a_function_is_a_metric(self):
        def confident_mistakes(proba, labels):
            return (proba.gather(1, labels[:, None]).squeeze(1) < 0.2).to(torch.float64)

        report = estimate_shift(**self.pair.inputs(), metric=confident_mistakes, method="none")
        own = self.pair.source_proba[np.arange(100), self.pair.labels]
        assert report.metric == "confident_mistakes"
        np.testing.assert_allclose(report.source_value, (own < 0.2).mean(), atol=1e-15)

    def test_booleans_and_integers_are_values(self):
        hits = (self.pair.source_proba.argmax(1) == self.pair.labels).astype(float)
        for metric in (
            lambda p, y: p.argmax(1) == y,
            lambda p, y: (p.argmax(1) == y).to(torch.int32),
        ):
            values = row_values(*samples(self.pair), metric)
            assert values.own.dtype == values.source.dtype == values.target.dtype == torch.float64
            np.testing.assert_array_equal(values.own, hits)

    def test_a_list_keeps_its_order_and_its_headline(self):
        metrics = ["brier", "accuracy", "log_loss"]
        report = estimate_shift(**self.pair.inputs(), metric=metrics, method="bbse")
        assert [gap.metric for gap in report.gaps] == metrics
        assert report.metric == "brier"
        assert report.gap == float(report.gaps[0].gap)
        for gap in report.gaps:
            alone = estimate_shift(**self.pair.inputs(), metric=gap.metric, method="bbse")
            assert alone.gap == float(gap.gap)
        assert list(report.to_frame().index) == metrics

    @pytest.mark.parametrize("name", ROW_METRICS)
    def test_values_under_every_label_and_the_own_one(self, name):
        pair = self.pair
        values = row_values(*samples(pair), name)
        own = metric_by_hand(name, pair.source_proba, pair.labels)
        np.testing.assert_allclose(values.own, own, rtol=1e-13)
        tables = ((values.source, pair.source_proba), (values.target, pair.target_proba))
        for table, proba in tables:
            assert table.shape == proba.shape
            for y in range(2):
                by_hand = metric_by_hand(name, proba, np.full(len(proba), y))
                np.testing.assert_allclose(table[:, y], by_hand, rtol=1e-13)

    @pytest.mark.parametrize("name", WEIGHTED_METRICS)
    def test_a_metric_that_is_no_mean_over_rows_has_no_row_values(self, name):
        assert row_values(*samples(self.pair), name) is None

    def test_log_loss_is_finite_at_zero(self):
        proba = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        np.testing.assert_allclose(
            ROW_METRICS["log_loss"](proba, torch.tensor([1])), -np.log(1e-15), rtol=1e-12
        )

    @pytest.mark.parametrize(
        ("metric", "error", "message"),
        [
            ("f2", SeesError, "unknown metric 'f2': take one of accuracy, log_loss, brier, bal"),
            (3, SeesError, "metric must be a name or a function, got int"),
            (lambda p, y: p, ShapeError, r"one value per row, shape \(100,\); got \(100, 2\)"),
            (lambda p, y: 0.5, ShapeError, "got float"),
            (lambda p, y: p[:, 0] * torch.nan, SeesError, "NaN or infinity"),
        ],
        ids=["unknown", "number", "matrix", "scalar", "nan"],
    )
    def test_refused_metrics(self, metric, error, message):
        with pytest.raises(error, match=message):
            estimate_gap(*samples(self.pair), self.ones(), metric)

    def ones(self):
        source, _ = samples(self.pair)
        return ConstantWeights(source.schema, source.classes, torch.ones(2, dtype=torch.float64))

    def test_names(self):
        for name in (*ROW_METRICS, *WEIGHTED_METRICS):
            assert metric_name(name) == name

        class Half:
            def __call__(self, proba, labels):
                return 0.5 * torch.ones(len(labels))

        assert metric_name(Half()) == "Half"
        assert row_values(*samples(self.pair), Half()).own.tolist() == [0.5] * 100

    def test_unknown_estimators_and_empty_lists(self):
        with pytest.raises(SeesError, match="unknown estimator 'magic'"):
            estimate_gap(*samples(self.pair), self.ones(), estimator="magic")
        with pytest.raises(SeesError, match="unknown estimator 'magic'"):
            estimate_shift(**self.pair.inputs(), estimator="magic")
        with pytest.raises(SeesError, match="metric must be a name"):
            estimate_shift(**self.pair.inputs(), metric=[])


def test_the_gap_keeps_the_graph_of_the_weights():
    pair = drawn_world(2, 60, 50, features=2)
    source, target = samples(pair)

    def gap(weight):
        function = ConstantWeights(source.schema, source.classes, weight)
        return estimate_gap(source, target, function, "brier", "dr").gap

    weight = torch.tensor([0.7, 1.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gap, weight)
