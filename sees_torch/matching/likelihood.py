"""Target rows as the likelihood methods see them: distinct, with the mass of each."""

from __future__ import annotations

from torch import Tensor

from sees_torch.data import Rows, Target
from sees_torch.data.counting import group_rows


def distinct_target(target: Target) -> tuple[Rows, Tensor, Tensor]:
    """Distinct rows, their posterior (U, L) and mass (U,); rows equal in all but mass merge."""
    values = [v for v, c in zip(target.rows.values.T, target.schema.continuous, strict=True) if c]
    posterior = list(target.posterior.T[:-1])
    groups = group_rows(target.rows.codes, target.schema.cardinalities, values + posterior)
    return target.rows[groups.first], target.posterior[groups.first], groups.sum(target.mass)
