"""Warm starts: the same answer from the last chunk's solution, in fewer steps."""

import pytest
import torch

from sees_torch import SavedFileError, SEESc
from sees_torch.matching import penalised
from sees_torch.monitor.state import KIND, VERSION
from sees_torch.saving.container import read_content, write_content
from tests.monitor.streams import Stream

SOLVERS = ("interior", "proximal")


@pytest.fixture(scope="module")
def stream():
    return Stream(rows=400, quiet=5, shifted=1, source=1500)


def watched(stream, method, warm, monkeypatch):
    """Reports on a window of four that rolls over the stream, and the steps of every solve."""
    steps = []

    def counted(solve):
        def run(*args, **options):
            found = solve(*args, **options)
            steps.append(found.steps)
            return found

        return run

    with monkeypatch.context() as patch:
        for name in SOLVERS:
            patch.setitem(penalised.SOLVERS, name, counted(penalised.SOLVERS[name]))
        monitor = stream.monitor(method, window=4, replicates=0)
        reports = []
        for chunk in stream.chunks:
            if not warm:
                monitor.start = None
            reports.append(monitor.add(*chunk))
    return reports, steps


@pytest.mark.parametrize(
    ("solver", "intercept"), [("interior", False), ("interior", True), ("proximal", False)]
)
def test_a_warm_start_gives_the_same_answer(stream, solver, intercept, monkeypatch):
    method = SEESc(solver=solver, intercept=intercept, tolerance=1e-11)
    warm, _ = watched(stream, method, True, monkeypatch)
    cold, _ = watched(stream, method, False, monkeypatch)
    for one, other in zip(warm, cold, strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-4)
        assert one.gap == pytest.approx(other.gap, abs=1e-6)
        assert one.shifted_features == other.shifted_features


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_warm_start_saves_steps(stream, solver, monkeypatch):
    _, warm = watched(stream, SEESc(solver=solver), True, monkeypatch)
    _, cold = watched(stream, SEESc(solver=solver), False, monkeypatch)
    assert warm[0] == cold[0]
    assert sum(warm[1:]) < 0.9 * sum(cold[1:])


def test_a_method_without_starts_has_none(stream):
    monitor = stream.monitor("mlls")
    monitor.add(*stream.chunks[0])
    assert monitor.start is None


@pytest.mark.parametrize("damage", [-1.0, 0.0])
def test_a_damaged_start_is_refused(stream, damage, tmp_path):
    monitor = stream.monitor("sees-c")
    monitor.add(*stream.chunks[0])
    monitor.save(tmp_path / "state")
    content = read_content(tmp_path / "state", KIND, VERSION)
    content.tensors["start"] = torch.full_like(content.tensors["start"], damage)
    write_content(tmp_path / "state", KIND, VERSION, content.document, content.tensors)
    with pytest.raises(SavedFileError, match="saved solution"):
        stream.monitor("sees-c").resume(tmp_path / "state")
