"""Options of the estimate itself: method, metrics, interval."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from sees_torch.errors import SeesError
from sees_torch.matching import Method
from sees_torch.matching.names import METHODS


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Options that say how to match, and how sure to be."""
    parser.add_argument(
        "--method", default="auto", choices=["auto", *METHODS], help="how to match (auto)"
    )
    parser.add_argument(
        "--sparsity", type=_auto_or(int), help="shifted features, or auto; for sees-em, -d and -c"
    )
    parser.add_argument("--eta", type=_auto_or(float), help="penalty, or auto; for sees-c")
    parser.add_argument(
        "--confidence", type=float, default=0.95, help="level of the interval (0.95)"
    )
    parser.add_argument(
        "--replicates", type=int, default=200, help="resamples; 0 for the analytic interval (200)"
    )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `estimate_shift`."""
    return {
        "method": _method(options),
        "confidence": options.confidence,
        "replicates": options.replicates,
    }


def _method(options: argparse.Namespace) -> str | Method:
    given = {"sparsity": options.sparsity, "eta": options.eta}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return str(options.method)
    kind: Any = METHODS.get(options.method)
    known = set() if kind is None else {field.name for field in fields(kind)}
    if not known & {"sparsity", "eta"}:
        raise SeesError(
            f"method {options.method} has no {' and no '.join(sorted(given))}: choose --method "
            "sees-em, sees-d or sees-c."
        )
    surplus = sorted(set(given) - known)
    if surplus:
        raise SeesError(f"method {options.method} has no {' and no '.join(surplus)}.")
    configured: Method = kind(**given)
    return configured


def _auto_or(kind: type[Any]) -> Any:
    """An argument that is "auto" or a number."""

    def number(text: str) -> Any:
        return text if text == "auto" else kind(text)

    number.__name__ = kind.__name__
    return number
