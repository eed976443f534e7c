"""`sees monitor`: files in chunks, exit codes, states that survive kills and interrupts."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import SeesError, ShiftMonitor
from sees_torch.cli import main
from sees_torch.data.files import TableFile
from sees_torch.monitor.chunks import row_chunks, time_chunks
from sees_torch.monitor.folder import STATE, state_folder
from sees_torch.saving import atomic
from sees_torch.saving.container import read_content
from tests.monitor.streams import Stream

BASIC = ("monitor", "s.csv", "t.csv", "--label", "y", "--proba", "p")
QUICK = ("--method", "mlls", "--replicates", "10")
CHUNKS = ("--chunk-rows", "150")


@pytest.fixture(scope="module")
def stream():
    return Stream()


@pytest.fixture
def files(stream, tmp_path, monkeypatch):
    """s.csv and t.csv, which has 150 rows of every month from January to June; one is empty."""
    monkeypatch.chdir(tmp_path)
    stream.source_frame().to_csv("s.csv", index=False)
    months = np.arange(len(stream.rows)) // 150 + 1
    months = np.where(months == 6, 7, months)
    days = np.arange(len(stream.rows)) % 28 + 1
    dates = [f"2024-{month:02}-{day:02}" for month, day in zip(months, days, strict=True)]
    table = stream.rows.assign(when=dates)
    table.to_csv("dated.csv", index=False)
    stream.rows.to_csv("t.csv", index=False)
    return tmp_path


def sees(*options: str) -> int:
    return main([*BASIC, *QUICK, *options])


def test_it_says_what_the_monitor_says(files, stream, capsys):
    code = sees(
        *CHUNKS, "--max-drop", "0.0", "--csv", "o.csv", "--json", "o.json", "--plot", "o.png"
    )
    monitor = stream.monitor(replicates=10)
    expected = [monitor.add(*chunk).gap for chunk in stream.chunks]
    table = pd.read_csv("o.csv")
    np.testing.assert_allclose(table["gap"], expected, atol=1e-12)
    assert list(table["chunk"][:2]) == ["t.csv[0:150]", "t.csv[150:300]"]
    assert (table["alert"] == (table["gap"] < 0)).all()
    assert code == 5
    with open("o.json") as file:
        records = json.load(file)
    assert [record["gap"] for record in records] == list(table["gap"])
    assert records[0]["p_value"] is None
    shown = capsys.readouterr()
    assert shown.out.count("\n") == len(expected)
    assert shown.out.count("ALERT") == table["alert"].sum()
    with open("o.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"


def test_another_separator(files, stream, capsys):
    for name in ("s.csv", "t.csv"):
        pd.read_csv(name).to_csv(name, index=False, sep=";")
    assert sees(*CHUNKS, "--max-drop", "0.5") == 2
    assert "--separator ';'" in capsys.readouterr().err
    assert sees(*CHUNKS, "--max-drop", "0.5", "--separator", ";") == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "cut", [(*CHUNKS,), ("--time-column", "when"), ()], ids=["rows", "time", "file"]
)
def test_a_saved_model_instead_of_probabilities(files, stream, cut):
    class Network(torch.nn.Module):
        def forward(self, x):
            return x @ x.new_tensor([[0.0, 1.0], [0.0, 0.5], [0.5, 0.0]])

    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(Network(), (torch.ones(4, 3),), dynamic_shapes=rows)
    torch.export.save(program, "model.pt2")
    target = "dated.csv" if "when" in cut else "t.csv"
    options = ("monitor", "s.csv", target, "--label", "y", "--drop", "p", *QUICK, *cut)
    options = (*options, "--max-drop", "0.5", "--logits")
    assert main([*options, "--model", "model.pt2", "--csv", "o.csv"]) == 0
    monitor = ShiftMonitor(
        stream.features, stream.labels, Network(), method="mlls", replicates=10, logits=True
    )
    table = stream.rows.drop(columns="p").reset_index(drop=True)
    first = table[: len(table) if not cut else 150]
    assert pd.read_csv("o.csv")["gap"][0] == pytest.approx(monitor.add(first).gap, abs=1e-6)
    assert main([*options[:-1], "--logits", "--proba", "p"]) == 2


def test_no_alert_is_exit_code_0(files):
    assert sees(*CHUNKS, "--floor", "0.1") == 0


def test_chunks_by_time_with_an_empty_month(files, capsys):
    options = ("--time-column", "when", "--floor", "0.1", "--csv", "o.csv")
    code = main([*BASIC[:2], "dated.csv", *BASIC[3:], *QUICK, *options])
    assert code == 0
    table = pd.read_csv("o.csv")
    assert list(table["chunk"]) == [f"2024-0{month}" for month in range(1, 8)]
    assert table["status"].tolist().index("skipped") == 5
    assert "2024-06: skipped, the chunk is empty" in capsys.readouterr().out


def test_files_are_chunks_and_a_second_run_takes_only_new_ones(files, stream, capsys):
    for name, (features, proba) in zip("abc", stream.chunks, strict=False):
        features.assign(p=proba[:, 1]).to_csv(f"{name}.csv", index=False)
    common = ("--label", "y", "--proba", "p", *QUICK, "--max-drop", "0.5", "--state", "kept")
    assert main(["monitor", "s.csv", "a.csv", "b.csv", *common]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert main(["monitor", "s.csv", "c.csv", *common, "--csv", "o.csv"]) == 0
    assert capsys.readouterr().out.startswith("c.csv: accuracy")
    assert list(pd.read_csv("o.csv")["chunk"]) == ["a.csv", "b.csv", "c.csv"]
    stream.rows[:200].to_csv("a.csv", index=False)
    assert main(["monitor", "s.csv", "a.csv", *common]) == 0
    assert "was observed with 150 rows, the files now have 200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--every", "day"), "--time-column"),
        (("--chunk-rows", "0"), "at least one row"),
        (("--time-column", "absent"), "no column 'absent'"),
        (("--time-column", "x0"), "holds numbers"),
        (("--max-drop", "-1"), "drop must"),
        (("--false-alarms", "0.1", "--draws", "5"), "at least 239"),
        (("--plot", "o.txt"), "no picture name"),
        (("--csv", "t.csv", "--force"), "is an input"),
        (("--csv", "dated.csv"), "--force"),
        (("--csv", "absent/o.csv"), "no folder"),
        (("--drop", "absent"), "has no column 'absent'"),
        (("--state", "s.csv"), "cannot keep a state"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(files, capsys, options, words):
    assert sees(*options) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_a_damaged_state_is_refused_and_left_alone(files, capsys):
    assert sees(*CHUNKS, "--floor", "0.1", "--state", "kept") == 0
    state = files / "kept" / STATE
    cut = state.read_bytes()[:-10]
    state.write_bytes(cut)
    capsys.readouterr()
    assert sees(*CHUNKS, "--floor", "0.1", "--state", "kept") == 2
    assert "cut off" in capsys.readouterr().err
    assert state.read_bytes() == cut


def test_a_folder_in_use_is_refused(files, capsys):
    with state_folder(files / "kept"):
        process = started(*CHUNKS, "--floor", "0.1")
        _, said = process.communicate()
    assert process.returncode == 2
    assert "another process is using" in said
    assert sees(*CHUNKS, "--floor", "0.1", "--state", "kept") == 0


def test_a_full_disk_keeps_the_last_state(files, capsys, monkeypatch):
    """After two chunks nothing can be written any more; the next run goes on from there."""
    real, written = atomic._write, []

    def full(path, content):
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        real(path, content)

    monkeypatch.setattr(atomic, "_write", full)
    assert sees(*CHUNKS, "--floor", "0.1", "--state", "kept") == 2
    assert "No space left" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(files)
    assert len(read_content(files / "kept" / STATE, "monitor", 1).document["rows"]) == 2
    assert sees(*CHUNKS, "--floor", "0.1", "--state", "kept", "--csv", "o.csv") == 0
    assert len(pd.read_csv("o.csv")) == 6


def started(*options: str) -> subprocess.Popen:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "sees_torch", *BASIC, *QUICK, "--state", "kept", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        # A shell that runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


LONG = ("--false-alarms", "0.1", "--horizon", "10", *CHUNKS)
"""99 splits, saved every 25: long enough to be met in the middle."""


def finished(folder, capsys) -> pd.DataFrame:
    """The table of a run that goes on from what was left."""
    assert sees(*LONG, "--state", "kept", "--csv", "o.csv", "--force") in (0, 5)
    return pd.read_csv("o.csv")


@pytest.fixture(scope="module")
def uninterrupted(stream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    before = os.getcwd()
    os.chdir(folder)
    try:
        stream.source_frame().to_csv("s.csv", index=False)
        stream.rows.to_csv("t.csv", index=False)
        sees(*LONG, "--csv", "o.csv")
        return pd.read_csv("o.csv")
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_a_kill_or_ctrl_c_leaves_a_state_that_goes_on_exactly(files, how, capsys, uninterrupted):
    process = started(*LONG)
    wait_for(files / "kept" / STATE, process)
    process.send_signal(how)
    _, said = process.communicate()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from there" in said
        assert "Traceback" not in said
    else:
        assert process.returncode == -signal.SIGKILL
    left = read_content(files / "kept" / STATE, "monitor", 1).document
    learnt = len(left["nulls"][0][1])
    assert learnt
    assert learnt % 25 == 0 or left["rows"]
    pd.testing.assert_frame_equal(finished(files, capsys), uninterrupted, rtol=0, atol=0)
    assert {path.name for path in (files / "kept").iterdir()} <= {STATE, "lock"}


def test_row_chunks_do_not_depend_on_how_a_file_is_read(files):
    sizes = []
    for batch in (7, 150, 10**6):
        file = TableFile("t.csv", ["p"], rows=batch)
        chunks = list(row_chunks([file], 400))
        sizes.append([(chunk.name, len(chunk.features), len(chunk.proba)) for chunk in chunks])
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0] == [
        ("t.csv[0:400]", 400, 400),
        ("t.csv[400:800]", 400, 400),
        ("t.csv[800:900]", 100, 100),
    ]


def dated(tmp_path, *dates: str) -> list[TableFile]:
    pd.DataFrame({"x": range(len(dates)), "p": 0.5, "when": dates}).to_csv(
        tmp_path / "d.csv", index=False
    )
    return [TableFile(tmp_path / "d.csv", ["p"])]


@pytest.mark.parametrize(
    ("every", "names"),
    [
        ("day", ["2024-01-31", "2024-02-01", "2024-02-02"]),
        ("month", ["2024-01", "2024-02"]),
        ("week", ["2024-01-29/2024-02-04"]),
    ],
)
def test_periods(tmp_path, every, names):
    dates = ("2024-01-31T23:59:00", "2024-02-02T00:00:00", "2024-01-31T00:00:00")
    chunks = list(time_chunks(dated(tmp_path, *dates), "when", every))
    assert [chunk.name for chunk in chunks] == names
    assert sum(len(chunk.features) for chunk in chunks) == 3


def test_rows_without_a_date_are_warned_of(tmp_path):
    files = dated(tmp_path, "2024-01-31", "", "2024-01-30")
    with pytest.warns(match="1 rows have no 'when'"):
        (chunk,) = time_chunks(files, "when", "month")
    assert len(chunk.features) == 2


def test_a_stray_date_is_refused_rather_than_filled_with_empty_days(tmp_path):
    with pytest.raises(SeesError, match="have no rows"):
        list(time_chunks(dated(tmp_path, "1970-01-01", "2024-01-31"), "when", "day"))
    with pytest.raises(SeesError, match="holds no dates"):
        list(time_chunks(dated(tmp_path, "monday", "2024-01-31"), "when", "day"))
