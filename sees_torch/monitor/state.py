"""A monitor on disk: what came, what was learnt, and the chunks that are still remembered.

The source and the settings are not in it: whoever goes on brings them, and a fingerprint proves
that they are the same. So the file holds no second copy of the source, and nothing to be run.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.schema import Rows
from sees_torch.errors import SavedFileError
from sees_torch.gap import metric_name
from sees_torch.saving.container import Content, read_content, write_content

if TYPE_CHECKING:
    from sees_torch.monitor.shift_monitor import ShiftMonitor

KIND, VERSION = "monitor", 1


def save_state(monitor: ShiftMonitor, path: str | Path) -> None:
    """Write the state; a process that is killed leaves the state before."""
    tensors: dict[str, Tensor] = {}
    notes = []
    kept = monitor.window.chunks if (monitor.window.length or 1) > 1 else ()
    for number, chunk in enumerate(kept):
        parts = {
            "codes": chunk.rows.codes,
            "labels": chunk.labels,
            "proba": chunk.proba,
            "count": chunk.count,
        }
        if not chunk.rows.plain:
            parts |= {
                "values": chunk.rows.values,
                "clamped": chunk.rows.clamped.to(torch.int64),
            }
        tensors |= {f"{number}.{name}": value for name, value in parts.items()}
        notes.append(list(chunk.notes))
    if monitor.start is not None:
        tensors["start"] = monitor.start
    document = {
        "fingerprint": fingerprint(monitor),
        "rows": [[name, row] for name, row in monitor.rows.items()],
        "nulls": [[size, gaps] for size, gaps in monitor.nulls.items()],
        "chunks": notes,
        "start": monitor.start is not None,
    }
    write_content(path, KIND, VERSION, document, tensors)


def load_state(monitor: ShiftMonitor, path: str | Path) -> None:
    """Put the state of a file into a monitor that has none yet."""
    if monitor.rows or monitor.window.chunks:
        raise SavedFileError("this monitor has seen chunks already: resume with a new one.")
    content = read_content(path, KIND, VERSION)
    document = content.document
    if document.get("fingerprint") != fingerprint(monitor):
        raise SavedFileError(
            f"{path} belongs to another source or to other settings: give those that it was made "
            "with, or begin a new state."
        )
    try:
        rows = {name: row for name, row in document["rows"]}
        nulls = {int(size): [float(gap) for gap in gaps] for size, gaps in document["nulls"]}
        chunks = [
            _chunk(monitor, content, number, notes)
            for number, notes in enumerate(document["chunks"])
        ]
        start = _start(monitor, content) if document.get("start") else None
    except (KeyError, TypeError, ValueError) as error:
        raise SavedFileError(f"{path} is damaged: {error!r}. Restore it from a copy.") from None
    monitor.rows, monitor.nulls, monitor.start = rows, nulls, start
    monitor.window.chunks = deque(chunks, maxlen=monitor.window.length)


def _start(monitor: ShiftMonitor, content: Content) -> Tensor:
    source = monitor.source.merged
    start = content.tensor("start", None, len(source.classes)).to(source.proba.device)
    if not bool((start >= 0).all() and (start > 0).any()):
        raise SavedFileError("the saved solution is damaged: it must be >= 0 and not all zero.")
    return start


def _chunk(monitor: ShiftMonitor, content: Content, number: int, notes: list[str]) -> Target:
    source = monitor.source.given
    d, labels = len(source.schema.columns), len(source.classes)
    device = source.proba.device
    codes = content.tensor(f"{number}.codes", None, d, integer=True).to(device)
    sizes = torch.tensor(source.schema.cardinalities, device=device)
    if bool(((codes < 0) | (codes >= sizes)).any()):
        raise SavedFileError("the saved chunks are damaged: a code is out of range.")
    m = len(codes)
    rows = Rows.coded(codes)
    if any(source.schema.continuous):
        values = content.tensor(f"{number}.values", m, d).to(device)
        clamped = content.tensor(f"{number}.clamped", m, d, integer=True).to(device)
        rows = Rows(codes, values, clamped.to(torch.bool))
    chunk = Target.__new__(Target)
    chunk.schema, chunk.classes, chunk.rows = source.schema, source.classes, rows
    chunk.labels = content.tensor(f"{number}.labels", m, integer=True).to(device)
    chunk.proba = chunk.posterior = content.tensor(f"{number}.proba", m, labels).to(device)
    chunk.count = content.tensor(f"{number}.count", m).to(device)
    chunk.notes = tuple(notes)
    return chunk


def fingerprint(monitor: ShiftMonitor) -> str:
    """A hash of all that estimates and alerts depend on besides the chunks.

    Settings that are at their defaults leave no trace in it: one that a later version adds does
    not part it from states of this one.
    """
    how, source = monitor.estimation, monitor.source.merged
    columns = [
        (c.name, c.kind, c.levels, c.edges, c.low, c.high, c.dated) for c in source.schema.columns
    ]
    about = (
        monitor.source_digest,
        columns,
        source.classes,
        _settings(how.method),
        [metric_name(metric) for metric in how.metrics],
        (how.estimator, how.confidence, how.calibrate, how.replicates),
        None if monitor.alerts is None else _settings(monitor.alerts),
        (monitor.window.length, monitor.window.half_life, monitor.min_rows),
    )
    return hashlib.sha256(repr(about).encode()).hexdigest()


def digest_source(source: Source) -> str:
    """A hash of the distinct rows and their counts, whatever their order."""
    columns = (
        source.rows.codes,
        source.rows.values,
        source.labels[:, None],
        source.proba.detach(),
        source.count[:, None],
    )
    table = torch.cat([part.to(torch.float64).cpu() for part in columns], dim=1).numpy()
    rows = np.ascontiguousarray(table).view(np.dtype((np.void, 8 * table.shape[1])))
    return hashlib.sha256(b"".join(sorted(rows[:, 0].tolist()))).hexdigest()


def _settings(value: Any) -> tuple[str, dict[str, Any]]:
    """The kind of a configuration, and what of it is not at its default."""
    known = fields(value) if is_dataclass(value) else ()
    given = {part.name: getattr(value, part.name) for part in known}
    changed = {part.name for part in known if repr(given[part.name]) != repr(part.default)}
    return type(value).__qualname__, {name: given[name] for name in sorted(changed)}
