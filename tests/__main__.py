"""`python -m tests`: every check of the project, in the order of their speed.

The tests run as two processes of one thread each, which two cores finish in half the time; the
output of the second follows that of the first.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKS = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("lint-imports",),
    ("mypy",),
)
TESTS = Path(__file__).parent
ROOMS = ("data", "monitor", "saving")
FIRST = sorted(map(str, [*TESTS.glob("test_[a-f]*.py"), *(TESTS / room for room in ROOMS)]))
SECOND = [f"--ignore={path}" for path in FIRST]


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


for name, *arguments in CHECKS:
    print("$", name, *arguments, flush=True)
    code = subprocess.run([tool(name), *arguments], check=False).returncode
    if code:
        sys.exit(code)

print("$ pytest", flush=True)
single = {**os.environ, "OMP_NUM_THREADS": "1"}
with tempfile.TemporaryFile() as later:
    second = subprocess.Popen([tool("pytest"), *SECOND], env=single, stdout=later, stderr=later)
    first = subprocess.run([tool("pytest"), *FIRST], env=single, check=False).returncode
    code = second.wait() or first
    later.seek(0)
    print(later.read().decode(), flush=True)
sys.exit(code)
