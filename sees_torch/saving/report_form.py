"""A report on disk: its figures as they were found, its words and its weight function."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sees_torch.data.tables import Name
from sees_torch.errors import SavedFileError
from sees_torch.saving.container import Content, read_content, write_content
from sees_torch.saving.weight_forms import weights_form, weights_of_form
from sees_torch.weights import WeightFunction

if TYPE_CHECKING:
    import pandas as pd

    from sees_torch.report import ShiftReport

KIND, VERSION = "report", 1
FIGURES = {
    "gap",
    "source_value",
    "target_value",
    "metric",
    "hypothesis",
    "confidence",
    "status",
    "reasons",
    "notes",
    "diagnostics",
}
"""Figures that every version of the form has."""


@dataclass(frozen=True)
class SavedReport:
    """A report that was saved: every figure of it, without the rows behind them.

    It prints, and gives `to_dict`, `to_frame`, `weights` and `weight_function`, as the report did.
    What needs the rows (`plot`, `cells`, `suggest_labels` and such) needs the report itself.

    Attributes:
        figures: what `to_dict` gave.
        text: what it printed.
        shifted_features, target_label_distribution: under the names that the tables had.
        standard_errors, intervals: one per metric.
        weights: (n,) of the source rows.
    """

    figures: dict[str, Any] = field(repr=False)
    text: str = field(repr=False)
    shifted_features: tuple[Name, ...]
    target_label_distribution: dict[Any, float]
    intervals: tuple[tuple[float, float] | None, ...]
    standard_errors: tuple[float | None, ...]
    weights: Tensor = field(repr=False)
    weight_function: WeightFunction = field(repr=False)
    records: list[dict[str, Any]] = field(repr=False)

    @property
    def gap(self) -> float:
        return float(self.figures["gap"])

    @property
    def source_value(self) -> float:
        return float(self.figures["source_value"])

    @property
    def target_value(self) -> float:
        return float(self.figures["target_value"])

    @property
    def metric(self) -> str:
        return str(self.figures["metric"])

    @property
    def hypothesis(self) -> str:
        return str(self.figures["hypothesis"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high) for the population gap of the headline metric."""
        return self.intervals[0] if self.intervals else None

    @property
    def confidence(self) -> float | None:
        found: float | None = self.figures["confidence"]
        return found

    @property
    def status(self) -> str:
        return str(self.figures["status"])

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(self.figures["reasons"])

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self.figures["notes"])

    @property
    def diagnostics(self) -> dict[str, float]:
        return dict(self.figures["diagnostics"])

    def to_dict(self) -> dict[str, Any]:
        return dict(self.figures)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric, as `ShiftReport.to_frame`."""
        import pandas as pd

        return pd.DataFrame(self.records).set_index("metric")

    def __str__(self) -> str:
        return self.text


def save_report(report: ShiftReport, path: str | Path) -> None:
    """Write a report to a file that `load_report` reads."""
    weights, tensors = weights_form(report.weight_function)
    document = {
        "figures": report.to_dict(),
        "text": str(report),
        "records": report.to_frame().reset_index().to_dict("records"),
        "shifted_features": list(report.shifted_features),
        "target_label_distribution": list(report.target_label_distribution.items()),
        "intervals": list(report.intervals),
        "standard_errors": list(report.standard_errors),
        "weight_function": weights,
    }
    named = {f"function.{name}": value for name, value in tensors.items()}
    write_content(path, KIND, VERSION, document, named | {"weights": report.weights})


def load_report(path: str | Path) -> SavedReport:
    """The report in a file; a file that is anything else is refused and runs no code."""
    content = read_content(path, KIND, VERSION)
    document, prefix = content.document, "function."
    tensors = {
        name.removeprefix(prefix): value
        for name, value in content.tensors.items()
        if name.startswith(prefix)
    }
    try:
        if not set(document["figures"]) >= FIGURES:
            raise KeyError(*FIGURES - set(document["figures"]))
        function = weights_of_form(Content(content.version, document["weight_function"], tensors))
        return SavedReport(
            figures=document["figures"],
            text=document["text"],
            shifted_features=tuple(document["shifted_features"]),
            target_label_distribution=dict(document["target_label_distribution"]),
            intervals=tuple(document["intervals"]),
            standard_errors=tuple(document["standard_errors"]),
            weights=content.tensor("weights", None),
            weight_function=function,
            records=document["records"],
        )
    except (KeyError, TypeError) as error:
        raise SavedFileError(f"{path} is damaged: {error!r}. Restore it from a copy.") from None
