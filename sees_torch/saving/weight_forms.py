"""Weight functions on disk: a schema, classes and a few tensors."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sees_torch.data import Schema
from sees_torch.data.columns import Column
from sees_torch.errors import SavedFileError
from sees_torch.saving.container import Content, read_content, write_content
from sees_torch.statistics.basis import CURVES, Basis, FeatureBasis, GaussianBasis
from sees_torch.weights import (
    BasisWeights,
    ConstantWeights,
    OddsWeights,
    RowWeights,
    TableWeights,
    WeightFunction,
)

KIND, VERSION = "weight function", 1


def save_weights(function: WeightFunction, path: str | Path) -> None:
    """Write a weight function to a file that `load_weights` reads.

    >>> import tempfile
    >>> from sees_torch import estimate_shift, make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=500, m=500)
    >>> report = estimate_shift(**pair.inputs(), method="mlls")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(report.weight_function, f"{folder}/weights.sees")
    ...     again = load_weights(f"{folder}/weights.sees")
    >>> bool((again(pair.source, pair.labels) == report.weights).all())
    True
    """
    document, tensors = weights_form(function)
    write_content(path, KIND, VERSION, document, tensors)


def load_weights(path: str | Path) -> WeightFunction:
    """The weight function in a file; a file that is anything else is refused and runs no code."""
    return weights_of_form(read_content(path, KIND, VERSION))


def weights_form(function: WeightFunction) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The function as a document and tensors."""
    document: dict[str, Any] = {
        "form": type(function).__name__,
        "schema": _schema_form(function.schema),
        "classes": list(function.classes),
    }
    if isinstance(function, TableWeights):
        document["features"] = list(function.features)
        return document, {
            "cells": function.cells(),
            "weight": function.weight,
            "fallback": function.fallback,
        }
    if isinstance(function, (ConstantWeights, RowWeights)):
        return document, {"weight": function.weight}
    if isinstance(function, (BasisWeights, OddsWeights)):
        tensors = {
            name: buffer
            for name, buffer in function.named_buffers()
            if not name.startswith("basis")
        }
        document["basis"], more = _basis_form(function.basis, "basis")
        return document, tensors | more
    raise SavedFileError(f"weights of type {type(function).__name__} have no saved form.")


def weights_of_form(content: Content) -> WeightFunction:
    """The function of a document and tensors."""
    document = content.document
    try:
        schema, classes = _schema(document["schema"]), tuple(document["classes"])
        return _function(content, schema, classes)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, SavedFileError):
            raise
        raise SavedFileError(f"the saved form of the weights is damaged: {error!r}.") from None


def _function(content: Content, schema: Schema, classes: tuple[Any, ...]) -> WeightFunction:
    form, labels = content.document["form"], len(classes)
    if form == "ConstantWeights":
        return ConstantWeights(schema, classes, content.tensor("weight", labels))
    if form == "RowWeights":
        return RowWeights(schema, classes, content.tensor("weight", None))
    if form == "TableWeights":
        features = tuple(content.document["features"])
        sizes = [schema.columns[j].codes for j in features]
        cells = content.tensor("cells", None, len(features), integer=True)
        _within(cells, torch.tensor(sizes, dtype=torch.int64))
        weight = content.tensor("weight", len(cells), labels)
        fallback = content.tensor("fallback", labels)
        return TableWeights(schema, classes, features, cells, weight, fallback)
    basis = _basis(content, content.document["basis"], "basis", schema)
    width = len(basis.owners)
    if form == "BasisWeights":
        coefficient = content.tensor("coefficient", width, labels)
        intercept = content.tensor("intercept", labels)
        return BasisWeights(schema, classes, basis, coefficient, intercept)
    if form == "OddsWeights":
        intercept = content.tensor("intercept", None)
        keys = content.tensor("keys", None, integer=True)
        return OddsWeights(
            schema,
            classes,
            basis,
            content.tensor("coefficient", len(intercept), width),
            intercept,
            keys,
            content.tensor("share", len(keys), len(intercept)),
        )
    raise SavedFileError(f"unknown form of weights {form!r}: it needs a newer sees-torch.")


def _schema_form(schema: Schema) -> dict[str, Any]:
    return {"named": schema.named, "columns": [asdict(column) for column in schema.columns]}


def _schema(form: dict[str, Any]) -> Schema:
    known = {part.name for part in fields(Column)}
    columns = []
    for given in form["columns"]:
        if set(given) - known or given["kind"] not in ("categorical", "continuous"):
            raise SavedFileError("the saved schema has a column that this version does not know.")
        columns.append(Column(**given))
    return Schema(tuple(columns), bool(form["named"]))


def _basis_form(basis: Basis, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {f"{prefix}.{name}": value for name, value in basis.named_buffers(recurse=False)}
    if type(basis) is FeatureBasis:
        return {"form": basis.form, "owners": list(basis.owners)}, tensors
    if type(basis) is GaussianBasis:
        inner, more = _basis_form(basis.inner, f"{prefix}.inner")
        return {"form": "gaussian", "inner": inner}, tensors | more
    raise SavedFileError(f"a basis of type {type(basis).__name__} has no saved form.")


def _basis(content: Content, form: dict[str, Any], prefix: str, schema: Schema) -> Basis:
    if form["form"] == "gaussian":
        inner = _basis(content, form["inner"], f"{prefix}.inner", schema)
        centres = content.tensor(f"{prefix}.centres", None, len(inner.owners))
        return GaussianBasis(inner, centres, content.tensor(f"{prefix}.width"))  # type: ignore[arg-type]
    features, width = len(schema.columns), len(form["owners"])
    basis = FeatureBasis.__new__(FeatureBasis)
    nn.Module.__init__(basis)
    basis.form, basis.owners = form["form"], tuple(form["owners"])
    shapes: dict[str, tuple[int | None, ...]] = {
        "slot": (sum(schema.cardinalities),),
        "start": (features,),
        "continuous": (None,),
        "curve": (None, CURVES[basis.form]),
        "owner": (width,),
    }
    for name, shape in shapes.items():
        basis.register_buffer(name, content.tensor(f"{prefix}.{name}", *shape, integer=True))
    basis.register_buffer("mean", content.tensor(f"{prefix}.mean", width))
    _within(basis.slot + 2, torch.tensor(width + 2))
    for places, size in (
        (basis.owner, features),
        (basis.continuous, features),
        (basis.curve, width),
    ):
        _within(places, torch.tensor(size))
    return basis


def _within(places: Tensor, size: Tensor) -> None:
    """Refuse places outside 0 .. size - 1: a weight must not read beside its table."""
    if bool(((places < 0) | (places >= size)).any()):
        raise SavedFileError("the saved form of the weights is damaged: a place is out of range.")
