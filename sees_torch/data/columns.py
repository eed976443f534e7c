"""How one column is coded: learnt on the source, applied unchanged to every later table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.tables import Name, RawColumn
from sees_torch.errors import SchemaError

Kind = Literal["categorical", "continuous"]
FEW_CODES = 4096
"""Whole numbers that span less than this are looked up in a table."""


@dataclass(frozen=True)
class Column:
    """How one column is coded: its levels, or its range and inner bin edges."""

    name: Name
    kind: Kind
    numeric: bool
    levels: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 1.0
    dated: bool = False

    @property
    def seen_codes(self) -> int:
        """Number of ordinary levels or bins; the missing code, then the unseen code, follow."""
        return len(self.levels) if self.kind == "categorical" else len(self.edges) + 1

    @property
    def missing(self) -> int:
        return self.seen_codes

    @property
    def unseen(self) -> int:
        return self.seen_codes + 1

    @property
    def codes(self) -> int:
        return self.seen_codes + 2

    def describe(self, code: int) -> str:
        """The level or bin as a person would write it."""
        if code == self.missing:
            return "missing"
        if code == self.unseen:
            return "unseen"
        if self.kind == "categorical":
            level = self.levels[code]
            return self.show(level) if isinstance(level, float) else str(level)
        low = self.low if code == 0 else self.edges[code - 1]
        high = self.high if code == len(self.edges) else self.edges[code]
        return f"{self.show(low)} to {self.show(high)}"

    def show(self, number: float) -> str:
        """A value of a numeric column as a person would write it."""
        if self.dated:
            return str(np.datetime64(int(number), "s")).replace("T00:00:00", "")
        return f"{number:g}" if self.kind == "categorical" else f"{number:.4g}"


def learn_column(
    raw: RawColumn, kind: Kind | None, max_levels: int, bins: int, weight: Tensor | None
) -> Column:
    """How to code a column; rows of multiplicity zero do not count."""
    if raw.numbers is None:
        if kind == "continuous":
            raise SchemaError(
                f"column {raw.name!r} holds text and cannot be continuous. Convert it to numbers "
                "or leave it categorical."
            )
        assert raw.places is not None
        counted = raw.places if weight is None else raw.places[weight.cpu() > 0]
        rows = torch.bincount(counted, minlength=len(raw.symbols)).tolist()
        present = [value for value, seen in zip(raw.symbols, rows, strict=False) if seen]
        ordered = sorted(present, key=lambda value: (type(value).__name__, str(value), repr(value)))
        return Column(raw.name, "categorical", False, tuple(ordered))
    numbers, mass = raw.numbers, weight
    if weight is not None:
        numbers, mass = numbers[weight > 0], weight[weight > 0]
    distinct = distinct_numbers(numbers)
    if kind is None:
        fixed = raw.boolean or raw.declared_categorical
        kind = "categorical" if fixed or len(distinct) <= max_levels else "continuous"
    finite = numbers.isfinite() if kind == "continuous" else torch.zeros_like(numbers).bool()
    if bool(finite.any()):
        numbers = numbers[finite]
        mass = torch.ones_like(numbers) if mass is None else mass[finite].to(numbers)
        edges = _quantiles(numbers, mass, bins)
        low, high = float(numbers.min()), float(numbers.max())
        return Column(raw.name, kind, True, edges=edges, low=low, high=high, dated=raw.dated)
    levels = tuple(bool(v) if raw.boolean else v for v in distinct.tolist())
    return Column(raw.name, "categorical", True, levels, dated=raw.dated)


def distinct_numbers(numbers: Tensor) -> Tensor:
    """The different values, ascending, NaN left out."""
    missing = numbers.isnan()
    known = numbers[~missing] if bool(missing.any()) else numbers
    if len(known) and bool((known == known.floor()).all()):
        low, high = (float(bound) for bound in known.aminmax())
        if high - low < FEW_CODES:
            # Whole numbers in a small range: counting them is faster than sorting.
            seen = torch.bincount((known - low).to(torch.int64))
            return seen.nonzero().squeeze(1) + low
    return known.unique()


def _quantiles(numbers: Tensor, mass: Tensor, bins: int) -> tuple[float, ...]:
    """Inner edges of `bins` bins of equal mass; fewer where values repeat."""
    ordered, order = numbers.sort()
    share = mass[order].cumsum(0)
    wanted = torch.arange(1, bins, dtype=share.dtype, device=share.device) / bins * share[-1]
    # The tolerance makes a row of multiplicity two and two equal rows give the same edge.
    at = torch.searchsorted(share, wanted * (1 - 1e-12)).clamp_max(len(ordered) - 1)
    inner = ordered[at].unique()
    return tuple(inner[inner < ordered[-1]].tolist())


def encode_column(
    column: Column, raw: RawColumn, what: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Codes of one column, and if it is continuous its scaled values and clamped flags."""
    if column.seen_codes and not raw.all_missing():
        raw = _comparable(column, raw, what)
    if column.kind == "categorical":
        return _level_codes(column, raw), None, None
    if raw.numbers is None:
        assert raw.places is not None
        numbers = torch.full((len(raw.places),), math.nan, dtype=torch.float64)
    else:
        numbers = raw.numbers
    missing = numbers.isnan()
    edges = torch.tensor(column.edges, dtype=torch.float64, device=numbers.device)
    codes = torch.bucketize(numbers, edges).masked_fill(missing, column.missing)
    # Halved before subtracting, so that a range over all of float64 does not overflow.
    span = (column.high / 2 - column.low / 2) or 1.0
    scaled = ((numbers / 2 - column.low / 2) / span).masked_fill(missing, 0.0)
    clamped = ((numbers < column.low) | (numbers > column.high)) & ~missing
    return codes, scaled.clamp(0.0, 1.0), clamped


def _comparable(column: Column, raw: RawColumn, what: str) -> RawColumn:
    """The column in the source's form, or an error where values cannot be compared."""
    if column.numeric and raw.numbers is not None:
        if column.dated != raw.dated:
            dates, other = ("source", what) if column.dated else (what, "source")
            raise SchemaError(
                f"column {raw.name!r} holds dates in {dates} but numbers in {other}. "
                "Convert one of them so that equal values compare equal."
            )
        return raw
    if raw.numbers is None and not column.numeric:
        return raw
    # Whole numbers too large for float64 are symbols, which numbers can still join.
    if raw.numbers is not None and all(isinstance(v, int) for v in column.levels):
        distinct, places = torch.unique(raw.numbers.nan_to_num(nan=math.inf), return_inverse=True)
        values = [int(v) if v.is_integer() else v for v in distinct.tolist()]
        places = places.masked_fill(raw.numbers.isnan(), len(values))
        return RawColumn(raw.name, symbols=tuple(values), places=places)
    if raw.places is not None and all(isinstance(v, int) for v in raw.symbols):
        floats = torch.tensor([*map(float, raw.symbols), math.nan], dtype=torch.float64)
        return RawColumn(raw.name, numbers=floats[raw.places])
    numeric, text = ("source", what) if column.numeric else (what, "source")
    raise SchemaError(
        f"column {raw.name!r} is numeric in {numeric} but text in {text}. "
        "Convert one of them so that equal values compare equal."
    )


def _level_codes(column: Column, raw: RawColumn) -> Tensor:
    if raw.numbers is None:
        assert raw.places is not None
        place_of = {level: code for code, level in enumerate(column.levels)}
        known = [place_of.get(value, column.unseen) for value in raw.symbols]
        return torch.tensor([*known, column.missing])[raw.places]
    numbers = raw.numbers
    if not column.levels or not column.numeric:
        # No level to compare numbers with: whatever is present is unseen.
        return torch.where(numbers.isnan(), column.missing, column.unseen)
    levels = torch.tensor([float(v) for v in column.levels], dtype=torch.float64)
    low, high = float(levels[0]), float(levels[-1])
    if high - low < FEW_CODES and bool((levels == levels.floor()).all()):
        # Whole numbers in a small range: one place for each, one on either side, one for missing.
        codes = torch.full((int(high - low) + 4,), column.unseen)
        codes[(levels - low).to(torch.int64) + 1] = torch.arange(len(levels))
        codes[-1] = column.missing
        inside = numbers.clamp(low - 1, high + 1).nan_to_num(nan=high + 2).sub_(low - 1)
        place = inside.to(torch.int64)
        found = codes.to(numbers.device)[place]
        return torch.where(place == inside, found, column.unseen)
    levels = levels.to(numbers.device)
    place = torch.searchsorted(levels, numbers).clamp_max(len(levels) - 1)
    found = torch.where(levels[place] == numbers, place, column.unseen)
    return found.masked_fill(numbers.isnan(), column.missing)
