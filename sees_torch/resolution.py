"""How well labels can be told apart inside the cells of the features that shifted.

Labels that cannot be told apart inside a cell make the gap's variance explode: then nothing can be
said of the gap, however well the features are known.
"""

from __future__ import annotations

import torch

from sees_torch.data import Source, Target
from sees_torch.efficient import efficient_values, worst_condition
from sees_torch.gap import Metric, row_values
from sees_torch.matching import Match, SEESem
from sees_torch.matching.match import quietly
from sees_torch.weight_cells import cells_of, has_cells
from sees_torch.weights import WeightFunction


def resolution(
    source: Source, target: Target, match: Match, metric: Metric
) -> tuple[float, float] | None:
    """How well labels can be told apart inside the cells of the chosen features.

    Returns:
        The mean over the target of how far apart the unresolved means of the labels of a cell
        are, as a share of the metric's range: 0 when every label is resolved, 1 when none is. And
        the largest condition number of the cells that hold 1 % or more of the target. None for
        weights without cells.
    """
    function = match.weight_function
    if not has_cells(function):
        return None
    if match.estimator is not None:
        # Whatever was chosen assumes that labels stayed inside the cells: could the data tell?
        names = tuple(source.schema.names[j] for j in match.features)
        function = quietly(SEESem(features=names).quick(), source, target).weight_function
    return _unresolved(source, target, function, metric)


def blind_spot(source: Source, target: Target, metric: Metric) -> float:
    """The same share if the feature that says most about the label had shifted with it."""
    told = []
    for j, size in enumerate(source.schema.cardinalities):
        sums = torch.zeros(size, len(source.classes) + 1).to(source.posterior)
        one = torch.ones_like(source.posterior[:, :1])
        entries = torch.cat([source.posterior, one], dim=1) * source.mass[:, None]
        sums.index_add_(0, source.rows.codes[:, j], entries)
        told.append(float((sums[:, :-1].square().sum(dim=1) / sums[:, -1].clamp_min(1e-37)).sum()))
    feature = source.schema.names[told.index(max(told))]
    function = quietly(SEESem(features=(feature,)).quick(), source, target).weight_function
    return _unresolved(source, target, function, metric)[0]


def _unresolved(
    source: Source, target: Target, function: WeightFunction, metric: Metric
) -> tuple[float, float]:
    values = row_values(source, target, metric) or row_values(source, target, "accuracy")
    assert values is not None
    cells = cells_of(function, source, target)
    found = efficient_values(source, target, cells, values)
    mass = torch.zeros_like(cells.weight[:, 0]).index_add(0, cells.target, target.mass)
    here = torch.zeros_like(cells.weight).index_put(
        (cells.source, source.labels), source.mass, accumulate=True
    )
    left = found.unresolved[0]
    apart = torch.where(here > 0, left, -torch.inf).amax(dim=1)
    apart = apart - torch.where(here > 0, left, torch.inf).amin(dim=1)
    spread = float((mass * torch.where(apart.isfinite(), apart, 0.0)).sum())
    scale = float(values.source.max() - values.source.min())
    return spread / max(scale, 1e-37), worst_condition(source, target, function)
