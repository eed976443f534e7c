"""`python -m tests`: every check of the project, in the order of their speed."""

import subprocess
import sys
from pathlib import Path

CHECKS = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("lint-imports",),
    ("mypy",),
    ("pytest",),
)

for tool, *arguments in CHECKS:
    print("$", tool, *arguments, flush=True)
    command = [str(Path(sys.executable).parent / tool), *arguments]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)
