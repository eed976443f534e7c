"""SEES-d: table weights on a few discrete features, matched by squared distance (Problem 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, get_args

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.errors import IdentificationError, SeesError, SupportError
from sees_torch.matching.match import Match, Ranking, has_graph, whole_number
from sees_torch.matching.parameters import Parameters
from sees_torch.solvers.implicit import quadratic_solution
from sees_torch.solvers.quadratic import least_squares, nonnegative_quadratic
from sees_torch.solvers.solution import Solution, Status
from sees_torch.statistics.counted import CountedRows, count_samples
from sees_torch.statistics.noise import sampling_noise
from sees_torch.statistics.products import (
    MEMORY,
    Route,
    SubsetProducts,
    plan_products,
    subset_products,
)
from sees_torch.statistics.row_products import RowProducts
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction

TIE = 1e-12
"""Objectives closer than this, relative to the squared mass of the target tables, are equal."""
EXPLAINED = 2.0
"""Distances up to this many standard deviations beyond sampling noise are noise."""
POPULATION_FIT = 1e-12
"""The same for a population, which has no noise, in squared mass."""
MOST_FEATURES = 3
"""sparsity="auto" goes no further."""
DEPENDS = 1e-6
"""A weight table depends on a feature when it varies along it by more than this."""


@dataclass(frozen=True)
class SEESd(Parameters):
    """Shift of the labels and of `sparsity` features; every subset of features is tried.

    For each subset J of s features, the weights w_J(x_J, y) minimise

        sum_kappa sum_{x_kappa, f} ( p_t(x_kappa, f) - sum_y w_J(x_J, y) p_s(x_kappa, f, y) )^2

    over all kappa of min(2s, d) features that contain J. Distances are not comparable between
    subsets as they are: features of many levels have smaller tables and more weights to fit. So
    the J is chosen that has the least distance among those whose distance, less what sampling
    noise explains of it, is the smallest to within one standard deviation.
    A density ratio is non-negative and averages to one; with `constrained=False` neither is asked,
    which is the problem as the paper prints it.

    Args:
        sparsity: s, the number of features that shift together with the labels, 0 to d; "auto"
            takes the fewest, from one on, that leave no more distance than noise explains (without
            features the tables have as many unknowns as entries and fit anything).
        soft: tables count predicted probabilities instead of predicted classes. Only these have a
            gradient: predicted classes do not move with the probabilities, but for jumps.
        constrained: demand w >= 0 and E_s[w] = 1.
        route: how the tables are formed, "tables", "pairs", "listing" or "matches"; by default the
            cheapest one.
        memory_budget: bytes that intermediate tensors may take, 256 MiB by default.
    """

    sparsity: int | Literal["auto"] = 1
    soft: bool = False
    constrained: bool = True
    route: Route | None = None
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        if self.sparsity != "auto":
            object.__setattr__(self, "sparsity", whole_number(self.sparsity, "sparsity"))
        if self.route not in (None, *get_args(Route)):
            raise SeesError(
                f"route takes 'tables', 'pairs', 'listing', 'matches' or None, got {self.route!r}."
            )
        if self.memory_budget is not None and not self.memory_budget > 0:
            raise SeesError(f"memory_budget must be positive bytes, got {self.memory_budget!r}.")

    @property
    def name(self) -> str:
        return "sees-d"

    def match(self, source: Source, target: Target) -> Match:
        """The best subset, its weights, and the ranking of all others."""
        return self.match_many(source, [target])[0]

    def match_many(self, source: Source, targets: Sequence[Target]) -> list[Match]:
        """The matches of one source to many targets; all their subsets are one solve."""
        if self.sparsity == "auto":
            return [self._fewest(source, target) for target in targets]
        counted = [self._count(source, target, self.sparsity) for target in targets]
        fits = _fit_all([products for _, products in counted], self.constrained)
        return [
            self._answer(source, target, rows, products, fit)
            for target, (rows, products), fit in zip(targets, counted, fits, strict=True)
        ]

    def _count(
        self, source: Source, target: Target, sparsity: int
    ) -> tuple[CountedRows, SubsetProducts]:
        """The entries of both samples and their table products."""
        d = len(source.schema.columns)
        if sparsity > d:
            raise IdentificationError(
                f"sparsity={sparsity} but there are {d} features: at most {d} can shift."
            )
        rows = count_samples(source, target, self.soft)
        if sparsity > len(rows.features):
            raise SupportError(
                f"source and target have levels in common in {len(rows.features)} of {d} features, "
                f"too few for sparsity={sparsity}. Check that the columns are coded alike."
            )
        plan = plan_products(rows, sparsity, self.route)
        return rows, subset_products(rows, plan, self.memory_budget or MEMORY)

    def _answer(
        self,
        source: Source,
        target: Target,
        rows: CountedRows,
        products: SubsetProducts,
        fit: _Fit,
    ) -> Match:
        sizes = None
        if not is_population(source, target):
            sizes = float(source.total), float(target.total)
        answer, ranking = _choose(source, rows, products, fit, _score(rows, products, fit, sizes))
        if self.soft and has_graph(source, target):
            table = self._differentiable(source, target, rows, products, fit, answer.subset)
            answer = _retrimmed(answer, table, products, rows.sizes)
        return self._found(source, rows, fit, answer, ranking)

    def match_products(
        self,
        source: Source,
        rows: CountedRows,
        products: SubsetProducts,
        sizes: tuple[float, float] | None,
    ) -> Match:
        """The same from table products, however they were formed.

        Args:
            source: for its schema and classes.
            rows: entries that noise is measured on.
            products: of all subsets.
            sizes: rows of source and target; None for a population, which has no noise.
        """
        fit = _fit_all([products], self.constrained)[0]
        answer, ranking = _choose(source, rows, products, fit, _score(rows, products, fit, sizes))
        return self._found(source, rows, fit, answer, ranking)

    def _found(
        self, source: Source, rows: CountedRows, fit: _Fit, answer: _Answer, ranking: Ranking
    ) -> Match:
        return Match(
            self.name,
            _weight_function(source, rows, answer),
            tuple(rows.features[j] for j in answer.members),
            float(fit.solution.residual[answer.subset]),
            fit.status(answer.subset),
            float(fit.unseen[answer.subset]),
            ranking=ranking,
        )

    def _differentiable(
        self,
        source: Source,
        target: Target,
        rows: CountedRows,
        products: SubsetProducts,
        fit: _Fit,
        subset: int,
    ) -> Tensor:
        """(C, L) weights of a subset with their gradient; the subset and zeros are held fixed."""
        here = products.subsets.cells_of(subset)
        scale = 1 - fit.unseen[subset]
        weight = fit.weight[here] * scale
        members = tuple(products.subsets.members[subset].tolist())
        found = RowProducts.of(source, target, rows, members)
        rest = found.rest(weight, torch.cat([source.proba, target.proba]))
        gram, mass = products.product[here, :-1, :-1], products.mass[here, :-1]
        return quadratic_solution(gram, mass, weight, rest, self.constrained) / scale

    def _fewest(self, source: Source, target: Target) -> Match:
        """The smallest s that explains the target, else the s that comes closest."""
        closest: Match | None = None
        rest = torch.inf
        most = min(MOST_FEATURES, max(1, len(source.schema.columns) // 2))
        for sparsity in range(1, most + 1):
            match = replace(self, sparsity=sparsity).match(source, target)
            assert match.ranking is not None
            objective, score = float(match.ranking.objective[0]), float(match.ranking.score[0])
            if is_population(source, target):
                score = 0.0 if objective < POPULATION_FIT else torch.inf
            if closest is None or score < rest:
                closest, rest = match, score
            if score <= EXPLAINED:
                break
        assert closest is not None
        return closest


@dataclass(frozen=True)
class _Fit:
    """Weights of every cell of every subset, and what they leave unexplained."""

    weight: Tensor
    objective: Tensor
    unseen: Tensor
    solution: Solution

    def status(self, subset: int) -> Status:
        if not bool(self.solution.residual[subset].isfinite()):
            return Status.NOT_FINITE
        return Status.CONVERGED if bool(self.solution.converged[subset]) else Status.MAX_STEPS


@dataclass(frozen=True)
class _Answer:
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


def _fit_all(many: Sequence[SubsetProducts], constrained: bool) -> list[_Fit]:
    """Weights of all subsets for many targets, in one solve.

    Target mass in cells that the source never visits (tau) cannot be explained by any weight: the
    rest is matched, sum c . w = 1 - tau, and divided by 1 - tau.
    """
    if not many:
        return []
    sizes = [len(products.subsets) for products in many]
    firsts = [0, *accumulate(sizes)]
    pairs = zip(many, firsts, strict=False)
    owner = torch.cat([products.subsets.of_cell() + first for products, first in pairs])
    mass = torch.cat([products.mass for products in many])
    product = torch.cat([products.product for products in many])
    source_mass, target_mass = mass[:, :-1], mass[:, -1]
    gram, right = product[:, :-1, :-1], product[:, :-1, -1]
    zero = mass.new_zeros(firsts[-1])
    visited = source_mass.sum(dim=1) > 0
    unseen = zero.index_add(0, owner, torch.where(visited, 0.0, target_mass)).clamp(0.0, 1.0)
    # Without evidence a cell weighs what its share of the target says, whatever the label.
    ratio = torch.where(visited, target_mass / source_mass.sum(dim=1).clamp_min(1e-37), 0.0)
    centre = ratio[:, None].expand_as(source_mass)
    comparable = unseen < 1 - 1e-9
    if not all(bool(part.any()) for part in comparable.split(sizes)):
        raise SupportError(
            "no cell of any feature subset holds both source and target rows: the two samples "
            "share no level. Check that the columns are coded alike."
        )
    total = torch.where(comparable, 1 - unseen, 1.0)
    if constrained:
        solution = nonnegative_quadratic(gram, right, source_mass, total, owner, centre)
    else:
        value = least_squares(gram, right, source_mass > 0, centre)
        solution = Solution(value, zero, zero, torch.ones_like(comparable), 1)
    weight = solution.value
    explained = torch.einsum("ay,ayz,az->a", weight, gram, weight) - 2 * (right * weight).sum(dim=1)
    objective = zero.index_add(0, owner, explained + product[:, -1, -1])
    objective = torch.where(comparable, objective, torch.inf)
    cells = [len(products.mass) for products in many]
    scaled, value = (t.split(cells) for t in (weight / total[owner][:, None], weight))
    per_subset = [
        t.split(sizes)
        for t in (objective, unseen, solution.multiplier, solution.residual, solution.converged)
    ]
    return [
        _Fit(w, fit, lost, Solution(v, nu, residual, done, solution.steps))
        for w, v, fit, lost, nu, residual, done in zip(scaled, value, *per_subset, strict=True)
    ]


def _score(
    rows: CountedRows, products: SubsetProducts, fit: _Fit, sizes: tuple[float, float] | None
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


def _choose(
    source: Source, rows: CountedRows, products: SubsetProducts, fit: _Fit, score: Tensor
) -> tuple[_Answer, Ranking]:
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

    def preference(answer: _Answer) -> tuple[int, list[str]]:
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
) -> _Answer:
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
    return _Answer(place, tuple(kept), share.reshape(-1, n_labels), table.reshape(-1, n_labels))


def _retrimmed(
    answer: _Answer, table: Tensor, products: SubsetProducts, sizes: tuple[int, ...]
) -> _Answer:
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


def _weight_function(source: Source, rows: CountedRows, answer: _Answer) -> WeightFunction:
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
