"""Figures as a reader wants them: shares in percent, gaps in points, few digits."""

from __future__ import annotations

from sees_torch.gap import is_rate

MINUS = "\u2212"


def percent(share: float) -> str:
    """A share in percent; what is not zero does not look like it."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"


def count(rows: float) -> str:
    """A number of rows, thousands apart."""
    return f"{rows:,.0f}" if rows >= 1 or rows == 0 else f"{rows:.3g}"


def signed(number: float, form: str) -> str:
    """A number with its sign, none where it is rounded to zero.

    >>> signed(-0.04, ".1f"), signed(2.5, ".1f")
    ('0.0', '+2.5')
    """
    said = f"{number:+{form}}"
    if not float(said):
        return said[1:]
    return said.replace("-", MINUS)


class Unit:
    """How values of a metric and their differences are written."""

    def __init__(self, metric: str) -> None:
        self.rate = is_rate(metric)

    def value(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.rate else f"{value:.4g}"

    def gap(self, gap: float) -> str:
        return signed(100 * gap, ".1f") if self.rate else signed(gap, "#.3g")

    def reach(self, error: float) -> str:
        return f"±{100 * error:.1f}" if self.rate else f"±{error:.3g}"

    def points(self, gap: float) -> str:
        """A difference with its unit."""
        return f"{self.gap(gap)} points" if self.rate else self.gap(gap)

    @property
    def least(self) -> float:
        """The least that an axis spans: what is written as zero should not look like a change."""
        return 0.01 if self.rate else 0.0

    @property
    def name(self) -> str:
        return "points" if self.rate else "units of the metric"
