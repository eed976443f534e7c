"""Memory that runs short: smaller parts, then one clear error; with real processes."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from sees_torch import (
    MemoryShortError,
    SeesError,
    SeesWarning,
    estimate_shift,
    make_sparse_joint_shift,
)
from sees_torch import estimation as room
from sees_torch.cli import main
from sees_torch.shortage import SMALLEST, in_smaller_parts, is_shortage
from sees_torch.statistics.products import MEMORY

ALLOCATOR = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12 bytes")
LIMITED = """
import resource, sys, warnings
import numpy as np
from sees_torch import SeesWarning, estimate_shift
from sees_torch.cli import main

def limit(megabytes):
    "Room for so much more than the process has now."
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

rng = np.random.default_rng(0)
rows = 15_000
def half():
    x = rng.standard_normal((rows, 1))
    return x, 1 / (1 + np.exp(-x[:, 0]))
(source, p), (target, q) = half(), half()
given = dict(source=source, labels=(rng.random(rows) < p).astype(int), target=target,
             source_proba=p, target_proba=q, method="mlls", calibrate=False, replicates=40)
small = {name: value[:500] if hasattr(value, "shape") else value for name, value in given.items()}
estimate_shift(**small)  # What is loaded on first use is loaded before the limit.
"""


def run(code: str, folder=None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", LIMITED + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            # What is freed goes back to the system: no room is left over from loading.
            "MALLOC_MMAP_THRESHOLD_": "65536",
        },
        check=False,
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_a_process_with_little_room_works_in_smaller_parts_and_one_without_says_so():
    found = run("""
        limit(40)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = estimate_shift(**given)
        said = " ".join(str(w.message) for w in caught if issubclass(w.category, SeesWarning))
        assert "memory was short" in said, said
        low, high = report.interval
        assert low <= report.gap <= high and high - low < 0.01
        print("done")
        del report
        limit(0)
        try:
            kept = [estimate_shift(**given) for _ in range(100)]
        except MemoryError as error:
            print(type(error).__name__)
    """)
    assert found.stdout.split() == ["done", "MemoryShortError"], found.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), ALLOCATOR, torch.OutOfMemoryError("CUDA out of memory")]
)
def test_parts_get_smaller_until_they_fit(error):
    tried = []

    def work(budget):
        tried.append(budget)
        if budget > 2**24:
            raise error
        return "found"

    assert is_shortage(error)
    with pytest.warns(SeesWarning, match=r"parts of 16 MiB; memory_budget=16777216"):
        assert in_smaller_parts(work, 2**28) == "found"
    assert tried == [2**28, 2**26, 2**24]


def test_parts_that_cannot_get_smaller_are_an_error():
    tried = []

    def work(budget):
        tried.append(budget)
        raise MemoryError

    with pytest.raises(MemoryShortError, match="fewer distinct rows"):
        in_smaller_parts(work, 3 * SMALLEST)
    assert tried == [3 * SMALLEST, SMALLEST]
    assert issubclass(MemoryShortError, SeesError)


def test_other_errors_are_not_tried_again():
    tried = []

    def work(budget):
        tried.append(budget)
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        in_smaller_parts(work, MEMORY)
    assert len(tried) == 1


@pytest.mark.parametrize("method", ["mlls", "sees-em", "sees-d"])
def test_the_second_try_begins_where_the_first_did(method, monkeypatch):
    """The generator is put back, and budgets reach the method; numbers are as without a fault."""
    pair = make_sparse_joint_shift(300, 300, features=2)
    given = {"method": method, "replicates": 20}

    def report():
        generator = torch.Generator().manual_seed(7)
        return estimate_shift(**pair.inputs(), **given, generator=generator)

    whole, budgets, real = report(), [], room.report_match

    def short_at_first(*arguments, **named):
        budgets.append((named["memory"], getattr(arguments[3], "memory_budget", None)))
        found = real(*arguments, **named)
        if len(budgets) == 1:
            raise MemoryError
        return found

    monkeypatch.setattr(room, "report_match", short_at_first)
    with pytest.warns(SeesWarning, match="memory was short"):
        again = report()
    assert again.to_dict() == whole.to_dict()
    assert again.settings == whole.settings
    assert [budget for budget, _ in budgets] == [MEMORY, MEMORY // 4]
    assert method == "mlls" or [of for _, of in budgets] == [MEMORY, MEMORY // 4]


def test_the_command_says_that_memory_is_short(tmp_path, monkeypatch, capsys):
    pair = make_sparse_joint_shift(60, 60, features=2)
    monkeypatch.chdir(tmp_path)
    pair.source.assign(y=pair.labels, p=pair.source_proba[:, 1]).to_csv("s.csv", index=False)
    pair.target.assign(p=pair.target_proba[:, 1]).to_csv("t.csv", index=False)

    def full(*_, **__):
        raise ALLOCATOR

    monkeypatch.setattr("sees_torch.cli.estimate.Source.from_batches", full)
    command = ["estimate", "--source", "s.csv", "--target", "t.csv", "--label", "y", "--proba", "p"]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "sees: out of memory: keep fewer distinct rows by --max-rows, or free memory\n"
    )
