"""How many rows an interval of a given width needs, from the least variance that is possible."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

from sees_torch.contributions import RowValues
from sees_torch.data import Source, Target
from sees_torch.efficient import variance
from sees_torch.errors import SeesError
from sees_torch.matching import Match
from sees_torch.weight_cells import cells_of, has_cells

MOST_ROWS = 10**9
"""Sample sizes beyond this many times the present ones count as out of reach."""


def least_error(
    source: Source, target: Target, match: Match, values: RowValues, sizes: tuple[float, float]
) -> float:
    """Least standard error of a gap for samples of these sizes, sqrt(V)."""
    function = match.weight_function
    if not has_cells(function):
        raise SeesError(
            "sample sizes are known only for weights that are a table on a few features; "
            f"{match.method} gave {type(function).__name__}."
        )
    cells = cells_of(function, source, target)
    return variance(source, target, cells, values, sizes) ** 0.5


def rows_needed(
    error: Callable[[float, float], float],
    sizes: tuple[float, float],
    half_width: float,
    confidence: float,
) -> dict[str, float]:
    """Target rows for an interval of this half width, `error` being a function of both sizes."""
    if not half_width > 0 or not 0 < confidence < 1:
        raise SeesError("half_width must be positive and confidence between 0 and 1.")
    wanted = half_width / NormalDist().inv_cdf((1 + confidence) / 2)
    n, m = sizes
    return {
        "target_rows": _least(lambda factor: error(n, factor * m), wanted) * m,
        "both": _least(lambda factor: error(factor * n, factor * m), wanted) * m,
    }


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
