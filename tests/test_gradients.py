"""Gradients of estimates in the model's probabilities: exact, by one step at the solution."""

import copy
import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, mixed_frame

from sees_torch import BBSE, MLLS, SEESc, SEESd, SEESem, Source, Target, estimate_shift
from sees_torch.gap import estimate_gap
from sees_torch.matching.batch import Batch
from sees_torch.matching.covariates_only import CovariatesOnly

EXACT = 1e-13
"""Finite differences need solves to be as good as rounding allows."""
METHODS = {
    "sees-c": SEESc(eta=0.02, tolerance=EXACT),
    "sees-c intercept": SEESc(eta=0.02, intercept=True, tolerance=EXACT),
    "sees-c refit": SEESc(eta=0.02, refit=True, tolerance=EXACT),
    "sees-d 0": SEESd(0, soft=True),
    "sees-d 1": SEESd(1, soft=True),
    "sees-d 2": SEESd(2, soft=True),
    "sees-d plain": SEESd(1, soft=True, constrained=False),
    "sees-em 0": SEESem(features=(), shrinkage=5.0),
    "sees-em 1": SEESem(features=("x0",), shrinkage=5.0),
    "sees-em search": SEESem(1),
    "sees-em 2": SEESem(features=("x0", "x1"), shrinkage=5.0),
    "bbse": BBSE(soft=True),
    "mlls": MLLS(),
}


@pytest.fixture(autouse=True)
def tight_solves(monkeypatch):
    monkeypatch.setattr(Batch, "tolerance", 1e-14)


class World:
    """Few rows with probabilities of their own; every third target row has a level of its own."""

    def __init__(self, classes=2, n=36, m=28, seed=0, repeats=1):
        rng = np.random.default_rng(seed)
        self.labels = np.arange(n) % classes
        self.source = self._features(rng, n, self.labels)
        self.target = self._features(rng, m, rng.integers(0, classes, m))
        self.target.loc[self.target.index % 9 == 4, "x0"] = 7
        logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[self.labels]
        self.logits = [torch.tensor(logits), torch.tensor(rng.normal(size=(m, classes)))]
        if repeats > 1:
            self.source = pd.concat([self.source] * repeats, ignore_index=True)
            self.target = pd.concat([self.target] * repeats, ignore_index=True)
            self.labels = np.tile(self.labels, repeats)
            self.logits = [part.repeat(repeats, 1) for part in self.logits]

    @staticmethod
    def _features(rng, rows, lean):
        x0 = (rng.random(rows) < 0.3 + 0.3 * (lean > 0)).astype(int)
        return pd.DataFrame(
            {"x0": x0, "x1": rng.integers(0, 2, rows), "x2": rng.integers(0, 3, rows)}
        )

    def inputs(self):
        return [part.clone().requires_grad_() for part in self.logits]

    def samples(self, here, there):
        classes = range(here.shape[1])
        source = Source(self.source, self.labels, here.softmax(dim=1), classes=classes)
        return source, Target(self.target, there.softmax(dim=1), source)

    def report(self, here, there, method, **options):
        defaults = {"metric": "brier", "calibrate": False, "confidence": None, "replicates": 0}
        return estimate_shift(
            self.source,
            self.labels,
            self.target,
            source_proba=here.softmax(dim=1),
            target_proba=there.softmax(dim=1),
            classes=range(here.shape[1]),
            method=method,
            **defaults | options,
        )


def outputs(world, method, metric="log_loss"):
    """Weights and target values by every estimator, as a function of the logits."""

    samples = world.samples(*world.logits)

    def of(here, there):
        source, target = (copy.copy(sample) for sample in samples)
        source.proba = source.posterior = here.softmax(dim=1)
        target.proba = target.posterior = there.softmax(dim=1)
        function = method.match(source, target).weight_function
        estimators = ["ipw", "self-normalised", "plugin", "dr"]
        if not isinstance(method, SEESc):
            estimators.append("eff")
        gaps = [estimate_gap(source, target, function, metric, name).gap for name in estimators]
        return function.of_rows(source.rows, source.labels), torch.stack(gaps)

    return of


def gradcheck(function, inputs, fast_mode=True):
    """Every output against finite differences; fast mode compares along random directions."""
    options = {"atol": 1e-6, "check_undefined_grad": False, "fast_mode": fast_mode}
    return torch.autograd.gradcheck(function, inputs, **options)


pytestmark = pytest.mark.filterwarnings("ignore:.*where the source never was")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_weights_and_gaps_of_every_estimator(name, classes):
    world = World(classes)
    assert gradcheck(outputs(world, METHODS[name]), world.inputs())
    weights, _ = outputs(world, METHODS[name])(*world.inputs())
    assert weights.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sees-c", "sees-c intercept", "sees-d 0", "sees-d 1", "sees-em 2"]
)
def test_the_derivative_of_every_entry(name):
    """The whole Jacobian by finite differences of estimates that are fitted again."""
    world = World(n=12, m=9)
    assert gradcheck(outputs(world, METHODS[name]), world.inputs(), fast_mode=False)


@pytest.mark.parametrize("name", ["sees-c", "sees-d 1", "sees-em 1"])
def test_accuracy_moves_with_weights_and_posterior_only(name):
    world = World(3)
    check = outputs(world, METHODS[name], "accuracy")
    assert gradcheck(check, world.inputs())


@pytest.mark.parametrize("calibrate", [False, True, "temperature"])
@pytest.mark.parametrize("name", ["sees-c", "sees-d 1", "sees-em 1"])
def test_the_whole_estimate(name, calibrate):
    """With few rows all are in every fold alike, so that calibration has no jumps."""
    world = World(3)

    def of(here, there):
        report = world.report(here, there, METHODS[name], calibrate=calibrate)
        return report.gap_tensor, report.target_tensor, report.weights, report.source.posterior

    assert gradcheck(of, world.inputs())


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("name", ["sees-c", "sees-d 1", "sees-em 1", "mlls"])
def test_gradients_of_equal_rows_reach_each_of_them(name, calibrate):
    """Rows that are merged before the fit: finite differences take them apart."""
    world = World(n=14, m=12, repeats=2)

    def of(here, there):
        report = world.report(here, there, METHODS[name], calibrate=calibrate)
        assert len(report.source) == 28
        return report.gap_tensor, report.weights

    assert gradcheck(of, world.inputs())
    grads = torch.autograd.grad(of(*(inputs := world.inputs()))[0], inputs)
    for grad in grads:
        first, second = grad.chunk(2)
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-15)
        assert bool(first.abs().sum(dim=1).gt(0).any())


def test_a_table_that_is_trimmed():
    """Two equal columns: the subset has both, the answer one of them."""
    world = World()
    world.source, world.target = (
        table[["x0"]].assign(x1=table["x0"]) for table in (world.source, world.target)
    )
    method = SEESd(2, soft=True)
    assert len(method.match(*world.samples(*world.logits)).features) < 2
    assert gradcheck(outputs(world, method), world.inputs())


def test_continuous_columns_and_a_chosen_penalty():
    rng = np.random.default_rng(3)
    world = World(n=60, m=50)
    world.source, world.target = mixed_frame(rng, 60), mixed_frame(rng, 50)
    for method in (SEESc(tolerance=EXACT), SEESc("auto", tolerance=EXACT)):
        assert gradcheck(outputs(world, method), world.inputs())


def test_zero_coefficients_stay_zero():
    world = World()
    found = METHODS["sees-c"].match(*world.samples(*world.inputs())).weight_function
    zero = found.coefficient == 0
    assert bool(zero.any())
    assert bool((found.coefficient > 0).any())
    slope = torch.zeros_like(found.coefficient)
    slope[zero] = 1.0
    assert not (found.coefficient * slope).sum().item()
    inputs = world.inputs()
    found = METHODS["sees-c"].match(*world.samples(*inputs)).weight_function
    for grad in torch.autograd.grad((found.coefficient * slope).sum(), inputs):
        assert float(grad.abs().max()) == 0


@pytest.mark.parametrize("name", [*METHODS, "auto"])
def test_values_are_those_without_a_graph(name):
    pair = drawn_world(3, 400, 300, features=3, classes=3)
    method = METHODS.get(name, name)
    # What belongs to the chosen weights: a contested choice is averaged without a graph only.
    options = {"method": method, "metric": "log_loss", "estimator": "dr", "replicates": 8}
    plain = estimate_shift(**pair.inputs(), **options)
    inputs = pair.inputs()
    for key in ("source_proba", "target_proba"):
        inputs[key] = torch.tensor(inputs[key], requires_grad=True)
    found = estimate_shift(**inputs, **options)
    assert found.gap == pytest.approx(plain.gap, abs=1e-13)
    assert found.interval == pytest.approx(plain.interval, abs=1e-13)
    assert found.diagnostics == pytest.approx(plain.diagnostics, rel=1e-9)
    torch.testing.assert_close(found.weights.detach(), plain.weights, rtol=0, atol=1e-13)
    with torch.no_grad():
        unasked = estimate_shift(**inputs, **options)
    assert not unasked.gap_tensor.requires_grad
    assert unasked.gap == plain.gap


def test_gradients_reach_a_network():
    world = World(3)
    net = torch.nn.Linear(3, 3).double()
    with torch.no_grad():
        net.weight.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    tables = [torch.tensor(t.to_numpy(), dtype=torch.float64) for t in (world.source, world.target)]

    def gap(weight, bias):
        here, there = (torch.nn.functional.linear(table, weight, bias) for table in tables)
        return world.report(here, there, METHODS["sees-em 1"], metric="log_loss").gap_tensor

    assert gradcheck(gap, (net.weight, net.bias), fast_mode=False)


def test_labelled_target_rows():
    world = World(n=48, m=40)
    known = np.where(np.arange(40) % 3 == 0, np.arange(40) % 2, np.nan)

    def of(here, there):
        method = SEESem(features=("x0",), shrinkage=5.0)
        report = world.report(here, there, method, target_labels=known)
        return report.gap_tensor, report.weights

    assert gradcheck(of, world.inputs())


@pytest.mark.parametrize("method", [SEESd(1), BBSE(), CovariatesOnly()], ids=lambda m: m.name)
def test_weights_that_do_not_move_have_no_graph(method):
    """Predicted classes are steps: their weights have no gradient, the metric still has its own."""
    world = World()
    inputs = world.inputs()
    source, target = world.samples(*inputs)
    function = method.match(source, target).weight_function
    assert not function.of_rows(source.rows, source.labels).requires_grad

    def gap(here, there):
        return world.report(here, there, method, metric="log_loss", estimator="ipw").gap_tensor

    assert gradcheck(gap, inputs)


def nodes(tensor):
    """How many operations a backward pass goes through."""
    seen, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return len(seen)


def test_the_graph_does_not_grow_with_iterations(monkeypatch):
    world = World(3)

    def size(method):
        return nodes(world.report(*world.inputs(), method).gap_tensor)

    rough, fine = (SEESc(eta=0.02, tolerance=tolerance) for tolerance in (1e-2, EXACT))
    assert size(rough) == size(fine) < 200
    slow = dataclasses.replace(fine, solver="proximal")
    assert size(slow) == size(fine)
    method = SEESem(features=("x0",), shrinkage=5.0)
    tight = size(method)
    monkeypatch.setattr(Batch, "tolerance", 1.0)
    assert size(method) == tight < 400


def test_everything_a_report_shows_comes_without_warnings():
    pytest.importorskip("matplotlib").use("Agg")
    world = World(n=80, m=60)
    torch.set_warn_always(True)
    try:
        for name in ("sees-c", "sees-d 1", "sees-em 1"):
            report = world.report(*world.inputs(), METHODS[name], confidence=0.9, replicates=4)
            str(report), report.to_dict(), report.to_frame(), report.plot()
            report.suggest_labels(3)
            if name != "sees-c":
                report.cells(), report.rows_needed(0.1), report.attribution()
    finally:
        torch.set_warn_always(False)
