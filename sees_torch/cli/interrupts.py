"""Ctrl-C where Python drops it: in destructors and callbacks, whose exceptions nobody can catch."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 0.05
"""Seconds after which a dropped interrupt comes once more."""


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """A KeyboardInterrupt that was dropped comes again, and nothing is printed of it."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            threading.Timer(AGAIN, _thread.interrupt_main).start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
