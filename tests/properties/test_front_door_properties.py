"""Whatever comes to the front door, a finite report or a named refusal leaves it.

`pytest -m slow tests/properties` draws other inputs every time, and many more of them.
"""

import json
import math
import signal
import warnings
from contextlib import contextmanager

import pytest
from cases import Recipe, recipes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sees_torch import (
    KLIEP,
    SavedFileError,
    SeesError,
    SeesWarning,
    ShiftReport,
    estimate_shift,
    load_report,
)
from sees_torch.matching.names import METHODS
from sees_torch.weights import ConstantWeights, TableWeights

LONGEST = 60
"""Seconds of the processor's time that no estimate on a few hundred rows may take."""
METRICS = (
    "accuracy",
    "log_loss",
    "brier",
    ["accuracy", "f1", "auroc", "average_precision"],
    ["log_loss", "balanced_accuracy", "precision", "recall", "expected_calibration_error"],
)
ESTIMATORS = ("auto", "auto", "ipw", "self-normalised", "plugin", "dr", "eff")
OPTIONS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["auto", *METHODS]),
        "metric": st.sampled_from(METRICS),
        "estimator": st.sampled_from(ESTIMATORS),
        "calibrate": st.sampled_from([True, False, "temperature"]),
        "confidence": st.sampled_from([0.95, None]),
        "replicates": st.sampled_from([0, 5]),
    }
)


def short(examples: int):
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


def long(examples: int):
    checks = [HealthCheck.too_slow]
    return settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=checks
    )


@contextmanager
def alarm(seconds: int):
    def ring(*_):
        raise AssertionError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def numbers(value):
    """Every number in nested plain values."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, float) else []


def check(report: ShiftReport) -> None:
    """The report is finite, meets its constraints and can be shown."""
    plain = report.to_dict()
    json.dumps(plain, allow_nan=False)
    assert all(map(math.isfinite, numbers(plain)))
    assert report.weights.isfinite().all()
    assert (report.weights >= 0).all()
    shares = report.target_label_distribution.values()
    assert sum(shares) == pytest.approx(1.0, abs=1e-9)
    assert min(shares) >= 0
    if report.interval is not None:
        assert report.interval[0] <= report.interval[1]
    assert report.status in ("identified", "weak", "not_identified")
    mean_weight(report)
    assert "nan" not in str(report).lower().split()


def mean_weight(report: ShiftReport) -> None:
    """Weights that are a table fitted to labels average one; see DESIGN of each method."""
    function = report.weight_function
    if report.match.method in ("sees-d", "bbse", "none", "cbpe"):
        assert isinstance(function, (TableWeights, ConstantWeights))
        assert report.diagnostics["mean_weight"] == pytest.approx(1.0, abs=1e-6)


def answer(recipe: Recipe, options: dict) -> ShiftReport | None:
    """The report, None if the input was refused."""
    if options["method"] == "kliep":
        options = {**options, "method": KLIEP(centres=10, widths=(1.0,))}
    with warnings.catch_warnings(), alarm(LONGEST):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SeesWarning)
        try:
            return estimate_shift(**recipe.make().inputs(), **options)
        except SeesError:
            return None


def finite_or_refused(recipe: Recipe, options: dict, folder) -> None:
    report = answer(recipe, options)
    if report is None:
        return
    check(report)
    report.save_html(folder / "page.html", overwrite=True)
    assert "nan" not in (folder / "page.html").read_text().lower().split()
    (folder / "report.sees").unlink(missing_ok=True)
    if recipe.label == "date":
        with pytest.raises(SavedFileError, match="must be text, numbers, booleans"):
            report.save(folder / "report.sees")
        return
    report.save(folder / "report.sees")
    assert load_report(folder / "report.sees").gap == report.gap


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@short(30)
@given(recipes(most=60, many_classes=False), OPTIONS)
def test_a_finite_report_or_a_refusal(folder, recipe, options):
    finite_or_refused(recipe, options, folder)


@pytest.mark.slow
@long(400)
@given(recipes(), OPTIONS)
def test_a_finite_report_or_a_refusal_at_length(folder, recipe, options):
    finite_or_refused(recipe, options, folder)
