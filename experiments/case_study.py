"""The COVID-19 case study: one draw with the classifier's probabilities, all methods.

    python -m experiments.case_study --data FOLDER

The folder holds covid/case_study_source.csv.gz and covid/case_study_target.csv.gz: eight features,
`positive`, `proba_positive`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.datasets import load_shift
from experiments.simulated import METHODS
from sees_torch import KnownWeights, estimate_shift


def case_study(folder: Path) -> pd.DataFrame:
    """Every method's weights, gap and features beside the truth, gaps in points."""
    parts = []
    for side in ("source", "target"):
        path = folder / "covid" / f"case_study_{side}.csv.gz"
        if not path.exists():
            raise SystemExit(f"no {path}.")
        parts.append(pd.read_csv(path))
    aside = ["positive", "proba_positive"]
    source, target = parts
    inputs = {
        "source": source.drop(columns=aside),
        "labels": source["positive"],
        "target": target.drop(columns=aside),
        "source_proba": source["proba_positive"],
        "target_proba": target["proba_positive"],
    }
    right = [((part["proba_positive"] > 0.5) == part["positive"]).mean() for part in parts]
    shift = load_shift("covid_case_study")
    (feature,) = shift.features
    cells = zip(source[feature], source["positive"], strict=True)
    truth = np.array([shift.weights[cell] for cell in cells])
    known = KnownWeights(shift.weights, (feature,))
    rows = []
    for name, method in {**METHODS, "true weights": known}.items():
        report = estimate_shift(**inputs, method=method)
        weights = report.weights.numpy()
        gaps = {}
        for estimator in ("ipw", "plugin", "dr"):
            fitted = KnownWeights(report.weight_function)
            gaps[f"gap {estimator}"] = (
                100 * estimate_shift(**inputs, method=fitted, estimator=estimator).gap
            )
        rows.append(
            {
                "method": name,
                "gap": 100 * report.gap,
                **gaps,
                "true gap": 100 * (right[1] - right[0]),
                "weight MSE": np.mean((weights - truth) ** 2),
                "weight PCC": np.corrcoef(weights, truth)[0, 1] if weights.std() else np.nan,
                "features": ", ".join(report.shifted_features),
            }
        )
    return pd.DataFrame(rows).set_index("method")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    print(case_study(parser.parse_args().data).round(3).to_string())


if __name__ == "__main__":
    main()
