"""A shift that nobody saw: what it would leave of the gap, and what that says of "nothing"."""

from dataclasses import replace

import pytest
import torch
from worlds import drawn_world, exact_world, samples

from sees_torch import Auto, SEESem, estimate_shift
from sees_torch.gap import row_values
from sees_torch.matching import hidden
from sees_torch.matching.candidates import HIDDEN, UNMOVED
from sees_torch.matching.hidden import FEW_LABELS_HIDDEN, accuracy_values, worst_hidden
from sees_torch.matching.match import quietly


def quiet(rows: int, features: int):
    """Samples of a world in which nothing shifted."""
    return samples(drawn_world(3, rows, rows, features=features, shifted=0, strength=0.0))


def fitted(source, target, choice):
    return lambda place: quietly(choice.candidates[place].quick(), source, target)


def test_the_values_are_those_of_accuracy():
    source, target = samples(drawn_world(0, 300, 200, classes=3))
    wanted, found = row_values(source, target, "accuracy"), accuracy_values(source, target)
    for name in ("own", "source", "target"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


def test_the_worst_feature_is_the_one_whose_shift_leaves_the_largest_error():
    source, target = quiet(1000, 5)
    choice = Auto().match(source, target).choice
    worst = worst_hidden(
        source, target, choice, fitted(source, target, choice), accuracy_values(source, target)
    )
    errors = {}
    for place, behind in enumerate(choice.behind.tolist()):
        candidate = choice.candidates[place]
        if candidate.words == "labels and features" and len(candidate.features) == 1:
            told = SEESem(features=(source.schema.names[candidate.features[0]],), shrinkage=10.0)
            report = estimate_shift(
                source, None, target, method=told, replicates=0, calibrate=False
            )
            if behind <= 3:
                errors[candidate.features[0]] = report.standard_errors[0]
    assert len(errors) > 1
    assert worst[1] == max(errors, key=errors.__getitem__)
    assert worst[0] == pytest.approx(max(errors.values()), rel=1e-6)


@pytest.mark.parametrize(("rows", "features", "may_hide"), [(350, 6, True), (2000, 8, False)])
def test_where_a_shift_may_hide_nothing_does_not_speak_for_itself(rows, features, may_hide):
    source, target = quiet(rows, features)
    choice = Auto().match(source, target).choice
    values = accuracy_values(source, target)
    worst = worst_hidden(source, target, choice, fitted(source, target, choice), values)
    right = float(source.mean(values.own))
    assert choice.candidate.words == "nothing"
    assert (right * (1 - right) < FEW_LABELS_HIDDEN * worst[0] ** 2) == may_hide
    assert choice.candidates[0].odds == (HIDDEN if may_hide else UNMOVED)
    assert (len(choice.averaged) > 1) == may_hide


def test_an_answer_that_names_features_hides_nothing():
    source, target = samples(drawn_world(0, 2000, 2000))
    choice = Auto().match(source, target).choice
    assert choice.candidate.features
    assert worst_hidden(source, target, choice, None, None) is None


def test_a_population_and_very_many_rows_are_not_asked(monkeypatch):
    exact = samples(exact_world(3, features=4, shifted=0, strength=0.0))
    choice = Auto().match(*exact).choice
    assert worst_hidden(*exact, choice, None, None) is None
    drawn = quiet(300, 4)
    monkeypatch.setattr(hidden, "MANY_ROWS", 100)
    choice = Auto().match(*drawn).choice
    assert choice.candidates[0].odds == UNMOVED
    assert worst_hidden(*drawn, replace(choice, chosen=0), None, None) is None
