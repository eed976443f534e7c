"""Mistakes that people make with files, saved models, simulations, and manners of the command."""

import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import estimate_shift, make_sparse_joint_shift
from sees_torch.cli import COMMANDS, EXIT_CODES, estimate, main
from sees_torch.cli.methods import ASSUMES
from sees_torch.cli.models import load_model
from sees_torch.errors import SeesError
from sees_torch.matching.names import METHODS

BASIC = ("--source", "s.csv", "--target", "t.csv", "--label", "y")
PROBA = (*BASIC, "--proba", "p")


@pytest.fixture(scope="module")
def pair():
    generator = torch.Generator().manual_seed(1)
    return make_sparse_joint_shift(300, 250, features=3, generator=generator)


@pytest.fixture
def files(pair, tmp_path, monkeypatch):
    """s.csv with label y and probability p, t.csv; the working folder is theirs."""
    monkeypatch.chdir(tmp_path)
    source = pair.source.assign(y=pair.labels, p=pair.source_proba[:, 1])
    target = pair.target.assign(p=pair.target_proba[:, 1])
    source.to_csv("s.csv", index=False)
    target.to_csv("t.csv", index=False)
    return source, target


def sees(*options: str) -> int:
    return main(["estimate", *options, "--replicates", "0"])


def refused(capsys, code: int) -> str:
    """The message of a run that ended with exit code 2, in one or two lines."""
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith("sees: ")
    assert len(shown.err.strip().splitlines()) <= 2
    return shown.err


# Ten mistakes


def test_a_misspelt_column_brings_the_nearest_names(files, capsys):
    files[0].rename(columns={"y": "churned"}).to_csv("s.csv", index=False)
    said = refused(capsys, sees(*BASIC[:4], "--label", "churn", "--proba", "p"))
    assert "s.csv has no column 'churn'" in said
    assert "Did you mean 'churned'?" in said


def test_a_label_in_the_target_is_ignored_aloud(files, capsys):
    files[1].assign(y=1).to_csv("t.csv", index=False)
    assert sees(*PROBA) in EXIT_CODES.values()
    assert "ignoring the label column 'y' of t.csv" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["high", "0,5"])
def test_text_for_probabilities(files, capsys, word):
    proba = files[0]["p"].astype(object)
    proba[7] = word
    files[0].assign(p=proba).to_csv("s.csv", index=False)
    said = refused(capsys, sees(*PROBA))
    assert f"source_proba is not numeric: it holds {word!r}" in said


@pytest.mark.parametrize(("mark", "typed"), [(";", "';'"), ("\t", "tab"), ("|", "'|'")])
def test_another_separator(files, capsys, mark, typed):
    for table, name in zip(files, ("s.csv", "t.csv"), strict=True):
        table.to_csv(name, index=False, sep=mark)
    assert f"--separator {typed}" in refused(capsys, sees(*PROBA))
    assert f"--separator {typed}" in refused(capsys, sees(*BASIC, "--proba", "p*"))
    assert sees(*PROBA, "--separator", typed.strip("'")) in EXIT_CODES.values()


def test_an_empty_file(files, capsys):
    open("t.csv", "w").close()
    assert "the file is empty. Export it again" in refused(capsys, sees(*PROBA))


def test_a_file_of_many_batches_is_read_in_parts(files, pair):
    """Every row as often as it takes for more than one batch; counts stand for the copies."""
    copies = 300
    whole = pd.concat([files[0]] * copies)
    whole.to_csv("s.csv", index=False)
    assert sees(*PROBA, "--method", "mlls", "--json", "out.json") in EXIT_CODES.values()
    with open("out.json") as file:
        found = json.load(file)
    expected = estimate_shift(
        **pair.inputs() | {"source_weight": np.full(300, copies)}, method="mlls", replicates=0
    )
    assert found["diagnostics"]["source_rows"] == 300 * copies
    assert found["gap"] == pytest.approx(expected.gap, abs=1e-9)


def test_no_header(files, capsys):
    files[0].to_csv("s.csv", index=False, header=False)
    for asked in ("p", "p*"):
        said = refused(capsys, sees(*BASIC, "--proba", asked))
        assert "first line looks like data: add a line with the names" in said


def test_percent_signs(files, capsys):
    source = files[0]
    source.assign(p=(100 * source["p"]).round().astype(str) + "%").to_csv("s.csv", index=False)
    said = refused(capsys, sees(*PROBA))
    assert "percent" in said


def test_one_column_of_two_types(files, capsys):
    files[1].assign(x1="low").to_csv("t.csv", index=False)
    said = refused(capsys, sees(*PROBA))
    assert "'x1' is numeric in source but text in target. Convert one of them" in said


def test_swapped_files(files, capsys):
    said = refused(capsys, sees("--source", "t.csv", "--target", "s.csv", *PROBA[4:]))
    assert "are --source and --target swapped?" in said


# Columns by pattern


def test_probability_columns_by_pattern_name_their_classes(files, pair, capsys):
    """Columns in another order than the labels sort into are still those of their classes."""
    for (table, name), proba in zip(
        zip(files, ("s.csv", "t.csv"), strict=True),
        (pair.source_proba, pair.target_proba),
        strict=True,
    ):
        table = table.drop(columns="p").assign(p_1=proba[:, 1], p_0=proba[:, 0])
        table.to_csv(name, index=False)
    assert sees(*BASIC, "--proba", "p_*", "--json", "out.json") in EXIT_CODES.values()
    with open("out.json") as file:
        found = json.load(file)
    expected = estimate_shift(**pair.inputs(), replicates=0)
    assert found["source_value"] == pytest.approx(expected.source_value)
    capsys.readouterr()
    said = refused(capsys, sees(*BASIC, "--proba", "q_*"))
    assert "no column of s.csv fits the pattern 'q_*'" in said
    assert "names ['p_0'] twice" in refused(capsys, sees(*BASIC, "--proba", "p_*", "p_0"))


def test_label_and_dropped_columns_by_pattern(files, capsys):
    for table, name in zip(files, ("s.csv", "t.csv"), strict=True):
        renamed = table.rename(columns={"y": "y_2024"}).assign(id_a=1, id_b=range(len(table)))
        renamed.to_csv(name, index=False)
    options = (*BASIC[:4], "--proba", "p", "--drop", "id_*", "--label")
    assert sees(*options, "y_*", "--json", "out.json") in EXIT_CODES.values()
    with open("out.json") as file:
        assert json.load(file)["hypotheses"]
    assert main(["simulate", "--table", "s.csv", "--label", "y*", "--proba", "p", "--drop", "id_*",
                 "--replicates", "0", "--rows", "200"]) == 0  # fmt: skip
    capsys.readouterr()
    said = refused(capsys, sees(*options, "x*"))
    assert "--label: the pattern 'x*' fits ['x0', 'x1', 'x2'] of s.csv; name one of them" in said


# Saved models


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x)


@pytest.fixture(scope="module")
def network():
    return Network().eval()


def exported(network, path, dynamic=True):
    rows = torch.export.Dim("rows")
    shapes = ({0: rows},) if dynamic else None
    program = torch.export.export(network, (torch.ones(4, 3),), dynamic_shapes=shapes)
    torch.export.save(program, path)


def scripted(network, path):
    with pytest.warns(DeprecationWarning, match="deprecated"):
        torch.jit.trace(network, torch.ones(4, 3)).save(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("save", "name"), [(exported, "model.pt2"), (scripted, "model.pt")])
def test_a_saved_model_gives_what_the_model_itself_does(files, pair, network, save, name):
    save(network, name)
    for table, path in zip(files, ("s.csv", "t.csv"), strict=True):
        table.drop(columns="p").to_csv(path, index=False)
    options = (*BASIC, "--model", name, "--logits", "--json", "out.json")
    assert sees(*options) in EXIT_CODES.values()
    with open("out.json") as file:
        found = json.load(file)
    given = {k: v for k, v in pair.inputs().items() if k not in ("source_proba", "target_proba")}
    expected = estimate_shift(**given, model=network, logits=True, replicates=0)
    assert found["gap"] == pytest.approx(expected.gap, abs=1e-6)


def test_pickles_are_never_opened(files, capsys, network):
    class Trap:
        def __reduce__(self):
            return open, ("sprung", "w")

    with open("model.pkl", "wb") as file:
        pickle.dump(Trap(), file)
    torch.save(Trap(), "model.pt")
    for name in ("model.pkl", "model.pt"):
        said = refused(capsys, sees(*BASIC, "--model", name))
        assert "never opened" in said
        assert "torch.export.save" in said
    assert not os.path.exists("sprung")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_pickle_inside_an_exported_program_is_not_opened(files, capsys, network):
    """Every part of the archive that torch might unpickle is replaced by a trap, one at a time."""

    class Trap:
        def __reduce__(self):
            return open, ("sprung", "w")

    exported(network, "good.pt2")
    torch.save(Trap(), "trap.pt")
    with zipfile.ZipFile("good.pt2") as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    with open("trap.pt", "rb") as file:
        trap = file.read()
    tried = 0
    for name in inside:
        if name.endswith(".json") or "version" in name or "format" in name or "byteorder" in name:
            continue
        with zipfile.ZipFile("bad.pt2", "w") as archive:
            for part, content in inside.items():
                archive.writestr(part, trap if part == name else content)
        try:
            load_model(Path("bad.pt2"))
        except SeesError:
            tried += 1
        assert not os.path.exists("sprung"), name
    assert tried


def test_compiled_code_is_never_run(files, capsys):
    with zipfile.ZipFile("model.pt2", "w") as archive:
        archive.writestr("model/data/aotinductor/model/model.so", b"")
    assert "compiled code, which is never run" in refused(
        capsys, sees(*BASIC, "--model", "model.pt2")
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--model", "none.pt2"), "there is no file none.pt2"),
        (("--model", "s.csv"), "is no exported program and no TorchScript"),
        (("--model", "fixed.pt2"), "any number of rows (a dynamic first dimension"),
        (("--model", "model.pt2", "--drop", "x0", "p"), "refuses a batch of 300 rows and"),
        (("--proba", "p", "--logits"), "--logits belongs to --model"),
    ],
)
def test_models_that_are_refused(files, capsys, network, options, part):
    exported(network, "model.pt2")
    exported(network, "fixed.pt2", dynamic=False)
    drop = () if "--drop" in options or "--proba" in options else ("--drop", "p")
    said = refused(capsys, sees(*BASIC, *options, *drop))
    assert part in said


# Simulations


def simulate(*options: str) -> int:
    return main(["simulate", "--table", "s.csv", "--label", "y", "--replicates", "0", *options])


def test_a_simulation_prints_the_truth_beside_the_estimate(files, capsys):
    options = ("--proba", "p", "--shift", "x0", "--strength", "1.5", "--rows", "2000")
    options = (*options, "--method", "sees-d")
    assert simulate(*options, "--html", "sim.html", "--json", "sim.json") == 0
    shown = capsys.readouterr().out
    assert "what really happened" in shown
    assert "  shifted features: x0\n" in shown
    assert "features: found" in shown
    assert "interval" in shown.splitlines()[-1]
    with open("sim.json") as file:
        found = json.load(file)
    assert found["diagnostics"]["source_rows"] == 2000
    assert os.path.getsize("sim.html") > 1000
    assert simulate(*options) == 0
    assert capsys.readouterr().out == shown


def test_no_shift_continuous_features_and_a_model(files, capsys, network):
    rng = np.random.default_rng(0)
    files[0].assign(z=rng.normal(size=300)).to_csv("s.csv", index=False)
    assert simulate("--proba", "p", "--strength", "0", "--rows", "1000") == 0
    assert "nothing shifted" in capsys.readouterr().out
    assert simulate("--proba", "p", "--shift", "z", "x1", "--rows", "1000") == 0
    assert "  shifted features: z, x1\n" in capsys.readouterr().out
    exported(network, "model.pt2")
    assert simulate("--model", "model.pt2", "--logits", "--drop", "p", "z", "--shift", "x0") == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--shift", "w"), "s.csv has no columns ['w']"),
        (("--strength", "-1"), "--strength must be 0 or more"),
        (("--rows", "5"), "--rows must be at least 100"),
        (("--seed", "-1"), "--seed must be a whole number"),
        (("--html", "s.csv", "--force"), "s.csv is an input"),
    ],
)
def test_simulations_that_are_refused(files, capsys, options, part):
    assert part in refused(capsys, simulate("--proba", "p", *options))


# Manners


def test_every_command_is_a_module_that_can_be_dropped_in():
    for command in COMMANDS:
        assert callable(command.add_parser)
        assert callable(command.run)


def test_methods_lists_every_method(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert set(ASSUMES) == {"auto", *METHODS}
    for name in METHODS:
        assert f"\n{name}" in shown
    assert "SEESd(sparsity=1, soft=False" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_page_and_a_picture_are_written(files):
    options = ("--html", "page.html", "--json", "out.json", "--min-cell-count", "60")
    assert sees(*PROBA, *options) in EXIT_CODES.values()
    with open("page.html") as file:
        assert file.read().startswith("<!doctype html>")
    with open("out.json") as file:
        cells = json.load(file)["cells"]
    assert all(cell["source_share"] * 300 >= 60 for cell in cells)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--html", "t.csv", "--force"), "t.csv is an input"),
        (("--html", "a", "--json", "a"), "a is named for two outputs"),
        (("--html", "no/a.html"), "there is no folder no"),
        (("--html", "here.html"), "here.html exists: choose another name, or add --force"),
        (("--min-cell-count", "-2"), "--min-cell-count must be 0 or more"),
    ],
)
def test_pages_that_are_refused(files, capsys, options, part):
    with open("here.html", "w") as file:
        file.write("mine")
    assert part in refused(capsys, sees(*PROBA, *options))
    with open("here.html") as file:
        assert file.read() == "mine"


def test_verbose_says_what_is_done_and_quiet_nothing(files, capsys):
    sees(*PROBA, "--verbose")
    said = capsys.readouterr().err
    for part in ("reading s.csv", "reading t.csv", "estimating from", "3 features, 2 classes"):
        assert part in said
    sees(*PROBA, "--quiet")
    assert capsys.readouterr().err == ""


def test_progress_vanishes_on_a_terminal(files, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    sees(*PROBA)
    said = capsys.readouterr().err
    assert "source: 300 rows read" in said
    assert said.endswith("\r")
    assert said.rsplit("\r", 2)[1].strip() == ""


def test_an_interrupt_is_no_traceback(files, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(estimate, "estimate_shift", interrupted)
    assert sees(*PROBA) == 130
    assert capsys.readouterr().err == "sees: interrupted\n"


def test_an_interrupt_in_a_destructor_is_not_lost(files, capsys, monkeypatch):
    """Python drops it; the command would go on and write over files."""

    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    def drop_one(*_, **__):
        Interrupted()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            pass
        raise AssertionError("the interrupt was lost")

    monkeypatch.setattr(estimate, "estimate_shift", drop_one)
    before = sys.unraisablehook
    assert sees(*PROBA) == 130
    assert capsys.readouterr().err == "sees: interrupted\n"
    assert sys.unraisablehook is before


def test_demo_leaves_a_page_beside_its_picture(tmp_path, capsys):
    assert main(["demo", "--rows", "200", "--plot", str(tmp_path / "d.png")]) == 0
    assert f"page: {tmp_path / 'd.html'}" in capsys.readouterr().out
    assert (tmp_path / "d.html").read_text().startswith("<!doctype html>")


def test_a_reader_that_has_seen_enough_loses_no_file(files):
    command = [sys.executable, "-m", "sees_torch", "estimate", *PROBA, "--json", "out.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141
    assert said == b""
    assert os.path.exists("out.json")
