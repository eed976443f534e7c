"""The weights: a heat map over cells and labels, or what else describes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sees_torch.disclosure import level_name, pooled
from sees_torch.page.charts import bar
from sees_torch.page.figures import count
from sees_torch.page.markup import Html, folded, joined, name, names, table, tag
from sees_torch.solvers.mixture import cell_sums
from sees_torch.weights import ConstantWeights, TableWeights

if TYPE_CHECKING:
    from sees_torch.report import ShiftReport

SHOWN, MOST_CELLS, MOST_COLUMNS = 24, 200, 16
STEPS = (1 / 4, 1 / 2, 1 / 1.25, 1.25, 2, 4)
"""Weights at which the colour changes."""
MOST_FEATURES = 20


def weights(report: ShiftReport, least: int) -> Html:
    """How many target rows stand for a source row, by cell and label."""
    function = report.weight_function
    words = tag(
        "p",
        "A weight says how many target rows stand for one source row: 1 is unchanged, 2 is twice "
        "as common in the target, 0.5 half as common.",
        class_="soft",
    )
    if isinstance(function, (TableWeights, ConstantWeights)):
        return joined([words, _HeatMap(report, function, least).markup()])
    parts = [words, _spread(report)]
    if report.match.importance is not None:
        parts.append(_importance(report, report.match.importance))
    return joined(parts)


class _HeatMap:
    """Weights of a table, with the rows behind every entry."""

    def __init__(
        self, report: ShiftReport, function: TableWeights | ConstantWeights, least: int
    ) -> None:
        self.report, self.least = report, least
        source, target = report.source, report.target
        labels = len(source.classes)
        if isinstance(function, TableWeights):
            self.columns = [source.schema.columns[j] for j in function.features]
            self.codes = function.cells().tolist()
            self.weight = function.weight.detach()
            here, there = function.place(source.rows), function.place(target.rows)
        else:
            self.columns, self.codes = [], [[]]
            self.weight = function.weight.detach()[None]
            here, there = (torch.zeros(len(s), dtype=torch.int64) for s in (source, target))
            here, there = here.to(source.labels), there.to(source.labels)
        cells = len(self.codes) + 1  # The last holds rows of no cell.
        place = here * labels + source.labels
        count_here = cell_sums(source.count.detach(), place, cells * labels)
        self.here = count_here.reshape(cells, labels)[:-1]
        self.there = cell_sums(target.count.detach(), there, cells)[:-1]
        self.hidden = pooled(self.here.reshape(-1, 1), least).reshape(self.here.shape)

    def markup(self) -> Html:
        classes = self.report.source.classes
        order = self._largest()
        labels = self._labels()
        if not order:
            return tag("p", f"Every cell has fewer than {self.least} rows: none is shown.")
        heads = [self._head(), *(name(classes[k]) for k in labels), "source rows", "target rows"]
        numbers = (len(labels) + 1, len(labels) + 2)
        said = f"Weight by {self._what()}"
        if len(labels) < len(classes):
            said += f"; the {len(labels)} labels that changed most of {len(classes)}"
        rows = [self._row(k, labels) for k in order[:MOST_CELLS]]
        parts = [_key(), table(said, heads, rows[:SHOWN], class_="heat", numbers=numbers)]
        if len(rows) > SHOWN:
            more = table(
                f"{said}, smaller cells", heads, rows[SHOWN:], class_="heat", numbers=numbers
            )
            parts.append(folded(f"{len(rows) - SHOWN} smaller cells", more))
        if len(order) > MOST_CELLS:
            left = len(order) - MOST_CELLS
            parts.append(tag("p", f"{left} cells with the fewest source rows are left out."))
        if bool(self.hidden.any()):
            hidden = f"{int(self.hidden.sum())} entries rest on fewer than {self.least} source "
            parts.append(tag("p", f"{hidden}rows, or are withheld with them, and are not shown."))
        return joined(parts)

    def _largest(self) -> list[int]:
        """Cells that may be shown, most rows first."""
        shown = ((self.here > 0) & ~self.hidden).any(dim=1)
        order = self.here.sum(dim=1).argsort(descending=True, stable=True).tolist()
        return [k for k in order if bool(shown[k])]

    def _labels(self) -> list[int]:
        if self.weight.shape[1] <= MOST_COLUMNS:
            return list(range(self.weight.shape[1]))
        share = self.here / self.here.sum()
        change = (share * (self.weight - 1)).sum(dim=0).abs()
        return sorted(change.argsort(descending=True, stable=True)[:MOST_COLUMNS].tolist())

    def _row(self, k: int, labels: list[int]) -> list[Html | str]:
        levels = zip(self.columns, self.codes[k], strict=True)
        said = names(level_name(column, code, self.least) for column, code in levels)
        counts = [float(self.here[k].sum()), float(self.there[k])]
        # A hidden entry would follow from the others and the cell's total.
        secret = bool((self.hidden[k] & (self.here[k] > 0)).any()) or 0 < counts[1] < self.least
        rows = ["withheld"] * 2 if secret else [count(c) for c in counts]
        return [said or tag("span", "all rows"), *(self._entry(k, y) for y in labels), *rows]

    def _entry(self, k: int, label: int) -> Html:
        if not float(self.here[k, label]):
            return tag("td", "no rows", class_="h7")
        if bool(self.hidden[k, label]):
            return tag("td", "withheld", class_="h7")
        return _coloured(float(self.weight[k, label]))

    def _what(self) -> str:
        return " and ".join([*(str(column.name)[:60] for column in self.columns), "label"])

    def _head(self) -> Html:
        return names([column.name for column in self.columns]) or tag("span", "cell")


def _coloured(weight: float) -> Html:
    step = sum(weight > bound for bound in STEPS)
    return Html(f'<td class="h{step}">{weight:.2f}</td>')


def _key() -> Html:
    """What the colours mean; the figures are in the cells."""
    spans = [
        Html(f'<td class="h{step}">{said}</td>')
        for step, said in enumerate(("to ¼", "to ½", "to 0.8", "about 1", "to 2", "to 4", "over 4"))
    ]
    return tag("table", tag("tr", *spans), class_="heat", role="presentation", aria_hidden="true")


def _spread(report: ShiftReport) -> Html:
    values, order = report.weights.detach().sort()
    mass = report.source.mass.detach()[order].cumsum(0)
    marks = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    level = torch.tensor(marks, dtype=mass.dtype, device=mass.device)
    place = torch.searchsorted(mass, level).clamp_max(len(values) - 1)
    return table(
        "The weights are no table of cells: quantiles over the source rows",
        ["quantile", *(f"{100 * mark:g} %" for mark in marks)],
        [["weight", *(f"{value:.3g}" for value in values[place].tolist())]],
        numbers=range(1, len(marks) + 1),
    )


def _importance(report: ShiftReport, importance: Tensor) -> Html:
    order = importance.argsort(descending=True, stable=True)[:MOST_FEATURES].tolist()
    top = max(float(importance.max()), 1e-12)
    feature = report.source.schema.names
    rows = [
        (name(feature[j]), bar(float(importance[j]) / top), f"{float(importance[j]):.3g}")
        for j in order
        if math.isfinite(float(importance[j]))
    ]
    return table(
        "Contribution of each feature to the weights",
        ["feature", "", "contribution"],
        rows,
        numbers=(2,),
    )
