"""A few labelled target rows: do they contradict the estimate?

Labelled rows measure how far the model's expectation m(x) = sum_y p_t(y|x) l(x, y) is off on the
target: the error of each stratum is the mean over its labelled rows. That takes no hypothesis for
granted. Where the shift is a table, `sees_torch.efficient` has used the labels already, and this
estimate is there to contradict it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.contributions import GapParts, RowValues, mean_variance, weighted_mean
from sees_torch.data import Source, Target
from sees_torch.labelling import STRATA, Labelling
from sees_torch.solvers.mixture import cell_sums

SUSPECT = 0.1
"""Chance, before any label, that an estimate is biased by what no hypothesis says."""
BIAS = 0.05
"""Standard deviation of such a bias, as a part of the metric's range."""


@dataclass(frozen=True)
class LabelledError:
    """The error of m(x) by stratum, from labelled rows.

    Attributes:
        expected: (m,) m(x).
        residual: (m,) l - m(x) of labelled rows, 0 elsewhere.
        doubt: (m,) variance of l that the model expects.
        labelling: of the target.
    """

    expected: Tensor
    residual: Tensor
    doubt: Tensor
    labelling: Labelling

    @classmethod
    def of(
        cls, target: Target, posterior: Tensor, values: RowValues, labelling: Labelling
    ) -> LabelledError:
        """From the target's corrected posterior (m, L)."""
        expected = (posterior * values.target).sum(dim=1)
        own = values.target.gather(1, target.labels.clamp_min(0)[:, None]).squeeze(1)
        residual = torch.where(labelling.known, own - expected, 0.0)
        doubt = (posterior * values.target.square()).sum(dim=1) - expected.square()
        return cls(expected, residual, doubt.clamp_min(0.0), labelling)

    def value(self, count: Tensor) -> Tensor:
        """(B,) target value: mean of m(x), plus its error in every stratum; count is (B, m)."""
        share, error, _ = self._errors(count)
        return weighted_mean(self.expected.expand_as(count), count) + (share * error).sum(dim=-1)

    def _errors(self, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, G) share, mean error and labelled rows of every stratum; none: that of all."""
        share = cell_sums(count, self.labelling.there, STRATA) / count.sum(dim=-1, keepdim=True)
        labelled = torch.where(self.labelling.known, count, 0.0)
        rows = cell_sums(labelled, self.labelling.there, STRATA)
        pooled = weighted_mean(self.residual.expand_as(count), labelled.clamp_min(1e-37))
        sums = cell_sums(labelled * self.residual, self.labelling.there, STRATA)
        error = torch.where(rows > 0, sums / rows.clamp_min(1e-37), pooled[:, None])
        return share, error, rows

    def variance(self, count: Tensor, floor: float = 0.0) -> Tensor:
        """() of the strata's errors; count is (m,).

        Strata with few labelled rows borrow what the model expects of them, scaled by how far it
        was off on all labelled rows, as good as four rows. No stratum varies less than so much of
        what the model expects: labels that are all as the model has them seem to vary less than
        they do.
        """
        share, error, rows = (part[0] for part in self._errors(count[None]))
        labelled = torch.where(self.labelling.known, count, 0.0)
        total = labelled.sum()
        about_all = self.residual - weighted_mean(self.residual, labelled)
        pooled = weighted_mean(about_all.square(), labelled) * total / (total - 1).clamp_min(1.0)
        off = pooled / weighted_mean(self.doubt, labelled).clamp_min(1e-37)
        mass = cell_sums(count, self.labelling.there, STRATA).clamp_min(1e-37)
        expected = cell_sums(count * self.doubt, self.labelling.there, STRATA) / mass
        centred = self.residual - error[self.labelling.there]
        sums = cell_sums(labelled * centred.square(), self.labelling.there, STRATA)
        spread = (sums + 4 * off * expected) / ((rows - 1).clamp_min(0.0) + 4)
        spread = torch.maximum(spread, floor * expected)
        return (share.square() * spread / rows.clamp_min(1.0)).sum()


def suspicion(apart: float, noise: float, scale: float) -> float:
    """Squared bias to be expected of an estimate, beyond what was to be expected before any label.

    Biased it is with a chance of SUSPECT, then by a normal amount; `apart` is how far it is from
    the labelled rows' estimate, `noise` the variance of that if it has no bias.
    """
    prior = (BIAS * scale) ** 2
    noise = max(noise, 1e-12 * prior, 1e-37)
    kept = prior / (prior + noise)
    evidence = math.log(SUSPECT / (1 - SUSPECT)) + (math.log1p(-kept) + kept * apart**2 / noise) / 2
    chance = 1 / (1 + math.exp(-min(max(evidence, -50.0), 50.0)))
    return max(chance * ((kept * apart) ** 2 + kept * noise) - SUSPECT * prior, 0.0)


@dataclass(frozen=True)
class LabelMix:
    """An estimate and that of the labelled rows, mixed for the least expected error.

    Attributes:
        share: of the labelled rows' estimate.
        variance: of the mixed gap.
        bias_left: squared bias that the labels make likely, as much as the mix has of it.
    """

    error: LabelledError
    share: float
    variance: float
    bias_left: float

    @classmethod
    def of(
        cls,
        source: Source,
        target: Target,
        value: Tensor,
        stated: float,
        parts: GapParts,
        values: RowValues,
        labelled: LabelledError,
    ) -> LabelMix:
        """The mix of an estimate.

        Args:
            source, target: the samples.
            value: () its value on the target; stated: its standard error.
            parts: what every row adds to it, nothing held back; an average over hypotheses adds
                what these differ by to its error.
            values: of the metric.
            labelled: what the labels say.
        """
        told = parts.told_part[0]
        labelling = labelled.labelling
        smooth, chance = parts.target_part[0] - told, labelling.share[labelling.there]

        def spread(model: float, labels: float, base: float) -> float:
            """Variance of  model * estimate + labels * labelled - base * source value."""
            blend = model * smooth + labels * labelled.expected
            part = model * parts.source_part[0] - base * values.own
            total = mean_variance(blend, target.count) + mean_variance(part, source.count)
            rest = replace(labelled, residual=model * chance * told + labels * labelled.residual)
            return float(total + rest.variance(target.count, labels**2))

        beyond = stated**2 - spread(1.0, 0.0, 1.0)
        noise = spread(1.0, -1.0, 0.0) + max(beyond, 0.0)
        apart = float(value - labelled.value(target.count[None])[0])
        bias = suspicion(apart, noise, float(values.source.max() - values.source.min()))
        shares = [step / 20 for step in range(21)]
        kept = [(1 - k) ** 2 for k in shares]
        variance = [
            max(spread(1 - k, k, 1.0) + part * beyond, 0.0)
            for k, part in zip(shares, kept, strict=True)
        ]
        best = min(range(len(shares)), key=lambda k: variance[k] + kept[k] * bias)
        return cls(labelled, shares[best], variance[best], kept[best] * bias)

    def mixed(self, estimate: Tensor, count: Tensor) -> Tensor:
        """(B,) target values from the estimated ones."""
        return (1 - self.share) * estimate + self.share * self.error.value(count)
