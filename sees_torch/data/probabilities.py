"""Class probabilities from a model or from the user, checked and never guessed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sees_torch.data.arrays import as_array, as_numbers
from sees_torch.data.tables import is_frame
from sees_torch.errors import SchemaError, SeesError, ShapeError

TOLERANCE = 1e-4
"""Rows may miss a sum of one by this, the rounding of printed files; 1e-2 in half precision."""
BATCH = 8192


def read_proba(proba: Any, rows: int, what: str, device: torch.device) -> Tensor:
    """(n, L) float64 probabilities, checked; an (n,) input is that of the second class.

    Rows must be non-negative and sum to one within the tolerance; they are then divided by their
    sum. Nothing else is repaired.
    """
    half = getattr(proba, "dtype", None) in (torch.float16, torch.bfloat16, np.float16)
    matrix = as_numbers(proba, what, device)
    if matrix.ndim == 2 and matrix.shape[1] == 1:
        matrix = matrix[:, 0]
    if matrix.ndim == 1:
        matrix = torch.stack([1 - matrix, matrix], dim=1)
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise ShapeError(
            f"{what} must have shape (n, L) with a column per class, or (n,) for two classes; "
            f"got {tuple(matrix.shape)}."
        )
    if len(matrix) != rows:
        raise ShapeError(f"{what} has {len(matrix)} rows, its features have {rows}.")
    least = _check_rows(matrix.detach(), what, 1e-2 if half else TOLERANCE)
    clean = matrix.clamp_min(0.0) if least < 0 else matrix
    return clean / clean.sum(dim=1, keepdim=True)


def _check_rows(matrix: Tensor, what: str, tolerance: float) -> float:
    """The least entry; rows that hold no probabilities are refused."""
    if not len(matrix):
        return 0.0
    low, high = (float(bound) for bound in matrix.aminmax())  # NaN, where there is one.
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = ~matrix.isfinite().all(dim=1)
        row = int(bad.nonzero()[0])
        raise SeesError(
            f"{what} has {int(bad.sum())} rows with NaN or infinity, the first is row {row}. "
            "Find out why the model gives none there, or leave those rows out."
        )
    if low < -tolerance or high > 1 + tolerance:
        raise SeesError(
            f"{what} ranges from {low:.4g} to {high:.4g}, probabilities lie in [0, 1]. "
            "If the model returns logits, pass logits=True (or apply softmax); "
            "if these are percentages, divide by 100."
        )
    gap = (matrix.sum(dim=1) - 1).abs()
    if float(gap.max()) > tolerance:
        row = int(gap.argmax())
        raise SeesError(
            f"rows of {what} must sum to 1; row {row} sums to {float(matrix[row].sum()):.6g}. "
            "Give one column per class, all classes included."
        )
    return low


def proba_columns(proba: Any) -> tuple[Any, ...] | None:
    """Column names of a probability DataFrame with a column a class, else None."""
    if not is_frame(proba) or proba.shape[1] < 2:
        return None
    names = tuple(proba.columns)
    if len(set(names)) < len(names):
        raise SchemaError(f"probability columns {list(names)} have duplicate names: rename them.")
    return names


def by_class(
    proba: Any, classes: tuple[Any, ...] | None, known: tuple[Any, ...] | None
) -> tuple[Any, tuple[Any, ...] | None]:
    """A probability frame with its columns in order, and the names of its columns.

    Columns are put in the order of the classes where they name them, else in that of the names
    `known` from the source; a frame with other names than the source's is refused.
    """
    names = proba_columns(proba)
    if names is None:
        return proba, None
    if classes is not None and set(names) == set(classes):
        return proba[list(classes)], classes
    if known is not None and set(known) != set(classes or ()):
        if set(names) != set(known):
            raise SchemaError(
                f"target_proba has the columns {list(names)}, source_proba has {list(known)}: "
                "name them alike."
            )
        return proba[list(known)], known
    if known is not None:
        raise SchemaError(
            f"the columns of target_proba {list(names)} do not name the classes {list(known)}."
        )
    return proba, names


def of_second_class(proba: Any, matrix: Tensor, classes: tuple[Any, ...]) -> Tensor:
    """A single column named after the first class is its probability, else the second's.

    Only text is a name: pandas calls a nameless column 0, which may be a class.
    """
    if is_frame(proba):
        name = proba.columns[0] if proba.shape[1] == 1 else None
    else:
        name = None if isinstance(proba, Tensor) else getattr(proba, "name", None)
    return matrix.flip(1) if isinstance(name, str) and name == classes[0] else matrix


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
    scores = as_numbers(output, f"the model's output on {what}")
    if scores.ndim == 1 or (scores.ndim == 2 and scores.shape[1] == 1):
        return scores.sigmoid().reshape(-1)
    if scores.ndim != 2:
        raise ShapeError(
            f"the model's logits on {what} must have shape (n, L), got {tuple(scores.shape)}."
        )
    share = scores.softmax(dim=1)
    if is_frame(output):
        return type(output)(share.numpy(), columns=output.columns)
    return share


def _run_module(model: nn.Module, features: Any, what: str) -> Tensor:
    inputs = features if isinstance(features, Tensor) else _numeric_tensor(features, what)
    parameter = next(model.parameters(), None)
    if parameter is not None:
        inputs = inputs.to(parameter.device)
        # An embedding looks whole numbers up, so they must reach it as such.
        looks_up = any(isinstance(part, nn.Embedding) for part in model.modules())
        if looks_up and not isinstance(features, Tensor) and bool((inputs == inputs.round()).all()):
            inputs = inputs.to(torch.int64)
        if parameter.is_floating_point() and (inputs.is_floating_point() or not looks_up):
            inputs = inputs.to(parameter.dtype)
    was_training = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            parts = [model(batch) for batch in inputs.split(BATCH)]
    finally:
        for part, training in was_training.items():
            part.training = training
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        got = type(parts[0]).__name__ if parts else "nothing"
        raise ShapeError(f"model must return one tensor of class outputs, got {got} for {what}.")
    return torch.cat(parts)


def _numeric_tensor(features: Any, what: str) -> Tensor:
    kinds = [t for t in features.dtypes] if is_frame(features) else [as_array(features, what).dtype]
    if any(getattr(kind, "kind", "O") in "Mm" for kind in kinds):
        raise SchemaError(
            f"{what} holds dates, which an nn.Module cannot take. Pass a callable that prepares "
            "the table, or give source_proba and target_proba."
        )
    try:
        return as_numbers(features, what).to(torch.float32)
    except SchemaError:
        raise SchemaError(
            f"{what} holds text, which an nn.Module cannot take. Pass a callable that prepares "
            "the table, or give source_proba and target_proba."
        ) from None


def two_columns(scores: Tensor) -> Tensor:
    """(n, L) logits; a single column is the second class's against 0."""
    if scores.ndim == 1 or (scores.ndim == 2 and scores.shape[1] == 1):
        second = scores.reshape(-1)
        return torch.stack([torch.zeros_like(second), second], dim=1)
    return scores


def check_width(matrix: Tensor, rows: int, classes: int) -> Tensor:
    if matrix.shape != (rows, classes):
        raise ShapeError(
            f"the model's output must have shape ({rows}, {classes}), a column for each of the "
            f"report's classes in their order; got {tuple(matrix.shape)}."
        )
    return matrix
