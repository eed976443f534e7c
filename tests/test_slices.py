"""Gaps by slice, and the tidy tables of a report."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world

from sees_torch import (
    KnownWeights,
    SchemaError,
    SEESem,
    SeesError,
    estimate_shift,
    make_sparse_joint_shift,
)
from sees_torch.gap import own_estimator
from sees_torch.report_tables import TABLES

FEATURE = SEESem(features=("x0",))


def slice_truth(pair, feature: str) -> pd.Series:
    """The gap in accuracy inside every level, from the labels of both populations."""

    def accuracy(table, proba, labels, weight):
        hit = np.asarray(pair.classes)[proba.argmax(axis=1)] == labels
        found = {}
        for level in sorted(table[feature].unique()):
            here = (table[feature] == level).to_numpy()
            found[str(level)] = np.average(hit[here], weights=weight[here])
        return pd.Series(found)

    after = accuracy(pair.target, pair.target_proba, pair.target_labels, pair.target_weight)
    return after - accuracy(pair.source, pair.source_proba, pair.labels, pair.source_weight)


def sampled(pair, seed: int, rows: int) -> dict:
    """Rows drawn from the two populations of an exact world."""
    rng = np.random.default_rng(seed)
    here, there = (
        rng.choice(len(weight), rows, p=weight / weight.sum())
        for weight in (pair.source_weight, pair.target_weight)
    )
    return {
        "source": pair.source.iloc[here],
        "labels": pair.labels[here],
        "target": pair.target.iloc[there],
        "source_proba": pair.source_proba[here],
        "target_proba": pair.target_proba[there],
        "classes": pair.classes,
    }


@pytest.mark.parametrize("feature", ["x0", "x1"])
@pytest.mark.parametrize("method", ["em", "known"])
def test_populations_give_the_exact_gap_of_every_slice(feature, method):
    """Of the shifted feature and of another one; there is no interval without sampling."""
    pair = exact_world(1, features=3, classes=3)
    used = FEATURE if method == "em" else KnownWeights(pair.weights)
    report = estimate_shift(**pair.inputs(), method=used, replicates=0)
    found = report.by(feature).set_index(feature)
    truth = slice_truth(pair, feature)
    np.testing.assert_allclose(found.loc[truth.index, "gap"], truth, atol=1e-7)
    np.testing.assert_allclose(found["target"] - found["source"], found["gap"], atol=1e-12)
    assert found[["low", "high"]].isna().all(axis=None)
    assert (found["note"] == "").all()


def test_intervals_cover_the_gap_of_the_population():
    """30 draws of 3 + 3 slices; fewer than 85 % covered would be 4 standard errors too few."""
    pair = exact_world(1, features=3)
    truth = {feature: slice_truth(pair, feature) for feature in ("x0", "x1")}
    inside = []
    for seed in range(30):
        report = estimate_shift(**sampled(pair, seed, 1500), method=FEATURE, replicates=0)
        for feature, expected in truth.items():
            found = report.by(feature).set_index(feature)
            gap = expected[found.index]
            inside += ((found["low"] <= gap) & (gap <= found["high"])).tolist()
    assert np.mean(inside) > 0.85


def test_slices_are_averaged_where_the_report_is():
    """Value and variance by hand from every hypothesis on its own."""
    generator = torch.Generator().manual_seed(0)
    pair = make_sparse_joint_shift(800, 800, features=5, strength=0.4, generator=generator)
    report = estimate_shift(**pair.inputs(), replicates=0)
    choice = report.match.choice
    assert len(choice.parts) > 1
    shares = choice.shares(choice.evidence.score())
    alone_choice = replace(choice, averaged=(), hedges={}, extremes=(), belief=1.0)
    value, square = 0.0, 0.0
    for place in choice.parts:
        match = choice.fitted[place]
        alone = replace(
            report,
            match=replace(match, choice=alone_choice),
            weights=match.weight_function.of_rows(report.source.rows, report.source.labels),
            gaps=(replace(report.gaps[0], estimator=own_estimator(match)),),
        ).by("x1")
        share, error = float(shares[place]), (alone["high"] - alone["low"]) / (2 * 1.959964)
        value = value + share * alone["gap"]
        square = square + share * (alone["gap"] ** 2 + error**2)
    found = report.by("x1")
    assert 0.9 < choice.belief < 1
    np.testing.assert_allclose(found["gap"], choice.belief * value, atol=1e-12)
    reach = 1.959964 * np.sqrt(square - value**2)
    np.testing.assert_allclose(found["high"] - found["gap"], reach, rtol=1e-6)


def test_slices_of_several_features_hold_every_row():
    pair = drawn_world(0, 400, 300, features=3)
    report = estimate_shift(**pair.inputs(), replicates=0)
    found = report.by(["x0", "x1"])
    assert found["source_rows"].sum() == 400
    assert found["target_rows"].sum() == 300
    assert found["target_rows"].is_monotonic_decreasing
    sizes = pair.target.groupby(["x0", "x1"]).size()
    assert found.set_index(["x0", "x1"]).loc[("0", "1"), "target_rows"] == sizes[0, 1]
    assert (found["effective_rows"] <= found["source_rows"] + 1e-9).all()
    wide, narrow = (report.by("x0", confidence=level) for level in (0.99, 0.5))
    assert (wide["high"] - wide["low"] > narrow["high"] - narrow["low"]).all()


@pytest.mark.parametrize("method", ["sees-c", "bbse", "none", "cbpe"])
def test_other_weights_have_slices(method):
    pair = drawn_world(0, 400, 300, features=3)
    found = estimate_shift(**pair.inputs(), method=method, replicates=0).by("x1")
    assert found["gap"].notna().all()
    if method == "none":
        np.testing.assert_allclose(found["gap"], 0, atol=1e-12)
        assert found["low"].isna().all()  # What is assumed has no error.
    else:
        assert (found["low"] < found["gap"]).all()


def test_that_nothing_was_found_is_not_certain():
    """No shift, chosen among hypotheses: the gaps are zero, their intervals are not."""
    given = drawn_world(0, 2000, 300).inputs()
    given |= {"target": given["source"][:1000], "target_proba": given["source_proba"][:1000]}
    given |= {name: given[name][1000:] for name in ("source", "labels", "source_proba")}
    report = estimate_shift(**given, replicates=0)
    assert report.hypothesis == "nothing"
    found = report.by("x1")
    np.testing.assert_allclose(found["gap"], 0, atol=1e-12)
    assert (found["high"] - found["low"] > 0.001).all()


def test_metrics_that_are_no_mean_over_rows_have_no_interval():
    pair = drawn_world(0, 400, 300, features=3)
    found = estimate_shift(**pair.inputs(), metric="auroc", replicates=0).by("x1")
    assert found["gap"].notna().all()
    assert found["low"].isna().all()


def test_slices_without_rows_and_small_ones_say_so():
    given = drawn_world(0, 400, 300, features=3).inputs()
    for part, town in (("source", "Bern"), ("target", "Genf")):
        rows = len(given[part])
        names = np.where(np.arange(rows) < 10, "Chur", "Basel")
        names[-1] = town
        given[part] = given[part].assign(town=names)
    found = estimate_shift(**given, method=FEATURE, replicates=0).by("town").set_index("town")
    assert found.loc["Bern", "note"] == "no target rows"
    assert found.loc["unseen", "note"] == "no source rows"
    assert found.loc["Chur", "note"].startswith("few rows")
    assert found.loc["Basel", "note"] == ""
    assert found.loc[["Bern", "unseen"], "gap"].isna().all()
    assert np.isfinite(found.loc["Bern", "source"])


def test_gradients_and_names_are_no_obstacle():
    pair = drawn_world(0, 200, 200, features=3)
    given = pair.inputs()
    for name in ("source_proba", "target_proba"):
        given[name] = torch.tensor(given[name], requires_grad=True)
    for part in ("source", "target"):
        given[part] = given[part].rename(columns={"x0": "gap"})
    found = estimate_shift(**given, method="bbse", replicates=0, calibrate=False).by("gap")
    assert {"gap", "gap_"} <= set(found.columns)


def test_unknown_features_are_refused():
    report = estimate_shift(**drawn_world(0, 200, 200, features=3).inputs(), replicates=0)
    with pytest.raises(SchemaError, match=r"no feature 'x9' to slice by; it has \['x0'"):
        report.by("x9")


def test_tables_by_name():
    report = estimate_shift(**drawn_world(0, 400, 300, features=3).inputs(), replicates=0)
    for name in TABLES:
        if name != "ranking":
            assert len(report.to_frame(name))
    labels = report.to_frame("labels").set_index("label")
    assert labels["target_share"].to_dict() == pytest.approx(report.target_label_distribution)
    pd.testing.assert_frame_equal(report.to_frame("cells"), report.cells())
    pd.testing.assert_frame_equal(report.to_frame("hypotheses"), report.hypotheses())
    with pytest.raises(SeesError, match="there is no table 'rows': take one of metrics, labels"):
        report.to_frame("rows")


def test_the_settings_of_the_call_are_kept():
    report = estimate_shift(
        **drawn_world(0, 200, 200, features=3).inputs(), method="bbse", replicates=0
    )
    assert report.to_dict()["settings"] == {
        "method": "BBSE(soft=False)",
        "metric": ["accuracy"],
        "estimator": "auto",
        "confidence": 0.95,
        "calibrate": True,
        "replicates": 0,
    }
