"""Features packed several to a line: what one pass over a line tells is told of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

LINE = 2**12
"""Cells of the features of one line, unless one feature alone has more."""
_ROWS = 2**14
"""Rows that are packed together: what stays in cache."""
EXACT = 2**24
"""Whole numbers up to this are exact in float32."""


def exact_dtype(largest: float) -> torch.dtype:
    """float32 where sums of whole numbers up to `largest` are exact in it, else float64."""
    full = torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if largest <= EXACT and full else torch.float64


@dataclass(frozen=True)
class Packing:
    """Consecutive features in lines; the cell of a line numbers their levels by mixed radix.

    Attributes:
        lines: levels of the features of each line, the most significant feature first.
    """

    lines: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sizes: tuple[int, ...]) -> Packing:
        """As many features to a line as LINE cells hold."""
        lines: list[tuple[int, ...]] = []
        for size in sizes:
            if lines and math.prod(lines[-1]) * size <= LINE:
                lines[-1] = (*lines[-1], size)
            else:
                lines.append((size,))
        return cls(tuple(lines))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Levels of every feature."""
        return tuple(size for line in self.lines for size in line)

    @property
    def cells(self) -> tuple[int, ...]:
        """Cells of every line."""
        return tuple(math.prod(line) for line in self.lines)

    def features(self) -> list[slice]:
        """The features of every line."""
        ends = accumulate(len(line) for line in self.lines)
        return [slice(end - len(line), end) for line, end in zip(self.lines, ends, strict=True)]

    def levels(self) -> list[slice]:
        """The levels of the features of every line, in the list of all levels of all features."""
        ends = accumulate(sum(line) for line in self.lines)
        return [slice(end - sum(line), end) for line, end in zip(self.lines, ends, strict=True)]

    def pack(self, codes: Tensor) -> Tensor:
        """(G, n) cells of (n, d) codes."""
        stride = torch.zeros(len(self.lines), codes.shape[1], dtype=torch.float64)
        for number, (line, here) in enumerate(zip(self.lines, self.features(), strict=True)):
            stride[number, here] = torch.tensor(_strides(line), dtype=torch.float64)
        # Products of floating-point matrices are many times faster than those of integers.
        dtype = exact_dtype(max(self.cells, default=0))
        stride = stride.to(codes.device, dtype)
        packed = codes.new_empty(len(self.lines), len(codes), dtype=torch.int64)
        for begin in range(0, len(codes), _ROWS):
            part = codes[begin : begin + _ROWS].to(dtype)
            packed[:, begin : begin + _ROWS] = stride @ part.T
        return packed

    def unpack(self, lines: Tensor) -> Tensor:
        """(d, n) codes of (G, n) cells, in the smallest integers that hold them."""
        dtype = _smallest(max(self.sizes, default=1))
        codes = lines.new_empty(len(self.sizes), lines.shape[1], dtype=dtype)
        for cells, line, here in zip(lines, self.lines, self.features(), strict=True):
            cell = torch.arange(math.prod(line), device=lines.device)
            for size, stride, code in zip(line, _strides(line), codes[here], strict=True):
                torch.index_select((cell // stride % size).to(dtype), 0, cells, out=code)
        return codes

    def indicators(self, line: int, device: torch.device) -> Tensor:
        """(levels, cells) float64, one where a cell of a line has a level of one of its features.

        Levels come feature after feature.
        """
        sizes = self.lines[line]
        cell = torch.arange(math.prod(sizes), device=device)
        parts = [
            cell // stride % size == torch.arange(size, device=device)[:, None]
            for size, stride in zip(sizes, _strides(sizes), strict=True)
        ]
        return torch.cat(parts).to(torch.float64)

    def compacted(
        self, parts: Sequence[Tensor], levels: tuple[Tensor, ...], kept: tuple[bool, ...]
    ) -> tuple[Packing, Tensor]:
        """All rows, levels renumbered to those given, features that are not kept left out.

        Args:
            parts: (G, n) cells each, those of given levels only.
            levels: per feature, its levels, ascending.
            kept: per feature.
        """
        device = parts[0].device
        packing, places = [], []
        for number, (line, here) in enumerate(zip(self.lines, self.features(), strict=True)):
            cell = torch.arange(math.prod(line), device=device)
            short: tuple[int, ...] = ()
            place = torch.zeros_like(cell)
            for size, stride, found, keep in zip(
                line, _strides(line), levels[here], kept[here], strict=True
            ):
                if keep:
                    rank = torch.zeros(size, dtype=torch.int64, device=device)
                    rank[found] = torch.arange(len(found), device=device)
                    place = place * len(found) + rank[cell // stride % size]
                    short = (*short, len(found))
            if short:
                packing.append(short)
                places.append((number, place))
        ends = list(accumulate(part.shape[1] for part in parts))
        packed = parts[0].new_empty(len(packing), ends[-1])
        for line, (number, place) in zip(packed, places, strict=True):
            for part, end in zip(parts, ends, strict=True):
                out = line[end - part.shape[1] : end]
                torch.index_select(place, 0, part[number], out=out)
        return Packing(tuple(packing)), packed


def _strides(line: tuple[int, ...]) -> list[int]:
    return [math.prod(line[place + 1 :]) for place in range(len(line))]


def _smallest(cardinality: int) -> torch.dtype:
    """The smallest integers that hold the codes."""
    if cardinality <= 2**8:
        return torch.uint8
    return torch.int16 if cardinality <= 2**15 else torch.int32
