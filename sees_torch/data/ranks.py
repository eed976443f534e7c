"""Several processes, each with part of the rows: what one has seen, all get to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sees_torch.errors import SeesError

Value = TypeVar("Value")


def exchange(make: Callable[[], Value]) -> list[Value]:
    """What every process of the default group makes, in the order of their ranks.

    An error in one of them is raised in all; a process that is gone is an error, not a hang.
    """
    from torch import distributed

    if not distributed.is_initialized():
        raise SeesError(
            "distributed=True needs torch.distributed.init_process_group; run under torchrun, or "
            "leave it out."
        )
    mine: tuple[Value | None, str | None]
    cause: Exception | None = None
    try:
        mine = make(), None
    except Exception as error:  # Whatever it is, the others must not wait for this process.
        cause = error
        kind = "" if isinstance(error, SeesError) else f"{type(error).__name__}: "
        mine = None, f"{kind}{error}"
    everyone: list[Any] = [None] * distributed.get_world_size()
    try:
        distributed.all_gather_object(everyone, mine)
    except RuntimeError as error:
        raise SeesError(
            f"another process ended or did not answer ({str(error).splitlines()[0][:200]}). "
            "Start the run again."
        ) from None
    for rank, (_, failed) in enumerate(everyone):
        if failed is not None:
            raise SeesError(f"process {rank}: {failed}") from cause
    return [made for made, _ in everyone]
