"""Statistics of a data set: rows, features, labels and how its samples or draws shift."""

from __future__ import annotations

from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.measure import Tables


def describe(config: DictConfig) -> Tables:
    """One row about the table of a configuration."""
    table = instantiate(config.data)
    frame = table.load()
    shares = frame[table.label].value_counts(normalize=True)
    features = frame.drop(columns=table.label)
    row = {
        "instances": len(frame),
        "distinct rows": len(features.drop_duplicates()),
        "features": len(features.columns),
        "text features": len(features.select_dtypes(exclude="number").columns),
        "missing values": float(100 * features.isna().to_numpy().mean()),
        "labels": len(shares),
        "rarest label": float(100 * shares.min()),
        "shift": "natural: " + ", ".join(table.samples) if table.samples else "simulated",
    }
    return {"results": [row]}
