"""What the package is built on: few dependencies, declared, pinned, and no others needed."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RUNTIME = {"torch", "numpy", "pandas", "torchmetrics"}
"""Every one of these is a decision; a fifth would be another."""
EXTRAS = {"plots": {"matplotlib"}, "files": {"safetensors"}, "cli": {"pyarrow", "filelock"}}
USED = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in undeclared:
            raise ModuleNotFoundError(name)
undeclared = set(sys.argv[1:])
sys.meta_path.insert(0, Refused())
from sees_torch import estimate_shift, load_report, make_sparse_joint_shift
pair = make_sparse_joint_shift(200, 200, features=2)
report = estimate_shift(**pair.inputs(), method="sees-em", replicates=3)
report.save("r.sees"), report.save_html("r.html"), str(report)
print(load_report("r.sees").gap == report.gap)
"""


def name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower().replace("_", "-")


def test_dependencies_are_the_few_that_were_decided_on():
    found: dict[str, set[str]] = {"": set()}
    for line in importlib.metadata.requires("sees-torch") or []:
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        found.setdefault(extra.group(1) if extra else "", set()).add(name(line))
    assert found[""] == RUNTIME
    for extra, expected in EXTRAS.items():
        assert found[extra] - {"sees-torch"} == expected


def test_constraints_pin_every_dependency_to_one_version():
    text = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("#")[0].strip() for line in text if line.split("#")[0].strip()]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin) for pin in pins)
    assert {name(pin) for pin in pins} >= RUNTIME.union(*EXTRAS.values())


def needed(distribution: str, found: set[str]) -> set[str]:
    """A distribution and all that it requires itself, extras left out."""
    if distribution not in found:
        found.add(distribution)
        try:
            lines = importlib.metadata.requires(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            return found
        for line in lines:
            if "extra ==" not in line:
                needed(name(line), found)
    return found


def test_nothing_undeclared_is_needed(tmp_path):
    """Estimate, page and saved form in a process that can import declared packages only."""
    allowed: set[str] = {"sees-torch"}
    for root in RUNTIME | EXTRAS["files"]:
        needed(root, allowed)
    owners = importlib.metadata.packages_distributions()
    undeclared = {
        module for module, of in owners.items() if not {name(owner) for owner in of} & allowed
    }
    assert {"scipy", "pyarrow", "pytest"} <= undeclared
    done = subprocess.run(
        [sys.executable, "-c", USED, *sorted(undeclared)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "True", done.stderr
