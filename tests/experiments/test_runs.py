"""Runs are saved whole, resumed after a kill, and collected into one table."""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pandas as pd
import pytest
from omegaconf import OmegaConf

import experiments.run
from experiments import interrupts, records
from experiments.collect import collect, save, summarise
from experiments.records import SWEEP
from sees_torch import SeesError

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = ["data.rows=2000", "rows=200", "classifier=logistic", "method=[bbse,cbpe]"]


def command(out, *more):
    return [sys.executable, "-m", "experiments.run", "-m", f"out={out}", *TINY, *more]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def ended(sweep, runs, least, how):
    """Start a sweep and end it, workers too, once it has left some runs; what it said."""
    process = subprocess.Popen(
        sweep,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    waited = time.monotonic() + 300
    while len(list(runs.glob("*.json"))) < least and process.poll() is None:
        assert time.monotonic() < waited
        time.sleep(0.02)
    os.killpg(process.pid, how)  # As a terminal does.
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize(
    ("how", "launcher"),
    [
        (signal.SIGINT, "basic"),
        pytest.param(signal.SIGKILL, "basic", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "two_cores", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "two_cores", marks=pytest.mark.slow),
    ],
)
def test_a_sweep_that_is_killed_or_interrupted_resumes(tmp_path, how, launcher):
    """Ended half-way, then finished by the same command: whole runs only, and none of them twice.

    Runs of the same command are told apart by the time of their file.
    """
    seeds, least = 4, 3
    sweep = command(tmp_path, f"seed=range({seeds})", f"hydra/launcher={launcher}")
    runs = tmp_path / "runs"
    code, said = ended(sweep, runs, least, how)
    if how == signal.SIGINT:
        assert code == 130, said
        assert said.endswith("interrupted: the same command goes on with what is missing\n")
        assert "Traceback" not in said
        left = [
            path for folder in ("runs", "probabilities") for path in (tmp_path / folder).iterdir()
        ]
        assert not [path for path in left if path.name.startswith(".")]
    else:
        assert code == -signal.SIGKILL
    before = {path.name: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    assert least <= len(before) < 2 * seeds
    for name in before:
        json.loads((runs / name).read_text())

    again = subprocess.run(
        sweep, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    after = {path.name: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    assert len(after) == 2 * seeds
    assert {name: after[name] for name in before} == before
    results = pd.read_csv(tmp_path / "sweep" / "results.csv")
    assert sorted(results["seed"].unique()) == list(range(seeds))
    assert len(results) == 2 * seeds
    assert len((tmp_path / "sweep" / SWEEP).read_text().split()) == 2 * seeds


def test_an_interrupt_that_python_dropped_stops_the_next_run(monkeypatch):
    monkeypatch.setattr(interrupts, "_STOPPED", threading.Event())
    with pytest.raises(KeyboardInterrupt):
        interrupts.interrupt()  # Say, inside a destructor, where it is ignored.
    with pytest.raises(KeyboardInterrupt):
        experiments.run._run(OmegaConf.create({}))


@pytest.mark.parametrize("asked", [True, False])
def test_an_interrupt_that_broke_something_is_still_an_interrupt(monkeypatch, capsys, asked):
    """It may fall into code that makes another error of it, which Hydra reports and exits with."""
    monkeypatch.setattr(interrupts, "_STOPPED", threading.Event())
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def broken():
        if asked:
            with contextlib.suppress(KeyboardInterrupt):
                interrupts.interrupt()
        sys.exit(1)

    monkeypatch.setattr(experiments.run, "main", broken)
    with pytest.raises(SystemExit) as ended:
        experiments.run.command()
    assert ended.value.code == (130 if asked else 1)
    assert ("interrupted: the same command" in capsys.readouterr().err) == asked


def test_a_run_can_be_sent_to_workers():
    """What `__main__` holds is sent by value: a lock among it would end every parallel sweep."""
    found = runpy.run_path(experiments.run.__file__, run_name="sent")
    assert cloudpickle.dumps(found["_run"])


def test_a_run_that_is_interrupted_while_it_is_written_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(path, _):
        path.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "choices", lambda _: {})
    monkeypatch.setattr(Path, "replace", interrupted)
    config = OmegaConf.create(dict.fromkeys(records.DECISIVE, 0) | {"data": {"name": "D"}})
    with pytest.raises(KeyboardInterrupt):
        records.write(tmp_path, "a", config, {}, 0.0)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A sweep in this process; the runs that it leaves."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    quiet = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled")

    def made(*more):
        monkeypatch.setattr(sys, "argv", command(tmp_path, "seed=0", *quiet, *more)[2:])
        with pd.option_context("display.width", 80, "display.max_columns", 20):
            experiments.run.main()
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}

    return made


def test_methods_share_a_draw_and_its_classifier(tmp_path, run):
    """A method is measured once a draw, or anew where asked; a further one repeats no training."""
    first = run()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "probabilities").iterdir()}
    more = run("method=[bbse,cbpe,sees_d]", "again=[CBPE]")
    assert len(first) == 2
    assert len(more) == 3
    anew = [name for name in first if more[name] != first[name]]
    assert [
        path.name
        for path in (tmp_path / "runs").glob("*.json")
        if json.loads(path.read_text())["config"]["method"].keys() == {"CBPE"}
    ] == anew
    now = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "probabilities").iterdir()}
    assert now == kept
    results = pd.read_csv(tmp_path / "sweep" / "results.csv")
    assert list(results["method"]) == ["BBSE", "CBPE", "SEES-d"]
    assert results["draw"].nunique() == 1
    marginals = pd.read_csv(tmp_path / "sweep" / "marginals.csv")
    assert not marginals.duplicated(["feature", "level"]).any()


def record(key, seed, gap, config=None):
    row = {"pair": "", "method": "BBSE", "gap": gap, "gap ipw": gap, "low": None, "high": None}
    row |= {"realised": 1.0, "population": 2.0, "status": "weak", "seconds": 0.1, "found": None}
    settings = {"rows": 10, "order": "draw-first", "seed": seed, "data": {"name": "D"}}
    return {
        "key": key,
        "draw": f"draw of {key}",
        "choices": {"shift": "s", "classifier": "c"},
        "config": settings | (config or {}),
        "tables": {"results": [row]},
    }


def test_collect_makes_one_tidy_table(tmp_path):
    records = [record("a", 0, 2.0), record("b", 1, -1.0), record("c", 0, 4.0, {"rows": 20})]
    for entry in records:
        (tmp_path / f"{entry['key']}.json").write_text(json.dumps(entry))
    (tmp_path / ".d.7.part").write_text("half a fi")
    tables = collect(tmp_path)
    assert list(tables["results"]["error"]) == [1.0, -2.0, 3.0]
    summary = summarise(tables["results"], ["rows"])
    assert summary.loc[(10, "BBSE"), "RMSE"] == pytest.approx(2.5**0.5)
    assert summary.loc[(10, "BBSE"), "draws"] == 2
    assert summary.loc[(20, "BBSE"), "RMSE population"] == 2
    assert "20" in save(tables, tmp_path, None)
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 2


def test_a_setting_that_differs_becomes_a_column(tmp_path):
    for key, depth, shifted in (("a", 3, []), ("b", 50, ["age", "city"])):
        classifier = {"estimator": {"max_depth": depth}}
        entry = record(key, 0, 2.0, {"classifier": classifier, "shift": {"features": shifted}})
        entry["tables"]["marginals"] = [{"feature": "age", "level": "0", "source": 0.5}]
        (tmp_path / f"{key}.json").write_text(json.dumps(entry))
    tables = collect(tmp_path)
    assert list(tables["results"]["classifier.estimator.max_depth"]) == [3, 50]
    assert list(tables["results"]["shift.features"]) == ["", "age, city"]
    assert len(tables["marginals"]) == 2


def test_a_report_that_fails_fails_the_sweep(run):
    with pytest.raises(SystemExit, match="no report of the runs"):
        run("report.figure={_target_: experiments.figures.bars, across: nowhere}")


def test_nothing_to_collect_is_said(tmp_path):
    with pytest.raises(SeesError, match="no runs in"):
        collect(tmp_path)
