"""The report on a shift: the gap and its error, the shifted features, and the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sees_torch.alternatives import Alternative
from sees_torch.calibration import Calibration
from sees_torch.data import Source, Target
from sees_torch.data.tables import Name
from sees_torch.efficient import RowValues, cells_of, has_cells, variance
from sees_torch.errors import SeesError
from sees_torch.explanation import JointLaw, cell_frame, free_name
from sees_torch.few_labels import suggest
from sees_torch.gap import Gap, Metric, row_values, target_posterior
from sees_torch.identifiability import Status
from sees_torch.matching import Match
from sees_torch.matching.match import whole_number
from sees_torch.weights import WeightFunction

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np
    import pandas as pd

MOST_ROWS = 10**9
"""Sample sizes beyond this count as out of reach."""


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
        selection: {features: share of the resamples that chose them}; a hypothesis of many features
            stands under its own name.
        notes: what was done to unusual input, in words.
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
    calibration: Calibration | None = field(default=None, repr=False)

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high) for the population gap of the headline metric."""
        return self.intervals[0] if self.intervals else None

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

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, as plain Python values."""
        return {
            "status": self.status,
            "reasons": list(self.reasons),
            "method": self.match.method,
            "hypothesis": self.hypothesis,
            "metric": self.metric,
            "estimator": self.gaps[0].estimator,
            "gap": self.gap,
            "interval": _listed(self.interval),
            "confidence": self.confidence,
            "interval_source": self.interval_source,
            "source_value": self.source_value,
            "target_value": self.target_value,
            "shifted_features": [_json_key(name) for name in self.shifted_features],
            "ties": [[_json_key(name) for name in tied] for tied in self.ties],
            "target_label_distribution": {
                _json_key(label): share for label, share in self.target_label_distribution.items()
            },
            "metrics": {
                name: {
                    "source": source,
                    "target": target,
                    "gap": target - source,
                    "interval": _listed(interval),
                    "estimator": gap.estimator,
                }
                for (name, source, target), gap, interval in zip(
                    self.values(), self.gaps, self._intervals(), strict=True
                )
            },
            "hypotheses": self._hypothesis_records(),
            "selection": [
                {"features": [_json_key(name) for name in features], "share": share}
                for features, share in self.selection.items()
            ],
            "diagnostics": dict(self.diagnostics),
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: source, target, gap with its interval, and how it was estimated."""
        import pandas as pd

        rows = [
            {
                "metric": name,
                "source": source,
                "target": target,
                "gap": target - source,
                "low": float("nan") if interval is None else interval[0],
                "high": float("nan") if interval is None else interval[1],
                "method": self.match.method,
                "estimator": gap.estimator,
                "shifted_features": ", ".join(map(str, self.shifted_features)),
                "status": self.status,
            }
            for (name, source, target), gap, interval in zip(
                self.values(), self.gaps, self._intervals(), strict=True
            )
        ]
        return pd.DataFrame(rows).set_index("metric")

    def ranking(self, best: int | None = None) -> pd.DataFrame:
        """The feature subsets that the method compared, best score first.

        `objective` is the distance that remains, `score` the distance beyond sampling noise in
        standard deviations: scores are comparable between subsets, objectives are not.
        """
        import pandas as pd

        found = self.match.ranking
        if found is None:
            raise SeesError(f"{self.match.method} does not rank feature subsets.")
        names = self.source.schema.names
        features = [tuple(names[j] for j in subset) for subset in found.subsets[:best]]
        figures = {"objective": found.objective[:best], "score": found.score[:best]}
        return pd.DataFrame(
            {"features": features} | {name: values.tolist() for name, values in figures.items()}
        )

    def hypotheses(self) -> pd.DataFrame:
        """Hypotheses beside the chosen one, best score first, with the gap that each would give.

        `behind` counts standard errors to the best; the simplest hypothesis less than 1.5 behind
        is chosen. A `rival` is as simple as the chosen one and explains the target as well; `share`
        is a hypothesis' part in the gap, which is an average over those that the data leave open.
        """
        import pandas as pd

        choice = self.match.choice
        if choice is None:
            raise SeesError(f"{self.match.method} compares no hypotheses: use method='auto'.")
        names = self.source.schema.names
        rows = []
        for other in self.alternatives:
            candidate = choice.candidates[other.place]
            rows.append(
                {
                    "hypothesis": candidate.words,
                    "features": tuple(names[j] for j in candidate.features),
                    "score": other.score,
                    "behind": other.behind,
                    "gap": other.gap,
                    "error": float("nan") if other.error is None else other.error,
                    "chosen": other.place == choice.chosen,
                    "rival": other.rival,
                    "share": other.share,
                }
            )
        return pd.DataFrame(rows)

    def _hypothesis_records(self) -> list[dict[str, Any]]:
        """The table of hypotheses as plain values."""
        if not self.alternatives:
            return []
        records = self.hypotheses().to_dict("records")
        for record in records:
            record["features"] = [_json_key(name) for name in record["features"]]
            for name in ("behind", "error"):
                record[name] = record[name] if math.isfinite(record[name]) else None
        return [{str(name): value for name, value in record.items()} for record in records]

    def cells(self) -> pd.DataFrame:
        """Every cell of the shifted features and label: share before and after, weight."""
        return cell_frame(self._law(), self.source)

    def attribution(self) -> dict[Name, float]:
        """How the headline gap splits between the labels and each shifted feature.

        Exact Shapley values of the model that the weights describe: a player moves to its target
        law, everything else given the moved ones stays as in the source. "rest" is what the
        estimated gap differs from the model's.
        """
        shares = self._law().shapley()
        return {**shares, free_name("rest", shares): self.gap - sum(shares.values())}

    def suggest_labels(self, k: int) -> np.ndarray:
        """Positions of the k target rows whose labels would shrink the interval most.

        Hand their labels back as `target_labels` (missing for all other rows).
        """
        if not 0 < whole_number(k, "k") <= len(self.target):
            raise SeesError(f"k must be 1 to {len(self.target)}, the target's rows; got {k!r}.")
        table = self.weight_function.table(self.target.rows)
        posterior = target_posterior(table, self.target.posterior).detach()
        return suggest(self.target, self._row_values(), posterior, k).cpu().numpy()

    def rows_needed(self, half_width: float, confidence: float = 0.95) -> dict[str, float]:
        """Rows that an interval of gap +- half_width needs, from the least variance V.

        Returns `target_rows` when only the target grows, infinite where the source limits the
        precision, and `both`, target rows when the source grows in proportion.
        """
        if not half_width > 0 or not 0 < confidence < 1:
            raise SeesError("half_width must be positive and confidence between 0 and 1.")
        wanted = half_width / NormalDist().inv_cdf((1 + confidence) / 2)
        n, m = float(self.source.total), float(self.target.total)
        return {
            "target_rows": _least(lambda factor: self.expected_error(n, factor * m), wanted) * m,
            "both": _least(lambda factor: self.expected_error(factor * n, factor * m), wanted) * m,
        }

    def expected_error(self, source_rows: float, target_rows: float) -> float:
        """Least standard error of the headline gap for samples of these sizes, sqrt(V)."""
        function = self.weight_function
        if not has_cells(function):
            raise SeesError(
                "sample sizes are known only for weights that are a table on a few features; "
                f"{self.match.method} gave {type(function).__name__}."
            )
        cells = cells_of(function, self.source, self.target)
        sizes = (source_rows, target_rows)
        return variance(self.source, self.target, cells, self._row_values(), sizes) ** 0.5

    def _law(self) -> JointLaw:
        return JointLaw.of(self.source, self.weight_function, self._row_values())

    def _row_values(self) -> RowValues:
        values = row_values(self.source, self.target, self.metrics[0])
        if values is None:
            raise SeesError(
                f"{self.metric} is no mean over rows: put a per-row metric such as 'accuracy' or "
                "'log_loss' first."
            )
        return values

    def _intervals(self) -> tuple[tuple[float, float] | None, ...]:
        return self.intervals or (None,) * len(self.gaps)

    def plot(self) -> matplotlib.figure.Figure:
        """Source against target value, and the weights by cell of the shifted features."""
        from sees_torch.report_plot import plot_report

        return plot_report(self)

    def values(self) -> list[tuple[str, float, float]]:
        """Name, source and target value of every metric; equal names are numbered."""
        names = [gap.metric for gap in self.gaps]
        return [
            (
                name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}",
                float(gap.source_value.detach()),
                float(gap.target_value.detach()),
            )
            for place, (name, gap) in enumerate(zip(names, self.gaps, strict=True))
        ]

    def __str__(self) -> str:
        from sees_torch.report_text import report_lines

        return "\n".join(report_lines(self))


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _least(error: Callable[[float], float], wanted: float) -> float:
    """The smallest factor whose error is as wanted, to a hundredth; infinite if none is."""
    low, high = 1e-4, 1e-4
    while error(high) > wanted:
        low, high = high, 4 * high
        if high > MOST_ROWS:
            return float("inf")
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if error(middle) <= wanted else (middle, high)
    return high


def _json_key(name: Any) -> Any:
    """A name that JSON can hold: text and numbers as they are, anything else as text."""
    return name if isinstance(name, (str, int, float)) else str(name)
