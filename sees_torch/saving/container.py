"""One file: tensors as safetensors, and beside them, in its header, a JSON document.

Nothing in it is code, so that opening a file from anywhere runs none. Tensors are read and written
by the safetensors library, which checks every offset; this module adds what the file is, the
version of its form, and a checksum of everything in it. One file instead of two can be replaced in
one step.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from sees_torch.errors import SavedFileError
from sees_torch.saving.atomic import write_atomically
from sees_torch.saving.values import from_json, to_json

FORMAT = "sees-torch"
MAX_BYTES = 2**31
"""Larger files are not opened."""
MAX_HEADER = 2**26
"""A header holds names and figures; a larger one is hostile or broken."""


@dataclass(frozen=True)
class Content:
    """What a file holds: the version of its form, the document and the tensors."""

    version: int
    document: dict[str, Any]
    tensors: dict[str, Tensor]

    def tensor(self, name: str, *shape: int | None, integer: bool = False) -> Tensor:
        """A tensor of this shape, None for any size; anything else is refused."""
        found = self.tensors.get(name)
        fits = (
            found is not None
            and found.dim() == len(shape)
            and all(size in (None, got) for size, got in zip(shape, found.shape, strict=True))
            and (found.dtype == torch.int64 if integer else found.is_floating_point())
            and bool(found.isfinite().all())
        )
        if found is None or not fits:
            raise SavedFileError(f"the saved form is damaged: tensor {name!r} is not as expected.")
        return found


def write_content(
    path: str | Path,
    kind: str,
    version: int,
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write a file, at once or not at all."""
    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = to_json(dict(document))
    about = {"format": FORMAT, "kind": kind, "version": str(version), "document": text}
    about["sha256"] = _checksum(kind, version, text, kept)
    content = _library().save(kept, metadata=about)
    if int.from_bytes(content[:8], "little") > MAX_HEADER or len(content) > MAX_BYTES:
        raise SavedFileError(f"{path} would be too large to be opened again.")
    write_atomically(path, content)


def read_content(path: str | Path, kind: str, newest: int) -> Content:
    """What is in a file of this kind; anything else is refused."""
    library = _library()
    content = _bytes(Path(path))
    try:
        about = _about(content)
    except (ValueError, AttributeError, TypeError) as error:
        raise SavedFileError(f"{path} is no file of sees-torch: {error}.") from None
    if about.get("kind") != kind:
        raise SavedFileError(f"{path} holds a {about.get('kind')}, not a {kind}.")
    try:
        if not re.fullmatch("[1-9][0-9]{0,5}", about["version"]):
            raise ValueError(f"there never was a version {about['version']!r:.20} of its form")
        version, text = int(about["version"]), about["document"]
        if version > newest:
            raise SavedFileError(
                f"{path} was written by a newer sees-torch (version {version} of the form of a "
                f"{kind}, this one knows {newest}): upgrade sees-torch."
            )
        tensors = library.load(content)
        whole = _checksum(kind, version, text, tensors) == about["sha256"]
        document = from_json(text)
    except SavedFileError:
        raise
    except (library.refusal, KeyError, TypeError, ValueError, RuntimeError) as error:
        why = shorten(str(error), 200)
        raise SavedFileError(f"{path} is damaged: {why}. Restore it from a copy.") from None
    if not whole or not isinstance(document, dict):
        raise SavedFileError(f"{path} is damaged: its checksum is wrong. Restore it from a copy.")
    return Content(version, document, tensors)


def _bytes(path: Path) -> bytes:
    """The whole file, read once, so that what is checked is what is used."""
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise SavedFileError(f"{path} is no ordinary file.")
        if about.st_size > MAX_BYTES:
            raise SavedFileError(f"{path} has {about.st_size:,} bytes: too large to be opened.")
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        raise SavedFileError(f"there is no file {path}.") from None
    except OSError as error:
        raise SavedFileError(f"{path} cannot be read: {error.strerror or error}.") from None


def _about(content: bytes) -> dict[str, str]:
    """The header's text entries; raises ValueError where there are none of ours."""
    # The length of a header of ours can begin like an archive or a pickle; what follows cannot.
    if content[8:9] != b"{" and (content[:2] == b"PK" or content[:1] == b"\x80"):
        raise ValueError("it is an archive or a pickle, which could run code and is never opened")
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > len(content) - 8:
        raise ValueError("it is cut off, or of another format")
    if size > MAX_HEADER:
        raise ValueError(f"its header has {size:,} bytes")
    try:
        about = json.loads(content[8 : 8 + size])["__metadata__"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ValueError("its header is none of ours") from None
    if about.get("format") != FORMAT:
        raise ValueError("its header is none of ours")
    return dict(about)


def _checksum(kind: str, version: int, text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{kind} {version} {len(text)} {text}".encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Library:
    save: Callable[..., bytes]
    load: Callable[[bytes], dict[str, Tensor]]
    refusal: type[Exception]


def _library() -> _Library:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load, save
    except ImportError:
        raise SavedFileError(
            "saved files need safetensors: install sees-torch[files] (or safetensors itself)."
        ) from None
    return _Library(save, load, SafetensorError)
