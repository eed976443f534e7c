"""The performance gap, metric on the target minus metric on the source, from weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.contributions import GapParts, RowValues
from sees_torch.data import Source, Target
from sees_torch.efficient import efficient_values
from sees_torch.errors import SeesError, ShapeError
from sees_torch.matching.match import Estimator, Match
from sees_torch.weight_cells import cells_of, has_cells
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS
from sees_torch.weights import WeightFunction

ESTIMATORS: tuple[Estimator, ...] = ("ipw", "self-normalised", "plugin", "dr", "eff")
RowMetric = Callable[[Tensor, Tensor], Tensor]
"""(probabilities (n, L), labels (n,) as class positions) -> (n,) value of every row."""
Metric = str | RowMetric
"""A name, or a per-row function."""
DRIFT = 0.4
"""Variance of a drift of log-odds, where nothing explains the target. On natural shifts of real
tables estimates without it are too high more often than not; see experiments/RESULTS.md."""


def accuracy(proba: Tensor, labels: Tensor) -> Tensor:
    """One where the likeliest class is the label."""
    return (proba.argmax(dim=1) == labels).to(proba.dtype)


def log_loss(proba: Tensor, labels: Tensor) -> Tensor:
    """-log p(label), with p floored at 1e-15."""
    return -proba.gather(1, labels[:, None]).squeeze(1).clamp_min(1e-15).log()


def brier(proba: Tensor, labels: Tensor) -> Tensor:
    """Squared distance between the probabilities and the one-hot label."""
    return (proba - torch.nn.functional.one_hot(labels, proba.shape[1])).square().sum(dim=1)


ROW_METRICS: dict[str, RowMetric] = {"accuracy": accuracy, "log_loss": log_loss, "brier": brier}


def is_rate(name: str) -> bool:
    """The metric is a share between 0 and 1, shown in percent."""
    return name == "accuracy" or name in WEIGHTED_METRICS


@dataclass(frozen=True)
class Gap:
    """An estimate of one metric on both samples; tensors keep the graph of their inputs."""

    metric: str
    estimator: Estimator
    source_value: Tensor
    target_value: Tensor

    @property
    def gap(self) -> Tensor:
        return self.target_value - self.source_value


def metric_name(metric: Metric) -> str:
    """The metric's name; anything that is no metric is refused."""
    if isinstance(metric, str):
        known = [*ROW_METRICS, *WEIGHTED_METRICS]
        if metric not in known:
            raise SeesError(
                f"unknown metric {metric!r}: take one of {', '.join(known)}, or a function of "
                "(probabilities, labels) that returns one value per row."
            )
        return metric
    if not callable(metric):
        raise SeesError(f"metric must be a name or a function, got {type(metric).__name__}.")
    return getattr(metric, "__name__", type(metric).__name__)


def row_values(source: Source, target: Target, metric: Metric) -> RowValues | None:
    """The metric's values, or None for a metric that is no mean over rows."""
    metric_name(metric)
    if isinstance(metric, str) and metric in WEIGHTED_METRICS:
        return None
    function = ROW_METRICS[metric] if isinstance(metric, str) else metric
    on_source = _label_values(function, source.proba)
    own = on_source.gather(1, source.labels[:, None]).squeeze(1)
    return RowValues(own, on_source, _label_values(function, target.proba))


def metric_values(metric: Metric, proba: Tensor, labels: Tensor) -> Tensor:
    """(n,) value of every row, checked."""
    function = ROW_METRICS[metric] if isinstance(metric, str) else metric
    values = function(proba, labels)
    if not isinstance(values, Tensor) or values.shape != labels.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ShapeError(
            f"the metric must return one value per row, shape ({len(labels)},); got {got}. "
            "A metric that is no mean over rows cannot be given as a function."
        )
    if not bool(values.isfinite().all()):
        raise SeesError("the metric returned NaN or infinity: bound it, e.g. floor probabilities.")
    return values.to(proba.dtype)


def headline_values(source: Source, target: Target, metric: Metric) -> RowValues:
    """The metric's values; a metric that is no mean over rows is refused."""
    values = row_values(source, target, metric)
    if values is None:
        raise SeesError(
            f"{metric_name(metric)} is no mean over rows: put a per-row metric such as 'accuracy' "
            "or 'log_loss' first."
        )
    return values


def _label_values(metric: RowMetric, proba: Tensor) -> Tensor:
    """(n, L) value that every row would have under each label, checked."""
    columns = []
    for label in range(proba.shape[1]):
        labels = torch.full((len(proba),), label, dtype=torch.int64, device=proba.device)
        columns.append(metric_values(metric, proba, labels))
    return torch.stack(columns, dim=1)


def target_posterior(weight_table: Tensor, posterior: Tensor) -> Tensor:
    """(..., n, L) p_t(y|x), proportional to p(y|x) w(x, y).

    A row that no label gives any weight to keeps p(y|x): the weights say that it does not occur.
    """
    joint = posterior * weight_table
    total = joint.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, joint / total.clamp_min(1e-37), posterior)


def drift(source: Source, target: Target, weights: WeightFunction, metric: Metric) -> Tensor:
    """() what the metric on the target changes by if labels given the features drift.

    Where a shift is nothing that the weights can express, p_t(y|x) = q is not quite what they say
    either. If its log-odds are off by a random amount of variance DRIFT, the mean of q is, to
    second order, q (1 + DRIFT / 2 (|q|^2 - q)): labels are less certain, and a model that was
    fitted to others is right less often.
    """
    values = row_values(source, target, metric)
    sample = source if values is None else target
    posterior = target_posterior(weights.table(sample.rows), sample.posterior)
    change = DRIFT / 2 * (posterior.square().sum(dim=1, keepdim=True) - posterior)
    if values is not None:
        return target.mean((posterior * change * values.target).sum(dim=1))
    weight = weights.of_rows(source.rows, source.labels) * source.count
    moved = weight * (1 + change.gather(1, source.labels[:, None]).squeeze(1))
    before, after = (
        WEIGHTED_METRICS[metric_name(metric)](source.proba, source.labels, each)
        for each in (weight, moved)
    )
    return after - before


def estimate_gap(
    source: Source,
    target: Target,
    weights: WeightFunction,
    metric: Metric = "accuracy",
    estimator: Estimator = "dr",
) -> Gap:
    """The metric on both samples.

    With l the value of a row, w the weights, and m(x) = sum_y p_t(y|x) l(x, y), the target's value
    is, by estimator,
    `ipw`: mean_s w l, the paper's; `self-normalised`: mean_s w l / mean_s w;
    `plugin`: mean_t m; `dr`: mean_t m + mean_s w (l - m), which forgives a wrong p(y|x) but not a
    wrong w; `eff`: the least variance for weights that are a table on a few features, see
    `sees_torch.efficient`.
    Metrics that are no mean over rows (F1, AUROC, ...) are always computed on weighted source rows,
    as `self-normalised`.
    """
    if estimator not in ESTIMATORS:
        raise SeesError(f"unknown estimator {estimator!r}: take one of {', '.join(ESTIMATORS)}.")
    name = metric_name(metric)
    values = row_values(source, target, metric)
    if values is None:
        function = WEIGHTED_METRICS[name]
        weight = weights.of_rows(source.rows, source.labels) * source.count
        before = function(source.proba, source.labels, source.count)
        after = function(source.proba, source.labels, weight)
        return Gap(name, "self-normalised", before, after)
    parts = gap_parts(source, target, weights, values, estimator)
    return Gap(name, estimator, parts.source_value[0], parts.target_value[0])


def gap_parts(
    source: Source,
    target: Target,
    weights: WeightFunction,
    values: RowValues,
    estimator: Estimator,
) -> GapParts:
    """What each row adds to an estimate of the gap."""
    if estimator == "eff":
        return efficient_values(source, target, cells_of(weights, source, target), values)
    before = source.mean(values.own)[None]
    here, there = torch.zeros_like(values.own), torch.zeros_like(values.target[:, 0])
    if estimator in ("plugin", "dr"):
        posterior = target_posterior(weights.table(target.rows), target.posterior)
        there = (posterior * values.target).sum(dim=1)
    if estimator != "plugin":
        weight = weights.of_rows(source.rows, source.labels)
        rest = values.own
        if estimator == "dr":
            posterior = target_posterior(weights.table(source.rows), source.posterior)
            rest = rest - (posterior * values.source).sum(dim=1)
        if estimator == "self-normalised":
            weight = weight / source.mean(weight)
        here = weight * rest
    nothing = torch.zeros_like(there)
    after = (source.mean(here) + target.mean(there))[None]
    return GapParts(before, after, here[None], there[None], nothing[None])


def own_estimator(match: Match) -> Estimator:
    """The estimator that belongs to a match: `eff` for tables, else `dr`, or the method's own."""
    if match.estimator is not None:
        return match.estimator
    return "eff" if has_cells(match.weight_function) else "dr"
