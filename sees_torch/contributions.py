"""What every row adds to an estimate of the gap."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RowValues:
    """A per-row metric on both samples.

    Attributes:
        own: (n,) value of every source row.
        source: (n, L) value that it would have under each label; target: (m, L).
    """

    own: Tensor
    source: Tensor
    target: Tensor


@dataclass(frozen=True)
class GapParts:
    """Estimates of one metric under B sets of multiplicities, and what each row adds to them.

    Attributes:
        source_value, target_value: (B,); target_value is the sum of the means of both parts.
        source_part: (B, n) of the source rows; target_part: (B, m) of the target rows.
        told_part: (B, m) of that, what only labelled rows add, by their labels; or (1, m) zeros.
    """

    source_value: Tensor
    target_value: Tensor
    source_part: Tensor
    target_part: Tensor
    told_part: Tensor

    @property
    def gap(self) -> Tensor:
        return self.target_value - self.source_value


def weighted_mean(value: Tensor, count: Tensor) -> Tensor:
    return (value * count).sum(dim=-1) / count.sum(dim=-1)


def mean_covariance(value: Tensor, other: Tensor, count: Tensor) -> Tensor:
    """Covariance of the means of two (..., n) values with multiplicities."""
    centred, beside = (each - weighted_mean(each, count)[..., None] for each in (value, other))
    return (centred * beside * count).sum(dim=-1) / count.sum(dim=-1).square()


def mean_variance(value: Tensor, count: Tensor) -> Tensor:
    """Variance of the mean of (..., n) values with multiplicities."""
    return mean_covariance(value, value, count)
