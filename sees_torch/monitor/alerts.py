"""When does a chunk raise an alert, and how often is one raised when nothing changed?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sees_torch.errors import SeesError
from sees_torch.gap import ROW_METRICS
from sees_torch.matching.match import whole_number
from sees_torch.weighted_metrics import METRICS as WEIGHTED_METRICS

LOWER_IS_BETTER = {"log_loss", "brier", "expected_calibration_error", "cost"}


@dataclass(frozen=True)
class Alerts:
    """The rule for alerts: thresholds that you set, one that is learnt from the source, or both.

    A chunk raises an alert when its estimate is beyond a threshold of yours (`floor` or `drop`; if
    there are none, always) and, with `false_alarms`, when its drop is also larger than chance
    explains. Thresholds of yours alone promise no rate of false alarms.

    **The rate.** `false_alarms` is the probability of *any* alert within `horizon` chunks, any
    `horizon` in a row, when nothing changed. Every chunk gets an equal share of it (Bonferroni):
    its drop is compared with those of `draws` random splits of the source, a part of the chunk's
    size against the rest, and raises an alert when its rank, (1 + splits with as large a drop) /
    (1 + draws), is at most false_alarms / horizon. The bound needs no independence of the chunks,
    which share the source and, in a window, rows. It does need chunks of rows that are drawn like
    the source's: labels or features that come in clumps (one customer, many rows) vary more than
    random splits do.

    Args:
        floor: alert when the estimated metric is worse than this.
        drop: alert when the metric is worse than on the source by more than this.
        false_alarms: probability of any alert in `horizon` chunks when nothing changed.
        horizon: number of chunks that it holds for.
        draws: splits to learn from, by default as few as the rate allows, horizon / false_alarms.
            More make the threshold steadier.
        higher_is_better: of the metric; known for the library's own.
        seed: of the splits.

    >>> Alerts(false_alarms=0.1, horizon=12).splits
    119
    """

    floor: float | None = None
    drop: float | None = None
    false_alarms: float | None = None
    horizon: int = 24
    draws: int | None = None
    higher_is_better: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.floor is None and self.drop is None and self.false_alarms is None:
            raise SeesError("alerts need floor, drop or false_alarms.")
        if self.floor is not None and not math.isfinite(self.floor):
            raise SeesError(f"floor must be a number, got {self.floor!r}.")
        if self.drop is not None and not 0 <= self.drop < math.inf:
            raise SeesError(f"drop must be a number >= 0, got {self.drop!r}.")
        if self.false_alarms is not None and not 0 < self.false_alarms < 1:
            raise SeesError(f"false_alarms must lie between 0 and 1, got {self.false_alarms!r}.")
        if whole_number(self.horizon, "horizon") < 1:
            raise SeesError("horizon must be at least 1.")
        if self.draws is not None and whole_number(self.draws, "draws") < self._fewest():
            raise SeesError(
                f"{self.draws} draws cannot show a rate of {self.false_alarms} in {self.horizon} "
                f"chunks: take at least {self._fewest()}, a larger rate or a shorter horizon."
            )

    @property
    def level(self) -> float:
        """Probability of an alert in one chunk when nothing changed."""
        return 0.0 if self.false_alarms is None else self.false_alarms / self.horizon

    @property
    def splits(self) -> int:
        """Splits of the source to learn from."""
        return self._fewest() if self.draws is None else self.draws

    def _fewest(self) -> int:
        return 0 if self.false_alarms is None else max(1, math.ceil(1 / self.level - 1 - 1e-9))

    def worse(self, metric: str) -> int:
        """-1 where a fall of the metric is bad, +1 where a rise is."""
        better = self.higher_is_better
        if better is None:
            if metric not in {*LOWER_IS_BETTER, *ROW_METRICS, *WEIGHTED_METRICS}:
                raise SeesError(
                    f"is more {metric} better or worse? Say higher_is_better to Alerts."
                )
            better = metric not in LOWER_IS_BETTER
        return -1 if better else 1

    def limit(self, null: Sequence[float]) -> float:
        """The largest drop that chance explains: the rank that this level allows."""
        allowed = int(self.level * (len(null) + 1) + 1e-9)
        return sorted(null, reverse=True)[allowed - 1]

    def material(self, value: float, drop: float, worse: int) -> bool:
        """The estimate is beyond a threshold that the user set, or there are none."""
        if self.floor is None and self.drop is None:
            return True
        below = self.floor is not None and worse * (value - self.floor) > 0
        return below or (self.drop is not None and drop > self.drop)


def rank(drop: float, null: Sequence[float]) -> float:
    """p-value of a drop among those of splits in which nothing changed."""
    return (1 + sum(other >= drop for other in null)) / (1 + len(null))
