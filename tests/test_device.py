"""Tensors stay on the device they came on: shown without a GPU by fake CUDA tensors.

A fake tensor has a device and a shape but no data, and an operation that mixes devices raises. So
counting, whose shapes depend on the data, is done beforehand; everything after it runs here. A few
questions have no answer without data, and the fixture answers them: `all()` and `any()` by yes (so
loops stop at their first check), `bool()` by no, `float()` and `int()` by one, `nonzero()` and
`unique()` by every entry.
"""

import copy
from dataclasses import fields, is_dataclass, replace
from itertools import chain, product, repeat
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from worlds import drawn_world, mixed_frame, samples

from sees_torch import (
    BBSE,
    DLU,
    KLIEP,
    MLLS,
    Auto,
    FeatureBasis,
    Match,
    NoShift,
    SEESc,
    SEESd,
    SEESem,
    Source,
    Target,
    estimate_shift,
)
from sees_torch.calibration import Calibration, _Folds
from sees_torch.data import Schema
from sees_torch.efficient import efficient_values, label_values
from sees_torch.few_labels import LabelledError
from sees_torch.gap import ESTIMATORS, ROW_METRICS, drift, estimate_gap, row_values
from sees_torch.labelling import Labelling
from sees_torch.matching import cells
from sees_torch.matching.basis_resamples import Stack
from sees_torch.matching.batch import Batch
from sees_torch.matching.cells import fit_cells, fit_shares
from sees_torch.matching.penalised import BasisProblem
from sees_torch.matching.selection import Evidence, Folds, Ratios, simplest
from sees_torch.matching.table_fits import fit_tables
from sees_torch.refinement import Refinement, _columns
from sees_torch.resamples import Resample
from sees_torch.solvers import proximal_gradient
from sees_torch.solvers.group_simplex import GroupSimplex, certificate
from sees_torch.solvers.implicit import quadratic_solution
from sees_torch.solvers.interior_point import group_likelihood
from sees_torch.solvers.likelihood import penalised_likelihood
from sees_torch.solvers.logistic import ridge_logistic
from sees_torch.solvers.proximal_gradient import descend
from sees_torch.solvers.quadratic import least_squares, nonnegative_quadratic
from sees_torch.statistics.counted import count_samples
from sees_torch.statistics.noise import sampling_noise
from sees_torch.statistics.products import Route, plan_products, subset_products
from sees_torch.statistics.row_products import RowProducts
from sees_torch.statistics.subsets import subsets_of
from sees_torch.suggestions import Story, telling
from sees_torch.weight_cells import cells_of
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS

aten = torch.ops.aten


class WithoutGuards(TorchFunctionMode):
    """Indexing, `.to(device)` and a few more by way of aten.

    Their Python bindings ask for a CUDA device guard, which a CPU build of torch does not have.
    """

    def __init__(self):
        super().__init__()
        self.plain = {Tensor.__invert__: aten.bitwise_not, Tensor.contiguous: aten.clone}
        self.answers = {Tensor.all: repeat(True), Tensor.any: repeat(True)}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.plain:
            return self.plain[func](*args)
        if func in self.answers and len(args) == 1 and not kwargs:
            return next(self.answers[func])
        if func is Tensor.__getitem__:
            view, places = basic(*args)
            return aten.index(view, places) if places else view
        if func is Tensor.__setitem__:
            view, places = basic(*args[:2])
            value = torch.as_tensor(args[2], dtype=view.dtype, device=view.device)
            return aten.index_put_(view, places, value) if places else aten.copy_(view, value)
        if func is Tensor.__float__:
            return 1.0
        if func is Tensor.__int__:
            return 1
        if func is Tensor.__bool__:
            return False
        if getattr(func, "__name__", "") == "unique":
            return args[0].reshape(-1), torch.zeros_like(args[0], dtype=torch.int64)
        if func is Tensor.nonzero:
            return torch.zeros(args[0].numel(), args[0].ndim, dtype=torch.int64, device="cuda")
        if func is Tensor.to and isinstance(args[-1], (str, torch.device)):
            return aten._to_copy(args[0], dtype=kwargs.get("dtype"), device=torch.device(args[1]))
        return func(*args, **kwargs)


def basic(tensor, key):
    """The view by slices, numbers, None and ..., and what remains to be indexed by tensors."""
    keys, dim, places = key if isinstance(key, tuple) else (key,), 0, []
    for at, k in enumerate(keys):
        if k is None:
            tensor = aten.unsqueeze(tensor, dim)
        elif k is Ellipsis:
            dim = tensor.ndim - sum(after is not None for after in keys[at + 1 :])
            continue
        elif isinstance(k, int):
            tensor = aten.select(tensor, dim, k)
            continue
        elif isinstance(k, slice):
            stop = 2**62 if k.stop is None else k.stop
            tensor = aten.slice(tensor, dim, k.start or 0, stop, k.step or 1)
        else:
            places += [None] * (dim - len(places)) + [k]
        dim += 1
    return tensor, places


@pytest.fixture
def mode():
    with FakeTensorMode(), WithoutGuards() as mode:
        yield mode


@pytest.fixture
def cuda(mode):
    """Turns tensors, and whatever holds them, into fake ones on CUDA."""
    return moved


@pytest.fixture
def one_pass(mode):
    """The first check of convergence fails, so that a loop runs its body once."""
    mode.answers[Tensor.all] = chain([False], repeat(True))


@pytest.fixture
def nothing_wrong(mode):
    """Pivoting finds no entry to exchange, so that it stops at its first check."""
    mode.answers[Tensor.any] = repeat(False)


def moved(thing):
    if isinstance(thing, Tensor):
        return torch.empty(thing.shape, dtype=thing.dtype, device="cuda")
    if isinstance(thing, (tuple, list)):
        return type(thing)(moved(part) for part in thing)
    if isinstance(thing, torch.nn.Module):
        other = copy.copy(thing)
        other._buffers = {name: moved(value) for name, value in thing._buffers.items()}
        other._modules = {name: moved(value) for name, value in thing._modules.items()}
        return other
    if isinstance(thing, (Source, Target)):
        other = copy.copy(thing)
        vars(other).update({name: moved(value) for name, value in vars(thing).items()})
        return other
    if is_dataclass(thing) and not isinstance(thing, Schema):
        return replace(
            thing, **{f.name: moved(getattr(thing, f.name)) for f in fields(thing) if f.init}
        )
    return thing


def on_cuda(*things):
    """Whether every tensor in these is a fake one on CUDA; there must be some."""
    found = []

    def walk(thing):
        if isinstance(thing, Tensor):
            found.append(isinstance(thing, FakeTensor) and thing.device.type == "cuda")
        elif isinstance(thing, (tuple, list)):
            for part in thing:
                walk(part)
        elif is_dataclass(thing):
            for f in fields(thing):
                walk(getattr(thing, f.name))

    walk(list(things))
    return bool(found) and all(found)


PAIR = drawn_world(0, 60, 50, features=3, classes=3)
SAMPLES = samples(PAIR)
CALIBRATION = Calibration.fit(SAMPLES[0])
COLUMN, START, WIDTH = _columns(SAMPLES[0])
REFINED = replace(
    CALIBRATION,
    refinement=Refinement(torch.ones(5, WIDTH + 1, 3, dtype=torch.float64), COLUMN, START),
)
RNG = np.random.default_rng(0)


def mixed_samples():
    frame, later = mixed_frame(RNG, 60), mixed_frame(RNG, 50)
    frame.loc[:5, "age"] = np.nan
    source = Source(frame, np.arange(60) % 2, RNG.random(60))
    return source, Target(later, RNG.random(50), source)


MIXED = mixed_samples()
BASES = {form: FeatureBasis(MIXED[0], form) for form in ("linear", "paired", "quadratic")}
COUNTED = {soft: count_samples(*SAMPLES, soft=soft) for soft in (False, True)}
PLANS = {
    (soft, route, s): plan_products(COUNTED[soft], s, route)
    for soft, route, s in product((False, True), get_args(Route), range(3))
}
PROBLEM = BasisProblem.build(*SAMPLES, FeatureBasis(SAMPLES[0]))
BATCH = Batch.of(*SAMPLES)
FOLDS = Folds.deal(*SAMPLES)
ROW_PRODUCTS = {
    members: RowProducts.of(*SAMPLES, COUNTED[True], members) for members in ((), (0,), (0, 2))
}
FUNCTIONS = {
    "table": SEESd(1).match(*SAMPLES).weight_function,
    "constant": BBSE().match(*SAMPLES).weight_function,
    "basis": SEESc(intercept=True).match(*SAMPLES).weight_function,
    "gaussian": KLIEP(centres=5, widths=(1.0,)).match(*SAMPLES).weight_function,
    "odds": DLU().match(*SAMPLES).weight_function,
}


def test_the_harness_notices_a_tensor_left_on_the_cpu(cuda):
    rows = cuda(torch.ones(4, 3))
    with pytest.raises(RuntimeError, match="same device"):
        rows + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([rows, torch.ones(4, 3)])
    with pytest.raises(RuntimeError, match="same device"):
        rows @ torch.ones(3, 2)
    assert on_cuda(rows)
    assert not on_cuda(rows, torch.ones(3))


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("route", get_args(Route))
@pytest.mark.parametrize("sparsity", [0, 1, 2])
def test_products_and_noise(cuda, route, sparsity, soft):
    found = subset_products(cuda(COUNTED[soft]), PLANS[soft, route, sparsity])
    assert on_cuda(found.product, found.mass, found.push, found.subsets.of_cell())
    weight = found.product.new_ones(found.subsets.total_cells, 3)
    assert on_cuda(sampling_noise(cuda(COUNTED[soft]), found, weight, 60.0, 50.0))


def test_the_fit_of_sees_d(cuda):
    """Without constraints; the constrained solver follows."""
    products = subset_products(cuda(COUNTED[True]), PLANS[True, "matches", 1])
    fit = fit_tables([products], constrained=False)[0]
    assert on_cuda(fit.weight, fit.objective, fit.unseen, fit.solution)


def test_quadratic_solvers(cuda, nothing_wrong):
    gram, right, free = cuda((torch.ones(6, 2, 2), torch.ones(6, 2), torch.ones(6, 2).bool()))
    problem, total = cuda((torch.zeros(6, dtype=torch.int64), torch.ones(2)))
    assert on_cuda(least_squares(gram, right, free, right))
    assert on_cuda(nonnegative_quadratic(gram, right, right, total, problem, right))


def test_the_certificate(cuda):
    eta, start = cuda((torch.ones(3, 1), torch.ones(3, 5)))
    simplex = cuda(GroupSimplex(torch.ones(1, 5), torch.tensor([0, 0, 1, 1, -1]), 2))
    assert on_cuda(certificate(simplex, start, start, eta))


def test_logistic(cuda, one_pass):
    x, outcome, mass = cuda((torch.ones(2, 9), torch.ones(9), torch.ones(3, 9)))
    assert on_cuda(ridge_logistic(x, outcome, mass, 1.0))


@pytest.mark.parametrize("solve", [group_likelihood, descend, penalised_likelihood])
def test_the_whole_likelihood_solver(cuda, one_pass, solve, monkeypatch):
    monkeypatch.setattr(proximal_gradient, "CHECK_EVERY", 2)
    z, mass, eta = cuda((torch.ones(9, 5), torch.ones(1, 9), torch.ones(3, 1)))
    simplex = cuda(GroupSimplex(torch.ones(1, 5), torch.tensor([0, 0, 1, 1, -1]), 2))
    found = solve(z, mass, simplex, eta)
    assert found.steps > 0
    assert on_cuda(found)


@pytest.mark.parametrize("form", ["linear", "paired", "quadratic"])
def test_basis(cuda, form):
    assert on_cuda(cuda(BASES[form])(cuda(MIXED[0].rows)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_weights(cuda, name):
    source, function = cuda(SAMPLES[0]), cuda(FUNCTIONS[name])
    assert on_cuda(function.table(source.rows))
    assert on_cuda(function.of_rows(source.rows, source.labels))
    if name == "table":
        assert on_cuda(function.cells())


@pytest.mark.parametrize(
    ("estimator", "metric"),
    [*product(ESTIMATORS, ROW_METRICS), *product(["self-normalised"], WEIGHTED_METRICS)],
)
def test_gaps(cuda, estimator, metric):
    source, target = cuda(SAMPLES[0]), cuda(SAMPLES[1])
    gap = estimate_gap(source, target, cuda(FUNCTIONS["table"]), metric, estimator)
    assert on_cuda(gap.source_value, gap.target_value, gap.gap)


@pytest.mark.parametrize("metric", [*ROW_METRICS, *WEIGHTED_METRICS])
def test_drift(cuda, metric):
    assert on_cuda(drift(cuda(SAMPLES[0]), cuda(SAMPLES[1]), cuda(FUNCTIONS["table"]), metric))


@pytest.mark.parametrize("members", [(), (0,), (0, 2)])
def test_the_cells_of_sees_em(cuda, members):
    subsets = subsets_of([members], BATCH.sizes, BATCH.codes.device)
    batch, subsets = cuda(BATCH), cuda(subsets)
    labels = torch.ones(1, 3, dtype=torch.float64, device="cuda")
    for fitted in (fit_cells(batch, subsets, 10.0, labels), fit_shares(batch, subsets)):
        assert on_cuda(fitted.weight, fitted.fallback, fitted.offset, fitted.visited)
        assert on_cuda(fitted.unseen, fitted.residual, fitted.on_rows(batch), fitted.ratio(batch))


# The steps that carry gradients. A build without CUDA cannot record a graph of CUDA tensors, so
# they run here without one: the same operations.


@pytest.mark.parametrize("members", [(), (0,), (0, 2)])
def test_gradients_of_sees_em(cuda, monkeypatch, members):
    monkeypatch.setattr(cells, "wants_graph", lambda *tensors: True)
    subsets = cuda(subsets_of([members], BATCH.sizes, BATCH.codes.device))
    labels = torch.ones(1, 3, dtype=torch.float64, device="cuda")
    fitted = fit_cells(cuda(BATCH), subsets, 10.0, labels)
    assert on_cuda(fitted.weight, fitted.offset)


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("members", [(), (0,), (0, 2)])
def test_gradients_of_sees_d(cuda, members, constrained):
    source, target, found = cuda(SAMPLES[0]), cuda(SAMPLES[1]), cuda(ROW_PRODUCTS[members])
    weight = found.mass.new_ones(found.cells, 3)
    rest = found.rest(weight, torch.cat([source.proba, target.proba]))
    gram = found.mass.new_ones(found.cells, 3, 3)
    assert on_cuda(rest, quadratic_solution(gram, weight, weight, rest, constrained))


def test_gradients_of_sees_c(cuda):
    stack = Stack.of(cuda(SAMPLES[0]), cuda(SAMPLES[1]), cuda(FUNCTIONS["basis"]))
    value = stack.differentiable(1e-3)
    assert on_cuda(value, stack.weights(value[None]))


def test_influence_and_resamples_of_sees_c(cuda):
    stack = Stack.of(cuda(SAMPLES[0]), cuda(SAMPLES[1]), cuda(FUNCTIONS["basis"]))
    slopes = cuda((torch.ones(60, 3).double(), torch.ones(50, 3).double()))
    here, there = stack.influence(1e-3, *slopes)
    assert (here.shape, there.shape) == ((60,), (50,))
    counts = cuda((torch.ones(4, 60).double(), torch.ones(4, 50).double()))
    assert on_cuda(here, there, stack.one_step(1e-3, *counts))


def test_gradients_of_calibration(cuda):
    folds = _Folds.of(cuda(SAMPLES[0]), cuda(torch.ones(60, 5).double()), False)
    step = torch.zeros(5, 6, dtype=torch.float64, device="cuda")
    fitted = folds.fitted(step)
    assert on_cuda(folds.slope(step, fitted), folds.curve(fitted), folds.models(step))


def test_evidence_and_choice(cuda):
    source, target = cuda(SAMPLES[0]), cuda(SAMPLES[1])
    ratios = [
        Ratios.of(*(cuda(torch.ones(size, dtype=torch.float64)) for size in ((k, 60), (k, 50), k)))
        for k in (2, 1)
    ]
    evidence = Evidence.of(source, target, ratios)
    score, error = evidence.score(), evidence.standard_errors
    here, there = (cuda(torch.ones(4, k, dtype=torch.float64)) for k in (60, 50))
    again = evidence.score(here, there)
    assert again.shape == (4, 3)
    assert on_cuda(score, error, again, simplest(again, error, cuda(torch.tensor([0, 2, 1]))))
    folds = cuda(FOLDS)
    assert on_cuda(folds.training(source, target))
    held_out = folds.held_out(cuda(torch.ones(15, 2, 110, dtype=torch.float64)))
    assert on_cuda(held_out.here, held_out.there, held_out.parameters)


def test_probabilities_refined_by_features(cuda):
    source, target, refined = cuda(SAMPLES[0]), cuda(SAMPLES[1]), cuda(REFINED)
    assert on_cuda(refined.source(source).posterior, refined.target(target).posterior)
    assert on_cuda(refined._following(source).refinement.table)
    parameters = refined.models, refined.refinement.table
    found = refined.influence(source, [torch.ones_like(part) for part in parameters])
    assert found.shape == (60,)
    assert on_cuda(found)


def test_resampled_gaps(cuda):
    """Of every estimator, and of a metric that is no mean over rows."""
    source, target = cuda(SAMPLES[0]), cuda(SAMPLES[1])
    here, there = (cuda(torch.ones(4, k, dtype=torch.float64)) for k in (60, 50))
    match = Match("known", cuda(FUNCTIONS["table"]), (0,))
    tables = cuda((torch.ones(4, 60, 3).double(), torch.ones(4, 50, 3).double()))
    values = row_values(source, target, "brier")
    calibration = cuda(CALIBRATION)
    through = calibration.influence(source, [torch.ones_like(calibration.models)])
    for estimator in ESTIMATORS:
        resample = Resample(source, target, NoShift(), match, here, there, tables)
        gap = resample.gap("brier", estimator, values, None, through)
        assert gap.shape == (4,)
        assert on_cuda(gap, resample.gap("f1", estimator, None, None, through))


def test_labelled_target_rows(cuda):
    source, target = cuda(SAMPLES[0]), cuda(SAMPLES[1])
    target.labelled = 50.0
    values = row_values(source, target, "brier")
    labelling = Labelling.of(source, target)
    error = LabelledError.of(target, target.posterior, values, labelling)
    assert on_cuda(labelling, error, error.value(target.count[None]), error.variance(target.count))
    cells = cells_of(cuda(FUNCTIONS["table"]), source, target)
    assert on_cuda(efficient_values(source, target, cells, values))
    assert on_cuda(label_values(source, target, cells, values))
    story = Story.of(source, target, cuda(FUNCTIONS["table"]), values, 1.0)
    assert on_cuda(story, telling(target, [story]))


def test_the_design_of_sees_c(cuda):
    """Not `solve`: it picks columns by a mask, a shape that depends on data."""
    coefficient = torch.zeros(2, len(PROBLEM.owner), 3, dtype=torch.float64, device="cuda")
    assert on_cuda(cuda(PROBLEM).importance(coefficient))


@pytest.mark.parametrize("name", ["table", "basis", "gaussian", "odds"])
def test_a_moved_module_weighs_a_frame_on_its_own_device(name):
    """The meta device is another device that every build of torch has."""
    function = copy.deepcopy(FUNCTIONS[name]).to("meta")
    assert function(PAIR.source, PAIR.labels).device.type == "meta"


@pytest.mark.parametrize("kinds", ["categorical", "continuous", "both"])
def test_coding(cuda, kinds):
    columns = {"categorical": [1], "continuous": [2, 3], "both": [1, 2]}[kinds]
    schema = Schema(tuple(MIXED[0].schema.columns[j] for j in columns), False)
    rows = schema.encode(torch.empty(7, len(columns), dtype=torch.float64, device="cuda"))
    assert on_cuda(rows)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "method",
    [
        Auto(),
        SEESem(),
        SEESd(1),
        SEESd(2, soft=True),
        SEESc(),
        BBSE(),
        MLLS(),
        DLU(),
        KLIEP(centres=20),
    ],
)
def test_a_real_gpu_gives_what_the_cpu_gives(method):
    inputs = PAIR.inputs()
    inputs["source"], inputs["target"] = (
        torch.tensor(inputs[name].to_numpy()) for name in ("source", "target")
    )
    plain = estimate_shift(**inputs, method=method)
    for name in ("source", "target", "labels", "source_proba", "target_proba"):
        inputs[name] = torch.as_tensor(inputs[name]).cuda()
    report = estimate_shift(**inputs, method=method)
    assert report.weights.is_cuda
    assert report.shifted_features == plain.shifted_features
    assert abs(report.gap - plain.gap) < 1e-8
    torch.testing.assert_close(report.weights.cpu(), plain.weights, rtol=1e-8, atol=1e-8)
