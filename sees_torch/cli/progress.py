"""What a command says while it works, on standard error."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable


class Progress:
    """Rows read and steps taken: on a terminal as one line that vanishes, with --verbose as lines.

    Args:
        options: of the command, with `quiet` and `verbose`.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.verbose: bool = options.verbose
        self.shown = sys.stderr.isatty() and not options.quiet and not self.verbose
        self.width = 0
        self.started = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.width:
            print("\r" + " " * self.width, end="\r", file=sys.stderr, flush=True)
        self.width = 0

    def of(self, what: str) -> Callable[[int], None]:
        """A function to be told how many rows of a file have been read."""

        def show(rows: int) -> None:
            self._line(f"{what}: {rows:,} rows read")

        return show

    def step(self, what: str) -> None:
        """A step that takes a while begins."""
        if self.verbose:
            passed = time.monotonic() - self.started
            print(f"sees: {passed:6.1f} s  {what}", file=sys.stderr, flush=True)
        self._line(f"{what} …")

    def _line(self, said: str) -> None:
        if self.shown:
            blank = " " * max(self.width - len(said), 0)
            self.width = len(said)
            print(f"\r{said}{blank}", end="", file=sys.stderr, flush=True)
