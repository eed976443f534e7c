"""`python -m tests.mutation [count] [seed]`: are the tests able to fail?

Small faults are put into the solvers, the statistics and the gap, one at a time and in a copy of
the package; the module's own tests must notice, or else those of its room and of the rooms that use
it. Prints the share that they noticed and the faults that survived. A survivor is a missing test,
or a change that changes nothing.

Every fault is tried in a fork of a process that has imported the other libraries already: most of
the time would go into that otherwise. A fault may make the tests run for ever: a fork is stopped
when it has taken LONGEST seconds of the processor.
"""

from __future__ import annotations

import ast
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "torchmetrics", "pandas", "scipy.optimize", "cvxpy", "hypothesis", "sklearn")
USERS = {
    "solvers": ("tests/test_gradients.py",),
    "statistics": (
        "tests/matching/test_sees_d.py",
        "tests/matching/test_sees_c.py",
        "tests/test_gradients.py",
    ),
    "sees_torch": ("tests/test_estimation.py", "tests/test_uncertainty.py"),
}
"""Tests of the rooms that use a room, where its own leave much to them."""
LONGEST = 150
"""Several times what any of the tests take."""
STRANGER = 99
"""Exit code of a fork that imported another package than the copy."""
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


def stages(module: Path) -> list[tuple[str, ...]]:
    """Tests to run until one fails: the module's namesake, its room, the rooms that use it."""
    room = module.parent.name
    own = ROOT / "tests" / (room if room != "sees_torch" else "") / f"test_{module.stem}.py"
    every = [(str(own.relative_to(ROOT)),)] if own.exists() else []
    if room != "sees_torch":
        every.append((f"tests/{room}", f"--ignore={every[0][0]}") if every else (f"tests/{room}",))
    return [*every, USERS[room]]


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


def outcome(tests: tuple[str, ...], copy: Path) -> int:
    """Exit code of the tests in a fork, negative if it was stopped."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(_tried(tests, copy))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == STRANGER:
        raise SystemExit("the tests would not import the copy: run from the project's folder")
    return code


def _tried(tests: tuple[str, ...], copy: Path) -> int:
    """What the fork does."""
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
    # A source that is changed twice in a second would be taken for its cached bytecode.
    sys.dont_write_bytecode = True
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.chdir(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "sees_torch")]:
        del sys.modules[name]
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-W", "ignore"]
    code = int(pytest.main([*options, *tests]))
    found = sys.modules.get("sees_torch")
    if found is not None and not Path(str(found.__file__)).is_relative_to(copy.resolve()):
        return STRANGER
    return code


def noticed(fault: Fault, copy: Path, sound: dict[tuple[str, ...], bool]) -> bool:
    """The tests fail, or do not end, with the fault in the copy.

    Notes in `sound` which tests were run, and which of them are known to pass: those that let a
    fault pass would pass without it.
    """
    place = copy / fault.module.relative_to(ROOT)
    whole = place.read_text()
    place.write_text(faulty(fault))
    try:
        for tests in stages(fault.module):
            failed = outcome(tests, copy) != 0
            sound[tests] = sound.get(tests, False) or not failed
            if failed:
                return True
        return False
    finally:
        place.write_text(whole)


def main(count: int = 25, seed: int = 0, *again: int) -> None:
    """Try a sample of the faults, or of that sample only those with these numbers."""
    every = [fault for module in modules() for fault in faults(module)]
    sample = list(enumerate(random.Random(seed).sample(every, min(count, len(every)))))
    sample = [sample[number] for number in again] or sample
    survivors = 0
    sound: dict[tuple[str, ...], bool] = {}
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        for part in ("sees_torch", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for number, fault in sample:
            began = time.monotonic()
            seen = noticed(fault, copy, sound)
            survivors += not seen
            place = f"{number} {fault.module.relative_to(ROOT)}:{fault.line} {fault.words}"
            took = time.monotonic() - began
            print("noticed " if seen else "SURVIVED", place, f"({took:.0f} s)", flush=True)
        for tests in (tests for tests, passed in sound.items() if not passed):
            if outcome(tests, copy):
                raise SystemExit(f"{' '.join(tests)} fails without a fault")
    print(f"{len(sample) - survivors} of {len(sample)} faults noticed ({len(every)} possible)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
