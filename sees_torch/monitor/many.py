"""One source against many targets and many models, at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from sees_torch.errors import SeesError
from sees_torch.monitor.observation import JUDGEMENT
from sees_torch.monitor.shift_monitor import ShiftMonitor

if TYPE_CHECKING:
    import pandas as pd


def estimate_many(
    source: Any,
    labels: Any,
    targets: Mapping[Hashable, Any],
    model: Any = None,
    source_proba: Any = None,
    target_probas: Mapping[Hashable, Any] | None = None,
    *,
    models: Mapping[Hashable, Any] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> pd.DataFrame:
    """One source against many targets, and if asked many models: a row for each pair.

    Args:
        source, labels: as in `estimate_shift`.
        targets: {name: table}.
        model: as in `estimate_shift`; or source_proba and target_probas, {name: probabilities}.
        models: {name: model}, to compare several.
        generator: of the resamples.
        options: other arguments of `estimate_shift`.

    >>> from sees_torch import make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=2000, m=4000)
    >>> months = {"May": pair.target[:2000], "June": pair.target[2000:]}
    >>> proba = {"May": pair.target_proba[:2000], "June": pair.target_proba[2000:]}
    >>> found = estimate_many(
    ...     pair.source, pair.labels, months, None, pair.source_proba, proba, method="mlls"
    ... )
    >>> list(found.index), found.columns[:4].tolist()
    (['May', 'June'], ['metric', 'source', 'target', 'gap'])
    """
    import pandas as pd

    if not isinstance(targets, Mapping) or not targets:
        raise SeesError("targets must be a mapping from names to tables, not empty.")
    if models is not None and (model is not None or source_proba is not None):
        raise SeesError("give either models, or model, or source_proba and target_probas.")
    if target_probas is not None and set(target_probas) != set(targets):
        raise SeesError(
            f"target_probas has {list(target_probas)}, targets has {list(targets)}: name them "
            "alike."
        )
    frames = {}
    for title, one in ({"": model} if models is None else models).items():
        monitor = ShiftMonitor(source, labels, one, source_proba, **options)
        monitor.add_many(targets, target_probas, generator=generator)
        frames[title] = monitor.to_frame().drop(columns=list(JUDGEMENT))
    return frames[""] if models is None else pd.concat(frames, names=["model"])
