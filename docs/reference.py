"""Write docs/reference.md, every public name of sees_torch with its signature and docstring.

python -m docs.reference
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sees_torch

PLACE = Path(__file__).with_suffix(".md")
SECTIONS = {
    "The estimate": ("estimate_shift", "ShiftReport", "Source", "Target", "Schema", "TableFile"),
    "Methods": (
        *("Auto", "SEESem", "SEESd", "SEESc", "BBSE", "MLLS", "KLIEP", "DLU", "CBPE", "NoShift"),
        *("KnownWeights", "Match", "Basis", "FeatureBasis"),
    ),
    "Many targets": ("ShiftMonitor", "Alerts", "Observation", "estimate_many"),
    "Weights": ("WeightFunction", "TableWeights", "BasisWeights", "ConstantWeights"),
    "Training": ("importance_weights", "ImportanceWeights", "TargetLoss", "CorrectedClassifier"),
    "Metrics of torchmetrics": (
        "PerformanceShift",
        *(n for n in sees_torch.__all__ if n.startswith("Weighted")),
    ),
    "Weighted metrics as functions": (
        *("auroc", "average_precision", "balanced_accuracy", "cost"),
        *("expected_calibration_error", "f1", "precision", "recall"),
    ),
    "Simulation": ("make_sparse_joint_shift", "resample_shift", "ShiftedPair"),
    "Saved files": ("load_report", "SavedReport", "save_weights", "load_weights"),
    "Errors and warnings": (
        *("SeesError", "SchemaError", "ShapeError", "SupportError", "IdentificationError"),
        *("SavedFileError", "MemoryShortError"),
        *("SeesWarning", "SupportWarning", "ConvergenceWarning"),
    ),
}
"""Every public name but the version, by what it is for."""
HEAD = """\
# Reference

Made from the docstrings by `python -m docs.reference`; a test keeps it up to date. Everything here
is imported from `sees_torch`; nothing else is public.
"""
WIDTH = 100
RESULTS = {"ShiftReport", "Match", "Observation", "SavedReport", "ShiftedPair", "ImportanceWeights"}
"""Classes that the library makes: how they are made is not told."""


def reference() -> str:
    """The page."""
    parts, told = [HEAD], set[int]()
    for title, names in SECTIONS.items():
        links = ", ".join(f"[`{name}`](#{name.lower()})" for name in names)
        parts += [f"## {title}\n", f"{links}\n"]
        for name in names:
            parts += [f"### {name}\n", *_entries(name, getattr(sees_torch, name), told)]
    return "\n".join(parts)


def _entries(name: str, thing: Any, told: set[int]) -> Iterator[str]:
    """Signature and docstring; for a class, also its methods and properties.

    Args:
        name: of the thing.
        thing: a function or class.
        told: what was described already, under another class; such members are only named.
    """
    if not inspect.isclass(thing):
        yield _code(f"{name}{_signature(thing)}", thing)
        return
    if issubclass(thing, Exception):
        bases = ", ".join(f"`{base.__name__}`" for base in thing.__bases__)
        yield f"A kind of {bases}. {_markdown(inspect.getdoc(thing) or '')}"
        return
    yield _code(name if name in RESULTS else f"{name}{_signature(thing)}", thing)
    members = sorted(_members(thing).items())
    for word, member in members:
        if id(member) in told or not inspect.getdoc(member):
            continue
        told.add(id(member))
        function = getattr(member, "__func__", member)
        said = "" if isinstance(member, property) else _signature(function)
        yield _code(f"{name}.{word}{said}", function)
    plain = [word for word, member in members if id(member) not in told]
    above = [word for word, _ in members if word not in vars(thing)]
    rest = ", ".join(f"`{word}`" for word in dict.fromkeys([*plain, *above]))
    yield f"Also: {rest}.\n" if rest else ""


def _members(kind: type) -> dict[str, Any]:
    """Public methods and properties that the class, or a base of this library, defines."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if _is_ours(base):
            found |= {
                word: member
                for word, member in vars(base).items()
                if not word.startswith("_")
                and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
            }
    return found


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "sees_torch"


def _signature(thing: Any) -> str:
    """One line, or a line an argument; without `self` and `cls`."""
    given = inspect.signature(thing)
    kept = [p for p in given.parameters.values() if p.name not in ("self", "cls")]
    one = _bare(given.replace(parameters=kept))
    if len(one) < WIDTH - 25:
        return one
    marks, lines = {p.kind for p in kept}, []
    for p in kept:
        if p.kind is p.KEYWORD_ONLY and p.VAR_POSITIONAL not in marks and "    *," not in lines:
            lines.append("    *,")
        lines.append(f"    {_bare(p)},")
    back = one[one.rindex(")") + 1 :]
    return "\n".join(["(", *lines, f"){back}"])


def _bare(said: Any) -> str:
    """Annotations without the quotes that a postponed one has."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(said))
    return re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text)


def _code(said: str, thing: Any) -> str:
    """A block with the signature, then the docstring as Markdown."""
    return f"```python\n{said}\n```\n\n{_markdown(inspect.getdoc(thing) or '')}"


def _markdown(doc: str) -> str:
    """Google sections as lists; doctests, which run where they stand, without their prompts."""
    lines, out, fenced = doc.splitlines(), [], False
    for place, line in enumerate(lines):
        if line.startswith((">>>", "...")) or (fenced and line.strip()):
            out += [] if fenced else ["```python"]
            fenced = True
            out.append(line[4:] if line.startswith((">>>", "...")) else f"# {line}")
            continue
        if fenced:
            out.append("```")
            fenced = False
        entry = re.fullmatch(r"    (\*{0,2}\w[\w, *]*): (.*)", line)
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields):", line):
            out += [f"*{line[:-1]}*", ""]
        elif entry:
            out.append(f"- `{entry[1]}`: {entry[2]}")
        elif line.startswith("        ") and place and not _is_formula(lines, place):
            out.append(f"  {line.strip()}")
        else:
            out.append(line)
    return "\n".join([*out, "```", ""] if fenced else [*out, ""])


def _is_formula(lines: list[str], place: int) -> bool:
    """An indented line after an empty one is set off on purpose."""
    return not lines[place - 1].strip()


if __name__ == "__main__":
    PLACE.write_text(reference(), encoding="utf-8")
