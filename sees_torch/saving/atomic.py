"""Files that are whole at every moment: the old one or the new one, never a part of either."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from sees_torch.errors import SavedFileError

TEMPORARY = ".tmp"


def write_atomically(path: str | Path, content: bytes) -> None:
    """Replace the file by one with this content.

    The content is written beside the file under another name and forced to the disk; then the name
    changes hands in one step. A process that is killed leaves the old file, and perhaps a hidden
    one that ends with ".tmp". A symbolic link stays one: the file that it leads to is replaced.
    """
    whole = Path(os.path.realpath(path))
    if os.path.isdir(whole):  # Unlike Path.is_dir, False where nobody may look.
        raise SavedFileError(f"{path} is a folder: give the name of a file.")
    part = whole.with_name(f".{whole.name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        _write(part, content)
        os.replace(part, whole)
        _settle(whole.parent)
    except OSError as error:
        raise SavedFileError(
            f"{path} could not be written ({error.strerror or error}); what was there before is "
            "as it was."
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            part.unlink()


def remove_parts(path: Path) -> None:
    """Remove what killed processes left of a file that nobody else is writing."""
    for part in path.parent.glob(f".{path.name}.*{TEMPORARY}"):
        part.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _settle(folder: Path) -> None:
    """Force the new name to the disk, where folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
