"""The chunks that an estimate still remembers, recent ones more than old ones."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sees_torch.data import Target
from sees_torch.data.schema import Rows
from sees_torch.errors import SeesError
from sees_torch.matching.match import whole_number

FORGOTTEN = 10
"""Half-lives after which a chunk counts for nothing: less than a thousandth is left."""


@dataclass
class Window:
    """The last chunks, as distinct rows.

    Attributes:
        length: chunks to pool, the newest included; None: as many as are remembered.
        half_life: number of chunks after which a row counts half; None forgets nothing.
        chunks: newest last.
    """

    length: int | None = 1
    half_life: float | None = None
    chunks: deque[Target] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.length is not None and whole_number(self.length, "window") < 1:
            raise SeesError("window must be at least 1, the newest chunk alone.")
        if self.half_life is not None:
            if not 0 < self.half_life < math.inf:
                raise SeesError(f"half_life must be a positive number, got {self.half_life!r}.")
            longest = math.ceil(FORGOTTEN * self.half_life) + 1
            self.length = longest if self.length in (None, 1) else self.length
        if self.length is None:
            raise SeesError("give window or half_life: nothing is remembered for ever.")
        self.chunks = deque(self.chunks, maxlen=self.length)

    def with_chunk(self, chunk: Target) -> list[Target]:
        """The chunks of the window once this one has come."""
        kept = self.length or 1
        return [*self.chunks, chunk][-kept:]

    def pooled(self, chunks: Sequence[Target]) -> Target:
        """All of the chunks as one target.

        Forgotten multiplicities are scaled so that they add up to the effective number of rows,
        (sum w)^2 / sum w^2: then resamples vary as much as the weighted mean does.
        """
        newest = chunks[-1]
        if len(chunks) == 1:
            return newest
        other = copy.copy(newest)
        other.rows = Rows.cat([chunk.rows for chunk in chunks])
        other.labels = torch.cat([chunk.labels for chunk in chunks])
        other.proba = other.posterior = torch.cat([chunk.proba for chunk in chunks])
        other.count = torch.cat([chunk.count for chunk in chunks])
        if self.half_life is not None:
            ages = range(len(chunks) - 1, -1, -1)
            left = torch.cat(
                [
                    torch.full_like(chunk.count, 0.5 ** (age / self.half_life))
                    for age, chunk in zip(ages, chunks, strict=True)
                ]
            )
            weight = other.count * left
            other.count = weight * (weight.sum() / (weight * left).sum())
            other.sampled = True
        return other
