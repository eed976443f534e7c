"""The gap inside slices of the rows: one level of a feature, or of several at once.

Inside a slice the shift is still one of the same features with the label, with weights that are
scaled to average one there. So the estimator of the whole serves every slice, with its analytic
error; what a slice does not know of its own is lent by no other slice. Where the report averages
over hypotheses, so do its slices, and what the hypotheses differ by widens the interval. What it
allows for labels that drift given the features is allowed for in every slice anew, and slices are
believed as far as the whole is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sees_torch.contributions import GapParts, RowValues, mean_variance
from sees_torch.data import Column, Rows, Source, Target
from sees_torch.data.samples import is_population
from sees_torch.data.tables import Name
from sees_torch.efficient import FEW_ROWS as LENT_ROWS
from sees_torch.efficient import FREE_ROWS, efficient_values
from sees_torch.errors import SchemaError
from sees_torch.explanation import free_name
from sees_torch.gap import Metric, drift, gap_parts, own_estimator, row_values
from sees_torch.matching import Match, NoShift
from sees_torch.matching.match import Estimator
from sees_torch.uncertainty import normal_interval
from sees_torch.weight_cells import Cells, cells_of
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS
from sees_torch.weights import WeightFunction

if TYPE_CHECKING:
    import pandas as pd

    from sees_torch.report import ShiftReport

FEW_ROWS = 30.0
"""Effective source rows, or target rows, below which a slice is called small."""


def slice_frame(report: ShiftReport, names: Sequence[Name], confidence: float) -> pd.DataFrame:
    """One row a slice, largest share of the target first; see `ShiftReport.by`."""
    import pandas as pd

    source, target = report.source, report.target
    views, metric = _views(report), report.metrics[0]
    choice = report.match.choice
    belief = 1.0 if choice is None else choice.belief
    members = [_position(source, name) for name in names]
    columns = [source.schema.columns[j] for j in members]
    keys = torch.cat([_keys(sample, members) for sample in (source, target)])
    levels, place = torch.unique(keys, return_inverse=True)
    here, there = (_split(p, len(levels)) for p in (place[: len(source)], place[len(source) :]))
    figures = [
        "source_rows",
        "target_rows",
        "effective_rows",
        "source",
        "target",
        "gap",
        "low",
        "high",
        "note",
    ]
    named = [free_name(figure, names) for figure in figures]
    records = []
    for number, level in enumerate(levels.tolist()):
        part = _Slice(source, target, here[number], there[number], report.weights)
        said = _levels(columns, level)
        found = part.figures(views, metric, confidence, belief)
        records.append(said | dict(zip(named, found, strict=True)))
    frame = pd.DataFrame(records)
    return frame.sort_values(named[1], ascending=False, kind="stable", ignore_index=True)


def _keys(sample: Source | Target, members: list[int]) -> Tensor:
    """(n,) the slice of every row as one number, the last feature varying fastest."""
    key = torch.zeros_like(sample.rows.codes[:, 0], dtype=torch.int64)
    for j in members:
        key = key * sample.schema.columns[j].codes + sample.rows.codes[:, j]
    return key


def _levels(columns: list[Column], key: int) -> dict[Name, str]:
    """The levels that a key stands for."""
    said = {}
    for column in reversed(columns):
        key, code = divmod(key, column.codes)
        said[column.name] = column.describe(code)
    return dict(reversed(said.items()))


def _split(place: Tensor, slices: int) -> tuple[Tensor, ...]:
    """Rows of every slice."""
    sizes = torch.bincount(place, minlength=slices).tolist()
    return place.argsort(stable=True).split(sizes)


def _position(source: Source, name: Name) -> int:
    if name not in source.schema.names:
        raise SchemaError(
            f"the report has no feature {name!r} to slice by; it has {list(source.schema.names)}."
        )
    return source.schema.names.index(name)


class _Scaled(WeightFunction):
    """The weights inside a slice, as its rows and everything else asks for them."""

    def __init__(self, inner: WeightFunction, own: Tensor, scale: Tensor) -> None:
        super().__init__(inner.schema, inner.classes)
        self.inner, self.own, self.scale = inner, own, scale

    def of_rows(self, rows: Rows, labels: Tensor) -> Tensor:
        return self.own * self.scale

    def table(self, rows: Rows) -> Tensor:
        return self.inner.table(rows) * self.scale


@dataclass(frozen=True)
class _View:
    """A hypothesis that slices are seen under, and its share in what is said of them.

    Attributes:
        weights: (n,) of all source rows.
        estimator: of the gap; error: whose analytic error it gets, None for no interval. That
            nothing shifted is uncertain as labels only are: a small shift may have gone unseen.
        drifting: part of the share for which labels drift given the features.
    """

    function: WeightFunction
    weights: Tensor
    estimator: Estimator
    error: Estimator | None
    share: float
    drifting: float = 0.0

    @classmethod
    def of(cls, match: Match, weights: Tensor, estimator: Estimator, share: float) -> _View:
        error: Estimator | None = estimator
        if match.method == NoShift().name:
            error = None if match.choice is None and share == 1 else "eff"
        return cls(match.weight_function, weights.detach(), estimator, error, share)


def _views(report: ShiftReport) -> list[_View]:
    """The hypotheses behind the report's gap: those that it averages over, else the chosen one."""
    match, choice, source = report.match, report.match.choice, report.source
    own = _View.of(match, report.weights, report.gaps[0].estimator, 1.0)
    if choice is None or not choice.parts:
        return [own]
    shares = choice.shares(choice.evidence.score()).tolist()
    drifting = choice.story_shares
    views = []
    for place in choice.parts:
        view = own
        if place != choice.chosen:
            other = choice.fitted[place]
            weights = other.weight_function.of_rows(source.rows, source.labels)
            view = _View.of(other, weights, own_estimator(other), shares[place])
        views.append(replace(view, share=shares[place], drifting=drifting.get(place, 0.0)))
    return views


class _Slice:
    """The rows of one slice in both samples, and the weights of its source rows."""

    def __init__(
        self, source: Source, target: Target, here: Tensor, there: Tensor, weights: Tensor
    ) -> None:
        self.source = source.select(here, source.count[here])
        self.target = target.select(there, target.count[there])
        self.here, self.weights = here, weights[here].detach()
        self.population = is_population(source, target)

    def figures(
        self, views: list[_View], metric: Metric, confidence: float, belief: float
    ) -> tuple[Any, ...]:
        """Rows, effective rows, values, gap, interval and remark."""
        nan = float("nan")
        rows, others = float(self.source.total), float(self.target.total)
        weighed = self.weights * self.source.count
        squares = float((self.weights * weighed).sum())
        effective = float(weighed.sum()) ** 2 / squares if squares > 0 else 0.0
        sizes = (rows, others, effective)
        if not all(sizes):
            before = self._before(metric) if rows else nan
            said = "the weights leave no source rows" if rows else "no source rows"
            return *sizes, before, nan, nan, nan, nan, said if others else "no target rows"
        before, after, error = self._averaged(views, metric)
        gap = belief * (after - before)
        ends = (nan, nan) if error is None else normal_interval(gap, error, confidence)
        small = min(effective, others) < FEW_ROWS and not self.population
        note = "few rows: the interval may be too narrow" if small else ""
        return *sizes, before, before + gap, gap, *ends, note

    def _before(self, metric: Metric) -> float:
        values = row_values(self.source, self.target, metric)
        if values is None:
            function = WEIGHTED_METRICS[str(metric)]
            return float(function(self.source.proba, self.source.labels, self.source.count))
        return float(self.source.mean(values.own))

    def _averaged(self, views: list[_View], metric: Metric) -> tuple[float, float, float | None]:
        """Source and target value, and the standard error of their difference, over all views.

        Its variance is the mean of theirs and the variance between them.
        """
        seen = [view for view in views if bool(view.weights[self.here].sum() > 0)]
        found = [self._estimate(view, metric) for view in seen]
        share = torch.tensor([view.share for view in seen], dtype=torch.float64)
        share = share / share.sum()
        values = torch.tensor([after for _, after, _ in found], dtype=torch.float64)
        after = float(share @ values)
        allowed = sum(
            view.drifting * float(drift(self.source, self.target, view.function, metric))
            for view in seen
            if view.drifting
        )
        errors = [error for _, _, error in found if error is not None]
        if len(errors) < len(found):
            return found[0][0], after + allowed, None
        square = torch.tensor(errors, dtype=torch.float64).square() + (values - after).square()
        error = (float(share @ square) + allowed**2) ** 0.5
        return found[0][0], after + allowed, error

    def _estimate(self, view: _View, metric: Metric) -> tuple[float, float, float | None]:
        """Source and target value, and the standard error of their difference."""
        source, target = self.source, self.target
        values = row_values(source, target, metric)
        weights = view.weights[self.here]
        if values is None:
            weighted = WEIGHTED_METRICS[str(metric)]
            after = weighted(source.proba, source.labels, weights * source.count)
            return self._before(metric), float(after), None
        found = self._parts(view, weights, values, view.estimator, LENT_ROWS)
        error = None
        if view.error is not None and not self.population:
            spread = self._parts(view, weights, values, view.error, FREE_ROWS)
            own = mean_variance(spread.source_part[0] - values.own, source.count)
            error = float(own + mean_variance(spread.target_part[0], target.count)) ** 0.5
        return float(found.source_value[0]), float(found.target_value[0]), error

    def _parts(
        self,
        view: _View,
        weights: Tensor,
        values: RowValues,
        estimator: Estimator,
        few_rows: float,
    ) -> GapParts:
        """What every row adds, with weights that average one over the slice."""
        source, target = self.source, self.target
        scale = 1 / source.mean(weights)
        if estimator != "eff":
            scaled = _Scaled(view.function, weights, scale)
            return gap_parts(source, target, scaled, values, estimator)
        cells = cells_of(view.function, source, target)
        cells = Cells(cells.weight * scale, cells.source, cells.target)
        return efficient_values(source, target, cells, values, few_rows=few_rows)
