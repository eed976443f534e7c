"""Tables of small whole numbers, such as codes: read in few passes, whatever their columns mean.

What a column makes of a number is asked once for every number that can occur, and looked up for
the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sees_torch.data.columns import FEW_CODES
from sees_torch.data.tables import RawColumn

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_ROWS = 2**14
"""Rows that are looked at together: what stays in cache."""


@dataclass(frozen=True)
class WholeTable:
    """A table of whole numbers of a small range.

    Attributes:
        table: (n, d) of any integer type.
        low: the least number; span: how many there are from it to the largest.
    """

    table: Tensor
    low: int
    span: int

    @classmethod
    def of(cls, data: Any) -> WholeTable | None:
        """The table, if it is one."""
        if not isinstance(data, Tensor) or data.layout != torch.strided:
            return None
        if data.dtype not in _WHOLE or data.ndim != 2 or not data.numel():
            return None
        low, high = (int(bound) for bound in data.aminmax())
        return cls(data, low, high - low + 1) if high - low < FEW_CODES else None

    def columns(self) -> list[RawColumn]:
        """Every column as if it held each number of the range once."""
        numbers = torch.arange(self.low, self.low + self.span, device=self.table.device)
        return [RawColumn(j, numbers.to(torch.float64)) for j in range(self.table.shape[1])]

    def counts(self, weight: Tensor | None) -> Tensor:
        """(d, span) rows, or their weight, that have each number."""
        shape = self.table.shape[1], self.span
        total = torch.zeros(shape[0] * shape[1], dtype=torch.float64, device=self.table.device)
        for begin in range(0, len(self.table), _ROWS):
            place = self._places(begin)
            share = None
            if weight is not None:
                share = weight[begin : begin + _ROWS, None].expand(-1, shape[0]).reshape(-1)
            total += torch.bincount(place, share, minlength=len(total))
        return total.reshape(shape)

    def looked_up(self, values: Tensor) -> Tensor:
        """(n, d) of what (d, span) values say of every number of every column."""
        found = values.new_empty(self.table.shape)
        same = torch.arange(self.low, self.low + self.span, device=values.device)
        if values.dtype == torch.int64 and torch.equal(values, same.expand_as(values)):
            return found.copy_(self.table)
        flat = values.reshape(-1)
        for begin in range(0, len(self.table), _ROWS):
            part = found[begin : begin + _ROWS].view(-1)
            torch.index_select(flat, 0, self._places(begin), out=part)
        return found

    def _places(self, begin: int) -> Tensor:
        """Places in a flat (d, span) table of some rows' numbers."""
        columns = torch.arange(self.table.shape[1], device=self.table.device)
        part = self.table[begin : begin + _ROWS].to(torch.int64)
        return (part + (columns * self.span - self.low)).reshape(-1)
