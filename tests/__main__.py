"""`python -m tests`: every check of the project, in the order of their speed.

The tests run as two processes of one thread each, beside the type checks, which two cores finish in
half the time; the output of the others follows that of the first. `python -m tests --coverage`
prints at the end which share of the package's lines and branches they run.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

CHECKS = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("lint-imports",),
)
TESTS = Path(__file__).parent
ROOMS = ("data", "monitor", "saving")
FIRST = sorted(map(str, [*TESTS.glob("test_[a-i]*.py"), *(TESTS / room for room in ROOMS)]))
SECOND = [f"--ignore={path}" for path in FIRST]
COVERAGE = "--coverage" in sys.argv[1:]
MEASURED = ("coverage", "run", "--branch", "--parallel-mode", "--source=sees_torch")
MODULES = ("-m", *MEASURED, "-m", "pytest") if COVERAGE else ("-m", "pytest")
PYTEST = [sys.executable, *MODULES]


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


for name, *arguments in CHECKS:
    print("$", name, *arguments, flush=True)
    code = subprocess.run([tool(name), *arguments], check=False).returncode
    if code:
        sys.exit(code)

print("$ pytest", flush=True)
single = {**os.environ, "OMP_NUM_THREADS": "1"}
later = {"$ mypy": [tool("mypy")], "$ pytest": [*PYTEST, *SECOND]}
with ExitStack() as stack:
    told = {name: stack.enter_context(tempfile.TemporaryFile()) for name in later}
    others = {
        name: subprocess.Popen(command, env=single, stdout=told[name], stderr=told[name])
        for name, command in later.items()
    }
    code = subprocess.run([*PYTEST, *FIRST], env=single, check=False).returncode
    for name, process in others.items():
        code = process.wait() or code
        told[name].seek(0)
        print(f"{name}\n{told[name].read().decode()}", flush=True)
if COVERAGE:
    for step in (("combine", "-q"), ("report", "--skip-covered")):
        subprocess.run([sys.executable, "-m", "coverage", *step], check=True)
sys.exit(code)
