"""Products of marginal tables, summed over every kappa that contains J: the statistics of SEES-d.

For each subset J and each cell a of X_J, with k = min(2s, d),

    product_a[y, y'] = sum_{kappa: J in kappa, |kappa| = k} sum_{x, f} p(a, x, f, y) p(a, x, f, y')

where the target is the last label. Four exact ways give it: marginal tables by matrix products, for
many pairs of features a pass (s = 1), or as lists, and the number of features on which two rows
agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.matches import Cuts, by_matches
from sees_torch.statistics.pairs import joint_cells, pair_tables, table_cells
from sees_torch.statistics.subsets import Subsets, all_subsets
from sees_torch.statistics.tables import by_listing, by_tables

Route = Literal["tables", "pairs", "listing", "matches"]
MEMORY = 2**28
"""Bytes that one chunk of intermediate tensors may take."""


@dataclass(frozen=True)
class SubsetProducts:
    """Sums of table products for all subsets J of one size.

    Attributes:
        subsets: the J and their cells.
        product: (A, L + 1, L + 1), the formula above; the target is the last label.
        mass: (A, L + 1) share of each sample in the cell, per source label, then the target.
        probe: (b,) some entries, evenly spread, that stand for all where noise is measured.
        push: (b, S, L) how much a unit of mass at such an entry moves the products of its own cell
            with each source label: sum over kappa and f of p(f | entry) p(a, x, f, y) there.
    """

    subsets: Subsets
    product: Tensor
    mass: Tensor
    probe: Tensor
    push: Tensor


@dataclass(frozen=True)
class Plan:
    """What is to be computed, and how; made from the data once, so that shapes are known then."""

    sparsity: int
    route: Route
    cuts: Cuts | None


def plan_products(rows: CountedRows, sparsity: int, route: Route | None = None) -> Plan:
    """A plan for every subset of `sparsity` features, from 0 to d; by default the cheapest."""
    if route is None:
        route = cheapest_route(rows, sparsity)
    if route == "matches" and sparsity:
        return Plan(sparsity, route, Cuts.of(rows, sparsity, rows.probe()))
    if route == "matches" or (route == "pairs" and not _in_pairs(rows, sparsity)):
        route = "tables"
    return Plan(sparsity, route, None)


def subset_products(rows: CountedRows, plan: Plan, memory: int = MEMORY) -> SubsetProducts:
    """Table products of every subset of the plan, in `memory` bytes."""
    subsets = all_subsets(rows.sizes, plan.sparsity, rows.block.device)
    probe = rows.probe()
    if plan.cuts is not None:
        sums = by_matches(rows, subsets, plan.cuts, probe, memory)
    elif plan.route == "listing":
        sums = by_listing(rows, subsets, probe)
    else:
        room = 8 * (2 * table_cells(rows) + 3 * max(joint_cells(rows), default=0))
        whole = pair_tables(rows) if plan.route == "pairs" and room <= memory else None
        sums = by_tables(rows, subsets, probe, memory, whole)
    return SubsetProducts(subsets, sums.product, sums.mass, probe, sums.push)


def _in_pairs(rows: CountedRows, sparsity: int) -> bool:
    """The tables are those of pairs of single features."""
    return sparsity == 1 and len(rows.sizes) > 1


def cheapest_route(rows: CountedRows, sparsity: int) -> Route:
    """The route that takes the least time."""
    seconds = route_seconds(rows, sparsity)
    return min(seconds, key=lambda route: seconds[route])


def route_seconds(rows: CountedRows, sparsity: int) -> dict[Route, float]:
    """Rough seconds of each route.

    The constants are processor seconds of one core of an EPYC, measured at 10^4 to 2 10^6 entries
    of 10 to 100 features with 3 or 20 levels, s = 1 to 3, two labels; each form within a factor 2.
    """
    d, n_entries, columns = len(rows.sizes), len(rows), rows.count.shape[1]
    order = min(2 * sparsity, d)
    kappas, cells = math.comb(d, order), _elementary(rows.sizes, order)
    left = _elementary(rows.sizes, order // 2)
    tables = 7e-11 * cells * columns * n_entries + 2.5e-9 * left * n_entries
    tables += 2.5e-7 * cells * columns * len(rows.blocks)
    seconds: dict[Route, float] = {"tables": tables}
    if not sparsity:
        return seconds
    if _in_pairs(rows, sparsity):
        joint = joint_cells(rows)
        seconds["pairs"] = columns * (1e-8 * len(joint) * n_entries + 5e-9 * sum(joint))
    listing = kappas * (1.5e-4 * (1 + math.comb(order, sparsity)) + 1.6e-8 * n_entries * columns)
    pairs = n_entries**2 / rows.n_predictions / 2
    pairs *= _elementary([1 / size for size in rows.sizes], sparsity - 1)
    passes = rows.n_predictions * math.comb(len(rows.scale) + 1, 2)
    passes *= math.ceil(min(_elementary(rows.sizes, sparsity - 1), n_entries * kappas))
    matches = (4e-9 + 9e-11 * sum(rows.sizes)) * pairs + 3.5e-4 * passes
    return seconds | {"listing": listing, "matches": matches}


def _elementary(values: Iterable[float], order: int) -> float:
    """Elementary symmetric polynomial: of level counts, the cells of all subsets of one size."""
    sums = [1.0] + [0.0] * order
    for value in values:
        for k in range(order, 0, -1):
            sums[k] += sums[k - 1] * value
    return sums[order]
