"""`python -m tests.mutation [count] [seed]`: are the tests able to fail?

Small faults are put into the solvers, the statistics and the gap, one at a time and in a copy of
the package; the unit tests of the module must notice. Prints the share that they noticed and the
faults that survived. A survivor is a missing test, or a change that changes nothing.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 120
"""Seconds; a fault that makes the tests hang is noticed as well."""
SWAPS: dict[type, type] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CONSTANTS = {0: 1, 1: 0}


@dataclass(frozen=True)
class Fault:
    """A place of a module, by its turn in a walk over the syntax, and what is done there."""

    module: Path
    turn: int
    line: int
    words: str


def tests_of(module: Path) -> list[str]:
    """The unit tests of a module: its namesake, else the folder's."""
    folder = ROOT / "tests" / module.parent.name
    if not folder.is_dir():
        return [f"tests/test_{module.stem}.py"]
    own = folder / f"test_{module.stem}.py"
    return [str(own.relative_to(ROOT))] if own.exists() else [str(folder.relative_to(ROOT))]


def modules() -> list[Path]:
    package = ROOT / "sees_torch"
    rooms = [*(package / "solvers").glob("*.py"), *(package / "statistics").glob("*.py")]
    return sorted(p for p in [*rooms, package / "gap.py"] if p.name != "__init__.py")


def changed(node: ast.AST) -> str | None:
    """Put a fault into a node; what was done, None if there is none for it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        before = type(node.ops[0])
        node.ops[0] = SWAPS[before]()
        return f"{before.__name__} to {SWAPS[before].__name__}"
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        before = type(node.op)
        node.op = SWAPS[before]()
        return f"{before.__name__} to {SWAPS[before].__name__}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if node.value in CONSTANTS:
            node.value = type(node.value)(CONSTANTS[node.value])
            return f"constant to {node.value}"
    elif isinstance(node, (ast.If, ast.While)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "condition negated"
    return None


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of function bodies: annotations and constants of a module are left alone."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                yield from ast.walk(statement)


def faults(module: Path) -> list[Fault]:
    found = []
    tree = ast.parse(module.read_text())
    for turn, node in enumerate(list(walk(tree))):
        words = changed(node)
        if words is not None:
            found.append(Fault(module, turn, getattr(node, "lineno", 0), words))
    return found


def faulty(fault: Fault) -> str:
    tree = ast.parse(fault.module.read_text())
    changed(list(walk(tree))[fault.turn])
    return ast.unparse(ast.fix_missing_locations(tree))


def noticed(fault: Fault, copy: Path) -> bool:
    """The tests fail, or do not end, with the fault in the copy."""
    place = copy / fault.module.relative_to(ROOT)
    sound = place.read_text()
    place.write_text(faulty(fault))
    # The project's root must not come first on the path: the copy holds package and tests.
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *options, *tests_of(fault.module)]
    try:
        single = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=single, capture_output=True, timeout=TIMEOUT)
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        place.write_text(sound)


def main(count: int = 25, seed: int = 0) -> None:
    every = [fault for module in modules() for fault in faults(module)]
    sample = random.Random(seed).sample(every, min(count, len(every)))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("sees_torch", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for fault in sample:
            began = time.monotonic()
            seen = noticed(fault, copy)
            place = f"{fault.module.relative_to(ROOT)}:{fault.line} {fault.words}"
            took = time.monotonic() - began
            print("noticed " if seen else "SURVIVED", place, f"({took:.0f} s)", flush=True)
            if not seen:
                survivors.append(place)
    print(f"{len(sample) - len(survivors)} of {len(sample)} faults noticed ({len(every)} possible)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
