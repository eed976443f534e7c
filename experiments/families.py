"""Tables whose parts differ by nature: places, years, months, and groups of people.

Pairs of groups are there to decide rules on; the others are split into pairs to decide on and pairs
to report (`experiments.natural --split`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path

import pandas as pd

from experiments.preparing import fatal_or_not


@dataclass(frozen=True)
class Family:
    """Samples of one table from several places or times, and the pairs of them to compare."""

    label: str
    load: Callable[[Path, str], pd.DataFrame]
    pairs: list[tuple[str, str]]
    where: str


def _income(folder: Path, state: str) -> pd.DataFrame:
    frame = pd.read_csv(folder / f"income/{state}.csv.gz")
    # The sample of California tells white from not white only.
    return frame.assign(RAC1P=frame["RAC1P"].clip(upper=2))


def _employ(folder: Path, sample: str) -> pd.DataFrame:
    """A state and year, "adults" as the sample of New York has no one under 17."""
    name, _, adults = sample.partition(" ")
    frame = pd.read_csv(folder / f"employ/{name}.csv.gz")
    return frame[frame["AGEP"] >= 17] if adults else frame


def _insurance(folder: Path, sample: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"insurance/{sample}.csv.gz")


def _covid(folder: Path, month: str) -> pd.DataFrame:
    counts = pd.read_csv(folder / "covid/covid_2020_counts.csv.gz")
    counts = counts[counts["month"] == month].drop(columns="month").fillna("missing")
    return counts.loc[counts.index.repeat(counts.pop("count"))]


def _group(
    read: Callable[[Path], pd.DataFrame],
) -> Callable[[Path, str], pd.DataFrame]:
    """Rows of a table by one column, "column:value" or "column:least:most", without the column."""

    def load(folder: Path, group: str) -> pd.DataFrame:
        column, *ends = group.split(":")
        frame = read(folder)
        values = frame[column]
        kept = values.between(*map(float, ends)) if len(ends) == 2 else values == ends[0]
        return frame[kept].drop(columns=column)

    return load


def _credit(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "credit/UCI_Credit_Card.csv.gz").drop(columns="ID")


def _churn(folder: Path) -> pd.DataFrame:
    frame = pd.read_csv(folder / "bankchurn/Churn_Modelling.csv.gz")
    return frame.drop(columns=["RowNumber", "CustomerId", "Surname"])


def _fars(folder: Path, state: str) -> pd.DataFrame:
    """Without the columns on tests for alcohol and drugs, which states code differently."""
    frame = fatal_or_not(pd.read_csv(folder / "fars/fars.csv.gz"))
    tests = [name for name in frame if "ALCOHOL" in name or "DRUG" in name]
    return frame[frame["CASE_STATE"] == state].drop(columns=[*tests, "CASE_STATE"])


def _both_ways(*groups: tuple[str, ...]) -> list[tuple[str, str]]:
    return [pair for some in groups for pair in permutations(some, 2)]


NEW_YORK = "NY_2018_sample20k adults"
MA_YEARS = ["MA_2015", "MA_2016", "MA_2017", "MA_2018"]
STATES = (
    *("California", "Texas", "Florida", "Georgia", "New_York", "North_Carolina"),
    *("Pennsylvania", "Illinois", "Michigan", "Ohio", "Arizona"),
)
FAMILIES = {
    "income": Family(
        "y",
        _income,
        list(permutations(["CA", "CO", "KS", "OH"], 2)),
        "folktables, ACSIncome 2018, MAR made binary and RAC1P put in groups",
    ),
    "employ": Family(
        "y",
        _employ,
        # Both directions in both halves of `--split`.
        [
            pair if year % 2 else pair[::-1]
            for year, name in enumerate(reversed(MA_YEARS), start=1)
            for pair in permutations((f"{name} adults", NEW_YORK))
        ],
        "folktables, ACSEmployment; Massachusetts also inside the wheel nannyml==0.13.1",
    ),
    "employ-years": Family(
        "y",
        _employ,
        [*pairwise(MA_YEARS), (MA_YEARS[0], MA_YEARS[-1])],
        "python -m experiments.get_data FOLDER",
    ),
    "insurance": Family(
        "y",
        _insurance,
        list(permutations(["CT_2018", "CT_2019", "CT_2021"], 2)),
        "folktables, ACSPublicCoverage, Connecticut",
    ),
    "covid": Family(
        "corona_result",
        _covid,
        list(permutations(["2020-04", "2020-06", "2020-08", "2020-10"], 2)),
        "data.gov.il, 'COVID-19 tested individuals', counted by identical rows and month",
    ),
    "credit-groups": Family(
        "default.payment.next.month",
        _group(_credit),
        _both_ways(
            ("EDUCATION:1:1", "EDUCATION:2:2", "EDUCATION:3:3"),
            ("AGE:0:29", "AGE:40:99"),
            ("LIMIT_BAL:0:99999", "LIMIT_BAL:200000:9999999"),
        ),
        "python -m experiments.get_data FOLDER",
    ),
    "churn-groups": Family(
        "Exited",
        _group(_churn),
        _both_ways(
            ("Gender:Female", "Gender:Male"),
            ("Age:0:34", "Age:45:99"),
            ("Tenure:0:4", "Tenure:5:10"),
        ),
        "Kaggle, 'Churn Modelling'",
    ),
    "income-groups": Family(
        "y",
        _group(lambda folder: _income(folder, "OH")),
        _both_ways(
            ("AGEP:0:34", "AGEP:50:99"), ("SEX:1:1", "SEX:2:2"), ("WKHP:0:35", "WKHP:40:40")
        ),
        "folktables, ACSIncome 2018",
    ),
    "employ-groups": Family(
        "y",
        _group(lambda folder: _employ(folder, "MA_2016")),
        _both_ways(
            ("NATIVITY:1:1", "NATIVITY:2:2"), ("SEX:1:1", "SEX:2:2"), ("MIG:1:1", "MIG:2:9")
        ),
        "python -m experiments.get_data FOLDER",
    ),
    "insurance-groups": Family(
        "y",
        _group(lambda folder: _insurance(folder, "CT_2019")),
        _both_ways(("Sex:1:1", "Sex:2:2"), ("Race:1:1", "Race:2:9")),
        "folktables, ACSPublicCoverage, Connecticut",
    ),
    "covid-groups": Family(
        "corona_result",
        _group(lambda folder: _covid(folder, "2020-10")),
        _both_ways(
            ("gender:female", "gender:male"), ("age_60_and_above:No", "age_60_and_above:Yes")
        ),
        "data.gov.il, 'COVID-19 tested individuals', counted by identical rows and month",
    ),
    "fars": Family(
        "INJURY_SEVERITY", _fars, list(pairwise(STATES)), "python -m experiments.get_data FOLDER"
    ),
}
NATURAL = ("income", "employ", "insurance", "covid")
"""Families that are split into pairs to decide on and pairs to report."""
