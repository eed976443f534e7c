"""Probabilities from modules, classifiers, callables and files: checked, never guessed."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sees_torch import SchemaError, SeesError, ShapeError
from sees_torch.data import probabilities
from sees_torch.data.probabilities import model_classes, predict, proba_columns, read_proba

CPU = torch.device("cpu")
PROBA = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
TABLE = np.array([[0.5, 1.0], [2.0, -1.0], [0.0, 3.0]])


def read(proba, rows=3) -> torch.Tensor:
    return read_proba(proba, rows, "source_proba", CPU)


def with_row(row) -> np.ndarray:
    changed = PROBA.copy()
    changed[1] = row
    return changed


@pytest.mark.parametrize(
    "proba",
    [
        pytest.param(PROBA, id="array"),
        pytest.param(PROBA.tolist(), id="list"),
        pytest.param(torch.tensor(PROBA), id="tensor"),
        pytest.param(pd.DataFrame(PROBA), id="frame"),
        pytest.param(pd.DataFrame(PROBA, index=[5, 3, 1]), id="frame with its own index"),
        pytest.param(pd.DataFrame(PROBA).astype("double[pyarrow]"), id="arrow frame"),
        pytest.param(PROBA.astype(object), id="objects"),
        pytest.param(PROBA.astype(str), id="numbers as text"),
        pytest.param(np.asfortranarray(PROBA), id="fortran"),
        pytest.param(PROBA[:, 1], id="(n,)"),
        pytest.param(PROBA[:, 1:], id="(n, 1)"),
        pytest.param(pd.Series(PROBA[:, 1], index=[2, 0, 1]), id="series by position"),
        pytest.param(torch.tensor(PROBA[:, 1]), id="(n,) tensor"),
        pytest.param(
            np.flip(PROBA[::-1].copy(), 0),
            id="negative strides",
        ),
        pytest.param(
            PROBA.astype(">f8"),
            id="big-endian",
        ),
        pytest.param(
            PROBA.astype(np.longdouble),
            id="longdouble",
        ),
    ],
)
def test_every_form_reads_alike(proba):
    found = read(proba)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(PROBA), rtol=0, atol=1e-15)


def test_single_precision_is_read_and_renormalised():
    found = read(PROBA.astype(np.float32))
    torch.testing.assert_close(found, torch.tensor(PROBA), rtol=0, atol=1e-7)
    torch.testing.assert_close(found.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-15, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read(dtype):
    proba = torch.tensor(np.random.default_rng(0).dirichlet([1, 1, 1], 200))
    found = read(proba.to(dtype), 200)
    assert (found - proba).abs().max() < 2 * torch.finfo(dtype).eps


def test_rounding_of_printed_files_is_forgiven_and_nothing_more():
    torch.testing.assert_close(read(with_row([0.20004, 0.8])).sum(1), torch.ones(3).double())
    assert read(with_row([-1e-6, 1 + 1e-6]))[1].tolist() == [0.0, 1.0]
    with pytest.raises(SeesError, match=r"row 1 sums to 1\.001"):
        read(with_row([0.201, 0.8]))


def test_hard_predictions_stay_hard():
    assert read(np.array([0, 1, 1])).tolist() == [[1, 0], [0, 1], [0, 1]]
    assert read(np.array([False, True, True])).tolist() == [[1, 0], [0, 1], [0, 1]]


def test_gradients_flow_through_given_tensors():
    proba = torch.tensor(PROBA, requires_grad=True)
    read(proba)[:, 0].sum().backward()
    assert proba.grad is not None


@pytest.mark.parametrize(
    ("proba", "error", "message"),
    [
        pytest.param(with_row([-0.1, 1.1]), SeesError, "ranges from -0.1 to 1.1", id="negative"),
        pytest.param(with_row([0, 1.2]), SeesError, "pass logits=True", id="> 1"),
        pytest.param(PROBA * 100, SeesError, "percentages, divide by 100", id="percent"),
        pytest.param(with_row([0.2, 0.2]), SeesError, "row 1 sums to 0.4. Give one", id="sum"),
        pytest.param(with_row([np.nan, 1]), SeesError, "1 rows with NaN .* is row 1", id="NaN"),
        pytest.param(with_row([np.inf, 1]), SeesError, "first is row 1", id="infinity"),
        pytest.param([None, 0.5, 0.5], SeesError, "1 rows with NaN", id="None"),
        pytest.param(["10%", "20%", "5%"], SchemaError, r"'10%'.*no percent", id="%"),
        pytest.param(["a", "b", "c"], SchemaError, "is not numeric", id="text"),
        pytest.param("text", SchemaError, "is not numeric", id="one text"),
        pytest.param(PROBA[:2], ShapeError, "has 2 rows, its features have 3", id="short"),
        pytest.param(PROBA.T, ShapeError, "has 2 rows, its features have 3", id="transposed"),
        pytest.param(PROBA[:, :, None], ShapeError, r"got \(3, 2, 1\)", id="three dimensions"),
        pytest.param(0.5, ShapeError, r"\(n,\) for two classes; got \(\)", id="scalar"),
        pytest.param(torch.tensor(0.5), ShapeError, r"got \(\)", id="0-d tensor"),
        pytest.param(None, ShapeError, r"got \(\)", id="None at all"),
        pytest.param(
            np.ones((3, 0)),
            ShapeError,
            "column",
            id="no columns",
        ),
        pytest.param(
            [[0.5, 0.5], [1.0], [0.5, 0.5]],
            SeesError,
            "row",
            id="ragged",
        ),
        pytest.param(
            PROBA.astype(complex),
            SchemaError,
            "numeric|complex",
            id="complex",
        ),
        pytest.param(
            torch.tensor(PROBA).to_sparse(),
            SeesError,
            "sparse|dense",
            id="sparse tensor",
        ),
        pytest.param(
            pd.DataFrame(PROBA).astype("Float64").mask(PROBA > 0.85),
            SeesError,
            "NaN|missing",
            id="pd.NA",
        ),
        pytest.param(
            np.ma.masked_greater(PROBA, 0.85),
            SeesError,
            "NaN|missing|masked",
            id="masked",
        ),
    ],
)
def test_what_is_refused(proba, error, message):
    with pytest.raises(error, match=message):
        read(proba)


def test_only_frames_with_several_columns_name_classes():
    assert proba_columns(pd.DataFrame(PROBA, columns=["b", "a"])) == ("b", "a")
    assert proba_columns(pd.DataFrame({"p": [0.5]})) is None
    assert proba_columns(PROBA) is None


# Modules


class Recorder(nn.Module):
    """A linear layer that remembers what it was called with."""

    def __init__(self, inputs=2, outputs=2):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.calls = []

    def forward(self, x):
        self.calls.append((x, self.training, torch.is_grad_enabled()))
        return self.linear(x)


@pytest.fixture
def recorder() -> Recorder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Recorder()


def reference(module: Recorder, table=TABLE) -> torch.Tensor:
    return torch.tensor(table).float() @ module.linear.weight.T + module.linear.bias


@pytest.mark.parametrize(
    "table",
    [TABLE, pd.DataFrame(TABLE), torch.tensor(TABLE), TABLE.tolist(), TABLE.astype(np.float16)],
    ids=["array", "frame", "tensor", "list", "float16"],
)
def test_modules_take_every_numeric_table(recorder, table):
    torch.testing.assert_close(predict(recorder, table, "source"), reference(recorder))


def test_modules_run_in_eval_mode_without_gradient_and_get_their_mode_back(recorder):
    recorder.train()
    output = predict(recorder, TABLE, "source")
    assert [(training, grad) for _, training, grad in recorder.calls] == [(False, False)]
    assert recorder.training
    assert not output.requires_grad
    recorder.eval()
    predict(recorder, TABLE, "source")
    assert not recorder.training


def test_mode_comes_back_when_the_module_fails(recorder):
    recorder.train()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        predict(recorder, np.ones((3, 7)), "source")
    assert recorder.training


def test_frozen_submodules_stay_frozen():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).train()
    module[0].eval()
    predict(module, TABLE, "source")
    assert [part.training for part in module.modules()] == [True, False, True]


def test_batch_statistics_are_not_touched():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    predict(module, TABLE, "source")
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_batches_do_not_change_the_output(recorder, monkeypatch):
    whole = predict(recorder, TABLE, "source")
    monkeypatch.setattr(probabilities, "BATCH", 2)
    recorder.calls.clear()
    torch.testing.assert_close(predict(recorder, TABLE, "source"), whole)
    assert [len(x) for x, _, _ in recorder.calls] == [2, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_inputs_take_the_dtype_of_the_parameters(recorder, dtype):
    recorder.to(dtype)
    for table in (TABLE, torch.tensor(TABLE).float(), torch.tensor(TABLE).long()):
        predict(recorder, table, "source")
    assert {x.dtype for x, _, _ in recorder.calls} == {dtype}


def test_inputs_go_to_the_device_of_the_parameters():
    module = nn.Linear(2, 2, device="meta")
    assert predict(module, TABLE, "source").device.type == "meta"


def test_logits_only_when_said(recorder):
    logits = reference(recorder)
    torch.testing.assert_close(predict(recorder, TABLE, "source"), logits)
    found = predict(recorder, TABLE, "source", logits=True)
    torch.testing.assert_close(found, logits.double().softmax(1))
    assert read(found).shape == (3, 2)
    with pytest.raises(SeesError, match="If the model returns logits, pass logits=True"):
        read(predict(recorder, TABLE, "source"))


@pytest.mark.parametrize("flat", [False, True])
def test_one_column_is_the_second_class(flat):
    module = nn.Sequential(nn.Linear(2, 1), *([nn.Flatten(0)] if flat else []))
    score = module(torch.tensor(TABLE).float()).detach().double().reshape(-1)
    found = read(predict(module, TABLE, "source", logits=True))
    torch.testing.assert_close(found[:, 1], score.sigmoid())
    sigmoid = nn.Sequential(*module, nn.Sigmoid())
    torch.testing.assert_close(read(predict(sigmoid, TABLE, "source")), found, atol=1e-6, rtol=0)


def test_far_logits_stay_finite():
    module = nn.Linear(2, 2)
    nn.init.constant_(module.weight, 1e4)
    nn.init.constant_(module.bias, 0.0)
    with torch.no_grad():
        module.weight[0] *= -1
    assert read(predict(module, TABLE, "source", logits=True)).isfinite().all()


class Several(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


@pytest.mark.parametrize(
    ("output", "name"), [((1, 2), "tuple"), ({"logits": 1}, "dict"), (None, "NoneType")]
)
def test_modules_that_return_no_tensor_are_refused(output, name):
    with pytest.raises(ShapeError, match=f"one tensor of class outputs, got {name} for target"):
        predict(Several(output), TABLE, "target")


def test_modules_cannot_take_text():
    with pytest.raises(SchemaError, match=r"holds text, which an nn\.Module cannot take"):
        predict(nn.Linear(1, 2), pd.DataFrame({"a": ["x", "y"]}), "source")


def test_modules_cannot_take_dates():
    table = pd.DataFrame({"a": pd.to_datetime(["2000-01-01", "2001-01-01"])})
    with pytest.raises(SchemaError, match="date"):
        predict(nn.Linear(1, 2), table, "source")


def test_missing_numbers_are_not_called_text():
    table = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [1, 2]})
    with pytest.raises(SeesError, match=r"missing|NaN"):
        read(predict(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)), table, "source"), 2)


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 2)

    def forward(self, x):
        return self.embedding(x).mean(dim=1)


@pytest.mark.parametrize(
    "convert",
    [
        torch.Tensor.clone,
        torch.Tensor.numpy,
        lambda t: pd.DataFrame(t.numpy()),
    ],
    ids=["tensor", "array", "frame"],
)
def test_integers_reach_an_embedding_as_integers(convert):
    module = Embedded()
    table = torch.tensor([[0, 1], [2, 3], [1, 1]])
    torch.testing.assert_close(predict(module, convert(table), "source"), module(table).detach())


# Classifiers and callables


class Classifier:
    classes_ = np.array(["no", "yes"])

    def predict_proba(self, table):
        return np.full((len(table), 2), [0.25, 0.75])

    def __call__(self, table):
        raise AssertionError("predict_proba comes first")


def test_classifiers_and_callables_get_the_table_itself():
    frame = pd.DataFrame(TABLE)
    assert predict(Classifier(), frame, "source").tolist() == [[0.25, 0.75]] * 3
    seen = []
    predict(seen.append, frame, "source")
    assert seen[0] is frame


def test_declared_classes_become_plain_values():
    assert model_classes(Classifier()) == ("no", "yes")
    assert all(type(c) is str for c in model_classes(Classifier()))
    assert model_classes(nn.Linear(1, 1)) is None


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor, pd.DataFrame, np.ndarray.tolist])
def test_logits_of_a_callable(wrap):
    found = predict(lambda table: wrap(np.log(PROBA)), TABLE, "source", logits=True)
    torch.testing.assert_close(read(found), torch.tensor(PROBA))


@pytest.mark.parametrize("output", [None, 1.0, [["a", "b"]] * 3], ids=["None", "0-d", "text"])
def test_senseless_logits_are_refused(output):
    with pytest.raises(SeesError):
        read(predict(lambda table: output, TABLE, "source", logits=True))


def test_logits_in_a_frame_keep_their_class_names():
    frame = pd.DataFrame(np.log(PROBA), columns=["b", "a"])
    found = predict(lambda table: frame, TABLE, "source", logits=True)
    assert proba_columns(found) == ("b", "a")


@pytest.mark.parametrize("model", ["model.pt", 3, PROBA], ids=["path", "number", "array"])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(SeesError, match=f"model is a {type(model).__name__}: give an nn.Module"):
        predict(model, TABLE, "source")
