"""Saved models: exported programs and TorchScript, never a pickle.

A pickle can run any code when it is opened, so none is: `torch.export.load` and `torch.jit.load`
are the only ways in, and torch is told to read weights only (by itself `torch.export.load` would
fall back to unpickling). A model is still a program: run those whose origin you know.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sees_torch.errors import SeesError

SAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch reads no pickled objects while this variable is set, whatever its own callers say."""
ADVICE = (
    "Save it with torch.export.save (a .pt2 file) or as TorchScript, or give its probabilities "
    "as columns with --proba."
)


def load_model(path: Path) -> nn.Module:
    """The saved model, to be called with a float32 matrix of the features in the file's order."""
    if not path.is_file():
        raise SeesError(f"there is no file {path} to load a model from.")
    if not zipfile.is_zipfile(path):
        raise SeesError(
            f"{path} is no exported program and no TorchScript; pickled models (.pkl, .joblib, old "
            f".pt) are never opened, they could run any code. {ADVICE}"
        )
    with zipfile.ZipFile(path) as archive:
        inside = archive.namelist()
    if any("data/aotinductor/" in name for name in inside):
        raise SeesError(f"{path} holds compiled code, which is never run. {ADVICE}")
    scripted = any("/code/" in name for name in inside)
    exported = any(
        name.endswith(("models/model.json", "serialized_exported_program.json")) for name in inside
    )
    if not scripted and not exported:
        raise SeesError(
            f"{path} holds a pickle of torch.save, which is never opened: it could run any code. "
            f"{ADVICE}"
        )
    try:
        with _weights_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its older formats deprecated.
            return _Saved(_exported(path) if exported else _scripted(path), path)
    except Exception as error:  # torch raises errors of many kinds for a damaged file.
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise SeesError(f"{path} cannot be loaded as a model: {first[0][:200]}. {ADVICE}") from None


def _exported(path: Path) -> nn.Module:
    return torch.export.load(path).module()


def _scripted(path: Path) -> nn.Module:
    loaded = torch.jit.load(path, map_location="cpu")
    loaded.eval()
    return loaded


@contextmanager
def _weights_only() -> Iterator[None]:
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = before


class _Saved(nn.Module):
    """A loaded model that takes batches of any size and says what it cannot take."""

    def __init__(self, model: nn.Module, path: Path) -> None:
        super().__init__()
        # An exported program refuses eval(), so it must not be found among the parts.
        self.__dict__["model"] = model
        self.path = path
        held = [*model.parameters(), *model.buffers()]
        kinds = [part.dtype for part in held if part.is_floating_point()]
        self.dtype = kinds[0] if kinds else torch.float32

    def forward(self, batch: Tensor) -> Any:
        try:
            return self.__dict__["model"](batch.to(self.dtype))
        except Exception as error:  # Whatever the model's own code raises.
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise SeesError(
                f"the model {self.path} refuses a batch of {len(batch)} rows and {batch.shape[1]} "
                f"features: {first[0][:160]}. It must take the columns of the files that are not "
                "label or dropped, in their order, and any number of rows (a dynamic first "
                "dimension in torch.export)."
            ) from None
