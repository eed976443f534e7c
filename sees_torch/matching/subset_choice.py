"""Which subset of features explains the target best, and its table without idle features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.data import Source
from sees_torch.matching.match import Ranking
from sees_torch.matching.table_fits import TableFit
from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.noise import sampling_noise
from sees_torch.statistics.products import SubsetProducts
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction

TIE = 1e-12
"""Objectives closer than this, relative to the squared mass of the target tables, are equal."""
DEPENDS = 1e-6
"""A weight table depends on a feature when it varies along it by more than this."""


@dataclass(frozen=True)
class Answer:
    """A subset, trimmed to the features that its weights really depend on.

    Attributes:
        subset: its place in the list of subsets.
        members: features kept, as columns of the counted rows.
        mass: (C, L) source mass of the cells of those features; weight (C, L) their weights.
    """

    subset: int
    members: tuple[int, ...]
    mass: Tensor
    weight: Tensor


def noise_scores(
    rows: CountedRows, products: SubsetProducts, fit: TableFit, sizes: tuple[float, float] | None
) -> Tensor:
    """(S,) the objective of each subset beyond its noise, in standard deviations.

    Objectives of different subsets are sums over different tables: those of features with many
    levels are smaller, and have more weights to fit. Multiplicities that average below one are
    probabilities of a whole population, which has no noise: there the objective alone ranks.
    """
    if sizes is None:
        return torch.where(fit.objective.isfinite(), 0.0, torch.inf)
    noise = sampling_noise(rows, products, fit.weight, *sizes)
    return torch.where(fit.objective.isfinite(), noise.score(fit.objective), torch.inf)


def choose_subset(
    source: Source, rows: CountedRows, products: SubsetProducts, fit: TableFit, score: Tensor
) -> tuple[Answer, Ranking]:
    """The subset with the least score; among exact ties the fewest features, then by name."""
    subsets = [tuple(members) for members in products.subsets.members.tolist()]
    names = [str(source.schema.names[j]) for j in rows.features]
    owner = products.subsets.of_cell()
    scale = torch.zeros_like(fit.objective).index_add(0, owner, products.product[:, -1, -1])
    first = _order(fit.objective, score)[0]
    close = (fit.objective - fit.objective[first]).abs() <= TIE * scale
    # Equal tables have equal noise; the slack is rounding in it.
    close &= (score - score[first]).abs() <= 1e-6 * score[first].abs().clamp_min(1e-6)
    tied = close.nonzero().squeeze(1).tolist()
    answers = []
    for place in tied:
        cells = products.subsets.cells_of(place)
        mass, weight = products.mass[cells, :-1], fit.weight[cells]
        answers.append(_trimmed(place, subsets[place], names, rows.sizes, mass, weight))

    def preference(answer: Answer) -> tuple[int, list[str]]:
        return len(answer.members), sorted(names[j] for j in answer.members)

    answers.sort(key=preference)
    order = _order(fit.objective, score)

    def positions(members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(rows.features[j] for j in members)

    distinct = tuple(dict.fromkeys(positions(answer.members) for answer in answers))
    ranking = Ranking(
        tuple(positions(subsets[place]) for place in order.tolist()),
        fit.objective[order],
        score[order],
        tuple(features for features in distinct if len(features) == len(distinct[0])),
    )
    return answers[0], ranking


def _order(objective: Tensor, score: Tensor) -> Tensor:
    """Subsets from best to worst.

    Those that explain the target as well as the best, to within one standard deviation of noise,
    come first and by their distance, as in the paper; then the others, by score.
    """
    by_objective = objective.argsort(stable=True)
    behind = score > score.min() + 1.0
    key = torch.where(behind, score, -torch.inf)[by_objective]
    return by_objective[key.argsort(stable=True)]


def _trimmed(
    place: int,
    members: tuple[int, ...],
    names: list[str],
    sizes: tuple[int, ...],
    mass: Tensor,
    weight: Tensor,
) -> Answer:
    """The table without features along which it does not vary, where the source has mass.

    Features go one at a time, the last by name first, and the rest is looked at again: of two
    equal columns each is constant given the other, but only one of them may go.
    """
    kept = list(members)
    shape = [sizes[j] for j in kept]
    table, share = (t.reshape(*shape, -1) for t in (weight, mass))
    limit = DEPENDS * float(weight.abs().max().clamp_min(1.0))
    for feature in sorted(members, key=lambda j: names[j], reverse=True):
        axis = kept.index(feature)
        high = torch.where(share > 0, table, -torch.inf).amax(dim=axis)
        low = torch.where(share > 0, table, torch.inf).amin(dim=axis)
        if not bool((high - low > limit).any()):
            moved = (share * table).sum(dim=axis)
            share = share.sum(dim=axis)
            table = torch.where(share > 0, moved / share.clamp_min(1e-37), 0.0)
            kept.remove(feature)
    n_labels = mass.shape[1]
    return Answer(place, tuple(kept), share.reshape(-1, n_labels), table.reshape(-1, n_labels))


def retrimmed(
    answer: Answer, table: Tensor, products: SubsetProducts, sizes: tuple[int, ...]
) -> Answer:
    """The answer with weights from the whole table of its subset (C, L), averaged as it was."""
    members = products.subsets.members[answer.subset].tolist()
    gone = [axis for axis, member in enumerate(members) if member not in answer.members]
    if not gone:
        return replace(answer, weight=table)
    mass = products.mass[products.subsets.cells_of(answer.subset), :-1]
    shape = [sizes[j] for j in members]
    moved = (mass * table).reshape(*shape, -1).sum(dim=gone).reshape(answer.mass.shape)
    average = torch.where(answer.mass > 0, moved / answer.mass.clamp_min(1e-37), 0.0)
    return replace(answer, weight=average)


def answer_weights(source: Source, rows: CountedRows, answer: Answer) -> WeightFunction:
    """The chosen table in the schema's codes."""
    if not answer.members:
        return ConstantWeights(source.schema, source.classes, answer.weight[0])
    label_mass = answer.mass.sum(dim=0)
    moved = (answer.mass * answer.weight).sum(dim=0)
    fallback = torch.where(label_mass > 0, moved / label_mass.clamp_min(1e-37), 0.0)
    visited = answer.mass.sum(dim=1) > 0
    grid = torch.cartesian_prod(*(rows.levels[j] for j in answer.members))
    grid = grid.reshape(len(visited), len(answer.members))
    return TableWeights(
        source.schema,
        source.classes,
        tuple(rows.features[j] for j in answer.members),
        grid[visited],
        answer.weight[visited],
        fallback,
    )
