"""Labelled tables from a folder that the user names, and simulated ones that need no file.

Nothing is downloaded here: `python -m experiments.get_data` does that for what can be had by pip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
import torch

from sees_torch import SchemaError, SeesError, make_sparse_joint_shift


class Table(Protocol):
    """What an experiment draws from."""

    name: str
    label: str
    samples: Sequence[str]

    def load(self, sample: str | None = None) -> pd.DataFrame:
        """The rows, features and label, of one sample or of all."""


@dataclass(frozen=True)
class CsvTable:
    """A CSV file, or one a sample: a place, a year.

    Args:
        name: as tables and figures show it.
        path: file below the folder, or several to look for in turn. `*` joins files; `{sample}`
            stands for the sample.
        label: name of the label column; it may be empty or absent in a sample that is only a
            target.
        folder: where the files are; by default what SEES_DATA names.
        where: how to get the file.
        features: number of feature columns that the table should have.
        rows: number of rows that the table should have.
        samples: names of the samples, whose pairs are natural shifts.
        by: column that tells the samples apart where they share a file; no feature then.
        prepare: makes the table of the file.
    """

    name: str
    path: str | Sequence[str]
    label: str
    folder: str | None = None
    where: str = ""
    features: int | None = None
    rows: int | None = None
    samples: Sequence[str] = ()
    by: str | None = None
    prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    def load(self, sample: str | None = None) -> pd.DataFrame:
        """Read, prepare and check.

        Raises:
            SeesError: there is no file, or it is another one than the configuration describes.
        """
        files = self._files(sample)
        frame = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
        try:
            frame = self.prepare(frame) if self.prepare else frame
            if self.by is not None:
                column = frame.pop(self.by)
                frame = frame if sample is None else frame[column == sample]
        except KeyError as error:
            raise SchemaError(f"{files[0]} has no column {error}. {self._advice()}") from None
        return self._checked(frame.reset_index(drop=True), files[0])

    def _files(self, sample: str | None) -> list[Path]:
        if self.folder is None:
            raise SeesError(
                f"where is {self.name}? Name its folder by data.folder=FOLDER or the environment "
                f"variable SEES_DATA, or take data=simulated. {self._advice()}"
            )
        names = [self.path] if isinstance(self.path, str) else list(self.path)
        for name in names:
            found = sorted(Path(self.folder).glob(name.replace("{sample}", sample or "*")))
            if found:
                return found
        sought = " or ".join(names).replace("{sample}", sample or "*")
        raise SeesError(f"no {sought} in {self.folder}. {self._advice()}")

    def _checked(self, frame: pd.DataFrame, file: Path) -> pd.DataFrame:
        features = len(frame.columns.drop(self.label, errors="ignore"))
        if self.features not in (None, features):
            raise SchemaError(
                f"{file} should have {self.features} features besides {self.label!r}, "
                f"it has {list(frame.columns)}. {self._advice()}"
            )
        if self.rows not in (None, len(frame)) or frame.empty:
            raise SchemaError(
                f"{file} should have {self.rows or 'some'} rows, it has {len(frame)}. "
                f"{self._advice()}"
            )
        return frame

    def _advice(self) -> str:
        return f"Get it from: {self.where}." if self.where else "Check path and label."


@dataclass(frozen=True)
class SimulatedTable:
    """A table that stands in where no file is at hand: discrete features, a binary label.

    Args:
        name, label: as for a file.
        rows: how many, per sample where there are samples.
        features: how many, of three levels each.
        samples: names of samples that differ from each other in the first three features with
            the label and, less, in every feature: a shift that is not sparse.
        folder: not used, so that one command line fits every table.
        seed: of the world.
    """

    name: str = "SIMULATED"
    label: str = "y"
    rows: int = 30_000
    features: int = 8
    samples: Sequence[str] = ()
    folder: str | None = None
    seed: int = 0

    def load(self, sample: str | None = None) -> pd.DataFrame:
        """The table, the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(self.seed)
        pair = make_sparse_joint_shift(
            self.rows, 1, features=self.features, strength=0.0, generator=generator
        )
        frame = pair.source.assign(**{self.label: pair.labels})
        if sample is None:
            return frame
        place = list(self.samples).index(sample)
        random = np.random.default_rng([self.seed, place])
        tilt = np.zeros(len(frame))
        for position, column in enumerate(pair.source):
            size = 0.5 if position < 3 else 0.1
            effect = size * random.normal(size=(3, 2))
            tilt += effect[frame[column], frame[self.label]]
        share = np.exp(tilt) / np.exp(tilt).sum()
        return frame.iloc[random.choice(len(frame), len(frame), p=share)].reset_index(drop=True)
