"""The real tables of the paper, from a folder that the user names; nothing is downloaded here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parent.parent / "conf"


@dataclass(frozen=True)
class Table:
    """A labelled table and where to get it."""

    path: str
    label: str
    columns: int
    where: str


TABLES = {
    "bankchurn": Table(
        "bankchurn/bankchurn_binned.csv.gz",
        "Exited",
        11,
        "Kaggle, 'Churn Modelling', continuous columns cut into three or four levels",
    ),
    "credit": Table(
        "credit/credit_binned.csv.gz",
        "default payment next month",
        24,
        "UCI, 'default of credit card clients', continuous columns cut into levels",
    ),
    "covid": Table(
        "covid/covid_2020_counts.csv.gz",
        "corona_result",
        11,
        "data.gov.il, 'COVID-19 tested individuals', counted by identical rows and month",
    ),
}
COVID_MONTH = "2020-10"


@dataclass(frozen=True)
class Shift:
    """The laws of (features, label) in source and target."""

    features: list[str]
    shifted: tuple[str, ...]
    source_law: dict[Any, Any]
    target_law: dict[Any, Any]


def load_table(name: str, folder: Path) -> tuple[pd.DataFrame, str]:
    """The table and the name of its label column."""
    table = TABLES[name]
    path = folder / table.path
    if not path.exists():
        raise SystemExit(f"no {path}. Get it from: {table.where}.")
    frame = pd.read_csv(path)
    if len(frame.columns) != table.columns or table.label not in frame.columns:
        raise SystemExit(
            f"{path} should have {table.columns} columns with the label {table.label!r}, "
            f"it has {list(frame.columns)}."
        )
    if name == "covid":
        frame = frame[frame["month"] == COVID_MONTH].drop(columns="month").fillna("missing")
        frame = frame.loc[frame.index.repeat(frame.pop("count"))].reset_index(drop=True)
    return frame, table.label


def load_shift(name: str) -> Shift:
    """The simulated shift that belongs to a table."""
    shift: Any = OmegaConf.to_container(OmegaConf.load(CONF / "shift" / f"{name}.yaml"))
    return Shift(
        shift["features"], tuple(shift["shifted"]), shift["source_law"], shift["target_law"]
    )
