"""A folder that keeps a monitor between runs; one process at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sees_torch.errors import SavedFileError, SeesError
from sees_torch.saving.atomic import remove_parts

STATE, LOCK = "monitor.sees", "lock"


@contextlib.contextmanager
def state_folder(folder: Path) -> Iterator[Path]:
    """The path of the state, locked against other processes until the block ends.

    The lock belongs to the process: one that is killed leaves no lock behind.
    """
    try:
        from filelock import FileLock, Timeout
    except ImportError:
        raise SeesError("a state folder needs filelock: install sees-torch[cli].") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise SavedFileError(
            f"another process is using {folder}: wait until it ends, or take another folder."
        ) from None
    except OSError as error:
        raise SavedFileError(
            f"{folder} cannot keep a state: {error.strerror or error}. Take another folder."
        ) from None
    try:
        path = folder / STATE
        remove_parts(path)
        yield path
    finally:
        lock.release()
