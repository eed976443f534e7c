"""Whatever comes to the front door, a finite report or a named refusal leaves it.

`pytest -m slow tests/properties` draws other inputs every time, and many more of them.
"""

import json
import math
import signal
import warnings
from collections import Counter
from contextlib import contextmanager

import pytest
from cases import Recipe, large_recipes, recipes, told
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

LONGEST = 60
"""Seconds of the processor's time that no estimate on a few hundred rows may take."""
OVER_ROWS = ("sees-d", "bbse", "kliep", "none", "cbpe")
OVER_POSTERIOR = ("sees-c", "mlls", "kliep", "none", "cbpe")
METRICS = (
    "accuracy",
    "log_loss",
    "brier",
    ["accuracy", "f1", "auroc", "average_precision"],
    ["log_loss", "balanced_accuracy", "precision", "recall", "expected_calibration_error"],
)
ESTIMATORS = ("auto", "auto", "ipw", "self-normalised", "plugin", "dr")
CHOICES = [
    (method, estimator)
    for method in ("auto", "auto", "sees-c", "sees-d", "sees-em", *METHODS)
    # `eff` is defined for weights that are a table.
    for estimator in (*ESTIMATORS, *(["eff"] if method not in ("sees-c", "kliep", "dlu") else []))
]
OPTIONS = st.fixed_dictionaries(
    {
        "choice": st.sampled_from(CHOICES),
        "metric": st.sampled_from(METRICS),
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
    meets_its_constraint(report)
    assert "nan" not in str(report).lower().split()


def meets_its_constraint(report: ShiftReport) -> None:
    """Weights average one: over the rows, or over what the model makes of them."""
    source = report.source
    if report.match.method in OVER_ROWS:
        assert float(source.mean(report.weights)) == pytest.approx(1.0, abs=1e-6)
    if report.match.method in OVER_POSTERIOR:
        expected = (source.posterior * report.weight_function.table(source.rows)).sum(dim=1)
        assert float(source.mean(expected)) == pytest.approx(1.0, abs=1e-6)


def answer(recipe: Recipe, choice: tuple[str, str], **options) -> ShiftReport | None:
    """The report, None if the input was refused."""
    method = KLIEP(centres=10, widths=(1.0,)) if choice[0] == "kliep" else choice[0]
    with warnings.catch_warnings(), alarm(LONGEST):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SeesWarning)
        try:
            given = recipe.make().inputs()
            return estimate_shift(**given, method=method, estimator=choice[1], **options)
        except SeesError:
            return None


def finite_or_refused(recipe: Recipe, options: dict, folder) -> bool:
    """Whether there was a report."""
    report = answer(recipe, **options)
    if report is None:
        return False
    check(report)
    report.save_html(folder / "page.html", overwrite=True)
    assert "nan" not in (folder / "page.html").read_text().lower().split()
    (folder / "report.sees").unlink(missing_ok=True)
    if recipe.label == "date":
        with pytest.raises(SavedFileError, match="must be text, numbers, booleans"):
            report.save(folder / "report.sees")
        return True
    report.save(folder / "report.sees")
    assert load_report(folder / "report.sees").gap == report.gap
    return True


def tried(inputs, profile, folder) -> None:
    """Every drawn input is answered or refused, and most are answered; prints how many, by kind."""
    answered, refused = Counter(), Counter()

    @profile
    @given(inputs, OPTIONS)
    def one(recipe, options):
        tally = answered if finite_or_refused(recipe, options, folder) else refused
        columns = {f"a column {kind}" for kind, _, _ in recipe.columns}
        levels = {"10,000 levels" for _, levels, _ in recipe.columns if levels == 10_000}
        odd = {"unseen classes"} if recipe.shown < recipe.classes else set()
        odd |= {"few rows"} if min(recipe.rows) <= 12 else set()
        forms = {f"probabilities {kind}" for kind in recipe.proba}
        tally.update({"all", options["choice"][0], *columns, *levels, *odd, *forms})
        if (answered["all"] + refused["all"]) % 10 == 0:
            told(f"{answered['all']} reports, {refused['all']} refused so far")

    one()
    for kind in sorted(answered | refused):
        told(f"{kind}: {answered[kind]} reports, {refused[kind]} refused")
    assert answered["all"] > 0.7 * (answered["all"] + refused["all"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


def test_a_finite_report_or_a_refusal(folder):
    tried(recipes(most=60, many_classes=False), short(25), folder)


@pytest.mark.slow
def test_a_finite_report_or_a_refusal_at_length(folder):
    tried(recipes(), long(400), folder)


@pytest.mark.slow
def test_a_finite_report_or_a_refusal_for_large_tables(folder):
    tried(large_recipes(), long(25), folder)
