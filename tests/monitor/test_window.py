"""Windows: the last chunks pooled, and old rows that count less and less."""

import pandas as pd
import pytest
import torch

from sees_torch import SeesError, Target
from sees_torch.monitor.window import Window
from tests.monitor.streams import Stream


@pytest.fixture(scope="module")
def stream():
    return Stream()


def pooled_by_hand(monitor, chunks, weights=None):
    table = pd.concat([features for features, _ in chunks], ignore_index=True)
    proba = torch.cat([torch.as_tensor(proba) for _, proba in chunks])
    return Target(table, proba, monitor.source.given, weight=weights)


def test_a_window_pools_the_last_chunks(stream):
    monitor = stream.monitor("sees-em", window=3)
    for number, chunk in enumerate(stream.chunks):
        report = monitor.add(*chunk)
        plain = stream.monitor("sees-em")
        last = stream.chunks[max(0, number - 2) : number + 1]
        expected = plain.add(pooled_by_hand(plain, last))
        assert report.gap == pytest.approx(expected.gap, abs=1e-12)
        assert report.interval == pytest.approx(expected.interval, abs=1e-12)
    assert list(monitor.to_frame()["rows"]) == [150, 300, 450, 450, 450, 450]
    assert len(monitor.window.chunks) == 3


def test_forgotten_rows_keep_shares_and_count_their_effective_number(stream):
    monitor = stream.monitor(half_life=1.0)
    for chunk in stream.chunks[:3]:
        report = monitor.add(*chunk)
    # Three chunks that count 1, 1/2 and 1/4.
    assert report.diagnostics["target_rows"] == pytest.approx(150 * 1.75**2 / 1.3125)
    assert report.interval is not None
    weights = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64).repeat_interleave(150)
    plain = stream.monitor(confidence=None)
    target = pooled_by_hand(plain, stream.chunks[:3], weights * 1.75 / 1.3125)
    target.sampled = True
    expected = plain.add(target)
    assert report.gap == pytest.approx(expected.gap, abs=1e-9)


def test_what_is_forgotten_is_dropped():
    window = Window(1, 0.3)
    assert window.length == 4
    window = Window(2, 5.0)
    assert window.length == 2


def test_pooling_narrows_the_interval(stream):
    alone, pooled = stream.monitor(replicates=100), stream.monitor(window=4, replicates=100)
    for chunk in stream.chunks[:4]:
        one, all_ = alone.add(*chunk), pooled.add(*chunk)
    assert all_.standard_errors[0] < one.standard_errors[0]


@pytest.mark.parametrize("options", [{"window": 0}, {"half_life": 0.0}, {"half_life": -1.0}])
def test_windows_that_make_no_sense_are_refused(stream, options):
    with pytest.raises(SeesError):
        stream.monitor(**options)
