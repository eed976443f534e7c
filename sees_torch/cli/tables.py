"""Columns of the files on the command line: by name or by pattern, with the classes' types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any

from sees_torch.data.files import TableFile, missing_column
from sees_torch.errors import SchemaError, SeesError


def named_columns(given: Sequence[str], known: Sequence[str], what: str, path: Path) -> list[str]:
    """Columns by name, or by pattern such as 'p_*'; a column of that very name comes first."""
    found: list[str] = []
    for text in given:
        if text in known or not set(text) & set("*?["):
            found.append(text)  # The file itself says what it has instead.
            continue
        matched = [name for name in known if re.match(translate(text), name)]
        if not matched:
            raise SchemaError(
                f"{what}: no column of {path} fits the pattern {text!r}; it has {list(known)}."
                + missing_column(text, known)
            )
        found += matched
    doubled = sorted({name for name in found if found.count(name) > 1})
    if doubled:
        raise SeesError(f"{what} names {doubled} twice.")
    return found


def one_column(given: str, known: Sequence[str], what: str, path: Path) -> str:
    """The single column of a name or pattern."""
    found = named_columns([given], known, what, path)
    if len(found) > 1:
        raise SchemaError(
            f"{what}: the pattern {given!r} fits {found} of {path}; name one of them."
        )
    return found[0]


def classes_of(
    given: Sequence[str] | None, patterns: Sequence[str], proba: list[str], labels: TableFile
) -> list[Any] | None:
    """The order of the classes: as given, else as the columns' names say, else the usual one.

    Columns p_no and p_yes, found by the pattern 'p_*', are those of the classes no and yes.
    """
    if given is not None:
        return _typed(given, labels)
    if len(patterns) != 1 or patterns[0].count("*") != 1 or len(proba) < 2:
        return None
    before, after = patterns[0].split("*")
    inner = [name[len(before) : len(name) - len(after)] for name in proba]
    typed = _typed(inner, labels)
    known = _values(labels)
    return typed if set(typed) == set(known.values()) else None


def _typed(given: Sequence[str], labels: TableFile) -> list[Any]:
    """Classes from the command line in the type that the label column has."""
    by_text = _values(labels)

    def typed(text: str) -> Any:
        if text in by_text:
            return by_text[text]
        for value in by_text.values():
            if isinstance(value, float) and _number(text) == value:
                return value
        return text

    return [typed(text) for text in given]


def _values(labels: TableFile) -> dict[str, Any]:
    by_text: dict[str, Any] = {}
    for _, column, *_ in labels:
        by_text.update({str(value): value for value in column.dropna().unique().tolist()})
    return by_text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
