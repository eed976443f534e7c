"""Real processes: every rank computes what one process computes from all rows."""

import warnings

import pandas as pd
import pytest
import torch
from test_distributed import SERVER, assert_alike, run, show, table

from sees_torch import Schema, SEESd, SeesError
from sees_torch import metrics as room
from sees_torch.metrics import PerformanceShift

# Before the first process starts: all of them fork from one that has imported these.
MODULES = ["pandas", "pyarrow", "torch.distributed", "sees_torch", "sees_torch.metrics", __name__]
SERVER.set_forkserver_preload(MODULES)

SOURCE, TARGET = table(0, 500, 0.4), table(1, 400, 0.6)
FEATURES = ["town", "size", "age"]
KINDS = [getattr(room, name) for name in room.__all__ if name != "PerformanceShift"]


def made(method="sees-em", order=(0, 1), **options) -> PerformanceShift:
    return PerformanceShift(
        Schema.learn(SOURCE[FEATURES]), order, method, **{"replicates": 0} | options
    )


def add_source(metric, rows: pd.DataFrame = SOURCE) -> None:
    metric.update(rows["p"], rows["y"], rows[FEATURES])


def add_target(metric, rows: pd.DataFrame = TARGET) -> None:
    metric.update(rows["p"], features=rows[FEATURES])


def plain(value: dict) -> dict:
    return {
        key: part.tolist() if isinstance(part, torch.Tensor) else part
        for key, part in value.items()
        if key != "shifted_features"
    } | {"shifted_features": list(value["shifted_features"])}


def in_turn(rank: int, ranks: int) -> list[dict]:
    """Rows are dealt out in turn; the own ones come back after compute, and more may follow."""
    metric = made(replicates=10)
    add_source(metric, SOURCE[rank::ranks])
    add_target(metric, TARGET[rank::ranks])
    own = sum(map(len, metric.codes))
    values = [plain(metric.compute())]
    assert sum(map(len, metric.codes)) == own
    add_target(metric, TARGET[:10])
    return [*values, plain(metric.compute())]


def one_sided(rank: int, ranks: int) -> dict:
    """The first process has the source, the second the target, a third nothing."""
    metric = made("mlls")
    if rank < 2:
        (add_source, add_target)[rank](metric)
    return plain(metric.compute())


def tables(rank: int, ranks: int) -> dict:
    """States that are sums; the last process has no rows."""
    metric = made(SEESd(1), states="tables")
    if rank < ranks - 1:
        add_source(metric, SOURCE[rank :: ranks - 1])
        add_target(metric, TARGET[rank :: ranks - 1])
    return plain(metric.compute())


def without_target(rank: int, ranks: int) -> dict:
    """A refusal is that of all, and leaves a metric that goes on."""
    metric = made("mlls")
    add_source(metric, SOURCE[rank::ranks])
    told = refusal(metric)
    add_target(metric, TARGET[rank::ranks])
    return {"told": told, "value": plain(metric.compute())}


def other_classes(rank: int, ranks: int) -> str:
    metric = made("mlls", (0, 1) if rank else (1, 0))
    add_source(metric)
    add_target(metric)
    return refusal(metric)


def refusal(metric) -> str:
    try:
        metric.compute()
    except SeesError as error:
        return str(error)
    return "nothing was refused"


def rows_of(kind):
    """A metric for three classes and rows for it."""
    generator = torch.Generator().manual_seed(0)
    proba = torch.rand(90, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    labels = torch.multinomial(proba, 1, generator=generator).squeeze(1)
    weight = torch.rand(90, generator=generator, dtype=torch.float64)
    means = (room.WeightedAccuracy, room.WeightedLogLoss, room.WeightedBrier)
    return kind() if kind in means else kind(3), (proba, labels, weight)


def weighted(rank: int, ranks: int) -> dict:
    """The last process has no rows."""
    values = {}
    for kind in KINDS:
        metric, rows = rows_of(kind)
        if rank < ranks - 1:
            metric.update(*(column[rank :: ranks - 1] for column in rows))
        values[kind.__name__] = float(metric.compute())
    return values


def everything(rank: int, ranks: int) -> dict:
    warnings.filterwarnings("ignore", message=".*before the ``update``")
    jobs = (in_turn, one_sided, tables, without_target, other_classes, weighted)
    return {job.__name__: job(rank, ranks) for job in jobs}


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def told(request, tmp_path_factory) -> list[dict]:
    """What every process says."""
    folder = tmp_path_factory.mktemp("ranks")
    codes, told = run(folder, request.param, everything)
    assert codes == [0] * request.param, show(folder)
    return told


def test_all_processes_say_the_same(told):
    assert all(found == told[0] for found in told)


def test_processes_compute_what_one_does(told):
    metric = made(replicates=10)
    add_source(metric)
    add_target(metric)
    first, second = told[0]["in_turn"]
    assert_alike(plain(metric.compute()), first)
    assert first["gap"] == pytest.approx(float(metric.compute()["gap"]), abs=1e-12)
    for _ in told:
        add_target(metric, TARGET[:10])
    assert_alike(plain(metric.compute()), second)


def test_processes_may_have_one_sample_or_none(told):
    metric = made("mlls")
    add_source(metric)
    add_target(metric)
    expected = plain(metric.compute())
    assert_alike(expected, told[0]["one_sided"])
    assert "no target rows yet" in told[0]["without_target"]["told"]
    assert_alike(expected, told[0]["without_target"]["value"])


def test_tables_of_processes_add_up(told):
    metric = made(SEESd(1), states="tables")
    add_source(metric)
    add_target(metric)
    found = told[0]["tables"]
    assert found["gap"] == pytest.approx(float(metric.compute()["gap"]), abs=1e-12)
    assert found["shifted_features"] == list(metric.compute()["shifted_features"])


def test_processes_that_disagree_are_refused(told):
    assert "another schema, classes, max_rows or precision" in told[0]["other_classes"]


def test_weighted_metrics(told):
    for kind in KINDS:
        metric, rows = rows_of(kind)
        metric.update(*rows)
        expected = pytest.approx(float(metric.compute()), abs=1e-12)
        assert told[0]["weighted"][kind.__name__] == expected
