"""Real processes that are killed, refused or started twice: no file is lost, none is half."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pandas as pd
import pytest

from sees_torch import estimate_shift, load_report, make_sparse_joint_shift
from sees_torch.saving.atomic import remove_parts
from tests.monitor.streams import Stream

WRITER = """
import itertools, sys
from sees_torch import estimate_shift, make_sparse_joint_shift
pair = make_sparse_joint_shift(400, 300, features=2)
reports = [estimate_shift(**pair.inputs(), method=name, replicates=0) for name in ("mlls", "bbse")]
for report in itertools.cycle(reports):
    report.save("report.sees")
    report.save_html("page.html", overwrite=True)
    print(flush=True)
"""
UNPRIVILEGED = """
import os
from sees_torch import SeesError, estimate_shift, make_sparse_joint_shift, save_weights
pair = make_sparse_joint_shift(400, 300, features=2)
report = estimate_shift(**pair.inputs(), method="mlls", replicates=0)
ways = (report.save, lambda path: save_weights(report.weight_function, path))
for write in ways:
    write("fine")
if os.getuid() == 0:
    os.setuid(65534)  # The superuser may write anywhere.
for write in ways:
    for path in ("locked/new", "locked/old", "closed/new"):
        try:
            write(path)
        except SeesError as error:
            print("Permission denied" in str(error), "Traceback" in str(error))
"""


def started(code: str, folder, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        **options,
    )


def test_a_kill_while_reports_are_written_leaves_whole_ones(tmp_path):
    """Stopped at many moments, as a kill would leave it, and killed at the last."""
    process = started(WRITER, tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    gaps, sizes = set(), set()
    for moment in range(30):
        time.sleep(0.0007 * moment)
        process.send_signal(signal.SIGSTOP)
        gaps.add(load_report(tmp_path / "report.sees").gap)
        page = (tmp_path / "page.html").read_text()
        assert page.rstrip().endswith("</html>")
        sizes.add(len(page))
        process.send_signal(signal.SIGKILL if moment == 29 else signal.SIGCONT)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(gaps) <= 2
    assert len(sizes) <= 2
    for name in ("report.sees", "page.html"):
        remove_parts(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"report.sees", "page.html"}


def test_without_permission_nothing_is_written(tmp_path):
    locked, closed = tmp_path / "locked", tmp_path / "closed"
    locked.mkdir()
    closed.mkdir(0o000)
    (locked / "old").write_bytes(b"as it was")
    (locked / "old").chmod(0o444)
    locked.chmod(0o555)
    said, _ = started(UNPRIVILEGED, tmp_path).communicate()
    for folder in (locked, closed):
        folder.chmod(0o755)
    assert said.split() == ["True", "False"] * 6
    assert [path.name for path in locked.iterdir()] == ["old"]
    assert (locked / "old").read_bytes() == b"as it was"
    assert not list(closed.iterdir())


COMMANDS = {
    "estimate": "estimate --source s.csv --target t.csv --label y --proba p",
    "simulate": "simulate --table s.csv --label y --proba p --shift x0",
    "demo": "demo",
}


@pytest.mark.parametrize(
    "command", ["estimate", "simulate", pytest.param("demo", marks=pytest.mark.slow)]
)
def test_ctrl_c_leaves_the_files_that_were_there(tmp_path, command):
    """In the middle of the estimate: exit code 130, one sentence, nothing new, nothing half."""
    pair = make_sparse_joint_shift(4000, 4000, features=4)
    source = pair.source.assign(y=pair.labels, p=pair.source_proba[:, 1])
    source.to_csv(tmp_path / "s.csv", index=False)
    pair.target.assign(p=pair.target_proba[:, 1]).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "page.html").write_text("as it was")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    outputs = "--verbose --force --html page.html --json new.json --plot new.png"
    process = subprocess.Popen(
        [sys.executable, "-m", "sees_torch", *COMMANDS[command].split(), *outputs.split()],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        # A shell that runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    while "estimating" not in (line := process.stderr.readline()):
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (printed, said) == ("", "sees: interrupted\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_threads_get_the_answers_of_one():
    pairs = [make_sparse_joint_shift(300, 200 + 50 * k, features=2) for k in range(4)]
    methods = ["auto", "sees-em", "sees-c", "mlls"]

    def gap(place):
        report = estimate_shift(**pairs[place].inputs(), method=methods[place], replicates=10)
        return report.gap, report.interval

    alone = [gap(place) for place in range(4)]
    together: dict[int, tuple] = {}
    threads = [
        threading.Thread(target=lambda place=place: together.update({place: gap(place)}))
        for place in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[place] for place in range(4)] == alone


@pytest.mark.slow
def test_processes_that_share_a_state_folder_take_turns(tmp_path):
    """Four at once, again and again until all chunks are there: one works, the rest are told."""
    stream = Stream()
    stream.source_frame().to_csv(tmp_path / "s.csv", index=False)
    stream.rows.to_csv(tmp_path / "t.csv", index=False)
    command = [sys.executable, "-m", "sees_torch", "monitor", "s.csv", "t.csv", "--label", "y"]
    command += ["--proba", "p", "--method", "mlls", "--replicates", "10", "--chunk-rows", "150"]
    command += ["--floor", "0.1", "--state", "kept", "--force", "--csv"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    codes = []
    for turn in range(3):
        several = [
            subprocess.Popen(
                [*command, f"{turn}-{k}.csv"],
                cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            )
            for k in range(4)
        ]  # fmt: skip
        if turn == 0:
            time.sleep(0.5)
            several[0].kill()
        for k, process in enumerate(several):
            _, said = process.communicate()
            assert process.returncode in (
                (0, 2, -signal.SIGKILL) if turn == 0 and not k else (0, 2)
            )
            assert "Traceback" not in said
            assert process.returncode != 2 or "another process is using" in said
            codes.append(process.returncode)
    assert codes.count(0) >= 3
    tables = [pd.read_csv(path) for path in sorted(tmp_path.glob("?-?.csv"))]
    assert len(tables) == codes.count(0)
    for table in tables:
        assert len(table) == len(stream.chunks)
        pd.testing.assert_frame_equal(table, tables[0], rtol=0, atol=0)
