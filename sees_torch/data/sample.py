"""What source and target have in common: rows, probabilities, multiplicities."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from sees_torch.data.merging import equal_rows
from sees_torch.data.ranks import exchange
from sees_torch.data.schema import Rows, Schema
from sees_torch.data.streams import Counted, Tally
from sees_torch.errors import SupportError

Own = TypeVar("Own", bound="Sample")


class Sample:
    """Rows, probabilities and multiplicities of one sample."""

    rows: Rows
    schema: Schema
    classes: tuple[Any, ...]
    labels: Tensor
    """(n,) position of the label; -1 where a target's label is not known."""
    proba: Tensor
    """(n, L) what the model says: predictions and metrics are read from it."""
    posterior: Tensor
    """(n, L) p(y|x) as the methods use it: `proba`, calibrated if asked."""
    count: Tensor
    """(n,) row multiplicities."""
    notes: tuple[str, ...] = ()
    """What was done to unusual input, in words."""
    asked: Tensor | None = None
    """(n,) what a label of each target row like it would tell, as far as is known without any."""
    sampled: bool = False
    """These are sampled rows even where multiplicities are below one: old rows count less."""

    @property
    def total(self) -> Tensor:
        return self.count.sum()

    @property
    def mass(self) -> Tensor:
        """(n,) multiplicities that sum to one."""
        return self.count / self.total

    @property
    def predictions(self) -> Tensor:
        """(n,) most probable class, the first one where several tie."""
        if self.proba.shape[1] == 2:
            return (self.proba[:, 1] > self.proba[:, 0]).to(torch.int64)
        return self.proba.argmax(dim=1)

    def __len__(self) -> int:
        return len(self.rows)

    def mean(self, per_row: Tensor) -> Tensor:
        """Mean over the rows of a (n, ...) tensor, multiplicities included."""
        return torch.tensordot(self.mass.to(per_row.dtype), per_row, dims=1)

    def with_posterior(self: Own, posterior: Tensor) -> Own:
        """The same sample with another p(y|x)."""
        other = copy.copy(self)
        other.posterior = posterior
        return other

    def merged(self: Own) -> tuple[Own, Tensor]:
        """The distinct rows with their multiplicities, and which of them every row became.

        Rows of multiplicity zero are dropped (they become the one past the last). The order of
        the distinct rows depends on their content only: neither the order of rows nor batches nor
        processes change it, so that resamples come out the same.
        """
        groups = equal_rows(self.schema, self.rows, self.labels, self.proba.detach())
        groups = groups.counted(self.count)
        count = groups.sum(self.count)
        other = self.select(groups.first, count)
        if torch.is_grad_enabled() and (self.proba.requires_grad or self.posterior.requires_grad):
            # Equal to their mean, so that gradients reach every row by its share.
            for name in ("proba", "posterior"):
                rows = getattr(self, name)
                mean = groups.sum(rows * self.count[:, None]) / count[:, None]
                setattr(other, name, rows[groups.first].detach() + (mean - mean.detach()))
        return other, groups.of_row

    def select(self: Own, index: Tensor, count: Tensor) -> Own:
        """Some of the rows, with other multiplicities."""
        other = copy.copy(self)
        other.rows, other.labels, other.count = self.rows[index], self.labels[index], count
        other.proba, other.posterior = self.proba[index], self.posterior[index]
        if self.asked is not None:
            other.asked = self.asked[index]
        return other

    def _take(
        self,
        count: Callable[[], Counted | None],
        precision: int | None,
        max_rows: int,
        distributed: bool,
        what: str,
    ) -> None:
        """Fill the sample with the counted rows of one process, or of all."""
        tally = Tally(self.schema, precision, max_rows)
        for counted in exchange(count) if distributed else [count()]:
            if counted is not None:
                tally.merge(counted)
        found = tally.counted()
        if found is None:
            raise SupportError(f"{what} is empty: at least one row is needed.")
        self.rows, self.labels, self.count = found.rows, found.labels, found.count
        self.proba = self.posterior = found.proba
        self.notes = found.notes(what)

    def to(self: Own, *place: Any) -> Own:
        """The sample on another device, or in another precision, as `Tensor.to`.

        In float32 solves stop at 1e-4, which is enough for a gap to a hundredth of a point.
        """
        other = copy.copy(self)
        other.proba, other.posterior = self.proba.to(*place), self.posterior.to(*place)
        other.count = self.count.to(*place)
        other.asked = None if self.asked is None else self.asked.to(*place)
        device = other.proba.device
        other.rows, other.labels = self.rows.to(device), self.labels.to(device)
        return other

    def asking(self: Own, asked: Tensor) -> Own:
        """The same rows with what their labels would tell."""
        other = copy.copy(self)
        other.asked = asked
        return other

    def with_count(self: Own, count: Tensor) -> Own:
        """The same rows with other multiplicities."""
        other = copy.copy(self)
        other.count = count
        return other
