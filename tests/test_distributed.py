"""Several real processes: the report of one, errors in all, and no process left waiting."""

import contextlib
import datetime
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import distributed

from sees_torch import SeesError, Source, Target, estimate_shift
from sees_torch.cli import EXIT_CODES, main
from sees_torch.data.files import TableFile

ROOT = Path(__file__).parent.parent
PATIENCE = 60
"""Seconds after which a process counts as hanging."""
REFUSED = 7

# A clean process imports once and forks the others from it: the tests' own may have threads.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pandas", "pyarrow", "torch.distributed", "sees_torch", __name__])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(folder: Path, ranks: int, job) -> tuple[list[int], list[dict]]:
    """Exit codes of processes that run `job`, and what each told; none may hang."""
    port = free_port()
    started = [
        SERVER.Process(target=child, args=(folder, rank, ranks, port, job)) for rank in range(ranks)
    ]
    for process in started:
        process.start()
    end = time.monotonic() + PATIENCE
    for process in started:
        process.join(max(0.1, end - time.monotonic()))
    hanging = [process for process in started if process.exitcode is None]
    for process in hanging:
        process.kill()
        process.join()
    assert not hanging, show(folder)
    told = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.json"
        told.append(json.loads(path.read_text()) if path.exists() else {})
    return [process.exitcode for process in started], told


def show(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


def child(folder: Path, rank: int, ranks: int, port: int, job) -> None:
    """What a process does: its job, its errors told and turned into an exit code."""
    os.chdir(folder)
    torch.set_num_threads(1)
    log = os.open(f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=30),
    )
    code = 0
    try:
        told = job(rank, ranks)
    except SeesError as error:
        told, code = {"message": str(error), "cause": type(error.__cause__).__name__}, REFUSED
    Path(f"rank{rank}.json").write_text(json.dumps(told, default=str))
    with contextlib.suppress(RuntimeError):
        # Also a process that was refused stays until the others are done.
        if job in LONG_LIVED:
            distributed.barrier()
    sys.exit(code)


def samples(rank: int, ranks: int, rows: int, **options) -> tuple[Source, Target]:
    """What all processes read of s.csv and t.csv together."""
    file = TableFile("s.csv", ["p"], "y", rows=rows, shard=(rank, ranks))
    source = Source.from_batches(file, distributed=True, **options)
    file = TableFile("t.csv", ["p"], rows=rows, shard=(rank, ranks))
    return source, Target.from_batches(file, source, distributed=True, **options)


def assert_alike(one, other, at: str = "report") -> None:
    """Nested values that agree, numbers to 1e-10."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), at
        for key in one:
            assert_alike(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), at
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_alike(left, right, f"{at}[{place}]")
    elif isinstance(one, float):
        assert other == pytest.approx(one, abs=1e-10, rel=1e-10, nan_ok=True), at
    else:
        assert one == other, at


def table(seed: int, rows: int, share: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < share).astype(int)
    return pd.DataFrame(
        {
            "town": np.where(rng.random(rows) < 0.2 + 0.6 * y, "Bern", "Genf"),
            "size": rng.integers(0, 3, rows),
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(40, 10, rows)),
            "y": y,
            "p": np.clip(0.25 + 0.5 * y + rng.normal(0, 0.3, rows), 0.01, 0.99).round(2),
        }
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """s.csv and t.csv, 500 and 400 rows."""
    table(0, 500, 0.4).to_csv(tmp_path / "s.csv", index=False)
    table(1, 400, 0.6).drop(columns="y").to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


def alone(folder: Path, **options) -> tuple[Source, Target]:
    """The samples as one process reads them."""
    source = Source.from_batches(TableFile(folder / "s.csv", ["p"], "y", rows=50), **options)
    target = TableFile(folder / "t.csv", ["p"], rows=50)
    return source, Target.from_batches(target, source, **options)


def plain(report) -> dict:
    return json.loads(json.dumps(report.to_dict(), default=str))


def two_reports(rank: int, ranks: int) -> dict:
    source, target = samples(rank, ranks, 50)
    reports = {
        method: estimate_shift(source, target=target, method=method, replicates=20).to_dict()
        for method in ("auto", "mlls")
    }
    return {"reports": reports, "rows": len(source), "total": float(source.total)}


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_processes_report_what_one_does(folder, ranks):
    codes, told = run(folder, ranks, two_reports)
    assert codes == [0] * ranks, show(folder)
    source, target = alone(folder)
    for method in ("auto", "mlls"):
        expected = plain(estimate_shift(source, target=target, method=method, replicates=20))
        for found in told:
            assert_alike(expected, found["reports"][method])
    for found in told:
        assert found["rows"] == len(source)
        assert found["total"] == 500


def one_report(rank: int, ranks: int) -> dict:
    source, target = samples(rank, ranks, 450)
    return estimate_shift(source, target=target, method="mlls", replicates=0).to_dict()


def test_more_processes_than_batches(folder):
    codes, told = run(folder, 3, one_report)
    assert codes == [0, 0, 0], show(folder)
    source, target = alone(folder)
    expected = plain(estimate_shift(source, target=target, method="mlls", replicates=0))
    for found in told:
        assert_alike(expected, found)


def bounded(rank: int, ranks: int) -> dict:
    source, target = samples(rank, ranks, 50, max_rows=150, precision=None)
    total, notes = float(source.total), source.notes + target.notes
    return {"rows": len(source), "total": total, "notes": notes}


def test_bounds_hold_for_all_processes_together(folder):
    codes, told = run(folder, 2, bounded)
    assert codes == [0, 0], show(folder)
    assert told[0] == told[1]
    assert told[0]["rows"] <= 150
    assert told[0]["total"] == pytest.approx(125, abs=4)
    assert sum("one of every 4 rows was kept" in note for note in told[0]["notes"]) == 2


# Errors


def test_a_bad_label_of_one_process_is_an_error_in_all(folder):
    """Row 75 has no label: batch 1, which the second process reads."""
    source = pd.read_csv(folder / "s.csv").astype({"y": "Int64"})
    source.loc[75, "y"] = pd.NA
    source.to_csv(folder / "s.csv", index=False)
    codes, told = run(folder, 2, two_reports)
    assert codes == [REFUSED, REFUSED], show(folder)
    for found in told:
        assert "process 1: labels has 1 missing entries" in found["message"]
    assert told[1]["cause"] == "SchemaError"


def other_columns(rank: int, ranks: int) -> None:
    file = TableFile(["s.csv", "other.csv"][rank], ["p"], "y")
    Source.from_batches(file, distributed=True)


def test_columns_that_differ_by_process_are_an_error_in_all(folder):
    frame = pd.read_csv(folder / "s.csv")
    frame.rename(columns={"size": "height"}).to_csv(folder / "other.csv", index=False)
    codes, told = run(folder, 2, other_columns)
    assert codes == [REFUSED, REFUSED], show(folder)
    assert all("height" in found["message"] for found in told)


def failing_model(rank: int, ranks: int) -> None:
    def model(batch):
        if rank == 1:
            raise RuntimeError("out of luck")
        return batch["size"] / 4

    frame = pd.read_csv("s.csv")[rank::ranks]
    Source.from_batches([(frame[["size"]], frame["y"])], model, distributed=True)


LONG_LIVED = (failing_model,)


def test_a_model_that_fails_in_one_process_leaves_none_waiting(folder):
    """The failing process lives on, so that nothing but the exchange can tell the others."""
    codes, told = run(folder, 2, failing_model)
    assert codes == [REFUSED, REFUSED], show(folder)
    assert all("process 1: RuntimeError: out of luck" in found["message"] for found in told)


def dies_before(rank: int, ranks: int) -> None:
    die(rank)
    samples(rank, ranks, 50)


def dies_between(rank: int, ranks: int) -> None:
    file = TableFile("s.csv", ["p"], "y", rows=50, shard=(rank, ranks))
    source = Source.from_batches(file, distributed=True)
    die(rank)
    file = TableFile("t.csv", ["p"], rows=50, shard=(rank, ranks))
    Target.from_batches(file, source, distributed=True)


def dies_reading(rank: int, ranks: int) -> None:
    samples(rank, ranks, 50, progress=lambda rows: die(rank))


def dies_waiting(rank: int, ranks: int) -> None:
    """The second process is killed in the exchange, while it waits for the third."""
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if rank == 2:
        time.sleep(3)
    samples(rank, ranks, 50)


def die(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("job", "ranks"), [(dies_before, 3), (dies_between, 2), (dies_reading, 2), (dies_waiting, 3)]
)
def test_a_killed_process_is_an_error_in_the_others(folder, job, ranks):
    codes, told = run(folder, ranks, job)
    assert codes.pop(1) < 0
    assert set(codes) == {REFUSED}, show(folder)
    told.pop(1)
    assert all("another process ended or did not answer" in found["message"] for found in told)


def test_a_group_must_have_been_started(folder):
    file = TableFile(folder / "s.csv", ["p"], "y")
    with pytest.raises(SeesError, match=r"needs torch.distributed.init_process_group"):
        Source.from_batches(file, distributed=True)


# The command


OPTIONS = ("--source", "s.csv", "--target", "t.csv", "--label", "y", "--proba", "p")


def test_the_command_under_torchrun(folder, monkeypatch, capsys):
    """One report, by the first process, and exit code 0 whatever the status."""
    options = ("--replicates", "20", "--json")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, "-m", "sees_torch", "estimate", *OPTIONS, *options, "two.json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(folder)
    code = main(["estimate", *OPTIONS, *options, "one.json"])
    assert done.stdout == capsys.readouterr().out
    one, two = (json.loads((folder / name).read_text()) for name in ("one.json", "two.json"))
    assert code == EXIT_CODES[one["status"]]
    assert_alike(one, two)
