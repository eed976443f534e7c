"""What every solver returns: a value, and the evidence that it is one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

SINGLE = 1e-4
"""Tolerance of solves in single precision."""


class Status(Enum):
    """How a solve ended; each carries what to do about it."""

    CONVERGED = "converged"
    MAX_STEPS = "stopped at the step limit before its tolerance: raise max_steps"
    NOT_FINITE = "met a value that is not finite: check the scale of the input"


def attainable(tolerance: float, dtype: torch.dtype) -> float:
    """The tolerance, or the best that the precision of the numbers allows."""
    return tolerance if dtype == torch.float64 else max(tolerance, SINGLE)


@dataclass(frozen=True)
class Solution:
    """A solve of one problem, or of a batch of them.

    Attributes:
        value: the minimiser, batch dimensions first.
        multiplier: of the equality constraint, one per problem.
        residual: optimality residual of every problem, in the units the solver states.
        converged: bool, one per problem.
        steps: iterations taken by the slowest problem.
    """

    value: Tensor
    multiplier: Tensor
    residual: Tensor
    converged: Tensor
    steps: int

    def status(self) -> Status:
        """The verdict on the worst problem of the batch."""
        if not bool(self.residual.isfinite().all()):
            return Status.NOT_FINITE
        return Status.CONVERGED if bool(self.converged.all()) else Status.MAX_STEPS
