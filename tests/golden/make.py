"""Writes the golden files of the present forms: `python -m tests.golden.make`.

Run it once when a form gets a new version, keep the files of the older versions, and add the new
names to `tests/saving/test_golden.py`. Each file has a .json beside it with what must come back.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from sees_torch import Alerts, SEESem, ShiftMonitor, estimate_shift, save_weights
from sees_torch.monitor import state
from sees_torch.saving import report_form, weight_forms

HERE = Path(__file__).parent
METHODS = {
    "table": SEESem(features=("town",)),
    "constant": "mlls",
    "basis": "sees-c",
    "gauss": "kliep",
    "odds": "dlu",
}


def world(rows: int = 240) -> dict:
    """Text, numbers, missing values and text labels, without a random number."""
    place = np.arange(rows)
    frame = pd.DataFrame(
        {
            "town": np.array(["Bern", "Genf", "Chur"])[place % 3],
            "age": 20.0 + (place * 37 % 61),
            "flag": place % 7 < 3,
        }
    )
    frame.loc[place % 29 == 0, "age"] = np.nan
    labels = np.where((place * 13 % 17) < 6 + 4 * (place % 3), "yes", "no")
    proba = 0.2 + 0.5 * (place * 13 % 17 < 9) + 0.1 * (place % 3 == 0)
    keep = (place % 3 != 0) | (place % 2 == 0)
    return {
        "source": frame,
        "labels": labels,
        "source_proba": proba,
        "target": frame[keep].reset_index(drop=True),
        "target_proba": proba[keep],
    }


def main() -> None:
    given = world()
    for name, method in METHODS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = estimate_shift(**given, method=method, replicates=20)
        stem = HERE / f"weights_{name}_v{weight_forms.VERSION}"
        save_weights(report.weight_function, stem.with_suffix(".sees"))
        stem.with_suffix(".json").write_text(json.dumps(report.weights.tolist()) + "\n")
        if name == "table":
            stem = HERE / f"report_v{report_form.VERSION}"
            report.save(stem.with_suffix(".sees"))
            kept = {"figures": report.to_dict(), "text": str(report)}
            stem.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    save_monitor()


def monitor() -> ShiftMonitor:
    """A monitor of the world with all that a state holds."""
    given = world()
    alerts = Alerts(drop=0.01, false_alarms=0.5, horizon=2)
    return ShiftMonitor(
        given["source"],
        given["labels"],
        source_proba=given["source_proba"],
        method="mlls",
        replicates=10,
        alerts=alerts,
        window=2,
        min_rows=20,
    )


def save_monitor() -> None:
    given, watching = world(), monitor()
    for first in (0, 70, 140):
        rows = slice(first, first + 70 if first else 10)
        watching.observe(given["target"][rows], given["target_proba"][rows], name=f"from {first}")
    stem = HERE / f"monitor_v{state.VERSION}"
    watching.save(stem.with_suffix(".sees"))
    stem.with_suffix(".json").write_text(watching.to_frame().to_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
