"""`PerformanceShift(states="tables")`: sums whose size the schema fixes, and the gap of rows."""

import copy

import numpy as np
import pytest
import torch
from test_performance_shift import fill
from worlds import drawn_world, exact_world

from sees_torch import BBSE, Schema, SEESd, SeesError, SupportError
from sees_torch.gap import brier
from sees_torch.metrics import PerformanceShift

PAIR = drawn_world(0, 1500, 1200)
METHODS = [BBSE(), BBSE(soft=True), SEESd(0), SEESd(1), SEESd(1, soft=True), SEESd(2), "sees-d"]


def metric_of(pair=PAIR, states="tables", method=None, **options):
    schema = Schema.learn(pair.source)
    method = SEESd(1) if method is None else method
    settings = {"estimator": "ipw", "replicates": 0, "confidence": None} | options
    return PerformanceShift(schema, pair.classes, method, states=states, **settings)


def assert_same(found, expected, tolerance=1e-12):
    assert found["shifted_features"] == expected["shifted_features"]
    for name in ("source_value", "target_value", "gap"):
        assert float(found[name]) == pytest.approx(float(expected[name]), abs=tolerance), name


@pytest.mark.parametrize("estimator", ["ipw", "self-normalised"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_tables_give_what_rows_give(method, estimator):
    found, expected = (
        fill(metric_of(states=states, method=method, estimator=estimator), parts=3).compute()
        for states in ("tables", "rows")
    )
    assert_same(found, expected)
    assert found["status"] == "not_judged"
    assert found["low"].isnan()


@pytest.mark.parametrize("metric", ["log_loss", "brier", brier])
def test_metrics_of_probabilities(metric):
    world = drawn_world(5, 900, 800, features=4, classes=3)
    for method in (SEESd(1), BBSE(soft=True)):
        found, expected = (
            fill(metric_of(world, states, method, metric=metric), world).compute()
            for states in ("tables", "rows")
        )
        assert_same(found, expected)


def test_a_population():
    world = exact_world(1, features=3)
    values = []
    for states in ("tables", "rows"):
        metric = metric_of(world, states)
        metric.update(world.source_proba, world.labels, world.source, world.source_weight)
        metric.update(world.target_proba, features=world.target, weight=world.target_weight)
        values.append(metric.compute())
    assert_same(*values, 1e-9)
    assert values[0]["shifted_features"] == world.features


@pytest.mark.parametrize("method", [SEESd(1), SEESd(1, soft=True), BBSE()], ids=str)
def test_batches_and_ranks_add_up(method):
    whole = fill(metric_of(method=method)).compute()
    assert_same(fill(metric_of(method=method), parts=11).compute(), whole)
    one, two = (fill(metric_of(method=method), parts=3, rank=rank, ranks=2) for rank in range(2))
    one.merge_state(two)
    assert_same(one.compute(), whole)


def test_states_are_sums_of_a_size_that_rows_do_not_change():
    metric = metric_of()
    sums = ("counts", "losses", "totals")
    assert all(metric._reductions[name].__name__ == "dim_zero_sum" for name in sums)
    shapes = {name: getattr(metric, name).shape for name in sums}
    for seed in range(3):
        fill(metric, drawn_world(seed, 3000, 3000))
    assert {name: getattr(metric, name).shape for name in sums} == shapes
    assert {getattr(metric, name).dtype for name in sums} == {torch.float64}
    assert sum(map(len, metric.codes)) <= 4 * 512 + 3000
    assert metric.totals[:, 0].tolist() == [9000, 9000]
    metric.reset()
    assert float(metric.counts.sum()) == 0
    assert_same(fill(metric).compute(), fill(metric_of()).compute())
    assert copy.deepcopy(metric).report is None


def test_columns_without_a_common_level_are_left_out():
    world = drawn_world(0, 600, 500)
    target = world.target.assign(x1=world.target["x1"] + 50)
    values = []
    for states in ("tables", "rows"):
        metric = metric_of(world, states)
        metric.update(world.source_proba, world.labels, world.source)
        metric.update(world.target_proba, features=target)
        values.append(metric.compute())
    assert_same(*values)
    metric = metric_of(world)
    metric.update(world.source_proba, world.labels, world.source)
    metric.update(world.target_proba, features=world.target + 50)
    with pytest.raises(SupportError, match="levels in common in 0 columns"):
        metric.compute()


def test_other_metrics_are_not_joined():
    one, two = metric_of(), metric_of(metric="brier")
    fill(one), fill(two)
    with pytest.raises(SeesError, match="method or metric"):
        one.merge_state(two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": "magic"}, "'rows' or 'tables'"),
        ({"method": "sees-em"}, "serve SEESd and BBSE"),
        ({"method": SEESd("auto")}, "number of features"),
        ({"estimator": "eff"}, "need states='rows'"),
        ({"metric": ["accuracy", "brier"]}, "one metric"),
        ({"metric": "auroc"}, "mean over rows"),
    ],
)
def test_what_tables_cannot_do_is_refused(options, message):
    with pytest.raises(SeesError, match=message):
        metric_of(**options)


def test_tables_beyond_measure_are_refused():
    schema = Schema.learn(np.random.default_rng(0).integers(0, 9, (100, 30)))
    with pytest.raises(SeesError, match="use states='rows'"):
        PerformanceShift(schema, [0, 1], SEESd(2), estimator="ipw", states="tables")
