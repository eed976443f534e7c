"""The report on a shift: the gap and its error, the shifted features, and the evidence."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sees_torch import report_tables as tables
from sees_torch.alternatives import Alternative
from sees_torch.calibration import Calibration
from sees_torch.contributions import RowValues
from sees_torch.data import Source, Target
from sees_torch.data.tables import Name
from sees_torch.disclosure import checked_least
from sees_torch.errors import SeesError
from sees_torch.explanation import JointLaw, cell_frame, free_name
from sees_torch.gap import Gap, Metric, headline_values
from sees_torch.identifiability import Status
from sees_torch.matching import Match
from sees_torch.matching.match import whole_number
from sees_torch.matching.names import METHODS
from sees_torch.sample_sizes import least_error, rows_needed
from sees_torch.slices import slice_frame
from sees_torch.suggestions import label_rates, suggest
from sees_torch.weights import WeightFunction

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class ShiftReport:
    """How much performance changed, and which features moved.

    Attributes:
        gaps: one estimate per metric, the headline first.
        match: what the method found.
        weights: (n,) weight of every source row, exactly `weight_function(source, labels)`.
        target_label_distribution: {class: estimated share of the target}.
        intervals: (low, high) for the population gap of every metric, None where there is none.
        standard_errors: of every metric's gap; analytic_errors: the analytic ones, given the
            chosen hypothesis.
        interval_source: "bootstrap", "analytic", or why there is no interval.
        status: "identified", "weak" or "not_identified".
        reasons: for the status, in words.
        diagnostics: named figures behind the status.
        alternatives: other hypotheses beside the chosen one.
        selection: {features, or the words for many of them: share of resamples that chose them}.
        notes: what was done to unusual input, in words.
        settings: the call that made the report.
        calibration: what turned the model's probabilities into p(y|x), None if nothing did.
    """

    gaps: tuple[Gap, ...]
    match: Match
    weights: Tensor
    source: Source = field(repr=False)
    target: Target = field(repr=False)
    metrics: tuple[Metric, ...]
    target_label_distribution: dict[Any, float]
    diagnostics: dict[str, float]
    notes: tuple[str, ...] = ()
    intervals: tuple[tuple[float, float] | None, ...] = ()
    standard_errors: tuple[float | None, ...] = ()
    analytic_errors: tuple[float | None, ...] = ()
    interval_source: str = "not asked for"
    confidence: float | None = None
    status: Status = "weak"
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    selection: dict[tuple[Name, ...], float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = field(default=None, repr=False)

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high) for the population gap of the headline metric."""
        return self.intervals[0] if self.intervals else None

    @property
    def method(self) -> str:
        """Name of the method behind the weights, as `estimate_shift` knows it.

        Some hypotheses of "auto" are fitted in ways that are no method of their own.
        """
        own = self.match.method
        return "auto" if self.match.choice is not None and own not in METHODS else own

    @property
    def hypothesis(self) -> str:
        """What the chosen hypothesis says shifted, in words."""
        return "" if self.match.choice is None else self.match.choice.candidate.words

    @property
    def gap(self) -> float:
        """Metric on the target minus metric on the source, for the headline metric."""
        return float(self.gap_tensor.detach())

    @property
    def gap_tensor(self) -> Tensor:
        """The gap as a tensor, with its gradient where the probabilities have one."""
        return self.gaps[0].gap

    @property
    def target_tensor(self) -> Tensor:
        """The target value, as `gap_tensor`."""
        return self.gaps[0].target_value

    @property
    def source_value(self) -> float:
        return float(self.gaps[0].source_value.detach())

    @property
    def target_value(self) -> float:
        return float(self.gaps[0].target_value.detach())

    @property
    def metric(self) -> str:
        return self.gaps[0].metric

    @property
    def weight_function(self) -> WeightFunction:
        return self.match.weight_function

    @property
    def shifted_features(self) -> tuple[Name, ...]:
        """Names of the shifted features; () means labels only, or nothing."""
        return tuple(self.source.schema.names[j] for j in self.match.features)

    @property
    def ties(self) -> tuple[tuple[Name, ...], ...]:
        """Sets of features that fit exactly as well as the chosen one, itself included."""
        if self.match.ranking is None:
            return (self.shifted_features,)
        names = self.source.schema.names
        return tuple(tuple(names[j] for j in tied) for tied in self.match.ranking.ties)

    def to_dict(self, *, min_cell_count: int = 0) -> dict[str, Any]:
        """Everything but the rows, as plain values; for `min_cell_count` see `save_html`."""
        return tables.plain_values(self, checked_least(min_cell_count))

    def to_frame(self, of: str = "metrics", *, min_cell_count: int = 0) -> pd.DataFrame:
        """A tidy table, one row an observation.

        Args:
            of: "metrics" (values and gap), "labels" (shares by class), "marginals" (shares of every
                level of every feature), or "cells", "hypotheses", "ranking" as these methods.
            min_cell_count: as in `save_html`; what is pooled stands in the last row.
        """
        return tables.table(self, of, checked_least(min_cell_count))

    def ranking(self, best: int | None = None) -> pd.DataFrame:
        """The feature subsets that the method compared, best score first.

        `objective` is the distance that remains, `score` the distance beyond sampling noise in
        standard deviations: scores are comparable between subsets, objectives are not.
        """
        return tables.ranking_frame(self, best)

    def hypotheses(self) -> pd.DataFrame:
        """Hypotheses beside the chosen one, best score first, with the gap that each would give.

        `behind` counts standard errors to the best; the simplest hypothesis less than 1.5 behind
        is chosen. A `rival` is as simple as the chosen one and explains the target as well; `share`
        is a hypothesis' part in the gap, which is an average over those that the data leave open.
        """
        return tables.hypothesis_frame(self)

    def cells(self, *, min_cell_count: int = 0) -> pd.DataFrame:
        """Every cell of the shifted features and label: share before and after, weight."""
        law = JointLaw.of(self.source, self.weight_function, torch.zeros_like(self.source.count))
        return cell_frame(law, self.source, checked_least(min_cell_count))

    def by(self, feature: Name | list[Name], confidence: float | None = None) -> pd.DataFrame:
        """The headline gap inside every slice: each level of a feature, or of several at once.

        The estimator is the report's own, with weights that average one inside the slice. `low` to
        `high` is an analytic interval: from the least variance for `eff`, else given the weights.
        Where the gap is an average over hypotheses, so are those of its slices, and the interval
        allows for what they differ by; else it takes the chosen features for granted, as the
        status does not. Metrics that are no mean over rows have none. `effective_rows` is what the
        weights leave of the source rows.

        Args:
            feature: name of a feature (continuous ones are cut at their quantiles), or a list.
            confidence: of the intervals, by default the report's, else 0.95.
        """
        names = feature if isinstance(feature, list) else [feature]
        with torch.no_grad():
            return slice_frame(self, names, confidence or self.confidence or 0.95)

    def attribution(self) -> dict[Name, float]:
        """How the headline gap splits between the labels and each shifted feature.

        Exact Shapley values of the model that the weights describe: a player moves to its target
        law, everything else given the moved ones stays as in the source. "rest" is what the
        estimated gap differs from the model's.
        """
        own = self._row_values().own
        shares = JointLaw.of(self.source, self.weight_function, own).shapley()
        return {**shares, free_name("rest", shares): self.gap - sum(shares.values())}

    def suggest_labels(self, k: int) -> np.ndarray:
        """Positions of the k target rows whose labels, as `target_labels`, would tell most.

        They would narrow the gap down, under the hypotheses that it rests on and between these and
        their rivals; a third of them looks everywhere, for what no hypothesis says.
        """
        if not 0 < whole_number(k, "k") <= len(self.target):
            raise SeesError(f"k must be 1 to {len(self.target)}, the target's rows; got {k!r}.")
        given = self.source, self.target, self.match, self.alternatives, self.metrics[0]
        return suggest(self.target, label_rates(*given)[1], k).cpu().numpy()

    def rows_needed(self, half_width: float, confidence: float = 0.95) -> dict[str, float]:
        """Rows that an interval of gap +- half_width needs, from the least variance V.

        `target_rows` when only the target grows (infinite where the source sets the limit), and
        `both`, target rows when the source grows in proportion.
        """
        sizes = float(self.source.total), float(self.target.total)
        return rows_needed(self.expected_error, sizes, half_width, confidence)

    def expected_error(self, source_rows: float, target_rows: float) -> float:
        """Least standard error of the headline gap for samples of these sizes, sqrt(V)."""
        sizes = (source_rows, target_rows)
        return least_error(self.source, self.target, self.match, self._row_values(), sizes)

    def _row_values(self) -> RowValues:
        return headline_values(self.source, self.target, self.metrics[0])

    def plot(self) -> matplotlib.figure.Figure:
        """Source against target value, and the weights by cell of the shifted features."""
        from sees_torch.report_plot import plot_report

        return plot_report(self)

    def save_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "Shift report",
        overwrite: bool = False,
        min_cell_count: int = 0,
    ) -> None:
        """Write one HTML file that needs nothing else: no network, no scripts.

        Args:
            path: of the file; written whole or not at all.
            title: heading of the page.
            overwrite: replace an existing file, which is otherwise refused.
            min_cell_count: cells, levels and labels with fewer rows are pooled, and notes that may
                tell of single rows withheld.
        """
        from sees_torch.page import page, write_page

        write_page(page(self, title, checked_least(min_cell_count)), path, overwrite)

    def save(self, path: str | Path) -> None:
        """Write the report, without the rows behind it, to a file that `load_report` reads."""
        from sees_torch.saving import save_report

        save_report(self, path)

    def values(self) -> list[tuple[str, float, float]]:
        """Name, source and target value of every metric; equal names are numbered."""
        return tables.metric_values(self.gaps)

    def __str__(self) -> str:
        from sees_torch.report_text import report_lines

        return "\n".join(report_lines(self))
