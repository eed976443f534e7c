"""`PerformanceShift`: the report of `estimate_shift`, however the rows are dealt out."""

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy
from worlds import drawn_world, mixed_frame

from sees_torch import (
    BBSE,
    KnownWeights,
    Schema,
    SchemaError,
    SEESd,
    SeesError,
    Source,
    SupportError,
    Target,
    estimate_shift,
)
from sees_torch.metrics import PerformanceShift, WeightedAccuracy

KEYS = ["gap", "low", "high", "source_value", "target_value", "status", "shifted_features"]
PAIR = drawn_world(0, 1500, 1200)
QUICK = {"replicates": 0}


def mixed(seed, rows):
    rng = np.random.default_rng(seed)
    frame = mixed_frame(rng, rows)
    labels = np.where(rng.random(rows) < 0.3 + 0.2 * (frame["town"] == "Bern"), "yes", "no")
    proba = np.clip(0.25 + 0.5 * (labels == "yes") + rng.normal(0, 0.25, rows), 0.01, 0.99)
    return frame, labels, proba.round(2)


def metric_of(pair=PAIR, **options):
    """By a fast method: how rows are kept does not depend on it."""
    settings = {"method": "sees-d"} | QUICK | options
    return PerformanceShift(Schema.learn(pair.source), pair.classes, **settings)


def fill(metric, pair=PAIR, parts=1, rank=0, ranks=1):
    """Source and target in turn, dealt out to ranks."""
    pieces = [
        np.array_split(np.arange(len(table)), parts * ranks)[rank::ranks]
        for table in (pair.source, pair.target)
    ]
    for here, there in zip(*pieces, strict=True):
        metric.update(pair.source_proba[here], pair.labels[here], pair.source.iloc[here])
        metric.update(pair.target_proba[there], features=pair.target.iloc[there])
    return metric


def assert_same(found, expected, tolerance=1e-12):
    assert list(found) == list(expected) == KEYS
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                found[key], value, rtol=0, atol=tolerance, equal_nan=True, msg=key
            )
        else:
            assert found[key] == value, key


@pytest.fixture(scope="module")
def whole():
    """The value of all rows at once."""
    return fill(metric_of()).compute()


@pytest.mark.parametrize("method", ["auto", "sees-em", "sees-c", SEESd(), BBSE(), "mlls", "cbpe"])
def test_the_value_is_that_of_estimate_shift(method):
    metric = fill(metric_of(method=method), parts=3)
    found = metric.compute()
    report = estimate_shift(**PAIR.inputs(), method=method, **QUICK)
    assert float(found["gap"]) == pytest.approx(report.gap, abs=1e-12)
    interval = report.interval or (math.nan, math.nan)
    assert float(found["low"]) == pytest.approx(interval[0], abs=1e-12, nan_ok=True)
    assert float(found["high"]) == pytest.approx(interval[1], abs=1e-12, nan_ok=True)
    assert found["status"] == metric.report.status == report.status
    assert found["shifted_features"] == report.shifted_features
    assert found["gap"].dtype == torch.float64


def test_batches_and_resamples():
    options = {"method": "sees-em", "replicates": 20}
    whole = fill(metric_of(**options)).compute()
    assert whole["low"] < whole["gap"] < whole["high"]
    batched = fill(metric_of(**options, compute_on_cpu=True), parts=11).compute()
    assert_same(batched, whole)


def test_merged_states_copies_and_pickles(whole):
    one, two = (fill(metric_of(), parts=3, rank=rank, ranks=2) for rank in range(2))
    one.compute()
    for other in (copy.deepcopy(two), pickle.loads(pickle.dumps(two)), two.metric_state):
        joined = copy.deepcopy(one)
        joined.merge_state(other)
        assert_same(joined.compute(), whole)
    again = pickle.loads(pickle.dumps(joined))
    assert_same(again.compute(), whole)
    assert again.report.gap == joined.report.gap
    fresh = metric_of()
    fresh.merge_state(joined)
    assert_same(fresh.compute(), whole)
    assert_same(one.clone().compute(), one.compute())


def test_reset(whole):
    metric = fill(metric_of(), drawn_world(1, 200, 200))
    metric.compute()
    assert metric.report is not None
    metric.reset()
    assert metric.report is None
    assert_same(fill(metric, parts=2).compute(), whole)


def test_state_dict(whole):
    metric = fill(metric_of())
    metric.persistent(True)
    other = metric_of()
    other.load_state_dict(metric.state_dict())
    other._update_count = 1
    assert_same(other.compute(), whole)


def test_continuous_columns_text_and_multiplicities():
    (source, labels, proba), (target, _, moved) = mixed(0, 600), mixed(1, 500)
    schema = Schema.learn(source)
    metric = PerformanceShift(schema, ["no", "yes"], "sees-c", **QUICK)
    weight = np.arange(600) % 3
    for rows in np.array_split(np.random.default_rng(2).permutation(600), 4):
        metric.update(proba[rows], labels[rows], source.iloc[rows], weight[rows])
    metric.update(moved, features=target)
    report = estimate_shift(
        Source(source, labels, proba, weight=weight, schema=schema),
        target=Target(target, moved, Source(source, labels, proba, schema=schema)),
        method="sees-c",
        **QUICK,
    )
    assert float(metric.compute()["gap"]) == pytest.approx(report.gap, abs=1e-12)
    assert metric.report.notes == report.notes


def test_probability_frames_are_read_by_the_names_of_their_columns(whole):
    frame = pd.DataFrame(PAIR.source_proba, columns=list(PAIR.classes))
    metric = metric_of()
    metric.update(frame[list(PAIR.classes)[::-1]], PAIR.labels, PAIR.source)
    metric.update(PAIR.target_proba, features=PAIR.target)
    assert_same(metric.compute(), whole)
    with pytest.raises(SchemaError, match="do not name the classes"):
        metric.update(frame.set_axis(["a", "b"], axis=1), PAIR.labels, PAIR.source)


def test_memory_is_bounded_by_the_distinct_rows(whole):
    """Codes only, so that there are few: many batches leave as many rows as one."""
    metric = metric_of(max_rows=2000)
    for _ in range(12):
        fill(metric)
    held = sum(map(len, metric.codes))
    assert held <= 2 * 2000 * 2 + 1500
    assert float(metric.rows("count").sum()) == 12 * 2700
    gap = metric.compute()["gap"]
    assert metric.report.diagnostics["source_rows"] == 12 * 1500
    assert abs(float(gap - whole["gap"])) < 0.05


def test_too_many_rows_are_rounded_then_thinned_and_the_report_says_so():
    world = drawn_world(2, 3000, 3000)
    bounded = fill(metric_of(world, max_rows=100), world, parts=10)
    assert sum(map(len, bounded.codes)) <= 2 * 2 * 100 + 600
    bounded.compute()
    assert len(bounded.report.source) <= 100
    assert any("rows was kept" in note for note in bounded.report.notes)
    parts = [fill(metric_of(world, max_rows=100), world, 3, rank, 2) for rank in range(2)]
    parts[0].merge_state(parts[1])
    joined = parts[0].compute()
    assert len(parts[0].report.source) <= 100
    assert joined["gap"].isfinite()
    left = parts[0].report.diagnostics["source_rows"]
    kept = {note.split("every ")[1].split()[0] for note in parts[0].report.notes if "every" in note}
    assert any(left * int(share) == pytest.approx(3000, rel=0.05) for share in kept)


def test_in_a_collection(whole):
    """Other metrics take other arguments; two shifts share rows, not methods."""
    together = MetricCollection(
        {
            "shift": metric_of(),
            "labels": metric_of(method="mlls"),
            "accuracy": WeightedAccuracy(),
            "plain": BinaryAccuracy(),
        }
    )
    target = MetricCollection({"shift": together["shift"], "labels": together["labels"]})
    for rows in np.array_split(np.arange(1500), 3):
        batch = {"proba": PAIR.source_proba[rows], "labels": PAIR.labels[rows].astype(int)}
        score = {"preds": torch.tensor(batch["proba"][:, 1]), "target": batch["labels"]}
        score["target"] = torch.tensor(score["target"])
        together.update(**batch, **score, features=PAIR.source.iloc[rows])
    for rows in np.array_split(np.arange(1200), 3):
        target.update(proba=PAIR.target_proba[rows], features=PAIR.target.iloc[rows])
    found = target.compute()
    assert_same({key: found[f"shift_{key}"] for key in KEYS}, whole)
    labels = estimate_shift(**PAIR.inputs(), method="mlls", **QUICK)
    assert float(found["labels_gap"]) == pytest.approx(labels.gap, abs=1e-12)
    assert float(together["accuracy"].compute()) == pytest.approx(labels.source_value)


def test_forward_counts_and_says_nothing(whole):
    together = MetricCollection({"one": metric_of(), "two": metric_of(method="mlls")})
    for rows in np.array_split(np.arange(1500), 2):
        source = {"labels": PAIR.labels[rows], "features": PAIR.source.iloc[rows]}
        assert together(proba=PAIR.source_proba[rows], **source) == {}
    together.update(proba=PAIR.target_proba[:700], features=PAIR.target.iloc[:700])
    together(proba=PAIR.target_proba[700:], features=PAIR.target.iloc[700:])
    found = together.compute()
    assert_same({key: found[f"one_{key}"] for key in KEYS}, whole)
    assert together["two"].report.diagnostics["source_rows"] == 1500


def test_other_schemas_are_never_joined():
    """Their first batches have equal codes: only the settings tell them apart."""
    proba, labels, features = [0.2, 0.7], [0, 1], torch.tensor([[0.0], [1.0]])
    few, many = (Schema.learn(torch.arange(float(size))[:, None]) for size in (2, 3))
    together = MetricCollection(
        {"few": PerformanceShift(few, [0, 1]), "many": PerformanceShift(many, [0, 1])}
    )
    together.update(proba=proba, labels=labels, features=features)
    assert len(together.compute_groups) == 2
    with pytest.raises(SeesError, match="another schema, classes, max_rows or precision"):
        together["few"].merge_state(together["many"])


def test_gradients_stop_here():
    """By a method whose weights follow the probabilities."""
    proba = torch.tensor(PAIR.source_proba).log().requires_grad_().softmax(dim=1)
    whole = fill(metric_of(method="mlls")).compute()
    metric = metric_of(method="mlls")
    metric.update(proba, PAIR.labels, PAIR.source)
    with torch.no_grad():
        metric.update(torch.tensor(PAIR.target_proba), features=PAIR.target)
    found = copy.deepcopy(metric).compute()
    assert not found["gap"].requires_grad
    assert_same(found, whole, 1e-9)


def test_states_move_between_devices_and_keep_their_precision(whole):
    metric = fill(metric_of())
    metric.to(torch.float16)
    metric.set_dtype(torch.float32)
    assert_same(metric.compute(), whole)
    metric.to("meta")
    states = metric.metric_state.values()
    held = [part for state in states for part in (state if isinstance(state, list) else [state])]
    assert {part.device.type for part in held} == {"meta"}
    assert metric.device.type == "meta"


def test_errors(whole):
    metric = metric_of()
    with (
        pytest.warns(UserWarning, match="before the ``update``"),
        pytest.raises(SupportError, match="no source rows yet"),
    ):
        metric.compute()
    metric.update(PAIR.source_proba, PAIR.labels, PAIR.source)
    with pytest.raises(SupportError, match=r"no target rows yet: call update\(proba, features"):
        metric.compute()
    with pytest.raises(SeesError, match="features is missing"):
        metric.update(PAIR.target_proba)
    with pytest.raises(SchemaError, match="not among the classes"):
        metric.update(PAIR.source_proba, np.full(1500, 7), PAIR.source)
    with pytest.raises(SeesError, match="proba has 3 rows"):
        metric.update(PAIR.source_proba[:3], PAIR.labels, PAIR.source)
    with pytest.raises(SeesError, match="labels has 3 entries"):
        metric.update(PAIR.source_proba, PAIR.labels[:3], PAIR.source)
    with pytest.raises(SeesError, match="proba has 3 columns, there are 2 classes"):
        metric.update(np.full((1500, 3), 1 / 3), PAIR.labels, PAIR.source)
    with pytest.raises(SeesError, match="weight must be non-negative"):
        metric.update(PAIR.source_proba, PAIR.labels, PAIR.source, -np.ones(1500))
    # What was refused left no trace.
    metric.update(PAIR.target_proba, features=PAIR.target)
    assert_same(metric.compute(), whole)


def test_a_source_of_one_class_is_refused():
    metric = metric_of()
    kept = PAIR.labels == PAIR.classes[0]
    metric.update(PAIR.source_proba[kept], PAIR.labels[kept], PAIR.source[kept])
    metric.update(PAIR.target_proba, features=PAIR.target)
    with pytest.raises(SupportError, match="at least two classes"):
        metric.compute()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": "x"}, "schema is a str"),
        ({"classes": "ab"}, "classes must be a list"),
        ({"method": "magic"}, "magic"),
        ({"method": KnownWeights(torch.ones(3))}, "KnownWeights weighs the rows of one table"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"precision": 60}, "precision must be None or 1 to 51"),
        ({"confidence": 2.0}, "confidence must lie"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    settings = {"schema": Schema.learn(PAIR.source), "classes": PAIR.classes} | options
    with pytest.raises(SeesError, match=message):
        PerformanceShift(**settings)


def test_plot(whole):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib.figure import Figure

    metric = fill(metric_of())
    figure, axes = metric.plot()
    assert isinstance(figure, Figure)
    assert "accuracy" in axes.get_ylabel()
    assert axes.get_title() == f"status: {whole['status'].replace('_', ' ')}"
    drawn = metric.plot([whole, whole], ax=figure.add_subplot())[1]
    assert drawn.get_legend().get_texts()[0].get_text() == "source"
    figure.canvas.draw()
    bare = fill(metric_of(confidence=None, metric="log_loss"))
    figure, axes = bare.plot()
    figure.canvas.draw()
    assert bare.compute()["low"].isnan()
    with pytest.raises(SeesError, match="nothing to plot"):
        metric.plot([])
