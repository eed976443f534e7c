"""Memory that runs short is answered by smaller parts, until they cannot get smaller."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from sees_torch.errors import MemoryShortError, SeesWarning

T = TypeVar("T")
SMALLEST = 2**20
"""Bytes of a part beyond which smaller ones do not help."""
SHRINK = 4
ALLOCATOR = ("can't allocate memory", "not enough memory")
"""What torch's allocator for the CPU says; it raises no error of its own kind."""

ADVICE = (
    "hand in fewer distinct rows (max_rows of Source.from_batches, --max-rows), or free memory."
)


def is_shortage(error: BaseException) -> bool:
    """The error says that memory could not be had."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATOR)


@contextlib.contextmanager
def named_shortage(doing: str) -> Iterator[None]:
    """Names the shortage in work that has no parts."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryShortError) or not is_shortage(error):
            raise
        raise MemoryShortError(f"memory is short while {doing}: {ADVICE}") from None


def in_smaller_parts(work: Callable[[int], T], budget: int) -> T:
    """What the work returns, given bytes that it may take; fewer and fewer while memory is short.

    Args:
        work: done anew from its beginning each time.
        budget: bytes to begin with.
    """
    begun = budget
    while True:
        try:
            found = work(budget)
            break
        except (MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            if budget <= SMALLEST:
                raise MemoryShortError(
                    f"memory is short even in parts of {budget / 2**20:.3g} MiB: {ADVICE}"
                ) from None
        # Only here, after the error and the tensors that its frames hold are gone.
        budget = max(budget // SHRINK, SMALLEST)
    if budget < begun:
        warnings.warn(
            f"memory was short, so the work was done in parts of {budget / 2**20:.3g} MiB; "
            f"memory_budget={budget} begins with these.",
            SeesWarning,
            stacklevel=2,
        )
    return found
