"""Weight functions w(x, y), estimates of p_t(x, y) / p_s(x, y), as torch modules with buffers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sees_torch.data import Rows, Schema
from sees_torch.data.labels import read_labels
from sees_torch.errors import ShapeError, SupportError
from sees_torch.statistics.basis import Basis, combined


class WeightFunction(nn.Module):
    """A density ratio that can weigh rows it has never seen.

    Called with features and labels as the user has them, it codes them by the schema of the
    source; `table(rows)` gives the weights of coded rows under every label.
    """

    def __init__(self, schema: Schema, classes: tuple[Any, ...]) -> None:
        super().__init__()
        self.schema = schema
        self.classes = classes

    def forward(self, features: Any, labels: Any) -> Tensor:
        """(n,) weights of labelled rows."""
        rows = self.schema.encode(features, "features")
        column = read_labels(labels)
        if len(column) != len(rows):
            raise ShapeError(f"labels has {len(column)} entries, features has {len(rows)} rows.")
        held = next(self.buffers(), rows.codes)  # Where the module is, else where the table is.
        positions = column.positions(self.classes).to(held.device)
        return self.of_rows(rows.to(held.device), positions)

    def of_rows(self, rows: Rows, labels: Tensor) -> Tensor:
        """(n,) weights of coded rows with labels as positions in the classes."""
        return self.table(rows).gather(1, labels[:, None]).squeeze(1)

    def table(self, rows: Rows) -> Tensor:
        """(n, L) weights of coded rows under each label."""
        raise TypeError(f"{type(self).__name__} must implement table(rows) -> (n, L).")


class ConstantWeights(WeightFunction):
    """One weight per label, whatever the features: label shift, or no shift at all."""

    weight: Tensor

    def __init__(self, schema: Schema, classes: tuple[Any, ...], weight: Tensor) -> None:
        super().__init__(schema, classes)
        self.register_buffer("weight", weight)

    def table(self, rows: Rows) -> Tensor:
        return self.weight.expand(len(rows), -1)


class TableWeights(WeightFunction):
    """A weight for every cell of a few features and every label.

    A (cell, label) pair that the source never showed weighs 0 inside a cell that it did show. A
    cell that it never showed at all weighs, per label, what the label weighs on average over the
    source: p_t(y) / p_s(y).

    Args:
        schema: of the source.
        classes: of the source.
        features: positions of the s features that the table depends on.
        cells: (C, s) their codes, one row per cell.
        weight: (C, L) the table.
        fallback: (L,) weights of rows in any other cell.
    """

    keys: Tensor
    strides: Tensor
    members: Tensor
    weight: Tensor
    fallback: Tensor

    def __init__(
        self,
        schema: Schema,
        classes: tuple[Any, ...],
        features: tuple[int, ...],
        cells: Tensor,
        weight: Tensor,
        fallback: Tensor,
    ) -> None:
        super().__init__(schema, classes)
        self.features = tuple(features)
        strides, stride = [], 1
        for feature in reversed(self.features):
            strides.append(stride)
            stride *= schema.columns[feature].codes
        device = weight.device
        self.register_buffer("members", torch.tensor(self.features, dtype=torch.int64).to(device))
        self.register_buffer("strides", torch.tensor(strides[::-1], dtype=torch.int64).to(device))
        keys, order = (cells * self.strides).sum(dim=-1).sort()
        self.register_buffer("keys", keys)
        self.register_buffer("weight", weight[order])
        self.register_buffer("fallback", fallback)

    def cells(self) -> Tensor:
        """(C, s) codes of the cells, in the order of `weight`."""
        sizes = torch.tensor(
            [self.schema.columns[j].codes for j in self.features],
            dtype=torch.int64,
            device=self.keys.device,
        )
        return self.keys[:, None] // self.strides % sizes

    def place(self, rows: Rows) -> Tensor:
        """(n,) cell of every row, its position in `weight`; one past the last for any other."""
        key = (rows.codes[:, self.members] * self.strides).sum(dim=-1)
        place = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[place] == key, place, len(self.keys))

    def table(self, rows: Rows) -> Tensor:
        return torch.cat([self.weight, self.fallback[None]])[self.place(rows)]


class BasisWeights(WeightFunction):
    """w(x, y) = sum_k a_{k,y} phi_k(x) + a_{0,y}, the paper's parameterisation of SEES-c."""

    coefficient: Tensor
    intercept: Tensor

    def __init__(
        self,
        schema: Schema,
        classes: tuple[Any, ...],
        basis: Basis,
        coefficient: Tensor,
        intercept: Tensor,
    ) -> None:
        super().__init__(schema, classes)
        self.basis = basis
        self.register_buffer("coefficient", coefficient)
        self.register_buffer("intercept", intercept)

    def table(self, rows: Rows) -> Tensor:
        return combined(self.basis, rows, self.coefficient) + self.intercept


class OddsWeights(WeightFunction):
    """Odds of a target-against-source classifier, cross-fitted: one linear model per fold.

    A source row is weighed by the models that were fitted without it, any other row by the mean
    of all.

    Args:
        schema: of the source.
        classes: of the source.
        basis: inputs of the models.
        coefficient: (F, K), and intercept (F,), one model per fold.
        keys: (U,) sorted content hashes of the source rows.
        share: (U, F) share of those rows in each fold.
    """

    coefficient: Tensor
    intercept: Tensor
    keys: Tensor
    share: Tensor

    def __init__(
        self,
        schema: Schema,
        classes: tuple[Any, ...],
        basis: Basis,
        coefficient: Tensor,
        intercept: Tensor,
        keys: Tensor,
        share: Tensor,
    ) -> None:
        super().__init__(schema, classes)
        self.basis = basis
        self.register_buffer("coefficient", coefficient)
        self.register_buffer("intercept", intercept)
        self.register_buffer("keys", keys)
        self.register_buffer("share", share)

    def table(self, rows: Rows) -> Tensor:
        score = combined(self.basis, rows, self.coefficient.T) + self.intercept
        key = self.schema.row_hash(rows)
        place = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
        known = self.keys[place] == key
        share = torch.where(known[:, None], self.share[place], 1 / len(self.intercept))
        return (score.exp() * share).sum(dim=1, keepdim=True).expand(-1, len(self.classes))


class RowWeights(WeightFunction):
    """Weights that are known for the source rows only, in their order."""

    weight: Tensor

    def __init__(self, schema: Schema, classes: tuple[Any, ...], weight: Tensor) -> None:
        super().__init__(schema, classes)
        self.register_buffer("weight", weight)

    def of_rows(self, rows: Rows, labels: Tensor) -> Tensor:
        if len(rows) != len(self.weight):
            raise SupportError(
                f"these weights are known for the {len(self.weight)} source rows only, "
                f"got {len(rows)} rows. Give KnownWeights a function of features and labels."
            )
        return self.weight

    def table(self, rows: Rows) -> Tensor:
        raise SupportError(
            "weights given per row say nothing about other labels or rows: use estimator='ipw' or "
            "'self-normalised', or give KnownWeights a function of features and labels."
        )


def copied(module: Any, *, detach: bool = True) -> Any:
    """The same module with buffers of its own: moving or loading it leaves the report alone."""
    other = copy.copy(module)
    other._buffers = {
        name: value if value is None else (value.detach() if detach else value).clone()
        for name, value in module._buffers.items()
    }
    other._modules = {name: copied(part, detach=detach) for name, part in module._modules.items()}
    return other
