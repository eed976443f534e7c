"""The `sees` command: one module a command, each with `add_parser` and `run`.

A command's parser is added by `add_parser(commands)`, which sets the default `run`, a function of
the options that returns the exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from sees_torch.cli import demo, estimate, methods, monitor, simulate
from sees_torch.cli.interrupts import no_interrupt_lost
from sees_torch.cli.outputs import EXIT_CODES
from sees_torch.errors import SeesError, SeesWarning
from sees_torch.shortage import is_shortage
from sees_torch.version import __version__

__all__ = ["EXIT_CODES", "main"]

COMMANDS = (estimate, monitor, simulate, methods, demo)
REFUSED, INTERRUPTED, CUT_OFF = 2, 130, 141
OUT_OF_MEMORY = "out of memory: keep fewer distinct rows by --max-rows, or free memory"
EPILOG = (
    "exit codes: 0 done, and for estimate identified; 3 weak; 4 not identified; 5 monitor raised "
    "an alert; 2 input refused; 130 interrupted"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done (and identified), 2 input refused, 3 the estimate is weak, 4 it is not identified, 5 the
    monitor raised an alert, 130 interrupted, 141 nobody reads on (files are written all the same).
    """
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings(record=True) as caught, no_interrupt_lost():
        warnings.simplefilter("always", SeesWarning)
        try:
            result: int = options.run(options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            print("sees: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # Whoever reads the output, such as head, has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CUT_OFF
        except (SeesError, OSError, MemoryError, RuntimeError) as error:
            named = isinstance(error, (SeesError, OSError))
            if options.traceback or not (named or is_shortage(error)):
                raise
            print(f"sees: {error if named else OUT_OF_MEMORY}", file=sys.stderr)
            result = REFUSED
    for message in dict.fromkeys(
        str(warning.message) for warning in caught if issubclass(warning.category, SeesWarning)
    ):
        print(f"sees: warning: {message}", file=sys.stderr)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sees",
        description="How much did a deployed model's performance change, and which features moved?",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"sees-torch {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
