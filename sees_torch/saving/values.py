"""Names, classes, levels and figures as JSON, and back exactly as they were."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from sees_torch.errors import SavedFileError

FLOAT, TUPLE, PAIRS = "$float", "$tuple", "$pairs"


def to_json(value: Any) -> str:
    """The value as JSON text."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def from_json(text: str | bytes) -> Any:
    """What `to_json` was given; raises ValueError for anything else."""
    try:
        return _restored(json.loads(text, parse_constant=_refuse))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "item"):
        value = value.item()  # A numpy scalar.
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {FLOAT: repr(value)}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(part) for part in value]}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _plain(part) for key, part in value.items()}
        return {PAIRS: [[_plain(key), _plain(part)] for key, part in value.items()]}
    raise SavedFileError(
        f"{value!r} cannot be saved: names, classes and levels must be text, numbers, booleans or "
        f"tuples of them, got {type(value).__name__}."
    )


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag == FLOAT:
            return float(content)
        if tag == TUPLE:
            return tuple(_restored(part) for part in content)
        if tag == PAIRS:
            return {_restored(key): _restored(part) for key, part in content}
    return {key: _restored(part) for key, part in value.items()}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
