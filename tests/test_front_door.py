"""`estimate_shift` from the outside: every form of input, the report's contract, every refusal."""

import json
import math
import random
import signal
import warnings
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from worlds import drawn_world

from sees_torch import (
    DLU,
    KLIEP,
    Auto,
    IdentificationError,
    SchemaError,
    SEESc,
    SEESd,
    SEESem,
    SeesError,
    SeesWarning,
    ShapeError,
    ShiftReport,
    SupportError,
    SupportWarning,
    estimate_shift,
    make_sparse_joint_shift,
)
from sees_torch.matching.names import METHODS

N, M = 500, 400
NAMES = ["auto", *METHODS]


@pytest.fixture(scope="module")
def pair():
    generator = torch.Generator().manual_seed(3)
    return make_sparse_joint_shift(N, M, features=4, generator=generator)


@pytest.fixture(scope="module")
def mixed():
    """Text, a number with a range, a flag and missing cells; three classes."""
    generator = torch.Generator().manual_seed(4)
    drawn = make_sparse_joint_shift(N, M, features=3, classes=3, generator=generator)
    rng = np.random.default_rng(4)

    def dressed(table: pd.DataFrame) -> pd.DataFrame:
        age = rng.normal(40, 10, len(table))
        age[rng.random(len(table)) < 0.1] = np.nan
        return table.assign(
            x0=np.array(["Bern", "Chur", "Genf"])[table["x0"]], x1=table["x1"] > 0, age=age
        )

    names = np.array(["high", "low", "mid"])
    return replace(
        drawn,
        source=dressed(drawn.source),
        target=dressed(drawn.target),
        labels=names[drawn.labels],
        classes=tuple(names.tolist()),
    )


def go(pair, **changes) -> ShiftReport:
    """estimate_shift on the pair, some arguments changed; classes are left to be inferred.

    Without an interval, which no point estimate depends on.
    """
    given = {**pair.inputs(), "classes": None, "confidence": None, **changes}
    return estimate_shift(**given)


def quick(method: str):
    """The method of this name; KLIEP with fewer kernels, its defaults take seconds."""
    return KLIEP(centres=15, widths=(0.5, 1.0)) if method == "kliep" else method


def assert_same(left: ShiftReport, right: ShiftReport, atol: float = 1e-12) -> None:
    for name in ("gap", "source_value", "target_value"):
        assert getattr(left, name) == pytest.approx(getattr(right, name), abs=atol), name
    assert left.match.features == right.match.features
    torch.testing.assert_close(left.weights, right.weights, rtol=0, atol=atol)
    shares = [list(r.target_label_distribution.values()) for r in (left, right)]
    np.testing.assert_allclose(shares[0], shares[1], rtol=0, atol=atol)


def read(pair, **changes) -> ShiftReport:
    """The same by a fast method: what is read does not depend on the method."""
    return go(pair, method="sees-d", **changes)


@pytest.fixture(scope="module")
def plain(pair) -> ShiftReport:
    """The report on the pair as it is."""
    return read(pair)


@pytest.fixture(scope="module")
def chosen(pair) -> ShiftReport:
    """The same by the default method."""
    return go(pair)


@pytest.fixture(scope="module")
def straight(mixed):
    """The report on the mixed rows as they are, by the name of a method."""
    return cache(lambda method: go(mixed, method=quick(method)))


# Input forms


def tables(form: str, table: pd.DataFrame):
    forms = {
        "array": lambda: table.to_numpy(),
        "fortran": lambda: np.asfortranarray(table.to_numpy()),
        "float16": lambda: table.to_numpy().astype(np.float16),
        "uint8": lambda: table.to_numpy().astype(np.uint8),
        "list": lambda: table.to_numpy().tolist(),
        "tensor": lambda: torch.tensor(table.to_numpy()),
        "float32 tensor": lambda: torch.tensor(table.to_numpy()).float(),
        "half tensor": lambda: torch.tensor(table.to_numpy()).half(),
        "index": lambda: table.set_index(np.arange(len(table))[::-1] * 7),
        "text index": lambda: table.set_index(pd.Index([f"r{i}" for i in range(len(table))])),
        "repeated index": lambda: table.set_index(np.zeros(len(table), int)),
        "Int64": lambda: table.astype("Int64"),
        "Float64": lambda: table.astype("Float64"),
        "arrow": lambda: table.astype("int64[pyarrow]"),
        "objects": lambda: table.astype(object),
        "text": lambda: table.astype(str),
        "category": lambda: table.astype("category"),
        "sparse": lambda: table.astype(pd.SparseDtype(int)),
        "days": lambda: pd.DataFrame({k: pd.to_datetime(v, unit="D") for k, v in table.items()}),
        "columns": lambda: table[["x2", "x0", "x3", "x1"]],
    }
    return forms[form]()


@pytest.mark.parametrize(
    ("source_form", "target_form"),
    [(form, form) for form in ("array", "fortran", "float16", "uint8", "list", "tensor")]
    + [(form, form) for form in ("float32 tensor", "half tensor", "Int64", "Float64", "arrow")]
    + [(form, form) for form in ("objects", "text", "category", "sparse", "days")]
    + [("index", "text index"), ("repeated index", "repeated index")]
    + [("array", "half tensor"), ("Int64", "tensor"), ("category", "Float64"), ("uint8", "list")],
)
def test_every_form_of_table_gives_the_same_report(pair, plain, source_form, target_form):
    changes = {
        "source": tables(source_form, pair.source),
        "target": tables(target_form, pair.target),
    }
    report = read(pair, **changes)
    assert_same(report, plain)
    named = isinstance(changes["source"], pd.DataFrame)
    assert all(isinstance(name, str if named else int) for name in report.shifted_features)


def test_columns_are_matched_by_name(pair, plain):
    report = read(pair, target=tables("columns", pair.target))
    assert_same(report, plain)
    assert report.shifted_features == plain.shifted_features


@pytest.mark.parametrize(
    "convert",
    [
        pytest.param(torch.tensor, id="tensor"),
        pytest.param(np.ndarray.tolist, id="list"),
        pytest.param(lambda p: pd.DataFrame(p, index=range(7, 7 + len(p))), id="frame"),
        pytest.param(lambda p: pd.DataFrame(p[:, [1, 0]].copy(), columns=[1, 0]), id="frame 1, 0"),
        pytest.param(lambda p: p[:, 1], id="(n,)"),
        pytest.param(lambda p: p[:, 1:], id="(n, 1)"),
        pytest.param(lambda p: torch.tensor(p[:, 1]), id="(n,) tensor"),
        pytest.param(lambda p: pd.Series(p[:, 1], index=range(len(p), 0, -1)), id="series"),
        pytest.param(lambda p: p.astype(str), id="text"),
    ],
)
def test_every_form_of_probabilities_gives_the_same_report(pair, plain, convert):
    report = read(
        pair, source_proba=convert(pair.source_proba), target_proba=convert(pair.target_proba)
    )
    assert report.gap == pytest.approx(plain.gap, abs=1e-10)
    assert report.shifted_features == plain.shifted_features


@pytest.mark.parametrize("method", ["auto", "sees-em", "sees-d"])
def test_single_precision_changes_little(pair, method):
    half = {name: torch.tensor(getattr(pair, name)).float() for name in PROBA}
    expected = go(pair, method=method).gap
    # The average of auto holds fits of many features, whose solver stops sooner.
    slack = 1e-4 if method == "auto" else 1e-5
    assert go(pair, **half, method=method).gap == pytest.approx(expected, abs=slack)


PROBA = ("source_proba", "target_proba")


def test_probability_frames_of_source_and_target_may_differ_in_order(pair, chosen):
    report = go(
        pair,
        source_proba=pd.DataFrame(pair.source_proba, columns=[0, 1]),
        target_proba=pd.DataFrame(pair.target_proba[:, [1, 0]].copy(), columns=[1, 0]),
    )
    assert_same(report, chosen)


@pytest.mark.parametrize("names", [(-1, 1), (1, 2), (False, True), ("no", "yes"), (0.5, 2.0)])
def test_names_of_labels_change_no_number(pair, plain, names):
    report = read(pair, labels=np.array(names)[pair.labels])
    assert_same(report, plain, atol=0)
    assert list(report.target_label_distribution) == list(names)


@pytest.mark.parametrize(
    "convert",
    [
        lambda y: y.tolist(),
        lambda y: torch.tensor(y),
        lambda y: torch.tensor(y)[:, None],
        lambda y: pd.Series(y, index=np.random.default_rng(0).permutation(len(y))),
        lambda y: pd.Series(y, dtype="Int64"),
        lambda y: pd.Series(pd.Categorical(y)),
        lambda y: y.astype(object),
    ],
    ids=["list", "tensor", "(n, 1)", "series", "Int64", "categorical", "object"],
)
def test_every_form_of_labels_gives_the_same_report(pair, plain, convert):
    assert_same(read(pair, labels=convert(pair.labels)), plain, atol=0)


# Models


class Net(nn.Module):
    """The pair's own classifier is unknown to it; any fixed function of the table will do."""

    def __init__(self, logits: bool):
        super().__init__()
        self.linear = nn.Linear(4, 2, dtype=torch.float64)
        self.logits = logits
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[-0.2, 0.4, 0.0, 0.9], [1.0, -0.5, 0.3, 0.0]]))
            self.linear.bias.copy_(torch.tensor([-0.4, 0.1]))

    def forward(self, x):
        scores = self.linear(x)
        return scores if self.logits else scores.softmax(dim=1)


class Wrapped:
    def __init__(self, classes):
        self.classes_ = np.array(classes)

    def predict_proba(self, table: pd.DataFrame) -> np.ndarray:
        ordered = table[["x0", "x1", "x2", "x3"]].to_numpy().astype(np.float64)
        proba = Net(logits=False)(torch.tensor(ordered)).detach().numpy()
        return proba[:, self.classes_]


def with_model(pair, model, **changes) -> ShiftReport:
    return read(pair, model=model, source_proba=None, target_proba=None, **changes)


@pytest.fixture(scope="module")
def by_probabilities(pair):
    """The report on the net's probabilities, given as arrays."""
    net = Net(logits=False)
    given = {
        f"{name}_proba": net(torch.tensor(getattr(pair, name).to_numpy()).double()).detach()
        for name in ("source", "target")
    }
    return read(pair, **given)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Net(logits=False), {}),
        (Net(logits=True), {"logits": True}),
        (Wrapped([0, 1]), {}),
        (Wrapped([1, 0]), {}),
        (Wrapped([0, 1]).predict_proba, {}),
        (lambda table: torch.tensor(Wrapped([0, 1]).predict_proba(table)), {}),
        (lambda table: pd.DataFrame(Wrapped([1, 0]).predict_proba(table), columns=[1, 0]), {}),
        (lambda table: np.log(Wrapped([0, 1]).predict_proba(table)), {"logits": True}),
    ],
    ids=["module", "logits", "classifier", "turned", "callable", "tensor", "frame", "log"],
)
def test_every_form_of_model_gives_the_same_report(pair, by_probabilities, model, options):
    report = with_model(pair, model, **options)
    assert report.gap == pytest.approx(by_probabilities.gap, abs=1e-9)
    assert report.shifted_features == by_probabilities.shifted_features
    assert report.source_value == pytest.approx(by_probabilities.source_value, abs=1e-12)


@pytest.mark.parametrize("data", [torch.tensor, np.asarray])
def test_modules_take_arrays_and_tensors(pair, data):
    changes = {n: data(getattr(pair, n).to_numpy()) for n in ("source", "target")}
    proba = {n: Net(False)(as_tensor(getattr(pair, n[:6]))).detach() for n in PROBA}
    assert_same(with_model(pair, Net(False), **changes), read(pair, **changes, **proba), atol=0)
    report = with_model(pair, Net(False), **changes)
    assert report.gap == with_model(pair, Net(False)).gap


def test_sklearn_classifiers(pair):
    from sklearn.linear_model import LogisticRegression

    labels = np.array(["no", "yes"])[pair.labels]
    classifier = LogisticRegression().fit(pair.source, labels)
    report = with_model(pair, classifier, labels=labels)
    proba = {n: classifier.predict_proba(getattr(pair, n[:6])) for n in PROBA}
    assert_same(report, read(pair, labels=labels, **proba), atol=0)
    assert report.source_value == pytest.approx(classifier.score(pair.source, labels), abs=1e-12)


@pytest.mark.parametrize(
    "model", [Net(False), lambda t: Net(False)(as_tensor(t)).detach()], ids=["module", "callable"]
)
def test_models_get_the_columns_in_the_order_of_the_source(pair, by_probabilities, model):
    report = with_model(pair, model, target=tables("columns", pair.target))
    assert report.gap == pytest.approx(by_probabilities.gap, abs=1e-9)


def as_tensor(table: pd.DataFrame) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(table.to_numpy())).double()


# The report


ALL = ["accuracy", "brier", "log_loss", "f1"]
"""Metrics of the report below; the last is no mean over rows."""
INTERVALS = {
    "auto": "bootstrap",
    "sees-em": "bootstrap",
    "sees-c": "bootstrap",
    "mlls": "bootstrap",
    "sees-d": "analytic",
    "bbse": "analytic",
    "cbpe": "analytic",
    "kliep": "none: the error of the weights of kliep is not known",
    "dlu": "none: the error of the weights of dlu is not known",
    "none": "none: the method assumes that nothing shifted",
}


# The others draw what one of these does; all of them are drawn once below.
LOOKS = [
    pytest.param(name, marks=pytest.mark.slow if name in ("mlls", "cbpe", "dlu", "kliep") else ())
    for name in NAMES
]


@pytest.fixture(scope="module", params=NAMES)
def asked(request) -> str:
    """The method that the report below was asked for; "auto" reports the one it chose."""
    return request.param


@pytest.fixture(scope="module")
def report(asked, mixed) -> ShiftReport:
    return estimate_shift(**mixed.inputs(), method=quick(asked), metric=ALL, replicates=20)


def test_figures_of_the_report_agree_with_each_other(report, mixed):
    assert isinstance(report.gap, float)
    assert report.gap == float(report.gap_tensor)
    assert report.gap == pytest.approx(report.target_value - report.source_value, abs=1e-15)
    hits = mixed.source_proba.argmax(1) == [mixed.classes.index(y) for y in mixed.labels]
    assert report.source_value == pytest.approx(hits.mean(), abs=1e-12)
    assert report.metric == "accuracy"


def test_the_interval_says_where_it_comes_from(report, asked):
    assert report.confidence == 0.95
    assert report.interval_source == INTERVALS[asked]
    assert report.interval == report.intervals[0]
    for place, gap in enumerate(report.gaps):
        interval, error = report.intervals[place], report.standard_errors[place]
        analytic = report.interval_source == "analytic"
        if report.interval_source.startswith("none") or (analytic and gap.metric == "f1"):
            assert interval is None
            assert error is None
        else:
            assert interval[0] <= float(gap.gap) <= interval[1]
            assert 0 < error < math.inf
            if analytic:
                assert interval[1] - interval[0] == pytest.approx(2 * 1.959964 * error, rel=1e-6)
        assert (report.analytic_errors[place] is None) == (gap.metric == "f1")


def test_the_status_has_its_reasons(report, asked):
    assert report.status in ("identified", "weak", "not_identified")
    assert all(isinstance(reason, str) and reason for reason in report.reasons)
    assert (report.status == "identified") == (report.reasons == ())
    unchecked = f"{report.match.method} compares no hypotheses: what it assumes is unchecked"
    assert (unchecked in report.reasons) == (asked not in ("auto", "sees-em", "sees-d"))


def test_hypotheses_are_told_or_refused(report, asked, mixed):
    if asked not in ("auto", "sees-em"):
        with pytest.raises(SeesError, match=f"{asked} compares no hypotheses: use method='auto'"):
            report.hypotheses()
        assert report.hypothesis == ""
        assert report.selection == {}
        return
    found = report.hypotheses()
    assert found["score"].is_monotonic_decreasing
    assert found["behind"].min() == 0
    chosen = found[found["chosen"]]
    assert len(chosen) == 1
    assert chosen["hypothesis"].item() == report.hypothesis
    assert chosen["features"].item() == report.shifted_features
    assert not chosen["rival"].item()
    assert all(set(names) <= set(mixed.source.columns) for names in found["features"])
    assert {"nothing", "labels only"} <= set(found["hypothesis"])
    many = {"covariates only", "labels and many features"}
    assert asked == "auto" or not many & set(found["hypothesis"])
    assert sum(report.selection.values()) == pytest.approx(1.0)
    assert list(report.selection.values()) == sorted(report.selection.values(), reverse=True)


def test_shifted_features_are_names(report, asked, mixed):
    assert isinstance(report.shifted_features, tuple)
    assert set(report.shifted_features) <= set(mixed.source.columns)
    assert report.ties[0] == report.shifted_features
    if asked not in ("auto", "sees-em", "sees-c", "sees-d"):
        assert report.shifted_features == ()


def test_weights_are_exactly_the_weight_function(report, mixed):
    assert report.weights.shape == (N,)
    assert (report.weights >= 0).all()
    assert report.weights.isfinite().all()
    assert isinstance(report.weight_function, nn.Module)
    again = report.weight_function(mixed.source, mixed.labels)
    assert torch.equal(report.weights, again)
    turned = report.weight_function(
        mixed.source[::-1][mixed.source.columns[::-1]], mixed.labels[::-1]
    )
    torch.testing.assert_close(turned.flip(0), again)
    strangers = mixed.target.assign(x0="Basel", age=-1.0)
    fresh = report.weight_function(strangers, np.resize(mixed.labels, M))
    assert fresh.shape == (M,)
    assert fresh.isfinite().all()


def test_label_distribution_is_a_distribution(report, mixed):
    assert tuple(report.target_label_distribution) == mixed.classes
    assert sum(report.target_label_distribution.values()) == pytest.approx(1.0, abs=1e-12)
    for label, share in report.target_label_distribution.items():
        rows = torch.tensor(mixed.labels == label)
        expected = float(report.weights[rows].sum() / report.weights.sum())
        assert share == pytest.approx(expected, abs=1e-12)


def test_diagnostics_are_numbers(report):
    figures = report.diagnostics
    assert all(type(value) is float and not math.isnan(value) for value in figures.values())
    assert figures["source_rows"] == N
    assert figures["target_rows"] == M
    assert figures["largest_weight"] == float(report.weights.max())
    assert figures["mean_weight"] == pytest.approx(float(report.weights.mean()), abs=1e-12)
    w = report.weights
    assert figures["effective_rows"] == pytest.approx(float(w.sum() ** 2 / (w**2).sum()), rel=1e-9)


def test_print_says_what_matters(report):
    text = str(report)
    lines = text.splitlines()
    words = {"identified": "identified", "weak": "WEAK", "not_identified": "NOT IDENTIFIED"}
    assert lines[0].startswith(f"status: {words[report.status]}: ")
    assert lines[1 : 1 + len(report.reasons)] == [f"  because {why}" for why in report.reasons]
    figures = lines[1 + len(report.reasons)]
    assert figures.startswith(f"accuracy: {100 * report.source_value:.1f} % on the source")
    assert f"gap {100 * report.gap:+.1f} points" in figures
    if report.interval is not None:
        low, high = (f"{100 * end:+.1f}" for end in report.interval)
        assert figures.endswith(f" (95 % interval {low} to {high})")
    assert ("% interval" in figures) == (report.interval is not None)
    assert f"interval {report.interval_source}" in text
    assert f"hypothesis: {report.hypothesis}" in text or not report.hypothesis
    for name in (*report.shifted_features, *ALL, report.method):
        assert name in text
    for label, share in report.target_label_distribution.items():
        assert f"  {label}: " in text
        assert f"to {share:.1%}" in text


def test_dict_is_json(report):
    plain = report.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["gap"] == report.gap
    assert plain["metrics"]["accuracy"]["gap"] == report.gap
    assert list(plain["metrics"]) == ALL
    assert plain["shifted_features"] == list(report.shifted_features)
    for found, interval in zip(plain["metrics"].values(), report.intervals, strict=True):
        assert found["interval"] == (None if interval is None else list(interval))
    assert plain["interval"] == plain["metrics"]["accuracy"]["interval"]
    assert plain["interval_source"] == report.interval_source
    assert plain["status"] == report.status
    assert plain["reasons"] == list(report.reasons)
    assert plain["method"] == report.method


def test_frame_has_a_row_per_metric(report):
    frame = report.to_frame()
    assert list(frame.index) == ALL
    assert frame.loc["accuracy", "gap"] == report.gap
    for name, interval in zip(ALL, report.intervals, strict=True):
        ends = (math.nan, math.nan) if interval is None else interval
        np.testing.assert_array_equal(frame.loc[name, ["low", "high"]].astype(float), ends)
    assert set(frame["status"]) == {report.status}
    np.testing.assert_allclose(frame["gap"], frame["target"] - frame["source"], atol=1e-15)
    assert set(frame["method"]) == {report.method}


def test_ranking_is_sorted_or_refused(report, mixed):
    if report.method != "sees-d":
        with pytest.raises(SeesError, match=f"{report.method} does not rank"):
            report.ranking()
        return
    ranking = report.ranking()
    assert sorted(ranking["features"]) == sorted((name,) for name in mixed.source.columns)
    assert ranking["objective"].is_monotonic_increasing
    assert ranking["features"][0] == report.shifted_features
    assert len(report.ranking(2)) == 2


@pytest.mark.parametrize("asked", LOOKS, indirect=True)
def test_plot_is_a_figure_that_can_be_saved(report, tmp_path):
    figure = report.plot()
    assert isinstance(figure, Figure)
    assert len(figure.axes) >= 3
    assert all(axes.get_title() for axes in figure.axes[:3])
    figure.savefig(tmp_path / "report.png", dpi=30)
    assert (tmp_path / "report.png").stat().st_size > 1000


def test_reports_on_arrays_name_positions(pair):
    changes = {n: getattr(pair, n).to_numpy() for n in ("source", "target")}
    report = read(pair, **changes)
    assert all(type(j) is int for j in report.shifted_features)
    assert report.shifted_features == report.match.features
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("metric", ["brier", "log_loss", lambda p, y: p[:, 1]])
def test_metrics_other_than_rates_print_and_plot(pair, metric):
    report = read(pair, metric=metric)
    figures = str(report).splitlines()[1 + len(report.reasons)]
    assert figures.startswith(f"{report.metric}: ")
    assert "%" not in figures
    assert isinstance(report.plot(), Figure)


def test_dict_is_json_for_labels_of_any_kind(pair):
    days = pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01"]))[pair.labels]
    found = json.loads(json.dumps(read(pair, labels=days).to_dict()))
    assert [day[:10] for day in found["target_label_distribution"]] == ["2020-01-01", "2021-01-01"]


def test_dict_is_json_when_a_feature_is_wholly_unseen(pair):
    changes = {"source": pair.source[["x0", "x1"]], "target": pair.target[["x0", "x1"]] + [0, 9]}
    found = json.loads(json.dumps(go(pair, **changes, method="sees-d").to_dict(), allow_nan=False))
    assert "runner_up_score" not in found["diagnostics"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        json.dumps(go(pair, **changes).to_dict(), allow_nan=False)


def test_two_functions_of_one_name_are_two_metrics(pair):
    report = read(pair, metric=[lambda p, y: p[:, 0], lambda p, y: p[:, 1]])
    assert len(report.to_dict()["metrics"]) == 2


@pytest.mark.parametrize(
    "method",
    [
        "sees-c",
        pytest.param("kliep"),
        pytest.param("dlu"),
    ],
)
def test_unseen_mass_is_not_reported_as_zero(pair, method):
    with pytest.warns(SupportWarning, match=r"100\.0% of the target is where the source never was"):
        report = go(pair, target=pair.target + 9, method=quick(method))
    assert report.diagnostics["unseen_mass"] > 0.99


# Gradients


@pytest.mark.parametrize("method", [m for m in NAMES if m != "none"])
def test_gap_tensor_keeps_the_graph(pair, method):
    proba = {name: torch.tensor(getattr(pair, name), requires_grad=True) for name in PROBA}
    report = go(pair, **proba, method=quick(method), metric="brier", calibrate=False)
    assert report.gap_tensor.requires_grad
    str(report), report.to_dict(), report.plot()
    report.gap_tensor.backward()
    for given in proba.values():
        assert given.grad.isfinite().all()
        assert given.grad.abs().sum() > 0


def test_gradients_come_without_warnings(pair):
    torch.set_warn_always(True)
    try:
        proba = {name: torch.tensor(getattr(pair, name), requires_grad=True) for name in PROBA}
        assert math.isfinite(go(pair, **proba).gap)
    finally:
        torch.set_warn_always(False)


# No shift, known shift, repeatability

ESTIMATORS = ["ipw", "self-normalised", "plugin", "dr", "eff"]
SAME_WEIGHTS = [(estimator, "auto") for estimator in ("self-normalised", "plugin", "dr")]


@pytest.mark.parametrize("method", NAMES)
def test_a_target_equal_to_the_source_has_no_gap(pair, method):
    """Uncalibrated, so that both samples carry the very same p(y|x)."""
    report = go(
        pair,
        target=pair.source,
        target_proba=pair.source_proba,
        method=quick(method),
        calibrate=False,
    )
    if method == "cbpe":  # The plug-in compares what the model expects with what came true.
        expected = pair.source_proba.max(axis=1).mean() - report.source_value
        assert report.gap == pytest.approx(expected, abs=1e-12)
    else:
        # Kernels and penalties shrink; the other methods must find weights of exactly one.
        slack = {"kliep": 1e-3, "dlu": 1e-3, "sees-c": 5e-3}.get(method, 1e-9)
        assert report.gap == pytest.approx(0.0, abs=slack)


@pytest.mark.parametrize(
    "method",
    [
        Auto(),
        SEESem(),
        SEESd(),
        SEESd(sparsity=2),
        SEESd(sparsity="auto"),
        SEESc(intercept=True),
    ],
    ids=repr,
)
def test_no_feature_is_named_when_nothing_moved(pair, method):
    same = {"target": pair.source, "target_proba": pair.source_proba, "calibrate": False}
    report = go(pair, **same, method=method)
    assert report.shifted_features == ()
    torch.testing.assert_close(report.weights, torch.ones(N).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", NAMES)
def test_no_shift_gives_a_gap_within_standard_errors(method):
    n = 3000
    generator = torch.Generator().manual_seed(11)
    drawn = make_sparse_joint_shift(n, n, features=3, strength=0.0, generator=generator)
    report = go(drawn, method=quick(method))
    error = (report.source_value * (1 - report.source_value) * 2 / n) ** 0.5
    assert abs(report.gap) < 4 * error
    assert abs(report.diagnostics["mean_weight"] - 1) < 0.05


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        # The weights of auto do not depend on the estimator: two of its own kinds are enough.
        pytest.param(*case, marks=pytest.mark.slow if case in SAME_WEIGHTS else ())
        for case in product(ESTIMATORS, ["auto", "sees-em", "sees-d"])
    ],
)
def test_an_exact_population_gives_the_exact_gap(estimator, method):
    generator = torch.Generator().manual_seed(5)
    exact = make_sparse_joint_shift(features=3, exact=True, shifted=[1], generator=generator)
    report = estimate_shift(**exact.inputs(), method=method, estimator=estimator, calibrate=False)
    assert report.interval is None
    assert report.interval_source.startswith("none: multiplicities below one")
    assert report.shifted_features == ("x1",)
    # The likelihood's prior counts 1e-9 rows of a population, against 1e-2 in its smallest cells.
    slack = 1e-9 if method == "sees-d" else 1e-7
    assert report.gap == pytest.approx(exact.population_gap, abs=slack)
    np.testing.assert_allclose(report.weights, exact.weights, atol=1e-7)


@pytest.mark.parametrize("method", ["auto", "sees-d"])
def test_a_column_that_is_empty_in_the_source_changes_nothing(method):
    generator = torch.Generator().manual_seed(5)
    exact = make_sparse_joint_shift(features=3, exact=True, shifted=[1], generator=generator)
    given = {**exact.inputs(), "calibrate": False}
    given["source"] = exact.source.assign(empty=np.nan)
    given["target"] = exact.target.assign(empty=1.0)
    report = estimate_shift(**given, method=method)
    assert "empty: empty in the source, so it cannot explain a shift" in report.notes
    assert report.shifted_features == ("x1",)
    assert report.gap == pytest.approx(exact.population_gap, abs=1e-9)


def test_two_calls_agree_and_touch_nothing(report, asked, mixed):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    states = (torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    kept = {k: v.copy() for k, v in mixed.inputs().items() if hasattr(v, "copy")}
    again = estimate_shift(**mixed.inputs(), method=quick(asked), metric=ALL, replicates=20)
    np.testing.assert_equal(report.to_dict(), again.to_dict())
    assert torch.equal(report.weights, again.weights)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert all(map(np.array_equal, np.random.get_state(), states[1]))  # noqa: NPY002
    assert random.getstate() == states[2]
    for name, before in kept.items():
        now = getattr(mixed, name)
        if isinstance(before, pd.DataFrame):
            pd.testing.assert_frame_equal(now, before)
        else:
            np.testing.assert_array_equal(now, before)


def test_tensors_are_not_modified(pair):
    given = {
        **{n: torch.tensor(getattr(pair, n).to_numpy()).double() for n in ("source", "target")},
        **{n: torch.tensor(getattr(pair, n)) for n in PROBA},
        "labels": torch.tensor(pair.labels),
        "source_weight": torch.ones(N).double(),
    }
    before = {name: tensor.clone() for name, tensor in given.items()}
    go(pair, **given, method="sees-c")
    for name, tensor in given.items():
        assert torch.equal(tensor, before[name]), name
        assert not tensor._version, name


@pytest.mark.parametrize("method", NAMES)
def test_row_order_and_merging_change_nothing(mixed, method):
    rng = np.random.default_rng(6)
    times = {"source": rng.integers(1, 4, N), "target": rng.integers(1, 4, M)}
    rows = {name: rng.permutation(np.arange(len(t)).repeat(t)) for name, t in times.items()}
    merged = go(
        mixed, source_weight=times["source"], target_weight=times["target"], method=quick(method)
    )
    repeated = go(
        mixed,
        source=mixed.source.iloc[rows["source"]],
        labels=mixed.labels[rows["source"]],
        target=mixed.target.iloc[rows["target"]],
        source_proba=mixed.source_proba[rows["source"]],
        target_proba=mixed.target_proba[rows["target"]],
        method=quick(method),
    )
    assert merged.gap == pytest.approx(repeated.gap, abs=1e-7)
    assert merged.shifted_features == repeated.shifted_features


@pytest.mark.parametrize("method", NAMES)
def test_rows_of_multiplicity_zero_change_nothing(mixed, straight, method):
    """Rows that do not count may hold anything: a fourth town, other ages."""
    more = 200
    padded = go(
        mixed,
        source=pd.concat([mixed.source, mixed.source[:more].assign(x0="Basel", age=999.0)]),
        labels=np.r_[mixed.labels, mixed.labels[:more]],
        target=pd.concat([mixed.target, mixed.target[:more].assign(x0="Basel")]),
        source_proba=np.r_[mixed.source_proba, mixed.source_proba[:more]],
        target_proba=np.r_[mixed.target_proba, mixed.target_proba[:more]],
        source_weight=np.r_[np.ones(N), np.zeros(more)],
        target_weight=np.r_[np.ones(M), np.zeros(more)],
        method=quick(method),
    )
    assert padded.gap == pytest.approx(straight(method).gap, abs=1e-6)
    assert padded.shifted_features == straight(method).shifted_features
    assert padded.notes == straight(method).notes


@pytest.mark.parametrize("method", NAMES)
def test_class_order_changes_nothing(mixed, straight, method):
    order = [2, 0, 1]
    turned = go(
        mixed,
        source_proba=mixed.source_proba[:, order],
        target_proba=mixed.target_proba[:, order],
        classes=[mixed.classes[k] for k in order],
        method=quick(method),
    )
    assert turned.gap == pytest.approx(straight(method).gap, abs=1e-7)
    assert turned.target_label_distribution == pytest.approx(
        straight(method).target_label_distribution, abs=1e-6
    )


# Small, wide and odd samples


@pytest.mark.parametrize("method", NAMES)
def test_one_target_row(pair, method):
    report = go(
        pair,
        target=pair.target[:1],
        target_proba=pair.target_proba[:1],
        method=quick(method),
        confidence=0.9,
        replicates=5,
    )
    assert report.interval is None or all(map(math.isfinite, report.interval))
    assert math.isfinite(report.gap)
    assert -1 <= report.gap <= 1
    assert isinstance(report.plot(), Figure)


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("case", ["constant column", "two source rows"])
def test_nothing_varies(pair, method, case):
    if case == "constant column":
        changes = {"source": pair.source[["x0"]] * 0, "target": pair.target[["x0"]] * 0}
    else:
        rows = [int(np.flatnonzero(pair.labels == y)[0]) for y in (0, 1)]
        changes = {
            "source": pair.source.iloc[rows] * 0,
            "labels": pair.labels[rows],
            "source_proba": pair.source_proba[rows],
            "target": pair.target * 0,
        }
    report = go(pair, **changes, method=quick(method))
    assert math.isfinite(report.gap)
    assert report.shifted_features == ()


@pytest.mark.parametrize(
    ("method", "rows", "features"), [("auto", 150, 2), ("sees-d", 600, 3), ("mlls", 600, 3)]
)
def test_thirty_classes(method, rows, features):
    generator = torch.Generator().manual_seed(7)
    wide = make_sparse_joint_shift(rows, rows, features=features, classes=30, generator=generator)
    report = go(wide, method=method, classes=wide.classes)
    assert math.isfinite(report.gap)
    assert len(report.target_label_distribution) == 30
    assert sum(report.target_label_distribution.values()) == pytest.approx(1.0)
    assert isinstance(report.plot(), Figure)


@pytest.mark.parametrize(
    ("method", "calibrate"),
    [
        ("auto", True),
        ("sees-em", True),
        ("sees-em", False),
        ("sees-c", True),
        ("sees-d", True),
        ("bbse", True),
        ("mlls", True),
        ("sees-d", False),
        ("bbse", False),
        ("sees-c", False),
        ("mlls", False),
    ],
)
def test_a_class_predicted_only_in_the_target(pair, method, calibrate):
    """A sane number, or a word of warning."""
    certain = {
        "source_proba": np.tile([1 - 1e-9, 1e-9], (N, 1)),
        "target_proba": np.eye(2)[pair.target_proba.argmax(1)],
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = go(pair, **certain, method=method, calibrate=calibrate)
    if not any(issubclass(w.category, SeesWarning) for w in caught):
        assert -0.1 <= report.target_value <= 1.1
        assert report.diagnostics["mean_weight"] == pytest.approx(1.0, abs=0.5)


def test_a_column_of_identifiers_does_not_stop_the_estimate(pair):
    changes = {
        "source": pair.source.assign(id=[f"s{i}" for i in range(N)]),
        "target": pair.target.assign(id=[f"t{i}" for i in range(M)]),
    }
    report = go(pair, **changes)
    assert "id" not in report.shifted_features
    assert "id: 100.00% of the target has levels unknown to the source" in report.notes
    assert math.isfinite(report.gap)


@pytest.mark.parametrize(
    ("method", "rows", "draws", "enough", "levels"),
    [
        ("sees-d", 5000, 4, 3, 50),
        pytest.param("sees-d", 5000, 4, 3, 500, marks=pytest.mark.slow),
        pytest.param("auto", 3000, 2, 2, 50, marks=pytest.mark.slow),
        ("auto", 3000, 2, 2, 500),
    ],
)
def test_an_unrelated_wide_column_is_not_named(levels, method, rows, draws, enough):
    """Without the column the right feature is named in all of these draws."""
    right = 0
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        drawn = make_sparse_joint_shift(rows, rows, features=5, generator=generator)
        rng = np.random.default_rng(seed)
        changes = {
            n: getattr(drawn, n).assign(zip=rng.integers(0, levels, rows).astype(str))
            for n in ("source", "target")
        }
        right += go(drawn, **changes, method=method).shifted_features == drawn.features
    assert right >= enough


def test_ten_thousand_levels_answer_in_a_minute():
    generator = torch.Generator().manual_seed(8)
    drawn = make_sparse_joint_shift(12_000, 12_000, features=3, generator=generator)
    rng = np.random.default_rng(8)
    changes = {
        n: getattr(drawn, n).assign(zip=rng.integers(0, 10_000, 12_000).astype(str))
        for n in ("source", "target")
    }

    def too_late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(60)
    try:
        report = go(drawn, **changes)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "zip" not in report.shifted_features
    # Four times the two standard errors of an accuracy: the wide column must not bend the answer.
    assert report.gap == pytest.approx(go(drawn).gap, abs=0.03)


# Reported treatment


def test_target_only_levels_are_reported(pair):
    target = pair.target.assign(x2=pair.target["x2"].where(np.arange(M) >= 8, 7))
    report = read(pair, target=target)
    note = "x2: 2.00% of the target has levels unknown to the source"
    assert note in report.notes
    assert f"note: {note}" in str(report)
    assert note in report.to_dict()["notes"]


def test_target_only_levels_of_the_shifted_feature_warn(pair):
    single = {"source": pair.source[["x0"]], "target": pair.target[["x0"]].copy()}
    single["target"].iloc[:40] = 7
    with pytest.warns(SupportWarning, match=r"10\.0% of the target is where the source never was"):
        report = go(pair, **single, method="sees-d")
    assert report.diagnostics["unseen_mass"] == pytest.approx(0.1)
    assert "target in unseen cells 10.00%" in str(report)
    assert "10% of the target is where the source never was" in report.reasons


@pytest.mark.parametrize("method", ["auto", "sees-em", "sees-d"])
def test_a_new_level_of_the_shifted_feature_is_not_counted_as_errors(method):
    """One target row in ten, at random: the gap moves by what chance and ten percent can."""
    pair = drawn_world(0, 3000, 3000, features=5)
    target = pair.target.copy()
    target.loc[::10, "x0"] = 7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SupportWarning)
        found, before = (
            estimate_shift(**pair.inputs() | changes, method=method, confidence=None)
            for changes in ({"target": target}, {})
        )
    assert found.diagnostics["unseen_levels"] > 0
    assert found.gap == pytest.approx(before.gap, abs=0.015)


@pytest.mark.parametrize("method", NAMES)
def test_all_missing_features_are_reported(pair, method):
    changes = {n: getattr(pair, n).assign(gone=None) for n in ("source", "target")}
    report = go(pair, **changes, method=quick(method))
    assert "gone: empty in the source, so it cannot explain a shift" in report.notes
    assert "gone" not in report.shifted_features
    assert math.isfinite(report.gap)


@pytest.mark.parametrize("cells", [M, 40], ids=["all", "some"])
def test_features_missing_only_in_the_target_are_reported(pair, cells):
    target = pair.target.assign(x2=pair.target["x2"].where(np.arange(M) >= cells))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        report = go(pair, target=target, method="sees-d")
    assert any("x2" in note and "missing" in note for note in report.notes)


def test_clamped_values_are_reported(pair):
    rng = np.random.default_rng(9)
    changes = {
        "source": pair.source.assign(age=rng.uniform(20, 60, N)),
        "target": pair.target.assign(age=np.where(np.arange(M) < 4, 500.0, 40.0)),
    }
    report = go(pair, **changes, method="sees-d")
    assert any(n.startswith("age: 1.00% of the target lies outside 2") for n in report.notes)


def test_no_level_in_common_is_refused(pair):
    with pytest.raises(SupportError, match="no level in common in any feature"):
        go(pair, target=pair.target + 9)


# Refusals


def changed_row(proba: np.ndarray, row) -> np.ndarray:
    proba = proba.copy()
    proba[5] = row
    return proba


def three(proba: np.ndarray) -> np.ndarray:
    return np.c_[proba, np.zeros(len(proba))]


REFUSALS = {
    "unequal columns": (
        lambda p: {"target": p.target.drop(columns="x1")},
        SchemaError,
        r"target lacks \['x1'\]",
    ),
    "other columns": (
        lambda p: {"target": p.target.rename(columns={"x1": "z"})},
        SchemaError,
        r"lacks \['x1'\] and has \['z'\]",
    ),
    "unequal widths": (
        lambda p: {"source": p.source.to_numpy(), "target": p.target.to_numpy()[:, :3]},
        SchemaError,
        "target has 3 columns, source has 4",
    ),
    "label left in the source": (
        lambda p: {"source": p.source.assign(y=p.labels)},
        SchemaError,
        r"target lacks \['y'\].*the label belongs in `labels`",
    ),
    "doubled column": (
        lambda p: {"source": p.source.rename(columns={"x1": "x0"})},
        SchemaError,
        "source has duplicate column names: x0",
    ),
    "doubled column in the target": (
        lambda p: {"target": p.target.rename(columns={"x1": "x0"})},
        SchemaError,
        "target has duplicate column names: x0",
    ),
    "text against numbers": (
        lambda p: {"target": p.target.assign(x1="a")},
        SchemaError,
        "'x1' is numeric in source but text in target",
    ),
    "no labels": (lambda p: {"labels": None}, SupportError, "the source must be labelled"),
    "labels of rank 0": (lambda p: {"labels": torch.tensor(1)}, ShapeError, r"got shape \(\)"),
    "constant labels": (
        lambda p: {"labels": np.ones(N, int)},
        SupportError,
        "labels holds a single class, 1",
    ),
    "missing labels": (
        lambda p: {"labels": np.where(np.arange(N) < 3, np.nan, p.labels)},
        SchemaError,
        "labels has 3 missing entries",
    ),
    "short labels": (
        lambda p: {"labels": p.labels[1:]},
        ShapeError,
        f"labels has {N - 1} entries, source has {N} rows",
    ),
    "one-hot labels": (
        lambda p: {"labels": np.eye(2)[p.labels]},
        ShapeError,
        "Turn one-hot labels into class names",
    ),
    "negative probability": (
        lambda p: {"source_proba": changed_row(p.source_proba, [-0.2, 1.2])},
        SeesError,
        r"source_proba ranges from -0.2 to 1.2, probabilities lie in \[0, 1\]",
    ),
    "probability above 1": (
        lambda p: {"target_proba": changed_row(p.target_proba, [0, 1.5])},
        SeesError,
        "target_proba ranges from 0 to 1.5",
    ),
    "percent": (lambda p: {"source_proba": p.source_proba * 100}, SeesError, "divide by 100"),
    "rows not summing to 1": (
        lambda p: {"target_proba": changed_row(p.target_proba, [0.5, 0.4])},
        SeesError,
        "rows of target_proba must sum to 1; row 5 sums to 0.9",
    ),
    "NaN probability": (
        lambda p: {"source_proba": changed_row(p.source_proba, np.nan)},
        SeesError,
        "source_proba has 1 rows with NaN or infinity, the first is row 5",
    ),
    "too many probability columns": (
        lambda p: {"source_proba": three(p.source_proba), "target_proba": three(p.target_proba)},
        ShapeError,
        r"3 probability columns but 2 classes \[0, 1\]",
    ),
    "target of another width": (
        lambda p: {"target_proba": three(p.target_proba)},
        ShapeError,
        "target_proba has 3 columns, source_proba has 2",
    ),
    "class order unknown": (
        lambda p: {"labels": np.array([0, "b"], object)[p.labels]},
        SchemaError,
        "mixes types that have no order",
    ),
    "columns that name no class": (
        lambda p: {"source_proba": pd.DataFrame(p.source_proba, columns=["a", "b"])},
        SchemaError,
        r"\['a', 'b'\] do not name the classes \[0, 1\]",
    ),
    "classes without a label": (lambda p: {"classes": [0, 2]}, SchemaError, "holds 1, not among"),
    "short source probabilities": (
        lambda p: {"source_proba": p.source_proba[1:]},
        ShapeError,
        f"source_proba has {N - 1} rows, its features have {N}",
    ),
    "short target probabilities": (
        lambda p: {"target_proba": p.target_proba[1:]},
        ShapeError,
        f"target_proba has {M - 1} rows, its features have {M}",
    ),
    "short source weights": (
        lambda p: {"source_weight": np.ones(3)},
        ShapeError,
        rf"source_weight must have shape \({N},\), got \(3,\)",
    ),
    "negative target weight": (
        lambda p: {"target_weight": -np.ones(M)},
        SeesError,
        "target_weight must be non-negative",
    ),
    "empty source": (
        lambda p: {"source": p.source[:0], "labels": [], "source_proba": p.source_proba[:0]},
        SupportError,
        "source is empty",
    ),
    "empty target": (
        lambda p: {"target": p.target[:0], "target_proba": p.target_proba[:0]},
        SupportError,
        "target is empty",
    ),
    "no columns": (
        lambda p: {"source": p.source[[]], "target": p.target[[]]},
        SchemaError,
        "source has no columns",
    ),
    "one feature as a series": (
        lambda p: {"source": p.source["x0"]},
        ShapeError,
        r"Reshape a single feature to \(n, 1\)",
    ),
    "both": (lambda p: {"model": Net(False)}, SeesError, "either model, or source_proba and"),
    "neither": (
        lambda p: {"source_proba": None, "target_proba": None},
        SeesError,
        "give model, or both source_proba and target_proba",
    ),
    "half": (lambda p: {"target_proba": None}, SeesError, "both source_proba and target_proba"),
    "logits of nothing": (lambda p: {"logits": True}, SeesError, "logits=True belongs to model"),
    "unknown method": (
        lambda p: {"method": "sees"},
        SeesError,
        "unknown method 'sees': take 'auto' or one of sees-em, sees-c, sees-d",
    ),
    "class as method": (
        lambda p: {"method": SEESd},
        SeesError,
        r"a configured object like SEESd\(sparsity=1\)",
    ),
    "no method": (lambda p: {"method": None}, SeesError, "method must be a name"),
    "unknown estimator": (
        lambda p: {"estimator": "aipw"},
        SeesError,
        "unknown estimator 'aipw': take 'auto' or one of ipw",
    ),
    "unknown metric": (
        lambda p: {"metric": "f2"},
        SeesError,
        "unknown metric 'f2': take one of accuracy, log_loss, brier, balanced_accuracy",
    ),
    "no metric": (lambda p: {"metric": []}, SeesError, r"a function or a list of them, got \[\]"),
    "scalar metric": (
        lambda p: {"metric": lambda proba, labels: proba.mean()},
        ShapeError,
        r"one value per row, shape \(\d+,\); got \(\)",
    ),
    "NaN metric": (
        lambda p: {"metric": lambda proba, labels: proba[:, 0] * torch.nan},
        SeesError,
        "NaN or infinity",
    ),
    "confidence out of range": (
        lambda p: {"confidence": 95},
        SeesError,
        "confidence must lie between 0 and 1, or be None; got 95",
    ),
    "target labels for a method that has no use for them": (
        lambda p: {"target_labels": p.target_labels, "method": "sees-d"},
        SeesError,
        "sees-d cannot use target_labels: take method 'auto' or 'sees-em'",
    ),
    "short target labels": (
        lambda p: {"target_labels": p.target_labels[:3]},
        ShapeError,
        f"target_labels has 3 entries, target has {M} rows: give one per row",
    ),
    "target labels of no class": (
        lambda p: {"target_labels": np.where(np.arange(M) < 2, 7, p.target_labels)},
        SchemaError,
        r"target_labels holds 7, not among the classes \[0, 1\]",
    ),
    "one resample": (
        lambda p: {"replicates": 1},
        SeesError,
        r"replicates must be 0 \(analytic interval\) or at least 2",
    ),
    "half a resample": (
        lambda p: {"replicates": 0.5},
        SeesError,
        "replicates must be a whole number >= 0, got 0.5",
    ),
    "efficient without a table": (
        lambda p: {"method": "dlu", "estimator": "eff"},
        SeesError,
        "estimator 'eff' needs weights that are a table on a few features.* Use 'dr'",
    ),
    "no memory": (lambda p: {"memory_budget": -1}, SeesError, "memory_budget must be positive"),
    "unknown kind": (
        lambda p: {"kinds": {"x0": "ordinal"}},
        SchemaError,
        "takes 'categorical' or 'continuous'",
    ),
    "kind of no column": (
        lambda p: {"kinds": {"z": "continuous"}},
        SchemaError,
        r"does not have: \['z'\]",
    ),
    "more shifted features than there are": (
        lambda p: {"method": SEESd(sparsity=5)},
        IdentificationError,
        "sparsity=5 but there are 4 features",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(pair, case):
    changes, error, message = REFUSALS[case]
    with pytest.raises(error, match=message):
        go(pair, **changes(pair))


MODELS = {
    "too few rows": (lambda t: np.full((3, 2), 0.5), ShapeError, f"3 rows, its features have {N}"),
    "too many columns": (
        lambda t: np.full((len(t), 3), 1 / 3),
        ShapeError,
        "3 probability columns but 2 classes",
    ),
    "three dimensions": (
        lambda t: np.full((len(t), 2, 2), 0.5),
        ShapeError,
        r"must have shape \(n, L\)",
    ),
    "a scalar": (lambda t: 0.5, ShapeError, r"must have shape \(n, L\)"),
    "nothing": (lambda t: None, ShapeError, r"must have shape \(n, L\)"),
    "logits": (Net(logits=True), SeesError, "If the model returns logits, pass logits=True"),
    "text": (lambda t: ["a"] * len(t), SchemaError, "is not numeric"),
    "a path": ("model.pt", SeesError, "model is a str: give an nn.Module"),
    "labels": (
        Wrapped([0, 1]).predict_proba(pd.DataFrame(np.eye(4), columns=["x0", "x1", "x2", "x3"])),
        SeesError,
        "model is a ndarray",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_refusals_of_models(pair, case):
    model, error, message = MODELS[case]
    with pytest.raises(error, match=message):
        with_model(pair, model)


def test_errors_of_the_model_itself_come_through(pair):
    def fails(table):
        raise RuntimeError("my own bug")

    with pytest.raises(RuntimeError, match="my own bug"):
        with_model(pair, fails)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"target": 0}, SupportError, "target is empty"),
        ({"source": 1}, ShapeError, "must be a table"),
    ],
    ids=["empty target", "series"],
)
def test_tables_are_checked_before_the_model_runs(pair, changes, error, message):
    from sklearn.linear_model import LogisticRegression

    classifier = LogisticRegression().fit(pair.source, pair.labels)
    table = {"target": pair.target[:0], "source": pair.source["x0"]}
    with pytest.raises(error, match=message):
        with_model(pair, classifier, **{name: table[name] for name in changes})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SEESd(sparsity=-1), "sparsity must be a whole number >= 0, got -1"),
        (lambda: SEESd(sparsity=1.5), "sparsity must be a whole number"),
        (lambda: SEESd(route="fast"), "route takes 'tables', 'pairs', 'listing', 'matches'"),
        (lambda: SEESc(eta=-0.1), "eta must be 'auto' or a number >= 0, got -0.1"),
        (lambda: SEESc(eta=math.nan), "eta must be 'auto' or a number >= 0, got nan"),
        (lambda: SEESc(eta=math.inf), "eta must be 'auto' or a number >= 0, got inf"),
        (lambda: SEESem(sparsity=-1), "sparsity must be a whole number >= 0, got -1"),
        (lambda: SEESem(shrinkage=0), "shrinkage must be 'auto' or positive rows, got 0"),
        (lambda: SEESem(memory_budget=0), "memory_budget must be positive bytes, got 0"),
        (lambda: SEESc(sparsity=-1), "sparsity must be a whole number >= 0, got -1"),
        (lambda: KLIEP(centres=0), "at least one centre"),
        (lambda: DLU(ridge=0), "ridge must be positive"),
    ],
)
def test_senseless_configurations_are_refused(build, message):
    with pytest.raises(SeesError, match=message):
        build()


def test_numpy_numbers_configure_too():
    assert SEESd(np.int64(2)) == SEESd(2)
    assert SEESc(eta=np.float64(0.1), sparsity=np.int32(1)) == SEESc(eta=0.1, sparsity=1)


def test_sees_c_refuses_more_features_than_there_are(pair):
    with pytest.raises(IdentificationError, match="sparsity=9 but there are 4 features"):
        go(pair, method=SEESc(sparsity=9))


@pytest.mark.parametrize("metric", [None, 3])
def test_senseless_metrics_are_refused(pair, metric):
    with pytest.raises(SeesError, match="metric"):
        go(pair, metric=metric)


# Labelled target rows


def test_labelled_target_rows_come_in_every_form(pair):
    known = np.arange(M) % 8 == 0
    forms = [
        np.where(known, pair.target_labels.astype(float), np.nan),
        torch.tensor(np.where(known, pair.target_labels.astype(float), np.nan)),
        [label if here else None for label, here in zip(pair.target_labels, known, strict=True)],
        pd.Series(pair.target_labels, dtype="Int64").where(known),
    ]
    first, *others = (go(pair, method="sees-em", target_labels=form) for form in forms)
    assert first.target.labels.tolist() == np.where(known, pair.target_labels, -1).tolist()
    assert first.gap != go(pair, method="sees-em").gap
    for other in others:
        assert_same(other, first, atol=0)


def test_no_labelled_row_is_no_target_labels(pair, chosen):
    assert_same(go(pair, target_labels=[None] * M), chosen, atol=0)


def test_every_refusal_is_a_value_error():
    assert all(issubclass(error, ValueError) for _, error, _ in REFUSALS.values())
    assert issubclass(SeesWarning, UserWarning)
