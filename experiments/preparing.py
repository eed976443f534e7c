"""From files as they are published to the tables of the paper; each takes and returns a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

FIFTIES = (25_000, 75_000, 125_000, 175_000, 225_000)
BANKCHURN_CUTS: dict[str, Sequence[float]] = {
    "CreditScore": (450, 550, 650, 750, 850),
    "Age": (25, 35, 45, 55, 65, 75, 85),
    "Tenure": (2, 5, 8),
    "Balance": FIFTIES,
    "NumOfProducts": (2, 3, 4),
    "EstimatedSalary": FIFTIES,
}
CREDIT_CUTS: dict[str, Sequence[float]] = {
    "AGE": (25, 35, 45),
    **{f"PAY_{month}": (1,) for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": (15_500,) for month in range(1, 7)},
    **{f"PAY_AMT{month}": (12_500,) for month in range(1, 7)},
}
DEFAULT = "default payment next month"


def bin_bankchurn(frame: pd.DataFrame) -> pd.DataFrame:
    """Kaggle's table with continuous columns cut as in the paper; a cut table stays as it is."""
    if "RowNumber" not in frame:
        return frame
    frame = frame.drop(columns=["RowNumber", "CustomerId", "Surname"])
    return _cut(frame, BANKCHURN_CUTS, {"HasCrCard": 0, "IsActiveMember": 0, "Exited": 0})


def bin_credit(frame: pd.DataFrame) -> pd.DataFrame:
    """UCI's table cut as in the paper, without the 54 of no marital status."""
    if "ID" not in frame:
        return frame
    frame = frame[frame["MARRIAGE"] != 0].drop(columns="ID").reset_index(drop=True)
    frame = frame.rename(columns={"default.payment.next.month": DEFAULT})
    frame = frame.assign(
        LIMIT_BAL=(frame["LIMIT_BAL"] >= 150_000).astype(int),
        EDUCATION=frame["EDUCATION"].astype(int),
    )
    return _cut(frame, CREDIT_CUTS, {"LIMIT_BAL": 0, "SEX": 1, "MARRIAGE": 1, DEFAULT: 0})


def unfold_counts(frame: pd.DataFrame, month: str | None = None) -> pd.DataFrame:
    """A row a test from counts of identical rows, of one month; other tables stay as they are."""
    if "count" not in frame:
        return frame
    if month is not None:
        frame = frame[frame["month"] == month]
    frame = frame.drop(columns="month").fillna("missing")
    return frame.loc[frame.index.repeat(frame.pop("count"))].reset_index(drop=True)


def without(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The table without some columns."""
    return frame.drop(columns=list(columns))


def coarse_census(frame: pd.DataFrame) -> pd.DataFrame:
    """MAR as married or not and RAC1P as white or not: published samples group them so."""
    return frame.assign(RAC1P=frame["RAC1P"].clip(upper=2), MAR=frame["MAR"].clip(upper=2))


def fatal_or_not(frame: pd.DataFrame) -> pd.DataFrame:
    """Was the injury fatal? Race and Hispanic origin are recorded of the dead only."""
    fatal = (frame["INJURY_SEVERITY"] == "Fatal_Injury").astype(int)
    return frame.drop(columns=["RACE", "HISPANIC_ORIGIN"]).assign(INJURY_SEVERITY=fatal)


def _cut(
    frame: pd.DataFrame, cuts: dict[str, Sequence[float]], named: dict[str, int]
) -> pd.DataFrame:
    """Columns cut at the points, others named a, a1, ... from their first code on."""
    new: dict[str, object] = {
        name: np.searchsorted(np.asarray(points), frame[name].to_numpy(), side="right")
        for name, points in cuts.items()
    }
    for name, first in named.items():
        place = frame[name].to_numpy().astype(int) - first
        new[name] = np.where(place == 0, "a", np.char.add("a", place.astype(str)))
    return frame.assign(**new)
