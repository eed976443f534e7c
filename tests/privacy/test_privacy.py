"""Nothing leaves the machine, nothing that is read can run, and what is written is inert."""

import ast
import socket
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import sees_torch
from sees_torch import estimate_shift, load_report, make_sparse_joint_shift
from sees_torch.cli import main
from sees_torch.cli.outputs import csv_text

PACKAGE = Path(sees_torch.__file__).parent
FORBIDDEN_MODULES = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "urllib", "http",
    "requests", "socket", "ftplib", "smtplib", "telnetlib", "xmlrpc", "subprocess", "ctypes",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pd", "read_pickle")}


@pytest.fixture
def offline(monkeypatch):
    """Any attempt to open a socket fails, and is counted even where the failure is caught."""
    attempts = []

    class Refused(socket.socket):
        def __init__(self, *arguments, **_):
            attempts.append(arguments)
            raise ConnectionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", Refused)
    yield attempts
    assert attempts == []


@pytest.fixture(scope="module")
def pair():
    return make_sparse_joint_shift(300, 300, features=3, generator=torch.Generator().manual_seed(2))


def test_the_guard_sees_an_attempt(offline):
    with pytest.raises(ConnectionError, match="a socket was opened"):
        socket.create_connection(("127.0.0.1", 9))
    assert offline
    offline.clear()


def test_estimate_report_page_and_saved_forms_open_no_socket(offline, pair, tmp_path):
    report = estimate_shift(**pair.inputs(), method="sees-em", replicates=5)
    str(report), report.to_dict(), report.to_frame("cells")
    report.save_html(tmp_path / "page.html")
    report.save(tmp_path / "report.sees")
    assert load_report(tmp_path / "report.sees").gap == report.gap
    assert "http://" not in (tmp_path / "page.html").read_text().replace("http://www.w3.org", "")


def test_commands_open_no_socket(offline, pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(pair, "s.csv", "t.csv")
    code = main(
        ["estimate", "--source", "s.csv", "--target", "t.csv", "--label", "y", "--proba", "p",
         "--method", "mlls", "--replicates", "5", "--html", "o.html", "--json", "o.json"]
    )  # fmt: skip
    assert code in (0, 3, 4)
    assert Path("o.html").exists()


def write(pair, source: str, target: str, name: str = "x0") -> None:
    names = {"x0": name}
    whole = pair.source.rename(columns=names).assign(y=pair.labels, p=pair.source_proba[:, 1])
    whole.to_csv(source, index=False)
    pair.target.rename(columns=names).assign(p=pair.target_proba[:, 1]).to_csv(target, index=False)


def test_the_monitors_csv_holds_no_formula(offline, pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    evil = "=HYPERLINK('x')"
    write(pair, "s.csv", "-1+cmd.csv", evil)
    main(
        ["monitor", "s.csv", "./-1+cmd.csv", "--label", "y", "--proba", "p", "--method", "sees-d",
         "--replicates", "0", "--floor", "0.1", "--csv", "o.csv"]
    )  # fmt: skip
    table = pd.read_csv("o.csv")
    assert table["chunk"].tolist() == ["'-1+cmd.csv"]
    cells = [cell for cell in table.to_numpy().ravel() if isinstance(cell, str)]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert np.issubdtype(table["gap"].dtype, np.floating)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_cells_that_begin_a_formula_get_an_apostrophe(start):
    table = pd.DataFrame({start + "name": [start + "1", "safe - text"], "gap": [-0.5, 0.5]})
    lines = csv_text(table)
    assert lines.startswith(("'" + start, '"' + "'" + start))
    assert "'" + start + "1" in lines
    assert "safe - text" in lines
    assert "\n'-0.5" not in lines
    assert ",-0.5" in lines


def syntax():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(PACKAGE), node


def test_the_package_can_neither_run_data_nor_call_out():
    found = []
    for path, node in syntax():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        found += [(path, n) for n in names if n.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
                found.append((path, function.id))
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                call = (function.value.id, function.attr)
                safe = any(word.arg == "weights_only" for word in node.keywords)
                if call in LOADERS and not safe:
                    found.append((path, ".".join(call)))
    assert found == []
