"""Promises of the project's own files."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_ci_runs_the_readmes_test_command():
    command = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert f"```bash\n{command}\n```" in (ROOT / "README.md").read_text()


def test_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[^+\s]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins


def test_import_loads_nothing_heavy():
    """No module beyond what torch and torchmetrics load, but two light ones of Python itself."""
    code = (
        "import sys, torch, torchmetrics; before = set(sys.modules); import sees_torch; "
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(re.findall(r"'(\w+)'", done.stdout))
    light = {"zlib", "_zlib", "statistics", "_statistics"}
    assert loaded - {"sees_torch"} - light == set()
