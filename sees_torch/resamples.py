"""The gap of one hypothesis in many resamples of the same rows."""

from __future__ import annotations

import torch
from torch import Tensor

from sees_torch.calibration import Calibration
from sees_torch.contributions import RowValues, weighted_mean
from sees_torch.data import Source, Target
from sees_torch.efficient import efficient_values
from sees_torch.few_labels import LabelMix
from sees_torch.gap import Gap, target_posterior
from sees_torch.matching import Match, Method
from sees_torch.matching.match import Estimator, Influential, Replicable
from sees_torch.weight_cells import cells_of
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS


class Resample:
    """One hypothesis under B sets of multiplicities."""

    def __init__(
        self,
        source: Source,
        target: Target,
        method: Method,
        match: Match,
        here: Tensor,
        there: Tensor,
        tables: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.source, self.target, self.method, self.match = source, target, method, match
        self.here, self.there = here, there
        self._tables = tables

    def tables(self) -> tuple[Tensor, Tensor]:
        """Weights (B, n, L) and (B, m, L) fitted anew."""
        if self._tables is None:
            assert isinstance(self.method, Replicable)
            self._tables = self.method.replicate(
                self.source, self.target, self.match, self.here, self.there
            )
        return self._tables

    def gap(
        self,
        name: str,
        estimator: Estimator,
        values: RowValues | None,
        mix: LabelMix | None,
        through: Tensor,
    ) -> Tensor:
        """(B,) gaps of one metric; `through` as `through_calibration` gives it."""
        source, target, here, there = self.source, self.target, self.here, self.there
        moved = (here - source.count) @ through
        if values is None:
            metric = WEIGHTED_METRICS[name]
            weight = self._own(self.tables()[0])
            before = metric(source.proba, source.labels, here)
            return metric(source.proba, source.labels, here * weight) + moved - before
        before = weighted_mean(values.own.expand_as(here), here)
        if estimator == "eff":
            cells = cells_of(self.match.weight_function, source, target)
            after = efficient_values(source, target, cells, values, here, there).target_value
        else:
            after = self._weighted(estimator, values)
        after = after + moved
        if mix is not None:
            after = mix.mixed(after, there)
        return after - before

    def _own(self, table: Tensor) -> Tensor:
        """(B, n) weights of the source rows under their own labels."""
        index = self.source.labels[None, :, None].expand(len(table), -1, 1)
        return table.gather(2, index).squeeze(2)

    def _weighted(self, estimator: str, values: RowValues) -> Tensor:
        on_source, on_target = self.tables()
        weight = self._own(on_source)
        if estimator == "ipw":
            return weighted_mean(weight * values.own, self.here)
        if estimator == "self-normalised":
            return weighted_mean(values.own.expand_as(weight), self.here * weight)
        posterior = target_posterior(on_target, self.target.posterior)
        plugin = weighted_mean((posterior * values.target).sum(dim=-1), self.there)
        if estimator == "plugin":
            return plugin
        expected = (target_posterior(on_source, self.source.posterior) * values.source).sum(dim=-1)
        return plugin + weighted_mean(weight * (values.own - expected), self.here)


def through_weights(
    source: Source,
    target: Target,
    method: Influential,
    match: Match,
    gap: Gap,
    values: RowValues,
) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) what a unit of mass of each row adds to a gap by moving the weights."""
    with torch.enable_grad():
        tables = [
            match.weight_function.table(sample.rows).detach()[None].requires_grad_()
            for sample in (source, target)
        ]
        counts = source.count[None], target.count[None]
        once = Resample(source, target, method, match, *counts, tables=(tables[0], tables[1]))
        (moving,) = once.gap(
            gap.metric, gap.estimator, values, None, torch.zeros_like(source.count)
        )
        slopes = torch.autograd.grad(moving, tables, materialize_grads=True)
    return method.influence(source, target, match, slopes[0][0], slopes[1][0])


def through_calibration(
    source: Source,
    target: Target,
    calibration: Calibration | None,
    method: Method,
    match: Match,
    metric: str,
    estimator: Estimator,
    values: RowValues | None,
) -> Tensor:
    """(n,) what one more copy of each source row adds to a gap by moving the calibration."""
    nothing = torch.zeros_like(source.count)
    if calibration is None:
        return nothing
    with torch.enable_grad():
        moving, leaves = calibration.leaves(source)
        counts = source.count[None], target.count[None]
        once = Resample(moving.source(source), moving.target(target), method, match, *counts)
        (gap,) = once.gap(metric, estimator, values, None, nothing)
        if not gap.requires_grad:
            return nothing
        slopes = torch.autograd.grad(gap, leaves)
    return calibration.influence(source, slopes)
