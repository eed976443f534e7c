"""Products of marginal tables, summed over every kappa that contains J: the statistics of SEES-d.

For each subset J and each cell a of X_J, with k = min(2s, d),

    product_a[y, y'] = sum_{kappa: J in kappa, |kappa| = k} sum_{x, f} p(a, x, f, y) p(a, x, f, y')

where the target is the last label. Two exact routes give it: marginal tables, and the number of
features on which two rows agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.subsets import Subsets, all_subsets

Route = Literal["tables", "matches"]
SORTING = 200.0
"""Multiplications that sorting one entry of a list costs as much as."""
PROBES = 512
MEMORY = 2**28
"""Bytes that one chunk of intermediate tensors may take."""


@dataclass(frozen=True)
class SubsetProducts:
    """Sums of table products for all subsets J of one size.

    Attributes:
        subsets: the J and their cells.
        product: (A, L + 1, L + 1), the formula above; the target is the last label.
        mass: (A, L + 1) share of each sample in the cell, per source label, then the target.
        probe: (b,) some rows, evenly spread, that stand for all where sampling noise is measured.
        push: (b, S, F, L) how much a unit of mass at such a row moves the products of its own cell
            with each source label: sum over kappa of p(a, x, f, y) there.
    """

    subsets: Subsets
    product: Tensor
    mass: Tensor
    probe: Tensor
    push: Tensor


def subset_products(
    rows: CountedRows, sparsity: int, route: Route | None = None, memory: int = MEMORY
) -> SubsetProducts:
    """Table products of every subset of `sparsity` features.

    Args:
        rows: distinct rows of both samples.
        sparsity: s, from 0 to d.
        route: "tables" or "matches"; by default the cheaper one.
        memory: bytes that intermediate tensors may take.
    """
    extra = min(2 * sparsity, len(rows.features)) - sparsity
    subsets = all_subsets(rows.sizes, sparsity, rows.codes.device)
    if route is None:
        route = cheaper_route(rows, sparsity)
    stride = -(-len(rows.codes) // PROBES)
    probe = torch.arange(0, len(rows.codes), stride, device=rows.codes.device)
    if route == "tables":
        rest = all_subsets(rows.sizes, extra, rows.codes.device)
        dense, listed = _table_costs(rows, sparsity)
        form = _by_tables if dense <= listed else _by_listing
        product, mass, push = form(rows, subsets, rest, probe, memory)
    else:
        product, mass, push = _by_matches(rows, subsets, extra, probe, memory)
    return SubsetProducts(subsets, product, mass, probe, push[..., :-1])


def cheaper_route(rows: CountedRows, sparsity: int) -> Route:
    """The route with fewer multiplications."""
    d, n_rows = len(rows.features), len(rows.codes)
    columns = rows.mass.shape[1] * rows.mass.shape[2]
    matches = math.comb(d, sparsity) * n_rows**2 * (columns + sparsity + 2.0)
    return "tables" if min(_table_costs(rows, sparsity)) <= matches else "matches"


def _table_costs(rows: CountedRows, sparsity: int) -> tuple[float, float]:
    """Multiplications of tables as matrix products, and of a sorted list of their entries.

    The first grows with the square of the number of levels, the second not at all.
    """
    d, n_rows = len(rows.features), len(rows.codes)
    extra = min(2 * sparsity, d) - sparsity
    of_order = [1.0] + [0.0] * d
    for size in rows.sizes:
        # Elementary symmetric polynomials: the number of cells of all subsets of each order.
        for order in range(d, 0, -1):
            of_order[order] += of_order[order - 1] * size
    columns = rows.mass.shape[1] * rows.mass.shape[2]
    filled = float((rows.mass > 0).sum()) / n_rows
    dense = of_order[sparsity] * of_order[extra] * (n_rows * filled + 2 * columns)
    pairs = math.comb(d, sparsity) * math.comb(d - sparsity, extra)
    return dense, pairs * n_rows * (SORTING + 4 * columns)


def _by_tables(
    rows: CountedRows, subsets: Subsets, rest: Subsets, probe: Tensor, memory: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Marginal tables of J with every disjoint R = kappa minus J, by one-hot matrix products."""
    n_predictions, n_labels = rows.mass.shape[1:]
    columns = n_predictions * n_labels
    # Rows that carry mass for (f, y), so that the products skip the zeros.
    entries = [(m > 0).nonzero().squeeze(1) for m in rows.mass.reshape(-1, columns).T]
    per_cell = rest.total_cells * columns * 8
    order, extra = subsets.members.shape[1], rest.members.shape[1]
    partners = math.comb(len(rows.features) - order, extra)
    products, masses, pushes = [], [], []
    probed = _indicators(rest, rows.codes[probe], rows.mass.dtype)
    for first, last in subsets.chunks(max(1, memory // per_cell)):
        part = subsets.part(first, last)
        tables = rows.mass.new_zeros(columns, part.total_cells, rest.total_cells)
        step = max(1, memory // (8 * (part.total_cells + rest.total_cells)))
        for column, index in enumerate(entries):
            for chunk in index.split(step):
                mass = rows.mass.reshape(-1, columns)[chunk, column]
                left = _indicators(part, rows.codes[chunk], mass.dtype)
                right = _indicators(rest, rows.codes[chunk], mass.dtype)
                tables[column] += left.T @ (right * mass[:, None])
        disjoint = _disjoint(part, rest).to(tables.dtype)
        tables = tables.reshape(n_predictions, n_labels, part.total_cells, -1) * disjoint
        # Every disjoint R sums to the same cell mass.
        masses.append(tables.sum(dim=(0, 3)).T / partners)
        by_cell = tables.permute(2, 1, 0, 3).reshape(part.total_cells, n_labels, -1)
        products.append(by_cell @ by_cell.mT)
        at_probe = torch.einsum("fyar,br->bafy", tables, probed)
        own = part.cell_of_rows(rows.codes[probe])[:, :, None, None]
        pushes.append(at_probe.gather(1, own.expand(-1, -1, n_predictions, n_labels)))
    return torch.cat(products), torch.cat(masses), torch.cat(pushes, dim=1)


def _by_listing(
    rows: CountedRows, subsets: Subsets, rest: Subsets, probe: Tensor, memory: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same tables as sorted lists of the entries that occur, for features of many levels."""
    n_rows, n_predictions, n_labels = rows.mass.shape
    product = rows.mass.new_zeros(subsets.total_cells, n_labels, n_labels)
    mass = rows.mass.new_zeros(subsets.total_cells, n_labels)
    push = rows.mass.new_zeros(len(probe), len(subsets), n_predictions, n_labels)
    pairs = _disjoint_subsets(subsets, rest).nonzero()
    left, right = subsets.cell_of_rows(rows.codes), rest.cell_of_rows(rows.codes)
    partners = math.comb(len(rows.features) - subsets.members.shape[1], rest.members.shape[1])
    together = max(1, memory // (16 * n_rows * n_predictions * n_labels))
    for chunk in pairs.split(together):
        key = left[:, chunk[:, 0]] * rest.total_cells + right[:, chunk[:, 1]]
        distinct, of_entry = torch.unique(key.reshape(-1), return_inverse=True)
        entries = rows.mass[:, None].expand(-1, len(chunk), -1, -1).flatten(0, 1)
        tables = entries.new_zeros(len(distinct), n_predictions, n_labels)
        tables.index_add_(0, of_entry, entries)
        cell = distinct // rest.total_cells
        product.index_add_(0, cell, tables.mT @ tables)
        mass.index_add_(0, cell, tables.sum(dim=1) / partners)
        push.index_add_(1, chunk[:, 0], tables[of_entry.reshape(key.shape)[probe]])
    return product, mass, push


def _indicators(subsets: Subsets, codes: Tensor, dtype: torch.dtype) -> Tensor:
    """(n, A) one for the cell of each subset that the row is in."""
    table = torch.zeros(len(codes), subsets.total_cells, dtype=dtype, device=codes.device)
    return table.scatter_(1, subsets.cell_of_rows(codes), 1.0)


def _disjoint(left: Subsets, right: Subsets) -> Tensor:
    """(A, A') bool, cells whose subsets share no feature."""
    return _disjoint_subsets(left, right)[left.of_cell()][:, right.of_cell()]


def _disjoint_subsets(left: Subsets, right: Subsets) -> Tensor:
    """(S, S') bool, subsets that share no feature."""
    return ~(left.members[:, None, :, None] == right.members[None, :, None, :]).any(3).any(2)


def _by_matches(
    rows: CountedRows, subsets: Subsets, extra: int, probe: Tensor, memory: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of rows in one cell of J, weighted by the number of kappa on which they agree.

    Two rows that agree on h features, s of them J, agree on C(h - s, k - s) of the kappa.
    """
    n_rows, n_predictions, n_labels = rows.mass.shape
    order = subsets.members.shape[1]
    dtype = rows.mass.dtype
    choose = torch.tensor(
        [math.comb(max(h - order, 0), extra) for h in range(len(rows.features) + 1)],
        dtype=dtype,
        device=rows.codes.device,
    )
    levels = _indicators(all_subsets(rows.sizes, 1, rows.codes.device), rows.codes, torch.float32)
    flat = rows.mass.reshape(n_rows, -1)
    product = rows.mass.new_zeros(subsets.total_cells, n_labels, n_labels)
    mass = rows.mass.new_zeros(subsets.total_cells, n_labels)
    push = rows.mass.new_zeros(len(probe), len(subsets), n_predictions, n_labels)
    block = max(1, min(n_rows, math.isqrt(memory // 32)))
    together = max(1, memory // (8 * 3 * block * n_rows))
    everyone = torch.arange(n_rows, device=rows.codes.device)

    def partners(index: Tensor, part: Subsets, agree: Tensor, cell: Tensor) -> Tensor:
        """(S, b, F, L + 1) mass of the rows in the same cell, times the kappa shared."""
        same = cell[index].T[:, :, None] == cell.T[:, None, :]
        return (torch.where(same, agree, 0.0) @ flat).reshape(
            len(part), -1, n_predictions, n_labels
        )

    for index in (*everyone.split(block), probe):
        agree = choose[(levels[index] @ levels.T).to(torch.int64)]
        for first in range(0, len(subsets), together):
            part = subsets.part(first, first + together)
            cell = part.cell_of_rows(rows.codes)
            partner = partners(index, part, agree, cell)
            if index is probe:
                push[:, first : first + together] = partner.transpose(0, 1)
                continue
            at = cell[index].T.reshape(-1) + sum(subsets.cells[:first])
            product.index_add_(0, at, (rows.mass[index].mT @ partner).flatten(0, 1))
            own = rows.label_mass[index].expand(len(part), -1, -1)
            mass.index_add_(0, at, own.reshape(-1, n_labels))
    return product, mass, push
