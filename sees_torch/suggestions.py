"""Which target rows to label: those whose labels would narrow the gap down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.alternatives import Alternative
from sees_torch.contributions import RowValues
from sees_torch.data import Source, Target
from sees_torch.data.counting import content_hash
from sees_torch.efficient import efficient_values, label_values
from sees_torch.gap import Metric, headline_values, row_values, target_posterior
from sees_torch.labelling import STRATA, cut
from sees_torch.matching import Match
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.solvers.mixture import cell_sums
from sees_torch.weight_cells import cells_of, has_cells
from sees_torch.weights import WeightFunction


@torch.no_grad()
def label_rates(
    source: Source,
    target: Target,
    match: Match,
    alternatives: Sequence[Alternative],
    metric: Metric,
) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) how often target rows like each row should be labelled, one on average.

    By all hypotheses that the gap rests on, and rivals, which count like the chosen one.
    """
    values = row_values(source, target, metric)
    if values is None:  # No mean over rows: whether the model is right stands for it.
        values = headline_values(source, target, "accuracy")
    choice = match.choice
    told: list[tuple[Match, float]] = [(match, 1.0)]
    if choice is not None:
        shares = choice.shares(choice.evidence.score()).tolist()
        rivals = {other.place for other in alternatives if other.rival}
        least = dict.fromkeys(rivals, shares[choice.chosen])
        hypotheses = Hypotheses(source, target, match, choice.candidate.method)
        told = [
            (hypotheses.fit(place)[1], max(shares[place], least.get(place, 0.0)))
            for place in sorted({*choice.parts, *rivals, choice.chosen})
        ]
    stories = [
        Story.of(source, target, fitted.weight_function, values, share) for fitted, share in told
    ]
    return telling(target, stories)


@dataclass(frozen=True)
class Story:
    """What a hypothesis says of target rows like those of either sample.

    Attributes:
        share: how much it counts.
        gap: that it would mean.
        posterior: p_t(y|x) of the rows of source, (n, L), and target, (m, L).
        told: what each label of such a row would put into the gap.
    """

    share: float
    gap: float
    posterior: tuple[Tensor, Tensor]
    told: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls,
        source: Source,
        target: Target,
        function: WeightFunction,
        values: RowValues,
        share: float,
    ) -> Story:
        """From its weights; of weights that are no table a label tells the row's own value."""
        here, there = (
            target_posterior(function.table(sample.rows), sample.posterior)
            for sample in (source, target)
        )
        if not has_cells(function):
            gap = target.mean((there * values.target).sum(dim=1)) - source.mean(values.own)
            return cls(share, float(gap), (here, there), (values.source, values.target))
        cells = cells_of(function, source, target)
        gap = efficient_values(source, target, cells, values).gap[0]
        told = label_values(source, target, cells, values)
        return cls(share, float(gap), (here, there), told)


def telling(target: Target, stories: Sequence[Story]) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) how often target rows like each row should be labelled, one on average.

    A label at x lowers the variance of a story's gap by Var_y(h(x, y)) / m^2, h what it puts into
    the gap, and that between stories by sum_y Cov(gap, p_t(y|x))^2 / p(y|x). Two thirds of the rows
    go by the roots of these, as of a Neyman allocation, and a third everywhere, to notice what no
    story says.
    """
    share = torch.tensor([story.share for story in stories]).to(target.posterior)
    share = share / share.sum()
    gap = torch.tensor([story.gap for story in stories]).to(share)

    def rates(sample: int) -> tuple[Tensor, Tensor]:
        posterior = torch.stack([story.posterior[sample] for story in stories])
        told = torch.stack([story.told[sample] for story in stories])
        mean = (posterior * told).sum(dim=2)
        within = share @ ((posterior * told.square()).sum(dim=2) - mean.square()).clamp_min(0.0)
        both = torch.tensordot(share, posterior, dims=1)
        apart = torch.tensordot(share * (gap - share @ gap), posterior, dims=1)
        return within.sqrt(), (apart.square() / both.clamp_min(1e-6)).sum(dim=1).sqrt()

    here, there = rates(0), rates(1)
    scales = [target.mean(rate) for rate in there]
    useful = [k for k, scale in enumerate(scales) if bool(scale > 0)]
    found = []
    for rate in (here, there):
        parts = [rate[k] / scales[k] for k in useful]
        total = torch.stack(parts).mean(dim=0) if parts else torch.ones_like(rate[0])
        found.append(1 / 3 + 2 / 3 * total)
    return found[0], found[1]


def suggest(target: Target, rate: Tensor, k: int) -> Tensor:
    """(k,) positions of unlabelled target rows whose labels would shrink the interval most.

    Strata are given rows by the rate (m,) at which theirs should be labelled, those that are
    labelled counted in. Within a stratum rows are taken in an order that depends on their content
    alone, as good as at random.
    """
    asked = rate if target.asked is None else target.asked
    stratum = cut(asked, asked, target)
    wish = cell_sums(target.mass * rate, stratum, STRATA)
    held = cell_sums((target.labels >= 0).to(wish.dtype), stratum, STRATA)
    free = (target.labels < 0) & (target.count > 0)
    order = _shuffled(target)
    waiting = [order[(stratum[order] == g) & free[order]].tolist() for g in range(STRATA)]
    taken: list[int] = []
    wanted, have = wish.tolist(), held.tolist()
    for _ in range(k):
        need = [wanted[g] / (have[g] + 1) if len(waiting[g]) else -1.0 for g in range(STRATA)]
        g = max(range(STRATA), key=need.__getitem__)
        if need[g] < 0:
            break
        taken.append(waiting[g].pop(0))
        have[g] += 1
    return torch.tensor(taken, dtype=torch.int64)


def _shuffled(target: Target) -> Tensor:
    """(m,) the rows in an order as good as random; copies of one row are not kept together."""
    key = target.schema.row_hash(target.rows)
    order = key.argsort(stable=True)
    first = torch.searchsorted(key[order], key)
    copy = torch.empty_like(order)
    copy[order] = torch.arange(len(order), device=order.device)
    return content_hash(torch.stack([key, copy - first], dim=1)).argsort(stable=True)
