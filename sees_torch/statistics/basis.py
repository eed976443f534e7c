"""Basis functions of coded rows: what SEES-c, KLIEP and DLU build weights from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from sees_torch.data import Rows, Source
from sees_torch.errors import SeesError

Form = Literal["paired", "linear", "quadratic", "binned"]
CURVES: dict[str, int] = {"linear": 1, "paired": 2, "quadratic": 3, "binned": 0}
PIECE = 2**16
"""Rows of a basis that are worked on at once, and"""
NUMBERS = 2**20
"""numbers: a column of ten thousand levels makes every row as long."""
_UNKNOWN, _VALUE = -1, -2


class Basis(nn.Module):
    """K non-negative functions of a row, each owned by one feature.

    To bring your own, subclass it, set `owners` and implement `forward`. Parameters are taken as
    they are: estimates have no gradient in them.

    Attributes:
        owners: position of the feature that each of the K functions depends on; -1 for one that
            no single feature owns, which is then never penalised nor selected. Groups of the
            penalty are disjoint, so a function of two features cannot be owned by both.
    """

    owners: tuple[int, ...]

    def forward(self, rows: Rows) -> Tensor:
        """(n, K) float64 values of the functions, all >= 0."""
        raise TypeError(f"{type(self).__name__} must implement forward(rows) -> (n, K).")


class FeatureBasis(Basis):
    """Indicators of the levels of categorical columns, polynomials of continuous ones.

    A continuous column, scaled to x in [0, 1], gives `linear`: x, the paper's choice, which with
    non-negative coefficients can only increase; `paired`: x and 1 - x; `quadratic`: x^2,
    2 x (1 - x) and (1 - x)^2; `binned`: indicators of the schema's quantile bins; and an indicator
    of missing where the source has missing values.
    Levels that the source does not show have no function of their own: such a row gets the
    feature's source means, so that it weighs there what the average source row weighs.
    """

    slot: Tensor
    start: Tensor
    curve: Tensor
    continuous: Tensor
    owner: Tensor
    mean: Tensor

    def __init__(self, source: Source, form: str = "paired") -> None:
        super().__init__()
        if form not in CURVES:
            raise SeesError(
                f"basis takes one of {', '.join(CURVES)}, 'auto' or a Basis; got {form!r}."
            )
        self.form = form
        owners: list[int] = []
        slots: list[int] = []
        curves: list[list[int]] = []
        for j, column in enumerate(source.schema.columns):
            here = torch.bincount(source.rows.codes[:, j], source.count, minlength=column.codes)
            numeric = column.kind == "continuous" and form != "binned"
            if numeric:
                curves.append([len(owners) + k for k in range(CURVES[form])])
                owners += [j] * CURVES[form]
            for code, mass in enumerate(here.tolist()):
                if numeric and code < column.seen_codes:
                    slots.append(_VALUE)
                elif mass > 0:
                    slots.append(len(owners))
                    owners.append(j)
                else:
                    slots.append(_UNKNOWN)
        self.owners = tuple(owners)
        sizes = torch.tensor(source.schema.cardinalities)
        flags = torch.tensor(source.schema.continuous) & (form != "binned")
        self.register_buffer("slot", torch.tensor(slots))
        self.register_buffer("start", sizes.cumsum(0) - sizes)
        self.register_buffer("continuous", flags.nonzero().squeeze(1))
        curve = torch.tensor(curves, dtype=torch.int64).reshape(len(curves), CURVES[form])
        self.register_buffer("curve", curve)
        self.register_buffer("owner", torch.tensor(owners, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(len(owners), dtype=torch.float64))
        self.to(source.rows.codes.device)
        mass = source.mass.to(self.mean.dtype)
        sums = [mass[here] @ self(part) for here, part in pieces(source.rows, len(owners))]
        self.mean = torch.stack(sums).sum(dim=0)

    def forward(self, rows: Rows) -> Tensor:
        slot = self.slot[rows.codes + self.start]
        width = len(self.owner)
        # Column `width` collects what is no indicator and is cut off again.
        place = torch.where(slot >= 0, slot, width)
        values = self.mean.new_zeros(len(slot), width + 1).scatter_(1, place, 1.0)[:, :width]
        if len(self.continuous):
            present = (slot[:, self.continuous] == _VALUE).to(values.dtype)
            curves = self._curves(rows.values[:, self.continuous].to(values.dtype))
            values[:, self.curve.reshape(-1)] = (curves * present[..., None]).flatten(1)
        unknown = (slot == _UNKNOWN)[:, self.owner]
        return torch.where(unknown, self.mean, values)

    def _curves(self, x: Tensor) -> Tensor:
        """(n, c, CURVES[form]) the polynomials of the continuous columns."""
        if self.form == "linear":
            return x[..., None]
        if self.form == "paired":
            return torch.stack([x, 1 - x], dim=-1)
        return torch.stack([x.square(), 2 * x * (1 - x), (1 - x).square()], dim=-1)


class OwnBasis(Basis):
    """A module of somebody's own, called as it stands and without a graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.owners = tuple(inner.owners)  # type: ignore[arg-type]

    @torch.no_grad()
    def forward(self, rows: Rows) -> Tensor:
        return self.inner(rows)


class GaussianBasis(Basis):
    """exp(-||x - centre||^2 / 2 width^2) in the space of another basis; no feature owns one."""

    centres: Tensor
    width: Tensor

    def __init__(self, inner: Basis, centres: Tensor, width: float) -> None:
        super().__init__()
        self.inner = inner
        self.owners = (-1,) * len(centres)
        self.register_buffer("centres", centres)
        self.register_buffer("width", torch.as_tensor(width, dtype=centres.dtype))

    def forward(self, rows: Rows) -> Tensor:
        values = self.centres.new_empty(len(rows), len(self.centres))
        for here, part in pieces(rows, self.centres.shape[1]):
            points = self.inner(part).to(values.dtype)
            values[here] = gaussian(squared_distances(points, self.centres), self.width)
        return values


def pieces(rows: Rows, width: int) -> Iterator[tuple[slice, Rows]]:
    """The rows a piece at a time, so that `width` numbers for each of them stay small."""
    step = max(1, min(PIECE, NUMBERS // max(width, 1)))
    every = torch.arange(len(rows), device=rows.codes.device)
    for start in range(0, len(rows), step):
        here = slice(start, start + step)
        yield here, rows if len(rows) <= step else rows[every[here]]


def combined(basis: Basis, rows: Rows, coefficient: Tensor) -> Tensor:
    """(n, L) sums of the functions by (K, L) coefficients."""
    parts = [
        basis(part).to(coefficient.dtype) @ coefficient
        for _, part in pieces(rows, len(coefficient))
    ]
    return torch.cat(parts) if parts else coefficient.new_zeros(0, coefficient.shape[1])


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(n, C) from (n, K) points to (C, K) centres."""
    lengths = points.square().sum(dim=1, keepdim=True) + centres.square().sum(dim=1)
    return torch.addmm(lengths, points, centres.T, alpha=-2).clamp_min(0.0)


def gaussian(squared_distance: Tensor, width: Tensor) -> Tensor:
    return torch.exp(squared_distance * (-0.5 / width.square()))
