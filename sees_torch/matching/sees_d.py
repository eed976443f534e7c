"""SEES-d: table weights on a few discrete features, matched by squared distance (Problem 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import IdentificationError, SeesError, SupportError
from sees_torch.matching.match import Match, Ranking
from sees_torch.solvers.quadratic import least_squares, nonnegative_quadratic
from sees_torch.solvers.solution import Solution, Status
from sees_torch.statistics.counted import CountedRows, count_samples
from sees_torch.statistics.products import Route, SubsetProducts, subset_products
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction

TIE = 1e-12
"""Objectives closer than this, relative to the squared mass of the target tables, are equal."""
DEPENDS = 1e-6
"""A weight table depends on a feature when it varies along it by more than this."""


@dataclass(frozen=True)
class SEESd:
    """Shift of the labels and of `sparsity` features; every subset of features is tried.

    For each subset J of s features, the weights w_J(x_J, y) minimise

        sum_kappa sum_{x_kappa, f} ( p_t(x_kappa, f) - sum_y w_J(x_J, y) p_s(x_kappa, f, y) )^2

    over all kappa of min(2s, d) features that contain J; the J with the least distance is chosen.
    A density ratio is non-negative and averages to one; with `constrained=False` neither is asked,
    which is the problem as the paper prints it.

    Args:
        sparsity: s, the number of features that shift together with the labels, 0 to d.
        soft: tables count predicted probabilities instead of predicted classes.
        constrained: demand w >= 0 and E_s[w] = 1.
        route: how the tables are formed, "tables" or "matches"; by default the cheaper one.
    """

    sparsity: int = 1
    soft: bool = False
    constrained: bool = True
    route: Route | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sparsity, int) or self.sparsity < 0:
            raise SeesError(f"sparsity must be a whole number >= 0, got {self.sparsity!r}.")
        if self.route not in (None, "tables", "matches"):
            raise SeesError(f"route takes 'tables', 'matches' or None, got {self.route!r}.")

    @property
    def name(self) -> str:
        return "sees-d"

    def match(self, source: Source, target: Target) -> Match:
        """The best subset, its weights, and the ranking of all others."""
        d = len(source.schema.columns)
        if self.sparsity > d:
            raise IdentificationError(
                f"sparsity={self.sparsity} but there are {d} features: at most {d} can shift."
            )
        rows = count_samples(source, target, self.soft)
        products = subset_products(rows, self.sparsity, self.route)
        fit = _fit(products, self.constrained)
        answer, ranking = _choose(source, rows, products, fit)
        return Match(
            self.name,
            _weight_function(source, rows, products, fit, answer),
            answer.features,
            float(fit.solution.residual[answer.subset]),
            fit.status(answer.subset),
            float(fit.unseen[answer.subset]),
            ranking=ranking,
        )


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
    """A subset, and those of its features that the weights really depend on."""

    subset: int
    features: tuple[int, ...]


def _fit(products: SubsetProducts, constrained: bool) -> _Fit:
    """Weights of all subsets in one solve.

    Target mass in cells that the source never visits (tau) cannot be explained by any weight: the
    rest is matched, sum c . w = 1 - tau, and divided by 1 - tau.
    """
    owner = products.subsets.of_cell()
    n_subsets = len(products.subsets)
    source_mass, target_mass = products.mass[:, :-1], products.mass[:, -1]
    gram, right = products.product[:, :-1, :-1], products.product[:, :-1, -1]
    zero = products.mass.new_zeros(n_subsets)
    visited = source_mass.sum(dim=1) > 0
    unseen = zero.index_add(0, owner, torch.where(visited, 0.0, target_mass)).clamp(0.0, 1.0)
    # Without evidence a cell weighs what its share of the target says, whatever the label.
    ratio = torch.where(visited, target_mass / source_mass.sum(dim=1).clamp_min(1e-300), 0.0)
    centre = ratio[:, None].expand_as(source_mass)
    comparable = unseen < 1 - 1e-9
    if not bool(comparable.any()):
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
    objective = zero.index_add(0, owner, explained + products.product[:, -1, -1])
    objective = torch.where(comparable, objective, torch.inf)
    return _Fit(weight / total[owner][:, None], objective, unseen, solution)


def _choose(
    source: Source, rows: CountedRows, products: SubsetProducts, fit: _Fit
) -> tuple[_Answer, Ranking]:
    """The subset with the least objective; among exact ties the fewest features, then by name."""
    subsets = [tuple(members) for members in products.subsets.members.tolist()]
    owner = products.subsets.of_cell()
    scale = torch.zeros_like(fit.objective).index_add(0, owner, products.product[:, -1, -1])
    best = fit.objective.min()
    tied = (fit.objective <= best + TIE * scale).nonzero().squeeze(1).tolist()
    starts = products.subsets.starts().tolist()
    answers = []
    for place in tied:
        cells = slice(starts[place], starts[place] + products.subsets.cells[place])
        weight, present = fit.weight[cells], products.mass[cells, :-1] > 0
        sizes = [rows.sizes[j] for j in subsets[place]]
        varies = _varies(weight, present, sizes)
        kept = tuple(j for j, moves in zip(subsets[place], varies, strict=True) if moves)
        answers.append(_Answer(place, kept))
    names = source.schema.names

    def preference(answer: _Answer) -> tuple[int, list[str]]:
        return len(answer.features), [str(names[j]) for j in answer.features]

    answers.sort(key=preference)
    order = fit.objective.argsort(stable=True)
    distinct = tuple(dict.fromkeys(answer.features for answer in answers))
    fewest = tuple(features for features in distinct if len(features) == len(distinct[0]))
    ranking = Ranking(
        tuple(subsets[place] for place in order.tolist()), fit.objective[order], fewest
    )
    return answers[0], ranking


def _varies(weight: Tensor, present: Tensor, sizes: list[int]) -> list[bool]:
    """Along which features of a subset its (C, L) table varies, where the source has mass."""
    table, seen = weight.reshape(*sizes, -1), present.reshape(*sizes, -1)
    scale = float(weight.abs().max().clamp_min(1.0))
    flags = []
    for axis in range(len(sizes)):
        high = torch.where(seen, table, -torch.inf).amax(dim=axis)
        low = torch.where(seen, table, torch.inf).amin(dim=axis)
        flags.append(bool((high - low > DEPENDS * scale).any()))
    return flags


def _weight_function(
    source: Source, rows: CountedRows, products: SubsetProducts, fit: _Fit, answer: _Answer
) -> WeightFunction:
    """The chosen subset's table on its remaining features, in the schema's codes."""
    members = products.subsets.members[answer.subset].tolist()
    start = int(products.subsets.starts()[answer.subset])
    cells = slice(start, start + products.subsets.cells[answer.subset])
    mass, weight = products.mass[cells, :-1], fit.weight[cells]
    moved = mass * weight
    label_mass = mass.sum(dim=0)
    fallback = torch.where(label_mass > 0, moved.sum(dim=0) / label_mass.clamp_min(1e-300), 0.0)
    sizes = [rows.sizes[j] for j in members]
    dropped = [axis for axis, j in enumerate(members) if j not in answer.features]
    if dropped:
        # The weights do not vary along dropped features, so the mean over their levels is exact.
        shape = [*sizes, mass.shape[1]]
        mass, moved = (t.reshape(shape).sum(dim=dropped).flatten(0, -2) for t in (mass, moved))
        weight = torch.where(mass > 0, moved / mass.clamp_min(1e-300), 0.0)
    if not answer.features:
        return ConstantWeights(source.schema, source.classes, weight[0])
    visited = mass.sum(dim=1) > 0
    grid = torch.cartesian_prod(*(rows.levels[j] for j in answer.features))
    grid = grid.reshape(len(mass), len(answer.features))
    return TableWeights(
        source.schema, source.classes, answer.features, grid[visited], weight[visited], fallback
    )
