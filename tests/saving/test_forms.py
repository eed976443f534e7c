"""Weight functions and reports come back from disk exactly as they were."""

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import (
    KnownWeights,
    SavedFileError,
    SavedReport,
    SEESc,
    estimate_shift,
    load_report,
    load_weights,
    save_weights,
)
from sees_torch.saving.values import from_json, to_json
from sees_torch.statistics.basis import Basis
from tests.golden.make import METHODS, world
from tests.worlds import drawn_world

NAMES = (
    "gap",
    "source_value",
    "target_value",
    "metric",
    "hypothesis",
    "interval",
    "intervals",
    "standard_errors",
    "confidence",
    "status",
    "reasons",
    "notes",
    "diagnostics",
    "shifted_features",
    "target_label_distribution",
)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
def test_a_report_comes_back_with_every_figure(method, tmp_path):
    given = world()
    metrics = ["accuracy", "log_loss", "f1"]
    report = estimate_shift(**given, method=method, metric=metrics, replicates=20)
    report.save(tmp_path / "report.sees")
    found = load_report(tmp_path / "report.sees")
    assert isinstance(found, SavedReport)
    assert str(found) == str(report)
    assert found.to_dict() == report.to_dict()
    pd.testing.assert_frame_equal(found.to_frame(), report.to_frame())
    for name in [
        "gap",
        "source_value",
        "target_value",
        "metric",
        "hypothesis",
        "interval",
        "intervals",
        "standard_errors",
        "confidence",
        "status",
        "reasons",
        "notes",
        "diagnostics",
        "shifted_features",
        "target_label_distribution",
    ]:
        assert getattr(found, name) == getattr(report, name), name
    assert torch.equal(found.weights, report.weights)
    assert type(found.weight_function) is type(report.weight_function)
    again = found.weight_function(given["source"], given["labels"])
    assert torch.equal(again, report.weights)
    unseen = given["source"].assign(town="Basel", age=999.0)
    assert torch.equal(
        found.weight_function(unseen, given["labels"]),
        report.weight_function(unseen, given["labels"]),
    )


def test_names_and_classes_keep_their_types(tmp_path):
    pair = drawn_world(0, 400, 300, features=2)
    given = pair.inputs()
    names = [("a", 1), 7]
    for side in ("source", "target"):
        given[side] = given[side].set_axis(pd.Index(names, tupleize_cols=False), axis=1)
    given["labels"] = np.where(given["labels"] == 1, True, False)
    given["classes"] = [False, True]
    report = estimate_shift(**given, method="sees-em", replicates=0)
    report.save(tmp_path / "r")
    found = load_report(tmp_path / "r")
    assert found.weight_function.schema == report.source.schema
    assert found.weight_function.classes == (False, True)
    assert found.shifted_features == report.shifted_features
    assert found.target_label_distribution == report.target_label_distribution


@pytest.mark.parametrize(
    "value",
    [float("inf"), (1, ("a", None)), {1: "a", "$x": 2.5}, {"$float": "1"}, True, 2**70, -0.0],
)
def test_values_come_back_with_their_types(value):
    found = from_json(to_json({"value": value}))["value"]
    assert found == value
    assert repr(found) == repr(value)


def test_a_value_without_a_form_is_refused():
    with pytest.raises(SavedFileError, match="cannot be saved"):
        to_json({"value": b"bytes"})


def test_weights_known_for_rows_only_are_saved_too(tmp_path):
    pair = drawn_world(0, 300, 300, features=2)
    report = estimate_shift(
        **pair.inputs(), method=KnownWeights(torch.ones(300)), estimator="ipw", confidence=None
    )
    save_weights(report.weight_function, tmp_path / "w")
    found = load_weights(tmp_path / "w")
    assert torch.equal(found(pair.source, pair.labels), report.weights)


class Ones(Basis):
    owners = (0,)

    def forward(self, rows):
        return torch.ones(len(rows), 1, dtype=torch.float64)


def test_a_basis_of_the_users_own_is_refused_rather_than_pickled(tmp_path):
    pair = drawn_world(0, 300, 300, features=2)
    method = SEESc(basis=Ones())
    report = estimate_shift(**pair.inputs(), method=method, confidence=None)
    with pytest.raises(SavedFileError, match="Ones has no saved form"):
        report.save(tmp_path / "r")
    assert not list(tmp_path.iterdir())
