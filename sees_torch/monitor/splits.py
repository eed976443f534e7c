"""What a chunk's estimate looks like when nothing changed: random splits of the source."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import SeesError, SupportError
from sees_torch.estimates import point_estimates
from sees_torch.estimation import Estimation
from sees_torch.matching.match import quietly

FEWEST_ROWS = 20


def split_size(source: Source, rows: float) -> int:
    """Rows of the part that stands for a chunk of so many: at most half of the source."""
    total = float(source.total)
    if bool((source.count != source.count.round()).any()):
        raise SeesError(
            "false_alarms needs source rows with whole multiplicities: a population cannot be "
            "split into samples. Set floor or drop instead."
        )
    if total < 2 * FEWEST_ROWS:
        raise SeesError(f"a source of {total:g} rows is too small to learn false_alarms from.")
    return max(1, min(round(rows), int(total) // 2))


def nearest_size(known: Iterable[int], size: int) -> int:
    """The size whose splits serve this one: the nearest within a factor of two, else itself."""
    near = [other for other in known if size / 2 <= other <= 2 * size]
    return min(near, key=lambda other: abs(math.log(other / size)), default=size)


def stretch(source: Source, size: int, rows: float) -> float:
    """Noise of a chunk of `rows` against the source, over that of a split with `size` rows."""
    total = float(source.total)
    return math.sqrt((1 / rows + 1 / total) / (1 / size + 1 / (total - size)))


def split_gap(estimation: Estimation, source: Source, size: int, seed: int, draw: int) -> float:
    """Gap of the headline metric between a random part of the source and the rest.

    The rest lacks the part, so that both are samples of one law that share no row.

    Args:
        estimation: how to estimate.
        source: distinct rows, calibrated.
        size: rows of the part.
        seed, draw: which split; every draw has randomness of its own, so that learning can stop
            and go on.
    """
    digest = hashlib.sha256(f"{seed} {size} {draw}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    copies = torch.repeat_interleave(source.count.round().to(torch.int64).cpu())
    taken = copies[torch.randperm(len(copies), generator=generator)[:size]]
    there = torch.bincount(taken, minlength=len(source)).to(source.count)
    rest, part = _kept(source, source.count - there), _unlabelled(_kept(source, there))
    try:
        match = quietly(estimation.method, rest, part)
    except SupportError as error:
        raise SeesError(
            f"{size} random rows of the source could not be estimated against the rest, so that "
            f"false_alarms cannot be learnt: {error} Set floor or drop instead."
        ) from None
    with torch.no_grad():
        points = point_estimates(
            rest, part, match, estimation.method, estimation.metrics[:1], estimation.estimator
        )
    return float(points.estimates[0].gap.gap)


def _kept(source: Source, count: Tensor) -> Source:
    """The rows of positive multiplicity."""
    index = count.nonzero().squeeze(1)
    return source.select(index, count[index])


def _unlabelled(source: Source) -> Target:
    target = Target.__new__(Target)
    target.__dict__.update(source.__dict__)
    target.labels = torch.full_like(source.labels, -1)
    return target
