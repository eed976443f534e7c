"""What single features still say about the label once the model's probability is known.

    python -m experiments.left_over --data FOLDER --table credit --draws 5

Deviance that a feature's levels take away from a logistic regression of the label on the logarithms
of the model's probabilities (which is how the library calibrates), on source rows of the paper's
simulated shifts, mean over the draws. About its degrees of freedom where the probability is
p(y|x); large where the classifier has missed or forgotten what the feature says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from experiments.classifiers import Tabular
from experiments.datasets import TABLES, load_shift, load_table
from sees_torch import ShiftedPair, resample_shift


def deviance(inputs: np.ndarray, labels: np.ndarray) -> float:
    model = LogisticRegression(C=1e3, max_iter=1000).fit(inputs, labels)
    return 2 * log_loss(labels, model.predict_proba(inputs), normalize=False)


def left_over(pair: ShiftedPair) -> dict[str, float]:
    """Feature -> deviance that it explains beyond the model's probabilities."""
    scores = np.log(np.clip(pair.source_proba, 1e-6, 1))
    alone = deviance(scores, pair.labels)
    found = {}
    for name in pair.source:
        levels = pd.get_dummies(pair.source[name], drop_first=True).to_numpy(float)
        found[name] = alone - deviance(np.hstack([scores, levels]), pair.labels)
    return found


def main() -> None:
    """Print a table: a row an order of drawing and a depth, a column a feature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", choices=TABLES, default="credit")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--depths", type=int, nargs="+", default=[50, 3])
    options = parser.parse_args()
    frame, label = load_table(options.table, options.data)
    shift = load_shift(options.table)
    rows = {}
    for order in ("draw-first", "classifier-first"):
        for depth in options.depths:
            trees = Tabular(GradientBoostingClassifier(max_depth=depth, random_state=0))
            draws = [
                resample_shift(
                    frame,
                    label,
                    shift.features,
                    shift.source_law,
                    shift.target_law,
                    n=options.rows,
                    m=options.rows,
                    fit=trees.fit,
                    order=order,  # type: ignore[arg-type]
                    generator=torch.Generator().manual_seed(seed),
                )
                for seed in range(options.draws)
            ]
            rows[order, depth] = pd.DataFrame(map(left_over, draws)).mean()
    table = pd.DataFrame(rows).T.rename_axis(["order", "depth"]).round(0)
    first = table.iloc[0].sort_values(ascending=False).index
    pd.set_option("display.width", 250, "display.max_columns", 40)
    print(table[first].to_string())


if __name__ == "__main__":
    main()
