"""The `sees` command: files in, a report out; refusals in one line and exit code 2."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import __version__, estimate_shift, make_sparse_joint_shift
from sees_torch.cli import EXIT_CODES, main
from sees_torch.matching.names import METHODS


@pytest.fixture(scope="module")
def pair():
    generator = torch.Generator().manual_seed(1)
    return make_sparse_joint_shift(300, 250, features=3, generator=generator)


@pytest.fixture(scope="module")
def expected(pair):
    return estimate_shift(**pair.inputs(), replicates=FEW)


@pytest.fixture
def files(pair, tmp_path, monkeypatch):
    """s.csv with label y and probability p, t.csv; the working folder is theirs."""
    monkeypatch.chdir(tmp_path)
    source = pair.source.assign(y=pair.labels, p=pair.source_proba[:, 1])
    target = pair.target.assign(p=pair.target_proba[:, 1])
    source.to_csv("s.csv", index=False)
    target.to_csv("t.csv", index=False)
    return source, target


BASIC = ("--source", "s.csv", "--target", "t.csv", "--label", "y", "--proba", "p")
FEW = 20
"""Resamples, to be quick."""


def estimate(*options: str, base=BASIC) -> int:
    return main(["estimate", *base, "--replicates", str(FEW), *options])


def result(*options: str, base=BASIC) -> dict:
    """The JSON report of a run that must succeed; its exit code says its status."""
    code = estimate(*options, "--json", "out.json", "--force", base=base)
    with open("out.json") as file:
        found = json.load(file)
    assert code == EXIT_CODES[found["status"]]
    return found


def assert_refused(capsys, code: int, *parts: str) -> None:
    """Exit code 2, nothing on stdout, and a short message with these parts on stderr."""
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith("sees: ")
    assert len(shown.err.strip().splitlines()) <= 2
    assert "Traceback" not in shown.err
    for part in parts:
        assert part in shown.err


# Estimates


def test_csv_gives_the_report_of_the_library(files, expected, capsys):
    assert estimate() == EXIT_CODES[expected.status]
    shown = capsys.readouterr()
    assert shown.out == f"{expected}\n"
    assert shown.err == ""
    assert sorted(os.listdir()) == ["s.csv", "t.csv"]


@pytest.mark.parametrize("suffix", ["parquet", "pq"])
def test_parquet(files, pair, suffix):
    """Bit by bit what the library says of the same column of probabilities."""
    given = pair.inputs() | {
        name: getattr(pair, name)[:, 1] for name in ("source_proba", "target_proba")
    }
    expected = estimate_shift(**given, replicates=FEW)
    for table, name in zip(files, "st", strict=True):
        table.to_parquet(f"{name}.{suffix}")
    base = ("--source", f"s.{suffix}", "--target", f"t.{suffix}", *BASIC[4:])
    assert result(base=base) == json.loads(json.dumps(expected.to_dict()))


def test_compressed_csv(files, expected):
    files[0].to_csv("s.csv.gz", index=False)
    base = ("--source", "s.csv.gz", *BASIC[2:])
    assert result(base=base)["gap"] == pytest.approx(expected.gap, abs=1e-12)


def test_json_is_the_report(files, expected, capsys):
    found = result("--metric", "accuracy", "brier")
    assert found["gap"] == pytest.approx(expected.gap, abs=1e-12)
    assert found["shifted_features"] == list(expected.shifted_features)
    assert set(found["metrics"]) == {"accuracy", "brier"}
    assert found["status"] == expected.status
    assert found["reasons"] == list(expected.reasons)
    assert found["interval"] == pytest.approx(expected.interval, abs=1e-12)
    assert found["interval_source"] == "bootstrap"
    assert found["confidence"] == 0.95


def test_interval_options(files, pair, expected):
    narrow, wide = (result("--confidence", level)["interval"] for level in ("0.5", "0.95"))
    assert wide == pytest.approx(expected.interval, abs=1e-12)
    assert wide[0] < narrow[0] <= narrow[1] < wide[1]
    analytic = result("--replicates", "0")
    assert analytic["interval_source"] == "analytic"
    found = estimate_shift(**pair.inputs(), replicates=0)
    assert analytic["interval"] == pytest.approx(found.interval, abs=1e-12)


def test_the_exit_code_says_the_status(files, capsys):
    """A single shifted feature, a method that checks nothing, and a column that stands twice."""
    generator = torch.Generator().manual_seed(0)
    pair = make_sparse_joint_shift(3000, 3000, features=4, generator=generator)
    tables = (
        pair.source.assign(y=pair.labels, p=pair.source_proba[:, 1]),
        pair.target.assign(p=pair.target_proba[:, 1]),
    )

    def first_line() -> str:
        return capsys.readouterr().out.splitlines()[0]

    for table, name in zip(tables, ("s.csv", "t.csv"), strict=True):
        table.to_csv(name, index=False)
    assert estimate("--method", "sees-d") == 0
    assert first_line().startswith("status: identified")
    assert estimate("--method", "bbse") == 3
    assert first_line().startswith("status: WEAK")
    for table, name in zip(tables, ("s.csv", "t.csv"), strict=True):
        table.assign(copy=table["x0"]).to_csv(name, index=False)
    assert estimate("--method", "sees-d") == 4
    assert first_line().startswith("status: NOT IDENTIFIED")


@pytest.mark.parametrize("method", [m for m in METHODS if m != "kliep"])
def test_every_method_by_name(files, pair, method):
    found = result("--method", method)
    assert found["method"] == method
    assert found["gap"] == pytest.approx(
        estimate_shift(**pair.inputs(), method=method, confidence=None).gap, abs=1e-9
    )


def test_configured_methods(files, pair):
    from sees_torch import SEESc, SEESd, SEESem

    for options, method in (
        (("sees-d", "--sparsity", "2"), SEESd(sparsity=2)),
        (("sees-d", "--sparsity", "auto"), SEESd(sparsity="auto")),
        (("sees-em", "--sparsity", "1"), SEESem(sparsity=1)),
        (("sees-em", "--sparsity", "auto"), SEESem()),
        (("sees-c", "--eta", "0.05", "--sparsity", "1"), SEESc(eta=0.05, sparsity=1)),
        (("sees-c", "--eta", "auto"), SEESc(eta="auto")),
    ):
        found = result("--method", *options)
        expected = estimate_shift(**pair.inputs(), method=method, replicates=FEW)
        assert found["gap"] == pytest.approx(expected.gap, abs=1e-9)
        assert found["shifted_features"] == list(expected.shifted_features)
        if method == SEESc(eta=0.05, sparsity=1):
            assert len(found["shifted_features"]) <= 1
    assert result("--estimator", "ipw")["estimator"] == "ipw"


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_plot(files, expected, suffix, magic):
    assert estimate("--plot", f"shift.{suffix}") == EXIT_CODES[expected.status]
    with open(f"shift.{suffix}", "rb") as file:
        assert file.read(5).startswith(magic)


def test_text_labels_and_their_order(files, expected):
    source = files[0]
    source.assign(y=np.array(["no", "yes"])[source["y"]]).to_csv("s.csv", index=False)
    for options in ((), ("--classes", "no", "yes")):
        found = result(*options)
        assert found["gap"] == pytest.approx(expected.gap, abs=1e-12)
        assert list(found["target_label_distribution"]) == ["no", "yes"]
    turned = result("--classes", "yes", "no")
    assert turned["source_value"] == pytest.approx(1 - expected.source_value, abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "classes"),
    [
        (0, 1, ("0", "1")),
        (-1, 1, ("-1", "1")),
        (False, True, ("False", "True")),
        (0.5, 1.5, ("0.5", "1.5")),
        pytest.param(
            0.0,
            1.0,
            ("0", "1"),
        ),
    ],
)
def test_classes_take_the_type_of_the_label_column(files, expected, first, second, classes):
    source = files[0]
    source.assign(y=np.array([first, second])[source["y"]]).to_csv("s.csv", index=False)
    assert result("--classes", *classes)["gap"] == pytest.approx(expected.gap, abs=1e-12)


def test_several_probability_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(2)
    pair = make_sparse_joint_shift(300, 300, features=3, classes=3, generator=generator)
    for name, table, proba in (
        ("s.csv", pair.source.assign(y=pair.labels), pair.source_proba),
        ("t.csv", pair.target, pair.target_proba),
    ):
        table.assign(**{f"p{k}": proba[:, k] for k in range(3)}).to_csv(name, index=False)
    base = ("--source", "s.csv", "--target", "t.csv", "--label", "y", "--proba")
    expected = estimate_shift(**pair.inputs(), confidence=None)
    plain = result(base=(*base, "p0", "p1", "p2"))
    turned = result(base=(*base, "p2", "p0", "p1", "--classes", "2", "0", "1"))
    assert plain["gap"] == pytest.approx(expected.gap, abs=1e-12)
    assert turned["gap"] == pytest.approx(expected.gap, abs=1e-9)
    assert list(turned["target_label_distribution"]) == ["2", "0", "1"]


def test_a_label_column_in_the_target_is_ignored_and_said_so(files, expected, capsys):
    files[1].assign(y=1).to_csv("t.csv", index=False)
    assert result()["gap"] == pytest.approx(expected.gap, abs=1e-12)
    assert capsys.readouterr().err == (
        "sees: ignoring the label column 'y' of t.csv; --target-labels uses it\n"
    )


def test_labels_in_the_target_are_used_where_they_are_known(files, capsys):
    source, target = files
    known = np.where(np.arange(len(target)) % 3 == 0, source["y"].iloc[0], np.nan)
    target.assign(y=known).to_csv("t.csv", index=False)
    found = result("--target-labels")
    assert found["diagnostics"]["labelled_rows"] == np.isfinite(known).sum()
    assert capsys.readouterr().err == ""


def test_target_labels_need_their_column(files, capsys):
    assert_refused(capsys, estimate("--target-labels"), "t.csv has no column 'y'")


def test_dropped_columns_are_ignored(files, expected):
    source, target = files
    source.assign(id=range(300), when="x").to_csv("s.csv", index=False)
    target.assign(id=range(250)).to_csv("t.csv", index=False)
    found = result("--drop", "id", "when")
    assert found["gap"] == pytest.approx(expected.gap, abs=1e-12)


def test_a_column_of_the_target_alone_can_be_dropped(files, expected):
    files[1].assign(batch=7).to_csv("t.csv", index=False)
    assert result("--drop", "batch")["gap"] == pytest.approx(expected.gap, abs=1e-12)


def test_a_flag_with_empty_cells_in_one_file(files):
    source, target = files
    flag = pd.Series([True, False, None] * 100)
    source.assign(flag=flag).to_csv("s.csv", index=False)
    target.assign(flag=flag[:250].fillna(True).astype(bool)).to_csv("t.csv", index=False)
    found = result()
    assert not any("flag" in note for note in found["notes"])


def test_a_file_compared_with_itself(files):
    base = ("--source", "s.csv", "--target", "s.csv", *BASIC[4:])
    assert result(base=base)["gap"] == pytest.approx(0.0, abs=0.01)


# Refusals


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--sparsity", "1", "--method", "bbse"), ["method bbse has no sparsity"]),
        (("--sparsity", "1", "--eta", "1", "--method", "mlls"), ["no eta and no sparsity"]),
        (("--sparsity", "1"), ["method auto has no sparsity: choose --method sees-em, sees-d or"]),
        (("--eta", "0.1"), ["method auto has no eta: choose --method sees-em, sees-d or sees-c"]),
        (("--eta", "0.1", "--method", "sees-d"), ["method sees-d has no eta"]),
        (("--eta", "0.1", "--method", "sees-em"), ["method sees-em has no eta"]),
        (("--eta", "-1", "--method", "sees-c"), ["eta must be 'auto' or a number >= 0, got -1.0"]),
        (("--sparsity", "9", "--method", "sees-d"), ["sparsity=9 but there are 3 features"]),
        (("--sparsity", "9", "--method", "sees-em"), ["sparsity=9 but there are 3 features"]),
        (("--sparsity", "-1", "--method", "sees-d"), ["sparsity must be a whole number >= 0"]),
        (("--confidence", "95"), ["confidence must lie between 0 and 1"]),
        (("--replicates", "1"), ["replicates must be 0 (analytic interval) or at least 2"]),
        (("--metric", "f2"), ["unknown metric 'f2'", "accuracy, log_loss, brier, balanced"]),
        (("--estimator", "best"), ["unknown estimator 'best'"]),
        (("--drop", "nope"), ["--drop: neither file has a column 'nope'"]),
        (("--drop", "x0", "x1", "x2"), ["source has no columns"]),
        (("--classes", "a", "b"), ["holds 0, 1, not among the classes ['a', 'b']"]),
        (("--classes", "0"), ["two or more different values"]),
        (("--classes", "0", "1", "2"), ["2 probability columns but 3 classes"]),
        (("--json", "no/such/r.json"), ["no folder no/such to write r.json into"]),
        (("--plot", "no/r.png"), ["no folder no to write r.png into"]),
        (("--max-rows", "0"), ["max_rows must be at least 1"]),
        (("--json", "s.csv", "--force"), ["s.csv is an input", "another name"]),
        (("--plot", "t.csv"), ["t.csv is no picture name", ".png, .pdf"]),
        (("--plot", "shift"), ["shift is no picture name"]),
        (("--plot", "shift.xyz"), ["shift.xyz is no picture name"]),
        (("--json", ".", "--force"), ["is a folder"]),
    ],
)
def test_options_that_are_refused(files, capsys, options, parts):
    assert_refused(capsys, estimate(*options), *parts)
    assert sorted(os.listdir()) == ["s.csv", "t.csv"]


def swap(**changes: str) -> tuple[str, ...]:
    """The basic options with some values replaced."""
    given = dict(zip(BASIC[::2], BASIC[1::2], strict=True))
    given.update({f"--{name}": value for name, value in changes.items()})
    return tuple(part for item in given.items() for part in item)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"source": "none.csv"}, ["there is no file none.csv"]),
        ({"target": "none.parquet"}, ["there is no file none.parquet"]),
        ({"source": "."}, ["cannot be read as a table"]),
        ({"label": "z"}, ["s.csv has no column 'z'; it has ['x0', 'x1', 'x2', 'y', 'p']"]),
        ({"proba": "z"}, ["s.csv has no column 'z'"]),
        ({"proba": "y", "label": "x0"}, ["t.csv has no column 'y'; it has ['x0', 'x1',"]),
        ({"label": "x0"}, ["2 probability columns but 3 classes [0, 1, 2]"]),
    ],
)
def test_files_and_columns_that_are_not_there(files, capsys, changes, parts):
    assert_refused(capsys, estimate(base=swap(**changes)), *parts)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("empty.csv", b"", "empty.csv cannot be read as a table"),
        ("header.csv", b"x0,x1,x2,y,p\n", "source is empty"),
        ("ragged.csv", b"x0,y,p\n1,0,.5\n1,2,3,4,5\n", "ragged.csv cannot be read as a table"),
        ("quote.csv", b'x0,y,p\n"1,2\n', "cannot be read as a table"),
        ("binary.csv", bytes(range(128, 256)) * 9, "cannot be read as a table"),
        ("tabs.csv", b"x0\ty\tp\n1\t0\t0.5\n", "has no column 'y'; it has ['x0\\ty\\tp']"),
        pytest.param(
            "broken.parquet",
            b"no parquet",
            "cannot be read as a table",
        ),
        pytest.param(
            "empty.parquet",
            b"",
            "cannot be read as a table",
        ),
    ],
)
def test_files_that_are_no_tables(files, capsys, name, content, part):
    with open(name, "wb") as file:
        file.write(content)
    assert_refused(capsys, estimate(base=swap(source=name)), part)


def test_an_empty_target(files, capsys):
    files[1][:0].to_csv("t.csv", index=False)
    assert_refused(capsys, estimate(), "target is empty: at least one row")


def test_upper_case_suffixes(files, expected):
    files[0].to_parquet("S.PARQUET")
    assert result(base=swap(source="S.PARQUET"))["gap"] == pytest.approx(expected.gap, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda s, t: (s.assign(p=s["p"] * 100), t), ["source_proba ranges from", "by 100"]),
        (lambda s, t: (s, t.assign(p="50%")), ["target_proba is not numeric", "percent"]),
        (lambda s, t: (s, t.assign(p=t["p"].where(t.index > 3))), ["target_proba has 4 rows"]),
        (lambda s, t: (s.assign(y=1), t), ["labels holds a single class, 1"]),
        (lambda s, t: (s.assign(y=s["y"].where(s.index > 1)), t), ["labels has 2 missing"]),
        (lambda s, t: (s, t.drop(columns="x1")), ["target lacks ['x1']"]),
        (lambda s, t: (s, t.assign(z=1)), ["target has ['z'], which source does not have"]),
        (lambda s, t: (s, t.assign(x1="a")), ["'x1' is numeric in source but text in target"]),
    ],
)
def test_contents_that_are_refused(files, capsys, change, parts):
    for table, name in zip(change(*files), ("s.csv", "t.csv"), strict=True):
        table.to_csv(name, index=False)
    assert_refused(capsys, estimate(), *parts)


def test_date_labels_as_json(files, expected):
    files[0].assign(y=pd.to_datetime(files[0]["y"], unit="D")).to_parquet("s.parquet")
    found = result(base=swap(source="s.parquet"))
    assert found["gap"] == pytest.approx(expected.gap, abs=1e-12)
    assert [day[:10] for day in found["target_label_distribution"]] == ["1970-01-01", "1970-01-02"]


def test_warnings_are_one_line(files, capsys):
    source, target = files
    target = target[["x0", "p"]].assign(x0=target["x0"].where(target.index > 50, 9))
    source[["x0", "y", "p"]].to_csv("s.csv", index=False)
    target.to_csv("t.csv", index=False)
    assert estimate() == EXIT_CODES["not_identified"]
    shown = capsys.readouterr()
    assert shown.err.startswith("sees: warning: 20.4% of the target")
    assert len(shown.err.splitlines()) == 1
    assert "target in unseen cells 20.40%" in shown.out


def test_force_overwrites(files, capsys):
    with open("out.json", "w") as file:
        file.write("old")
    assert_refused(capsys, estimate("--json", "out.json"), "out.json exists")
    assert result("--method", "sees-d")["method"] == "sees-d"


def test_traceback_shows_errors_in_full(files):
    with pytest.raises(ValueError, match="unknown metric 'f2'"):
        estimate("--metric", "f2", "--traceback")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["guess"],
        ["estimate"],
        ["estimate", *BASIC, "--method", "sees"],
        ["estimate", *BASIC, "--sparsity", "one"],
        ["demo", "--rows", "many"],
    ],
)
def test_usage_errors_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


# Demo and version


def test_demo_tells_its_story_and_leaves_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--rows", "2000"]) == 0
    shown = capsys.readouterr().out
    assert "shifted features: state\n" in shown
    assert "what really happened" in shown
    assert "picture: sees_demo.png" in shown
    assert (tmp_path / "sees_demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_to_overwrite_unless_forced(tmp_path, capsys):
    picture = tmp_path / "demo.png"
    options = ["demo", "--rows", "200", "--plot", str(picture)]
    picture.write_text("mine")
    assert_refused(capsys, main(options), "demo.png exists", "--force")
    assert picture.read_text() == "mine"
    assert main([*options, "--force"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_demo_is_repeatable_and_follows_the_seed(tmp_path, capsys):
    def story(seed: str) -> str:
        options = ["demo", "--rows", "200", "--seed", seed, "--plot", str(tmp_path / "d.png")]
        assert main([*options, "--force"]) == 0
        return capsys.readouterr().out

    first = story("1")
    assert first == story("1")
    assert first != story("2")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--rows", "99"], "--rows must be at least 100, got 99"),
        (["--plot", "no/demo.png"], "there is no folder no"),
        pytest.param(
            ["--rows", "200", "--plot", "demo.doc"],
            "demo.doc",
        ),
        pytest.param(
            ["--rows", "200", "--seed", str(2**70)],
            "seed",
        ),
    ],
)
def test_demo_refusals(tmp_path, monkeypatch, capsys, options, part):
    monkeypatch.chdir(tmp_path)
    assert_refused(capsys, main(["demo", *options]), part)


def test_version_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "sees_torch", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0
    assert done.stdout == f"sees-torch {__version__}\n"
    assert done.stderr == ""
