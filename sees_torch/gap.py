"""The performance gap, metric on the target minus metric on the source, from weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import SeesError, ShapeError
from sees_torch.weights import WeightFunction

Estimator = Literal["ipw", "self-normalised", "plugin", "dr"]
ESTIMATORS: tuple[Estimator, ...] = ("ipw", "self-normalised", "plugin", "dr")
RowMetric = Callable[[Tensor, Tensor], Tensor]
"""(probabilities (n, L), labels (n,) as class positions) -> (n,) value of every row."""


def accuracy(proba: Tensor, labels: Tensor) -> Tensor:
    """One where the likeliest class is the label."""
    return (proba.argmax(dim=1) == labels).to(proba.dtype)


def log_loss(proba: Tensor, labels: Tensor) -> Tensor:
    """-log p(label), with p floored at 1e-15."""
    return -proba.gather(1, labels[:, None]).squeeze(1).clamp_min(1e-15).log()


def brier(proba: Tensor, labels: Tensor) -> Tensor:
    """Squared distance between the probabilities and the one-hot label."""
    return (proba - torch.nn.functional.one_hot(labels, proba.shape[1])).square().sum(dim=1)


METRICS: dict[str, RowMetric] = {"accuracy": accuracy, "log_loss": log_loss, "brier": brier}


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


def resolve_metric(metric: str | RowMetric) -> tuple[str, RowMetric]:
    """The metric's name and per-row function."""
    if isinstance(metric, str):
        if metric not in METRICS:
            raise SeesError(
                f"unknown metric {metric!r}: take one of {', '.join(METRICS)}, or a function of "
                "(probabilities, labels) that returns one value per row."
            )
        return metric, METRICS[metric]
    if not callable(metric):
        raise SeesError(f"metric must be a name or a function, got {type(metric).__name__}.")
    return getattr(metric, "__name__", type(metric).__name__), metric


def row_values(metric: RowMetric, proba: Tensor, labels: Tensor) -> Tensor:
    """(n,) values of a per-row metric, checked."""
    values = metric(proba, labels)
    if not isinstance(values, Tensor) or values.shape != labels.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ShapeError(
            f"the metric must return one value per row, shape ({len(labels)},); got {got}. "
            "A metric that is no mean over rows cannot be given as a function."
        )
    values = values.to(proba.dtype)
    if not bool(values.isfinite().all()):
        raise SeesError("the metric returned NaN or infinity: bound it, e.g. floor probabilities.")
    return values


def label_values(metric: RowMetric, proba: Tensor) -> Tensor:
    """(n, L) value that every row would have under each label."""
    n_labels = proba.shape[1]
    rows = torch.zeros(len(proba), dtype=torch.int64, device=proba.device)
    return torch.stack([row_values(metric, proba, rows + y) for y in range(n_labels)], dim=1)


def target_posterior(weight_table: Tensor, posterior: Tensor) -> Tensor:
    """(n, L) p_t(y|x), proportional to p(y|x) w(x, y).

    A row that no label gives any weight to keeps p(y|x): the weights say that it does not occur.
    """
    joint = posterior * weight_table
    total = joint.sum(dim=1, keepdim=True)
    return torch.where(total > 0, joint / total.clamp_min(1e-300), posterior)


def estimate_gap(
    source: Source,
    target: Target,
    weights: WeightFunction,
    metric: str | RowMetric = "accuracy",
    estimator: Estimator = "dr",
) -> Gap:
    """The metric on both samples.

    With l the value of a row, w the weights, and m(x) = sum_y p_t(y|x) l(x, y), the target's value
    is, by estimator,
    `ipw`: mean_s w l, the paper's; `self-normalised`: mean_s w l / mean_s w;
    `plugin`: mean_t m; `dr`: mean_t m + mean_s w (l - m), which forgives a wrong p(y|x) but not a
    wrong w.
    """
    if estimator not in ESTIMATORS:
        raise SeesError(f"unknown estimator {estimator!r}: take one of {', '.join(ESTIMATORS)}.")
    name, function = resolve_metric(metric)
    value = row_values(function, source.proba, source.labels)
    on_source = source.mean(value)
    if estimator == "plugin":
        return Gap(name, estimator, on_source, _plugin(target, weights, function))
    weight = weights.of_rows(source.rows, source.labels)
    if estimator == "dr":
        table = weights.table(source.rows)
        expected = target_posterior(table, source.posterior) * label_values(function, source.proba)
        correction = source.mean(weight * (value - expected.sum(dim=1)))
        on_target = _plugin(target, weights, function) + correction
    else:
        on_target = source.mean(weight * value)
        if estimator == "self-normalised":
            on_target = on_target / source.mean(weight)
    return Gap(name, estimator, on_source, on_target)


def _plugin(target: Target, weights: WeightFunction, metric: RowMetric) -> Tensor:
    posterior = target_posterior(weights.table(target.rows), target.posterior)
    return target.mean((posterior * label_values(metric, target.proba)).sum(dim=1))
