"""Why no method sees the fall of accuracy from California to Texas on FARS.

    python -m experiments.fars --data FOLDER

Labels of the target are used throughout, to look for the cause; `python -m experiments.get_data`
fills the folder. The suspects are the columns on tests for alcohol and drugs.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.datasets import CONF
from experiments.shifts import Draw, Drawing, Natural
from experiments.tables import CsvTable, Table
from sees_torch import SEESem, SeesError, SeesWarning, estimate_shift

PAIR = ("California", "Texas")
ALCOHOL, DRUGS = "ALCOHOL_TEST_TYPE", "DRUG_TEST_TYPE_(1_of_3)"


@dataclass(frozen=True)
class Without:
    """A table without some of its columns."""

    table: CsvTable
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def label(self) -> str:
        return self.table.label

    @property
    def samples(self) -> Sequence[str]:
        return self.table.samples

    def load(self, sample: str | None = None) -> pd.DataFrame:
        return self.table.load(sample).drop(columns=list(self.columns))


def about_tests(table: Table) -> tuple[str, ...]:
    """Columns on tests for alcohol and drugs and on what the police said of either."""
    columns = table.load(PAIR[0]).columns
    return tuple(name for name in columns if "ALCOHOL" in name or "DRUG" in name)


def rates(table: Table, feature: str) -> pd.DataFrame:
    """Share of each level and of the dead in it, in both states, in percent."""
    sides = {state: table.load(state) for state in PAIR}
    columns = {}
    for state, frame in sides.items():
        columns[f"{state}, share"] = frame[feature].value_counts(normalize=True)
        columns[f"{state}, died"] = frame.groupby(feature)[table.label].mean()
    return 100 * pd.DataFrame(columns)


def missed(draw: Draw) -> dict[str, float]:
    """Share of the dead that the classifier calls survivors, in source and target, in percent."""
    shares = {}
    for side, truth in (("source", draw.inputs["labels"]), ("target", draw.target_labels)):
        died = np.asarray(truth) == 1
        called = draw.inputs[f"{side}_proba"].argmax(axis=1)
        shares[f"missed dead, {side}"] = 100 * float(np.mean(called[died] == 0))
    return shares


def explained(draw: Draw, features: Sequence[str]) -> float:
    """Gap in points when the shift of (features, label) is known from the target's labels."""
    source, target = (
        pd.MultiIndex.from_frame(draw.inputs[side][list(features)].assign(label=labels))
        for side, labels in (("source", draw.inputs["labels"]), ("target", draw.target_labels))
    )
    shares = [rows.value_counts(normalize=True) for rows in (source, target)]
    weights = (shares[1].reindex(shares[0].index).fillna(0.0) / shares[0]).reindex(source)
    right = draw.inputs["source_proba"].argmax(axis=1) == draw.inputs["labels"]
    return 100 * float(np.mean((weights.to_numpy() - 1) * right))


def looked_into(table: CsvTable, classifier: Any, how: Drawing) -> Iterator[dict[str, Any]]:
    """Gaps of one draw, true and estimated, with and without the suspects."""
    tests = about_tests(table)
    for name, rows in (("all columns", table), ("without tests", Without(table, tests))):
        (draw,) = Natural([PAIR]).draws(rows, classifier, how)
        found = {"seed": how.seed, "columns": name, "true gap": 100 * draw.realised_gap}
        found["default"] = 100 * estimate_shift(**draw.inputs, confidence=None).gap
        if rows is table:
            for features in ((ALCOHOL,), (DRUGS,), (ALCOHOL, DRUGS)):
                words = " and ".join(name.split("_")[0].lower() for name in features)
                told = SEESem(features=features)
                report = estimate_shift(**draw.inputs, method=told, confidence=None)
                found[f"{words}: weights known"] = explained(draw, features)
                found[f"{words}: SEES-em told"] = 100 * report.gap
        yield found | missed(draw)


def main() -> None:
    """Print the rates and the gaps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    table, classifier = (
        instantiate(OmegaConf.load(CONF / place))
        for place in ("data/fars.yaml", "classifier/decision_tree.yaml")
    )
    table = replace(table, folder=str(options.data))
    warnings.simplefilter("ignore", SeesWarning)  # On levels that Texas alone has.
    try:
        for feature in (ALCOHOL, DRUGS):
            print(rates(table, feature).round(1).to_string(), "\n")
        rows = [
            row
            for seed in range(options.draws)
            for row in looked_into(table, classifier, Drawing(options.rows, seed=seed))
        ]
    except SeesError as error:
        raise SystemExit(str(error)) from None
    means = pd.DataFrame(rows).groupby("columns").mean().drop(columns="seed")
    print(f"means over {options.draws} draws of {options.rows} rows, points and percent")
    print(means.T.round(1).to_string())


if __name__ == "__main__":
    main()
