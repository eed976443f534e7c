"""Runs on disk: a JSON file a draw and method, named by the hash of its settings, written whole.

A sweep that was interrupted leaves finished runs only; the same command skips those.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from sees_torch import __version__

DRAWN = ("data", "classifier", "shift", "rows", "target_rows", "order", "seed")
"""Parts of a configuration that decide what is drawn ..."""
DECISIVE = ("task", *DRAWN, "method", "eta", "sparsity", "confidence")
"""... and what comes out."""
PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "hydra-core")
RUNS = "runs"
"""Folder of all runs, which sweeps share: an experiment finds what another has run."""
SWEEP = "sweep.txt"
"""Keys of the runs of a sweep, in the sweep's own folder beside the runs."""


def decisive(config: DictConfig, names: Sequence[str] = DECISIVE) -> dict[str, Any]:
    """What the result follows from, paths left out."""
    full: Any = OmegaConf.to_container(config, resolve=True)
    parts = {name: full[name] for name in names}
    parts["data"] = {name: value for name, value in parts["data"].items() if name != "folder"}
    return parts


def key(config: DictConfig, names: Sequence[str] = DECISIVE) -> str:
    """The name of a run: equal for equal configurations of one version of the library."""
    text = json.dumps([__version__, decisive(config, names)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write(
    folder: Path, name: str, config: DictConfig, tables: dict[str, Any], seconds: float
) -> Path:
    """Save a run; a reader sees all of it or nothing."""
    record = {
        "key": name,
        "draw": key(config, DRAWN),
        "seed": config.seed,
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "versions": versions(),
        "environment": environment(),
        "choices": choices(config),
        "config": decisive(config),
        "tables": tables,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    unfinished = path.with_name(f".{name}.{os.getpid()}.part")
    try:
        unfinished.write_text(json.dumps(_plain(record), indent=1, allow_nan=False, default=str))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # Of an interrupt, or of a full disk.
    return path


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def note(folder: Path, names: Iterable[str]) -> None:
    """Add runs to the list of the sweep at hand."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / SWEEP).open("a") as list_of_runs:
        list_of_runs.write("".join(f"{name}\n" for name in names))


def paths(folder: Path) -> list[Path]:
    """The runs of a sweep's folder, or all of a folder of runs."""
    noted = folder / SWEEP
    if not noted.exists():
        return sorted(folder.glob("*.json"))
    return [
        folder.parent / RUNS / f"{name}.json" for name in dict.fromkeys(noted.read_text().split())
    ]


def choices(config: DictConfig) -> dict[str, str]:
    """Names of the chosen files of conf/, where Hydra knows them."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return {}
    chosen = HydraConfig.get().runtime.choices
    groups = ("experiment", "data", "shift", "classifier", "method")
    return {group: str(chosen[group]) for group in groups if chosen.get(group) is not None}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "sees-torch": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def environment() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
    }


def _plain(value: Any) -> Any:
    """NaN and infinities as None: they are no JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
