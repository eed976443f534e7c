"""The monitor: odd chunks, a state that resumes exactly, threads, memory, pictures."""

import gc
import resource
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import Alerts, SavedFileError, SEESc, SeesError, ShiftMonitor, estimate_many
from tests.monitor.streams import Stream

RULE = Alerts(drop=0.0, false_alarms=0.5, horizon=3)


@pytest.fixture(scope="module")
def stream():
    return Stream()


def test_chunks_without_rows_or_with_too_few_are_noted(stream):
    monitor = stream.monitor(min_rows=50, alerts=Alerts(drop=0.01))
    features, proba = stream.chunks[0]
    empty = monitor.observe(features[:0], proba[:0], name="empty")
    small = monitor.observe(features[:49], proba[:49], name="small")
    fine = monitor.observe(features[:50], proba[:50], name="fine")
    assert empty.report is None
    assert not empty.alert
    assert "empty" in empty.note
    assert "at least 50" in small.note
    assert fine.report is not None
    frame = monitor.to_frame()
    assert list(frame["status"][:2]) == ["skipped", "skipped"]
    assert list(frame["rows"]) == [0, 49, 50]
    assert frame["gap"].isna().tolist() == [True, True, False]
    assert frame["alert"].dtype == bool


def test_small_chunks_are_enough_together(stream):
    monitor = stream.monitor(window=2, min_rows=50)
    features, proba = stream.chunks[0]
    assert monitor.observe(features[:30], proba[:30]).report is None
    assert monitor.observe(features[30:60], proba[30:60]).report is not None
    assert monitor.observe(features[60:70], proba[60:70]).report is None
    assert list(monitor.to_frame()["rows"]) == [30, 60, 10]


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
@pytest.mark.parametrize("method", ["auto", "sees-c", "bbse"])
def test_a_level_or_a_class_may_be_missing_or_new(stream, method):
    monitor = stream.monitor(method)
    features, proba = stream.chunks[0]
    level = features["x0"] == features["x0"].iloc[0]
    sure = proba[:, 1] < 0.5
    assert np.isfinite(monitor.add(features[level], proba[level.to_numpy()]).gap)
    assert np.isfinite(monitor.add(features[sure], proba[sure]).gap)
    assert np.isfinite(monitor.add(features.assign(x1=99), proba).gap)


def test_bad_input_is_still_refused(stream):
    monitor = stream.monitor()
    features, proba = stream.chunks[0]
    with pytest.raises(SeesError, match="lacks"):
        monitor.observe(features.drop(columns="x0"), proba)
    monitor.observe(features, proba, name="May")
    with pytest.raises(SeesError, match="already"):
        monitor.observe(features, proba, name="May")
    assert len(monitor.to_frame()) == 1


OPTIONS = (
    {"alerts": RULE},
    {"alerts": RULE, "window": 2},
    {"alerts": RULE, "half_life": 1.5},
    {"method": "sees-c", "window": 3},
    {"method": SEESc(eta="auto", solver="proximal"), "half_life": 1.5},
)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "forgetting", "warm", "auto"])
def test_a_resumed_monitor_gives_the_same_numbers_bit_for_bit(stream, options, tmp_path):
    whole = stream.monitor(**options)
    for chunk in stream.chunks:
        whole.observe(*chunk)
    monitor = stream.monitor(**options)
    for chunk in stream.chunks:
        monitor.observe(*chunk)
        monitor.save(tmp_path / "state")
        monitor = stream.monitor(**options).resume(tmp_path / "state")
    assert monitor.rows == whole.rows or repr(monitor.rows) == repr(whole.rows)
    assert monitor.nulls == whole.nulls
    pd.testing.assert_frame_equal(monitor.to_frame(), whole.to_frame(), rtol=0, atol=0)


def test_a_threshold_that_was_half_learnt_goes_on(stream, tmp_path):
    class StopError(Exception):
        pass

    def stop(done, of):
        if done == 3:
            monitor.save(tmp_path / "state")
            raise StopError

    monitor = stream.monitor(alerts=RULE, progress=stop)
    with pytest.raises(StopError):
        monitor.observe(*stream.chunks[0])
    assert not monitor.rows
    resumed = stream.monitor(alerts=RULE).resume(tmp_path / "state")
    fresh = stream.monitor(alerts=RULE)
    for one in (resumed, fresh):
        one.observe(*stream.chunks[0])
    assert resumed.nulls == fresh.nulls


def test_continuous_columns_resume_exactly(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=900), "z": rng.integers(0, 3, 900)})
    proba = 1 / (1 + np.exp(-table["x"].to_numpy()))
    labels = (rng.random(900) < proba).astype(int)

    def monitor():
        return ShiftMonitor(
            table[:500],
            labels[:500],
            source_proba=proba[:500],
            method="mlls",
            window=2,
            replicates=10,
        )

    first = monitor()
    first.add(table[500:700], proba[500:700])
    first.save(tmp_path / "state")
    resumed = monitor().resume(tmp_path / "state")
    rest = table[700:], proba[700:]
    assert first.add(*rest).to_dict() == resumed.add(*rest).to_dict()


@pytest.mark.parametrize(
    "other", [{"metric": "brier"}, {"window": 2}, {"alerts": None}, {"method": "bbse"}]
)
def test_another_monitor_does_not_take_the_state(stream, other, tmp_path):
    stream.monitor(alerts=RULE).save(tmp_path / "state")
    with pytest.raises(SavedFileError, match="another source or to other settings"):
        stream.monitor(**{"alerts": RULE} | other).resume(tmp_path / "state")


def test_another_source_does_not_take_the_state(stream, tmp_path):
    stream.monitor().save(tmp_path / "state")
    other = ShiftMonitor(
        stream.features,
        np.roll(stream.labels, 1),
        source_proba=stream.proba,
        method="mlls",
        replicates=20,
    )
    with pytest.raises(SavedFileError, match="another source"):
        other.resume(tmp_path / "state")


def test_a_monitor_that_has_seen_chunks_does_not_resume(stream, tmp_path):
    monitor = stream.monitor()
    monitor.add(*stream.chunks[0])
    monitor.save(tmp_path / "state")
    with pytest.raises(SavedFileError, match="already"):
        monitor.resume(tmp_path / "state")


def test_threads_share_a_monitor(stream):
    alone, shared = stream.monitor(alerts=RULE), stream.monitor(alerts=RULE)
    for number, chunk in enumerate(stream.chunks):
        alone.observe(*chunk, name=number)
    threads = [
        threading.Thread(target=shared.observe, args=chunk, kwargs={"name": number})
        for number, chunk in enumerate(stream.chunks)
    ]
    with warnings.catch_warnings():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert shared.to_frame().sort_index().equals(alone.to_frame())


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_tensors_do_not_pile_up(stream):
    monitor = stream.monitor(window=2, replicates=0)
    counts = []
    for number in range(8):
        monitor.observe(*stream.chunks[number % len(stream.chunks)])
        if number in (3, 7):
            counts.append(live_tensors())
    assert counts[0] == counts[1]


def resident() -> int:
    """Kilobytes that the process holds now."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"window": 2, "alerts": RULE}, {"half_life": 2.0}])
def test_a_thousand_chunks_take_no_more_memory_than_a_hundred(stream, options, tmp_path):
    """Observed and saved; the state is read back every hundred chunks and goes on."""
    monitor, sizes = stream.monitor(replicates=5, **options), []
    for number in range(1, 1001):
        monitor.observe(*stream.chunks[number % len(stream.chunks)])
        monitor.save(tmp_path / "state")
        if number % 100 == 0:
            sizes.append(resident())
            monitor = stream.monitor(replicates=5, **options).resume(tmp_path / "state")
    print(f"megabytes after every hundred chunks: {[round(s / 1024) for s in sizes]}")  # noqa: T201
    assert len(monitor.rows) == 1000
    # The frame's own rows, about one kilobyte each, and their text while a state is written.
    assert sizes[-1] - sizes[0] < 20_000


def test_the_picture_shows_what_the_frame_says(stream):
    monitor = stream.monitor(alerts=RULE, min_rows=50)
    features, proba = stream.chunks[0]
    for chunk in [*stream.chunks, (features[:10], proba[:10])]:
        monitor.observe(*chunk)
    (axes,) = monitor.plot().axes
    frame = monitor.to_frame()
    shown = {line.get_label(): line.get_ydata() for line in axes.lines}
    together = np.where(frame["alert"], shown["estimate with alert"], shown["estimate"])
    np.testing.assert_allclose(together, 100 * frame["target"])
    assert shown["too few rows"].shape == (1,)
    assert "accuracy [%]" in axes.get_ylabel()
    assert f"{frame['alert'].sum()} alert" in axes.get_title()


def test_many_targets_are_told_without_alerts(stream):
    names = ["a", "b"]
    tables = dict(zip(names, (features for features, _ in stream.chunks), strict=False))
    proba = dict(zip(names, (proba for _, proba in stream.chunks), strict=False))
    found = estimate_many(
        stream.features, stream.labels, tables, None, stream.proba, proba, method="mlls"
    )
    assert list(found.index) == names
    assert "alert" not in found.columns


def test_nothing_is_learnt_or_plotted_without_reason(stream):
    with pytest.raises(SeesError, match="false_alarms"):
        stream.monitor(alerts=Alerts(drop=0.1)).learn(100)
    with pytest.raises(SeesError, match="nothing to plot"):
        stream.monitor().plot()


def test_a_state_does_not_depend_on_the_order_of_the_source(stream, tmp_path):
    stream.monitor(alerts=RULE).save(tmp_path / "state")
    order = np.random.default_rng(0).permutation(len(stream.features))
    other = ShiftMonitor(
        stream.features.iloc[order],
        np.asarray(stream.labels)[order],
        source_proba=stream.proba[order],
        method="mlls",
        replicates=20,
        alerts=RULE,
    )
    assert not other.resume(tmp_path / "state").rows
