"""Alerts: thresholds of the user's, a learnt one, and how often it is wrong."""

import numpy as np
import pytest
import torch

from sees_torch import Alerts, SeesError, ShiftMonitor, estimate_shift
from sees_torch.monitor.alerts import rank
from sees_torch.monitor.splits import split_gap, split_size, stretch
from tests.monitor.streams import Stream
from tests.worlds import exact_world


@pytest.fixture(scope="module")
def stream():
    return Stream()


def observed(monitor, stream):
    return [monitor.observe(*chunk) for chunk in stream.chunks]


def test_a_drop_of_the_users_is_compared_with_the_gap(stream):
    gaps = [-found.report.gap for found in observed(stream.monitor(), stream)]
    limit = float(np.median(gaps))
    found = observed(stream.monitor(alerts=Alerts(drop=max(limit, 0))), stream)
    assert [one.alert for one in found] == [gap > max(limit, 0) for gap in gaps]
    assert any(one.alert for one in found)
    assert not all(one.alert for one in found)


def test_a_floor_is_compared_with_the_estimate(stream):
    values = [found.report.target_value for found in observed(stream.monitor(), stream)]
    limit = float(np.median(values))
    found = observed(stream.monitor(alerts=Alerts(floor=limit)), stream)
    assert [one.alert for one in found] == [value < limit for value in values]


def test_for_a_loss_higher_is_worse(stream):
    monitor = stream.monitor(metric="log_loss", alerts=Alerts(drop=0.0))
    found = observed(monitor, stream)
    assert [one.alert for one in found] == [one.report.gap > 0 for one in found]


def test_a_learnt_threshold_finds_the_change_and_nothing_before_it(stream):
    monitor = stream.monitor("sees-em", alerts=Alerts(false_alarms=0.4, horizon=6))
    found = observed(monitor, stream)
    assert [one.alert for one in found] == [False] * 4 + [True] * 2
    frame = monitor.to_frame()
    assert (frame["alert"] == (frame["p_value"] <= 0.4 / 6)).all()
    assert (frame["alert"] == (frame["gap"] < frame["threshold"])).all()


def test_a_learnt_threshold_holds_back_a_drop_of_the_users(stream):
    found = observed(stream.monitor(alerts=Alerts(drop=0.0)), stream)
    learnt = Alerts(drop=0.0, false_alarms=0.05, horizon=4)
    both = observed(stream.monitor(alerts=learnt), stream)
    assert sum(one.alert for one in both) < sum(one.alert for one in found)


def test_ranks_and_limits_agree_on_every_drop():
    null = [0.3, 0.1, 0.1, 0.0, -0.2, 0.5, 0.2, 0.4, 0.1]
    alerts = Alerts(false_alarms=0.2, horizon=1, draws=len(null))
    for drop in np.linspace(-0.3, 0.6, 19):
        assert (rank(drop, null) <= alerts.level) == (drop > alerts.limit(null))


def test_the_bound_holds_for_ranks_of_like_draws():
    """Chunks and splits that are alike, and chunks that share noise: at most the stated rate."""
    alerts = Alerts(false_alarms=0.2, horizon=5)
    generator = np.random.default_rng(0)
    streams = 4000
    for shared in (0.0, 0.7):
        common = shared * generator.normal(size=(streams, 1))
        own = (1 - shared**2) ** 0.5
        chunks = common + own * generator.normal(size=(streams, alerts.horizon))
        null = generator.normal(size=(streams, alerts.splits))
        limit = np.array([alerts.limit(list(row)) for row in null])
        share = (chunks > limit[:, None]).any(axis=1).mean()
        assert share <= 0.2 + 3 * (0.2 * 0.8 / streams) ** 0.5
        assert share > 0.1  # The bound is not idle either.


def test_splits_vary_as_chunks_do():
    """The spread of the gaps of splits, stretched, is that of new samples: to 3 errors of 60."""
    size, n = 150, 600
    new, split = [], []
    for world in range(6):
        stream = Stream(size, quiet=10, shifted=1, source=n, seed=world)
        monitor = stream.monitor(replicates=0, confidence=None)
        new += [monitor.add(*chunk).gap for chunk in stream.chunks[:10]]
        source = monitor.source.merged
        scale = stretch(source, size, size)
        split += [scale * split_gap(monitor.estimation, source, size, world, k) for k in range(10)]
    ratio = np.std(split) / np.std(new)
    assert abs(np.log(ratio)) < 3 * (1 / 60) ** 0.5


def test_a_split_is_a_sample_against_the_rest(stream, monkeypatch):
    monitor = stream.monitor()
    source = monitor.source.merged
    seen = []
    from sees_torch.monitor import splits

    monkeypatch.setattr(
        splits, "quietly", lambda method, *pair: seen.append(pair) or method.match(*pair)
    )
    split_gap(monitor.estimation, source, 100, 0, 0)
    split_gap(monitor.estimation, source, 100, 0, 1)
    (rest, part), (_, other) = seen
    assert float(part.total) == 100
    assert float(rest.total) + 100 == float(source.total)
    assert bool((part.labels == -1).all())
    assert len(part) != len(other) or not torch.equal(part.count, other.count)


def test_a_chunk_larger_than_half_of_the_source_is_learnt_from_half(stream):
    source = stream.monitor().source.merged
    assert split_size(source, 10**6) == 300
    assert stretch(source, 300, 10**6) == pytest.approx((1 / 600 / (4 / 600)) ** 0.5, rel=1e-3)
    assert stretch(source, 100, 50) > 1


def test_sizes_within_a_factor_of_two_share_what_was_learnt(stream):
    monitor = stream.monitor(alerts=Alerts(false_alarms=0.5, horizon=2))
    limits = [monitor.learn(rows) for rows in (100, 190, 60)]
    assert list(monitor.nulls) == [100]
    monitor.learn(40)
    assert list(monitor.nulls) == [100, 40]
    assert abs(limits[1]) < abs(limits[0]) < abs(limits[2])


def test_progress_counts_the_splits(stream):
    steps = []
    alerts = Alerts(false_alarms=0.5, horizon=2)
    monitor = stream.monitor(alerts=alerts, progress=lambda done, of: steps.append((done, of)))
    monitor.learn(100)
    assert steps == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "floor, drop or false_alarms"),
        ({"drop": -0.1}, "drop must"),
        ({"floor": float("nan")}, "floor must"),
        ({"false_alarms": 1.0}, "between 0 and 1"),
        ({"false_alarms": 0.1, "horizon": 0}, "at least 1"),
        ({"false_alarms": 0.1, "horizon": 10, "draws": 50}, "at least 99"),
    ],
)
def test_rules_that_make_no_sense_are_refused(options, words):
    with pytest.raises(SeesError, match=words):
        Alerts(**options)


def test_a_metric_of_the_users_own_needs_a_direction(stream):
    def hits(proba, labels):
        return (proba.argmax(dim=1) == labels).double()

    with pytest.raises(SeesError, match="higher_is_better"):
        stream.monitor(metric=hits, alerts=Alerts(drop=0.0))
    monitor = stream.monitor(metric=hits, alerts=Alerts(drop=0.0, higher_is_better=False))
    found = observed(monitor, stream)
    assert [one.alert for one in found] == [one.report.gap > 0 for one in found]


def test_a_population_has_no_splits():
    pair = exact_world(0, features=2)
    monitor = ShiftMonitor(
        pair.source,
        pair.labels,
        source_proba=pair.source_proba,
        source_weight=pair.source_weight,
        method="mlls",
        alerts=Alerts(false_alarms=0.1),
    )
    with pytest.raises(SeesError, match="whole multiplicities"):
        monitor.learn(100)


def test_the_estimates_are_those_of_estimate_shift(stream):
    features, proba = stream.chunks[0]
    monitor = stream.monitor("auto", alerts=Alerts(drop=0.1))
    report = estimate_shift(
        stream.features, stream.labels, features, None, stream.proba, proba, replicates=20
    )
    assert monitor.add(features, proba).to_dict() == report.to_dict()
