"""Small streams of chunks for the tests of the monitor."""

from __future__ import annotations

import pandas as pd
import torch

from sees_torch import ShiftMonitor, make_sparse_joint_shift


class Stream:
    """A source, `quiet` chunks like it, and `shifted` ones; in seed 11 they cost 11 points."""

    def __init__(
        self, rows: int = 150, quiet: int = 4, shifted: int = 2, source: int = 600, seed: int = 11
    ):
        generator = torch.Generator().manual_seed(seed)
        pair = make_sparse_joint_shift(
            source + quiet * rows, shifted * rows, features=3, generator=generator
        )
        self.features, self.labels = pair.source[:source], pair.labels[:source]
        self.proba = pair.source_proba[:source]
        tables = pd.concat([pair.source[source:], pair.target], ignore_index=True)
        proba = torch.cat(
            [torch.as_tensor(pair.source_proba[source:]), torch.as_tensor(pair.target_proba)]
        ).numpy()
        cuts = range(0, len(tables), rows)
        self.chunks = [
            (tables[at : at + rows].reset_index(drop=True), proba[at : at + rows]) for at in cuts
        ]
        self.rows = tables.assign(p=proba[:, 1])

    def monitor(self, method="mlls", **options) -> ShiftMonitor:
        options = {"replicates": 20} | options
        return ShiftMonitor(
            self.features, self.labels, source_proba=self.proba, method=method, **options
        )

    def source_frame(self) -> pd.DataFrame:
        return self.features.assign(y=self.labels, p=self.proba[:, 1])
