"""Inputs that the drawn cases found to go wrong once, as small as they get."""

import math

import numpy as np
import pytest
import torch
from cases import Recipe

from sees_torch import IdentificationError, SeesError, SupportError, estimate_shift
from sees_torch.matching.search import Search
from sees_torch.solvers.solution import Status
from sees_torch.uncertainty import Replicates


def sure_of(place: int, classes: int = 2, rows: int = 20) -> dict:
    """A model that is sure of one class on the target, and unsure on the source."""
    rng = np.random.default_rng(0)
    return {
        "source": rng.integers(0, 2, (rows, 1)),
        "labels": np.arange(rows) % 2,
        "target": rng.integers(0, 2, (rows, 1)),
        "source_proba": rng.dirichlet(np.ones(classes), rows),
        "target_proba": np.eye(classes)[np.full(rows, place)],
        "classes": list(range(classes)),
        "method": "mlls",
        "calibrate": False,
        "confidence": None,
    }


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
@pytest.mark.parametrize("metric", ["auroc", ["accuracy", "auroc"]])
def test_a_metric_that_is_not_defined_for_the_target_is_refused(metric):
    """All of the weight was on one class: AUROC was NaN, and went into JSON and pages."""
    with pytest.raises(IdentificationError, match="auroc is not defined for this target"):
        estimate_shift(**sure_of(1), metric=metric)
    assert math.isfinite(estimate_shift(**sure_of(1)).gap)


@pytest.mark.parametrize("estimator", ["auto", "ipw", "self-normalised"])
def test_weights_that_leave_no_labelled_row_are_refused(estimator):
    """The target is of a class without labelled rows: shares of labels summed to zero."""
    with pytest.raises(SupportError, match="no weight to any labelled row") as caught:
        estimate_shift(**sure_of(2, classes=3), estimator=estimator)
    assert isinstance(caught.value, SeesError)


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
def test_resamples_without_a_rare_class_leave_a_finite_interval():
    """Three rows of a class: one resample in twenty has none, no AUROC, and made all of it NaN."""
    rng = np.random.default_rng(0)
    labels = (np.arange(60) < 3).astype(int)
    p = np.clip(0.3 * labels + 0.5 * rng.random(60), 0.01, 0.99)
    report = estimate_shift(
        rng.integers(0, 2, (60, 1)),
        labels,
        rng.integers(0, 2, (60, 1)),
        source_proba=p,
        target_proba=p[::-1].copy(),
        method="mlls",
        metric=["accuracy", "auroc"],
        calibrate=False,
    )
    assert np.isfinite(report.intervals).all()
    assert np.isfinite(report.standard_errors).all()


@pytest.mark.parametrize(("lost", "known"), [(0, True), (4, True), (5, True), (6, False)])
def test_an_interval_needs_half_of_the_resamples(lost, known):
    gaps = torch.linspace(-1, 1, 10).double()[:, None]
    gaps[:lost] = torch.nan
    found = Replicates(gaps, torch.zeros(10, dtype=torch.int64))
    assert (found.interval(0, 0.0, 0.95, 1.0) is not None) == known
    assert (found.error(0) is not None) == known
    if known:
        assert found.error(0) == pytest.approx(float(gaps[lost:].std()))


TWELVE = (("int", 12, 0.0),)


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
def test_a_level_whose_source_rows_are_all_in_one_fold():
    """Without that fold nothing could explain its target rows: a division by zero."""
    recipe = Recipe(
        (55, 12), 2, 2, TWELVE, ("soft", "soft"), "int", (None, "whole"), strange=0.0, seed=653
    )
    report = estimate_shift(**recipe.make().inputs(), confidence=None)
    assert math.isfinite(report.gap)
    assert {"covariates only", "labels and many features"} <= set(report.hypotheses()["hypothesis"])


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
def test_labels_of_a_population_that_cannot_be_told_apart_leave_finite_gaps():
    """Fractional multiplicities describe a population; its singular cells gave NaN beside it."""
    recipe = Recipe(
        (57, 40), 2, 2, TWELVE, ("sharp", "soft"), "int", (None, "fractions"), strange=0.0, seed=653
    )
    report = estimate_shift(**recipe.make().inputs(), confidence=None)
    table = report.hypotheses()
    assert "labels and features" in set(table["hypothesis"])
    assert np.isfinite(table["gap"]).all()


WIDE = (("category", 40, 0.0),)


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
@pytest.mark.parametrize(("classes", "looked_at"), [(50, False), (4, True)])
def test_unknowns_of_many_features_are_bounded_by_the_rows(classes, looked_at, monkeypatch):
    """Levels alone were counted: 70 of them and 50 classes took minutes, and gigabytes."""
    monkeypatch.setattr(Search, "misfit", lambda _: 2.0)  # Something is left unexplained.
    recipe = Recipe(
        (133, 150), classes, classes, WIDE, ("sharp", "soft"), "int", (None, None), 0.2, 4
    )
    report = estimate_shift(**recipe.make().inputs(), confidence=None)
    found = set(report.hypotheses()["hypothesis"])
    assert "labels and features" in found
    assert ("labels and many features" in found) == looked_at


@pytest.mark.parametrize(
    ("method", "rows", "unknowns"), [("sees-c", 2001, 4002), ("dlu", 4001, 4001)]
)
def test_more_unknowns_than_can_be_solved_for_are_refused(method, rows, unknowns):
    """Ten thousand levels would have asked for a matrix of gigabytes, and for hours."""
    levels = np.array([f"level {place}" for place in range(rows)])
    given = {"source": levels[:, None], "labels": np.arange(rows) % 2, "target": levels[:9, None]}
    given |= {"source_proba": np.full(rows, 0.4), "target_proba": np.full(9, 0.5)}
    with pytest.raises(IdentificationError, match=f"{unknowns} here; at most 4000 are solved for"):
        estimate_shift(**given, method=method, confidence=None)


@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
@pytest.mark.parametrize("backwards", [False, True])
def test_sees_c_where_probabilities_have_tens_of_decades(backwards):
    """In one order of the columns the solver got stuck, and the gap of an accuracy was -51.9."""
    columns = (("text", 3, 1.0), ("date", 4, 0.9), ("date", 60, 0.9), ("int", 1, 0.1))
    recipe = Recipe(
        (131, 134), 3, 3, (*columns, ("gone", 1, 0.9)), ("sharp", "soft"), "int",
        ("whole", None), 0.0, 31423,
    )  # fmt: skip
    case = recipe.make().inputs()
    names = list(case["source"])[:: -1 if backwards else 1]
    case |= {part: case[part][names] for part in ("source", "target")}
    report = estimate_shift(**case, method="sees-c", calibrate=False, confidence=None)
    assert report.match.status is Status.CONVERGED
    assert report.gap == pytest.approx(-0.4975, abs=1e-4)
