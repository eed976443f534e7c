"""What the metrics of this room ask of torchmetrics beyond its own promises.

States keep their precision whatever `to` asks of them, a process without rows joins the others,
merged states forget a value computed before, and an error in `compute` leaves the states usable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric


class RowMetric(Metric):
    """A metric of float64 sums, or of rows that are kept as lists of tensors."""

    full_state_update = False
    _forward_cache: Any

    def __init__(self, **metric_kwargs: Any) -> None:
        super().__init__(**metric_kwargs)
        self._no_rows: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def add_rows(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Add a list state of (n, *shape) tensors that are concatenated over processes."""
        self.add_state(name, [], dist_reduce_fx="cat")
        self._no_rows[name] = (shape, dtype)

    def rows(self, name: str) -> Tensor:
        """(n, ...) all rows of a list state."""
        held = getattr(self, name)
        if isinstance(held, Tensor):
            return held
        return torch.cat(held) if held else self._empty(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The value of one batch, with its graph, while the batch is counted without."""
        value = super().forward(*args, **kwargs)
        # Kept for loggers; a graph in it would not let the metric be copied.
        self._forward_cache = value.detach() if isinstance(value, Tensor) else value
        return value

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of another metric of the same kind to this one."""
        super().merge_state(incoming_state)
        self._computed = None
        self._update_count += getattr(incoming_state, "_update_count", 1)

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> Generator[None]:
        """As in `Metric`, but the own rows come back also when `compute` raises."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(self._is_synced and should_unsync)

    @property
    def rows_device(self) -> torch.device:
        """Where list states are kept."""
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _empty(self, name: str) -> Tensor:
        shape, dtype = self._no_rows[name]
        return torch.empty((0, *shape), dtype=dtype, device=self.rows_device)

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        # Tensors of another shape or type than the other processes' would not be gathered.
        for name in self._no_rows:
            if not len(getattr(self, name)):
                setattr(self, name, [self._empty(name)])
        super()._sync_dist(*args, **kwargs)

    def _apply(self, fn: Callable[..., Any], exclude_state: Sequence[str] = "") -> nn.Module:
        device = fn(torch.zeros(1, device=self.device)).device
        return super()._apply(lambda tensor: tensor.to(device), exclude_state)
