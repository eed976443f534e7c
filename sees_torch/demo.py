"""The churn story of the paper's introduction, simulated, with a known answer.

A bank's churn model was built two years ago. Since then churn rose in some states and fell in
others; everything else given state and churn stayed the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from sees_torch.data.pairs import ShiftedPair
from sees_torch.data.resampling import resample_shift

if TYPE_CHECKING:
    import pandas as pd

STATES = ("California", "Florida", "New York", "Texas")
SHARE = {"California": 0.3, "Florida": 0.2, "New York": 0.25, "Texas": 0.25}
CHURN_BEFORE = {"California": 0.10, "Florida": 0.40, "New York": 0.15, "Texas": 0.35}
CHURN_AFTER = {"California": 0.40, "Florida": 0.15, "New York": 0.45, "Texas": 0.20}


def churn_pair(n: int = 5000, m: int = 5000, seed: int = 0) -> ShiftedPair:
    """A source before and a target after the change, with a logistic model's probabilities."""
    generator = torch.Generator().manual_seed(seed)
    customers = _customers(40_000, generator)
    return resample_shift(
        customers,
        "churn",
        ["state"],
        _law(CHURN_BEFORE),
        _law(CHURN_AFTER),
        n=n,
        m=m,
        model=_churn_probability,
        generator=generator,
    )


def _law(churn: dict[str, float]) -> dict[tuple[str, str], float]:
    return {
        (state, label): SHARE[state] * (rate if label == "yes" else 1 - rate)
        for state, rate in churn.items()
        for label in ("no", "yes")
    }


def _customers(count: int, generator: torch.Generator) -> pd.DataFrame:
    """A table of customers whose habits depend on whether they will churn."""
    import pandas as pd

    def draw(*options: tuple[str, float, float]) -> np.ndarray:
        """A category by churn: (level, share among those who stay, share among those who leave)."""
        names = np.array([name for name, _, _ in options])
        shares = torch.tensor([[stay for _, stay, _ in options], [go for _, _, go in options]])
        picked = torch.multinomial(shares[churned], 1, generator=generator).squeeze(1)
        return names[picked.numpy()]

    churned = torch.randint(0, 2, (count,), generator=generator)
    state = np.array(STATES)[torch.randint(0, len(STATES), (count,), generator=generator).numpy()]
    months = 6 + 60 * torch.rand(count, generator=generator) * (1 - 0.35 * churned)
    return pd.DataFrame(
        {
            "state": state,
            "plan": draw(("basic", 0.3, 0.55), ("family", 0.45, 0.2), ("premium", 0.25, 0.25)),
            "contract": draw(("monthly", 0.3, 0.75), ("yearly", 0.7, 0.25)),
            "complaints": draw(("none", 0.7, 0.35), ("one", 0.2, 0.3), ("several", 0.1, 0.35)),
            "paperless": draw(("no", 0.45, 0.5), ("yes", 0.55, 0.5)),
            "tenure_months": months.round().numpy(),
            "churn": np.where(churned.numpy() == 1, "yes", "no"),
        }
    )


def _churn_probability(table: pd.DataFrame) -> np.ndarray:
    """The model in production; it learnt the states' old churn rates."""
    rate = table["state"].map(CHURN_BEFORE)
    score = (
        np.log(rate / (1 - rate))
        - 1.1
        + 1.9 * (table["contract"] == "monthly")
        + 0.6 * (table["plan"] == "basic")
        - 0.8 * (table["plan"] == "family")
        + 1.1 * (table["complaints"] == "one")
        + 2.0 * (table["complaints"] == "several")
        - 0.02 * (table["tenure_months"] - 32)
    )
    return np.asarray(1 / (1 + np.exp(-score)))
