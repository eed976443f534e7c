"""Class probabilities from a model or from the user, checked and never guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sees_torch.data.tables import is_frame
from sees_torch.errors import SchemaError, SeesError, ShapeError

TOLERANCE = 1e-4
BATCH = 8192


def read_proba(proba: Any, rows: int, what: str, device: torch.device) -> Tensor:
    """(n, L) float64 probabilities, checked; an (n,) input is that of the second class.

    Rows must be non-negative and sum to one within 1e-4, the rounding of printed files; they are
    then divided by their sum. Nothing else is repaired.
    """
    if isinstance(proba, Tensor):
        matrix = proba.to(device)
    else:
        values = proba.to_numpy() if hasattr(proba, "to_numpy") else np.asarray(proba)
        if values.dtype.kind not in "fiub":
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError):
                raise SchemaError(
                    f"{what} is not numeric (it holds {values.ravel()[:1].tolist()}). Give numbers "
                    "between 0 and 1, without percent signs."
                ) from None
        matrix = torch.tensor(values, dtype=torch.float64, device=device)
    matrix = matrix.to(torch.float64)
    if matrix.ndim == 2 and matrix.shape[1] == 1:
        matrix = matrix[:, 0]
    if matrix.ndim == 1:
        matrix = torch.stack([1 - matrix, matrix], dim=1)
    if matrix.ndim != 2:
        raise ShapeError(
            f"{what} must have shape (n, L), or (n,) for two classes; got {tuple(matrix.shape)}."
        )
    if len(matrix) != rows:
        raise ShapeError(f"{what} has {len(matrix)} rows, its features have {rows}.")
    _check_rows(matrix.detach(), what)
    clean = matrix.clamp_min(0.0)
    return clean / clean.sum(dim=1, keepdim=True)


def _check_rows(matrix: Tensor, what: str) -> None:
    if not len(matrix):
        return
    bad = ~matrix.isfinite().all(dim=1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise SeesError(
            f"{what} has {int(bad.sum())} rows with NaN or infinity, the first is row {row}. "
            "Find out why the model gives none there, or leave those rows out."
        )
    low, high = float(matrix.min()), float(matrix.max())
    if low < -TOLERANCE or high > 1 + TOLERANCE:
        raise SeesError(
            f"{what} ranges from {low:.4g} to {high:.4g}, probabilities lie in [0, 1]. "
            "If the model returns logits, pass logits=True (or apply softmax); "
            "if these are percentages, divide by 100."
        )
    gap = (matrix.sum(dim=1) - 1).abs()
    if float(gap.max()) > TOLERANCE:
        row = int(gap.argmax())
        raise SeesError(
            f"rows of {what} must sum to 1; row {row} sums to {float(matrix[row].sum()):.6g}. "
            "Give one column per class, all classes included."
        )


def proba_columns(proba: Any) -> tuple[Any, ...] | None:
    """Column names of a probability DataFrame with a column a class, else None."""
    return tuple(proba.columns) if is_frame(proba) and proba.shape[1] > 1 else None


def model_classes(model: Any) -> tuple[Any, ...] | None:
    """The class order that a fitted classifier declares, if it does."""
    declared = getattr(model, "classes_", None)
    return None if declared is None else tuple(np.asarray(declared).tolist())


def predict(model: Any, features: Any, what: str, *, logits: bool = False) -> Any:
    """The model's output on a table, as probabilities.

    Args:
        model: an nn.Module (called in eval mode, without gradient, in batches), a classifier with
            predict_proba, or a callable that takes the table.
        features: the table as the user gave it.
        what: its name, for errors.
        logits: the outputs are logits: softmax (sigmoid for one column) is applied.
    """
    if isinstance(model, nn.Module):
        output: Any = _run_module(model, features, what)
    elif hasattr(model, "predict_proba"):
        output = model.predict_proba(features)
    elif callable(model):
        output = model(features)
    else:
        raise SeesError(
            f"model is a {type(model).__name__}: give an nn.Module, a classifier with "
            "predict_proba or a callable, or give source_proba and target_proba."
        )
    if not logits:
        return output
    scores = output if isinstance(output, Tensor) else torch.tensor(np.asarray(output))
    scores = scores.to(torch.float64)
    if scores.ndim == 1 or scores.shape[-1] == 1:
        return scores.sigmoid().reshape(-1)
    return scores.softmax(dim=-1)


def _run_module(model: nn.Module, features: Any, what: str) -> Tensor:
    inputs = features if isinstance(features, Tensor) else _numeric_tensor(features, what)
    parameter = next(model.parameters(), None)
    if parameter is not None:
        inputs = inputs.to(parameter.device)
        if parameter.is_floating_point():
            inputs = inputs.to(parameter.dtype)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [model(batch) for batch in inputs.split(BATCH)]
    finally:
        model.train(was_training)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        got = type(parts[0]).__name__ if parts else "nothing"
        raise ShapeError(f"model must return one tensor of class outputs, got {got} for {what}.")
    return torch.cat(parts)


def _numeric_tensor(features: Any, what: str) -> Tensor:
    values = features.to_numpy() if hasattr(features, "to_numpy") else np.asarray(features)
    try:
        return torch.tensor(values.astype(np.float32))
    except (TypeError, ValueError):
        raise SchemaError(
            f"{what} holds text, which an nn.Module cannot take. Pass a callable that prepares "
            "the table, or give source_proba and target_proba."
        ) from None
