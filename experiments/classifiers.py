"""Classifiers of an experiment: `fit(features, labels)` returns a model with predict_proba."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from torch import nn

from experiments.boosting import quick_leaves
from sees_torch import SchemaError

Coding = Literal["ordinal", "one-hot"]


class Classifier(Protocol):
    """What an experiment trains; `hidden` columns are for the classifier only, no features."""

    hidden: tuple[str, ...]

    def fit(self, features: pd.DataFrame, labels: np.ndarray) -> Any:
        """A model with `predict_proba` and `classes_`."""


def coder(features: pd.DataFrame, coding: Coding) -> Any:
    """Columns as numbers: text as codes for trees, else as indicators beside scaled numbers."""
    text = list(features.select_dtypes(exclude="number").columns)
    if coding == "ordinal":
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        return make_column_transformer((codes, text), remainder="passthrough")
    indicators = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_column_transformer((indicators, text), remainder=StandardScaler())


def filled(features: pd.DataFrame) -> pd.DataFrame:
    """Missing values as a level of their own."""
    holes = features.columns[features.isna().any()]
    kinds = {name: pd.api.types.is_numeric_dtype(features[name]) for name in holes}
    return features.fillna({name: -1 if number else "missing" for name, number in kinds.items()})


@dataclass(frozen=True)
class Tabular:
    """A scikit-learn classifier on coded columns."""

    estimator: BaseEstimator
    coding: Coding = "ordinal"
    hidden: tuple[str, ...] = ()

    def fit(self, features: pd.DataFrame, labels: np.ndarray) -> Fitted:
        features = filled(features)
        model = make_pipeline(coder(features, self.coding), clone(self.estimator))
        with quick_leaves():
            model.fit(features, labels)
        return Fitted(model.predict_proba, tuple(model.classes_.tolist()))


@dataclass(frozen=True)
class Network:
    """Any torch module that maps coded columns to logits, trained by Adam on the log loss.

    Args:
        module: called with (number of coded columns, number of classes).
        epochs, batch, rate: passes over the rows, rows a step, step size.
        seed: of the first weights and of the order of rows.
    """

    module: Callable[[int, int], nn.Module]
    epochs: int = 30
    batch: int = 200
    rate: float = 1e-3
    seed: int = 0
    hidden: tuple[str, ...] = ()

    def fit(self, features: pd.DataFrame, labels: np.ndarray) -> Fitted:
        features = filled(features)
        columns = coder(features, "one-hot").fit(features)
        classes, codes = np.unique(labels, return_inverse=True)
        inputs = torch.from_numpy(columns.transform(features)).float()
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)  # Modules draw their first weights globally.
            module = self.module(inputs.shape[1], len(classes))
            _train(module, inputs, torch.from_numpy(codes), self.epochs, self.batch, self.rate)

        @torch.no_grad()
        def probabilities(rows: pd.DataFrame) -> np.ndarray:
            coded = torch.from_numpy(columns.transform(rows)).float()
            return module(coded).double().softmax(dim=1).numpy()

        return Fitted(probabilities, tuple(classes.tolist()))


@dataclass(frozen=True)
class Given:
    """A finished binary classifier whose probability of the last class is a column of the table."""

    column: str

    @property
    def hidden(self) -> tuple[str, ...]:
        return (self.column,)

    def fit(self, features: pd.DataFrame, labels: np.ndarray) -> Fitted:
        if self.column not in features:
            raise SchemaError(
                f"classifier=given reads probabilities from the column {self.column!r}; the "
                f"table has {list(features.columns)}. Set classifier.column."
            )

        def probabilities(rows: pd.DataFrame) -> np.ndarray:
            last = rows[self.column].to_numpy(dtype=float)
            return np.stack([1 - last, last], axis=1)

        return Fitted(probabilities, tuple(np.unique(labels).tolist()))


@dataclass(frozen=True)
class Remembered:
    """A classifier whose probabilities are kept in a folder and trained for only when not there.

    Args:
        classifier: the one to train.
        folder: where probabilities are kept, a file for every training and table of rows.
        name: tells classifiers and their settings apart.
    """

    classifier: Classifier
    folder: Path
    name: str

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.classifier.hidden

    def fit(self, features: pd.DataFrame, labels: np.ndarray) -> Fitted:
        training = _digest(self.name, features, pd.Series(labels))
        trained: list[Fitted] = []

        def probabilities(rows: pd.DataFrame) -> np.ndarray:
            path = self.folder / f"{_digest(training, rows)}.npz"
            if path.exists():
                with np.load(path) as kept:
                    return kept["probabilities"]
            if not trained:
                trained.append(self.classifier.fit(features, labels))
            found = trained[0].predict_proba(rows)
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{path.stem}.{os.getpid()}.npz")
            try:
                np.savez_compressed(unfinished, probabilities=found)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)  # Of an interrupt, or of a full disk.
            return found

        return Fitted(probabilities, tuple(np.unique(labels).tolist()))


def _digest(name: str, *tables: pd.DataFrame | pd.Series) -> str:
    """A name for what follows from these tables."""
    digest = hashlib.sha256(name.encode())
    for table in tables:
        if isinstance(table, pd.DataFrame):
            digest.update(str(list(table.columns)).encode())
        digest.update(pd.util.hash_pandas_object(table, index=False).to_numpy().tobytes())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class Fitted:
    """A trained classifier."""

    probabilities: Callable[[pd.DataFrame], np.ndarray]
    classes_: tuple[Any, ...]

    def predict_proba(self, features: pd.DataFrame) -> np.ndarray:
        """The probabilities of every row; equal rows are asked for once."""
        features = filled(features)
        place = features.groupby(list(features.columns), sort=False).ngroup().to_numpy()
        _, first = np.unique(place, return_index=True)
        return self.probabilities(features.iloc[first])[place]


class TwoLayers(nn.Sequential):
    """The paper's network: one layer of hidden units and one of outputs."""

    def __init__(self, inputs: int, outputs: int, hidden: int = 100) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _train(
    module: nn.Module,
    inputs: torch.Tensor,
    codes: torch.Tensor,
    epochs: int,
    batch: int,
    rate: float,
) -> None:
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(codes)).split(batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs[rows]), codes[rows]).backward()
            optimiser.step()
