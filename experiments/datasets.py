"""The paper's three tables under simulated shift, by name: conf/data and conf/shift for scripts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.tables import CsvTable
from sees_torch import SeesError

CONF = Path(__file__).resolve().parent.parent / "conf"
TABLES: dict[str, CsvTable] = {
    name: instantiate(OmegaConf.load(CONF / "data" / f"{name}.yaml"))
    for name in ("bankchurn", "credit", "covid")
}

MOST_LEVELS = 10
STRENGTH = 0.6
"""Of random shifts: standard deviation of the log weights of cells."""


@dataclass(frozen=True)
class Shift:
    """The laws of (features, label) in source and target."""

    features: list[str]
    shifted: tuple[str, ...]
    source_law: dict[Any, Any]
    target_law: dict[Any, Any]

    @property
    def weights(self) -> dict[tuple[Any, Any], float]:
        """By (level, label), of a shift of one feature."""
        return {
            (level, label): self.target_law[level][label] / mass
            for level, masses in self.source_law.items()
            for label, mass in masses.items()
        }


def load_table(name: str, folder: Path) -> tuple[pd.DataFrame, str]:
    """The table and the name of its label column."""
    table = replace(TABLES[name], folder=str(folder))
    try:
        return table.load(), table.label
    except SeesError as error:
        raise SystemExit(str(error)) from None


def load_shift(name: str) -> Shift:
    """The simulated shift that belongs to a table."""
    shift: Any = OmegaConf.to_container(OmegaConf.load(CONF / "shift" / f"{name}.yaml"))
    shifted = tuple(shift.get("shifted", shift["features"]))
    return Shift(shift["features"], shifted, shift["source_law"], shift["target_law"])


def random_shift(table: pd.DataFrame, label: str, seed: int) -> Shift:
    """A feature of few levels, drawn at random, moves at random with the label."""
    generator = np.random.default_rng([seed, len(table)])
    few = [name for name in table if name != label and table[name].nunique() <= MOST_LEVELS]
    feature = str(generator.choice(few))
    source = table.value_counts([feature, label], normalize=True).sort_index()
    target = source * np.exp(STRENGTH * generator.normal(size=len(source)))
    laws = (
        {level: part.droplevel(0).to_dict() for level, part in law.groupby(level=0)}
        for law in (source, target / target.sum())
    )
    return Shift([feature], (feature,), *laws)
