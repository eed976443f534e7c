"""Ctrl-C during a sweep."""

from __future__ import annotations

import threading
from typing import Any

_STOPPED = threading.Event()


def interrupt(*_: Any) -> None:
    """What SIGINT does."""
    _STOPPED.set()
    raise KeyboardInterrupt


def asked() -> bool:
    """SIGINT has come."""
    return _STOPPED.is_set()


def check() -> None:
    """Stop if that was asked for: Python drops an interrupt that falls into a destructor."""
    if asked():
        raise KeyboardInterrupt
