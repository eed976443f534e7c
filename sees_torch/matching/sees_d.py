"""SEES-d: table weights on a few discrete features, matched by squared distance (Problem 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.errors import IdentificationError, SeesError, SupportError
from sees_torch.matching.match import Match, Ranking, has_graph, whole_number
from sees_torch.matching.parameters import Parameters
from sees_torch.matching.subset_choice import (
    Answer,
    answer_weights,
    choose_subset,
    noise_scores,
    retrimmed,
)
from sees_torch.matching.table_fits import TableFit, fit_tables
from sees_torch.solvers.implicit import quadratic_solution
from sees_torch.statistics.counted import CountedRows, count_samples
from sees_torch.statistics.products import (
    MEMORY,
    Route,
    SubsetProducts,
    plan_products,
    subset_products,
)
from sees_torch.statistics.row_products import RowProducts

EXPLAINED = 2.0
"""Distances up to this many standard deviations beyond sampling noise are noise."""
POPULATION_FIT = 1e-12
"""The same for a population, which has no noise, in squared mass."""
MOST_FEATURES = 3
"""sparsity="auto" goes no further."""


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
        fits = fit_tables([products for _, products in counted], self.constrained)
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
        fit: TableFit,
    ) -> Match:
        sizes = None
        if not is_population(source, target):
            sizes = float(source.total), float(target.total)
        answer, ranking = choose_subset(
            source, rows, products, fit, noise_scores(rows, products, fit, sizes)
        )
        if self.soft and has_graph(source, target):
            table = self._differentiable(source, target, rows, products, fit, answer.subset)
            answer = retrimmed(answer, table, products, rows.sizes)
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
        fit = fit_tables([products], self.constrained)[0]
        answer, ranking = choose_subset(
            source, rows, products, fit, noise_scores(rows, products, fit, sizes)
        )
        return self._found(source, rows, fit, answer, ranking)

    def _found(
        self, source: Source, rows: CountedRows, fit: TableFit, answer: Answer, ranking: Ranking
    ) -> Match:
        return Match(
            self.name,
            answer_weights(source, rows, answer),
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
        fit: TableFit,
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
