"""Natural shifts: the parts of tables that are compared."""

import pandas as pd
import pytest

from experiments.families import FAMILIES, NATURAL
from experiments.natural import SPLITS, build, names


@pytest.fixture
def folder(tmp_path):
    """A made-up table of loans."""
    rows = 400
    frame = pd.DataFrame(
        {
            "ID": range(rows),
            "EDUCATION": [1 + k % 3 for k in range(rows)],
            "AGE": [20 + k % 40 for k in range(rows)],
            "LIMIT_BAL": [1000 * k for k in range(rows)],
            "default.payment.next.month": [int(k % 7 < 2) for k in range(rows)],
        }
    )
    (tmp_path / "credit").mkdir()
    frame.to_csv(tmp_path / "credit/UCI_Credit_Card.csv.gz", index=False)
    return tmp_path


def test_a_group_is_the_rows_between_its_ends_without_the_column(folder):
    load = FAMILIES["credit-groups"].load
    young, schooled = load(folder, "AGE:0:29"), load(folder, "EDUCATION:2:2")
    assert len(young) == 100
    assert len(schooled) == 133
    assert list(young.columns[:2]) == ["EDUCATION", "LIMIT_BAL"]
    assert list(schooled.columns[:2]) == ["AGE", "LIMIT_BAL"]


def test_a_pair_of_groups_trains_on_rows_apart(folder):
    place = names("credit-groups").index("AGE:0:29-to-AGE:40:99")
    pair = build("credit-groups", place, folder, seed=0)
    assert len(pair.inputs["source"]) == 50  # The other half trained the classifier.
    assert len(pair.inputs["target"]) == 200
    assert list(pair.inputs["source"].columns) == ["EDUCATION", "LIMIT_BAL"]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_pair_is_there_twice(family):
    assert len(set(names(family))) == len(names(family))
    assert set(NATURAL) <= set(FAMILIES)


@pytest.mark.parametrize("split", ["tune", "report"])
def test_both_halves_of_employment_go_to_new_york_and_from_there(split):
    pairs = names("employ")[SPLITS[split]]
    assert len(pairs) == 4
    assert sum(pair.startswith("NY2018") for pair in pairs) == 2
    assert {pair.replace("NY2018", "").strip("-to") for pair in pairs} == {
        "MA2015", "MA2016", "MA2017", "MA2018"
    }  # fmt: skip
