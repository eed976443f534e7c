"""Marginal tables of both samples as additive states: all that SEES-d and BBSE need of the rows.

For s shifted features these are the tables of every min(2s, d) features with the prediction and the
label (the target is one more label), and per cell of every s features the summed metric. Their size
depends on the schema only, and those of batches or processes add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from sees_torch.data import Rows, Schema, Source, Target
from sees_torch.data.counting import combined_keys, group_keys
from sees_torch.errors import SeesError, SupportError
from sees_torch.matching import Match, SEESd
from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.packing import Packing
from sees_torch.statistics.products import SubsetProducts
from sees_torch.statistics.subsets import Subsets, all_subsets, subsets_of

MOST_NUMBERS = 2**24
"""Larger states take longer to add up between processes than rows take to gather."""


@dataclass(frozen=True)
class Layout:
    """Where everything is in the tables.

    Attributes:
        method: SEES-d with a given number of features; BBSE is it without any.
        sizes: codes of every column.
        n_labels: L.
    """

    method: SEESd
    sizes: tuple[int, ...]
    n_labels: int

    @classmethod
    def of(cls, method: SEESd, schema: Schema, n_labels: int) -> Layout:
        """The layout, refused if it has no end or no bearable one."""
        d = len(schema.columns)
        if not isinstance(method.sparsity, int) or method.sparsity > d:
            raise SeesError(
                f"states='tables' need a number of features from 0 to {d}, got "
                f"sparsity={method.sparsity!r}."
            )
        order = min(2 * method.sparsity, d)
        cells = sum(math.prod(part) for part in combinations(schema.cardinalities, order))
        if cells * (n_labels + 1) * n_labels > MOST_NUMBERS:
            raise SeesError(
                f"tables of {order} of {d} columns would hold {cells:.2g} cells: use states='rows',"
                " fewer columns or a smaller sparsity."
            )
        return cls(method, schema.cardinalities, n_labels)

    @property
    def order(self) -> int:
        return min(2 * self._sparsity, len(self.sizes))

    @property
    def _sparsity(self) -> int:
        assert isinstance(self.method.sparsity, int)
        return self.method.sparsity

    def tables(self, device: torch.device) -> Subsets:
        """The feature sets that are counted."""
        return all_subsets(self.sizes, self.order, device)

    def subsets(self, device: torch.device) -> Subsets:
        """The feature sets that may have shifted."""
        return all_subsets(self.sizes, self._sparsity, device)

    def empty(self) -> dict[str, Tensor]:
        """The states before any row: counts, losses, and per sample its rows and their number."""
        cpu = torch.device("cpu")
        counts = (self.tables(cpu).total_cells, self.n_labels + 1, self.n_labels)
        losses = (self.subsets(cpu).total_cells, self.n_labels)
        shapes = {"counts": counts, "losses": losses, "totals": (2, 2)}
        return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    def counted(
        self, rows: Rows, labels: Tensor, proba: Tensor, count: Tensor, values: Tensor
    ) -> dict[str, Tensor]:
        """What rows add to the states; label -1 is the target, values (n,) are of the metric."""
        label = torch.where(labels < 0, self.n_labels, labels)
        target, source = (labels < 0).to(torch.int64), labels >= 0
        more = {name: state.to(count.device) for name, state in self.empty().items()}
        mass = self._on_predictions(proba) * count[:, None]
        for cell in self.tables(count.device).cell_of_rows(rows.codes).unbind(dim=1):
            more["counts"].flatten(0, 1).index_add_(0, cell * (self.n_labels + 1) + label, mass)
        worth = torch.where(source, values * count, 0.0)
        for cell in self.subsets(count.device).cell_of_rows(rows.codes).unbind(dim=1):
            more["losses"].view(-1).index_add_(0, cell * self.n_labels + labels.clamp_min(0), worth)
        held = torch.stack([count, (count > 0).to(count.dtype)], dim=1)
        more["totals"].index_add_(0, target, held)
        return more

    def match(self, counts: Tensor, totals: Tensor, source: Source, target: Target) -> Match:
        """What SEES-d finds; noise is measured on the rows of two small samples."""
        (n, n_rows), (m, m_rows) = totals.tolist()
        population = n < (1 - 1e-9) * n_rows or m < (1 - 1e-9) * m_rows
        scale = torch.tensor([1 / n] * self.n_labels + [1 / m], dtype=torch.float64)
        table = counts * scale.to(counts.device)[:, None]
        rows = self._entries(source, target, self._shared(table))
        products = self._products(table, rows)
        return self.method.match_products(source, rows, products, None if population else (n, m))

    def value(self, losses: Tensor, counts: Tensor, match: Match, normalised: bool) -> Tensor:
        """() ipw or self-normalised metric on the target: sums of w times the cells' sums."""
        subsets = self.subsets(losses.device)
        wanted = set(match.features)
        members = [set(part) for part in subsets.members.tolist()]
        place = next(at for at, part in enumerate(members) if wanted <= part)
        here = subsets.cells_of(place)
        features, levels = (part[here] for part in subsets.grid())
        codes = torch.zeros(len(levels), len(self.sizes), dtype=torch.int64, device=losses.device)
        weight = match.weight_function.table(Rows.coded(codes.scatter(1, features, levels)))
        total = (weight * losses[here]).sum()
        return total / (weight * self._mass(counts, place)).sum() if normalised else total

    def _on_predictions(self, proba: Tensor) -> Tensor:
        if self.method.soft:
            return proba
        hit = proba.argmax(dim=1)
        return torch.nn.functional.one_hot(hit, self.n_labels).to(proba.dtype)

    def _mass(self, counts: Tensor, place: int) -> Tensor:
        """(C, L) source multiplicity in every cell of a subset."""
        subset = self.subsets(counts.device).part(place, place + 1)
        tables = self.tables(counts.device)
        members = set(subset.members[0].tolist())
        kappa = next(k for k, row in enumerate(tables.members.tolist()) if members <= set(row))
        sums = counts[tables.cells_of(kappa)].sum(dim=2)[:, :-1]
        cell = _coarser(tables, kappa, subset, 0)
        return sums.new_zeros(subset.total_cells, self.n_labels).index_add(0, cell, sums)

    def _shared(self, table: Tensor) -> tuple[int, ...]:
        """Columns in which some level has mass in both samples."""
        if not self.order:
            return ()
        tables = self.tables(table.device)
        features, levels = tables.grid()
        mass = torch.stack([table[:, :-1].sum(dim=(1, 2)), table[:, -1].sum(dim=1)], dim=1)
        shared = []
        for j, size in enumerate(self.sizes):
            sums = mass.new_zeros(size, 2)
            for axis in range(self.order):
                own = features[:, axis] == j
                sums = sums.index_add(0, levels[own, axis], mass[own])
            if bool((sums > 0).all(dim=1).any()):
                shared.append(j)
        if len(shared) < self.order:
            raise SupportError(
                f"source and target have levels in common in {len(shared)} columns, and tables of "
                f"{self.order} are compared. Check that columns are coded alike."
            )
        return tuple(shared)

    def _entries(self, source: Source, target: Target, features: tuple[int, ...]) -> CountedRows:
        """The rows of two samples as entries, coded as the tables are."""
        samples = (source, target)
        codes = torch.cat([sample.rows.codes for sample in samples])
        label = torch.cat([source.labels, source.labels.new_full((len(target),), self.n_labels)])
        proba = torch.cat([sample.proba for sample in samples])
        count = torch.cat([sample.count for sample in samples])
        blocks = 1 if self.method.soft else self.n_labels
        block = label if self.method.soft else label * blocks + proba.argmax(dim=1)
        n_blocks = blocks * (self.n_labels + 1)
        packing = Packing.of(tuple(self.sizes[j] for j in features))
        kept = torch.tensor(features, dtype=torch.int64, device=codes.device)
        lines = packing.pack(codes.index_select(1, kept))
        keys = combined_keys([block, *lines], [n_blocks, *packing.cells])
        groups = group_keys(*keys).counted(count)
        mass = proba * count[:, None] if self.method.soft else count[:, None]
        square = count * self._on_predictions(proba).square().sum(dim=1)
        totals = [source.total] * self.n_labels + [target.total]
        block = block[groups.first]
        return CountedRows(
            lines.index_select(1, groups.first),
            packing,
            groups.sum(mass),
            groups.sum(square),
            block,
            tuple(torch.bincount(block, minlength=n_blocks).tolist()),
            True,
            torch.stack(totals).reciprocal(),
            torch.inf,
            self.method.soft,
            features,
            tuple(torch.arange(self.sizes[j], device=codes.device) for j in features),
        )

    def _products(self, table: Tensor, rows: CountedRows) -> SubsetProducts:
        """Sums of table products of every subset of shared columns, as `subset_products` has them.

        `push` looks the entries of `rows` up in the tables.
        """
        device, labels = table.device, self.n_labels + 1
        every, positions = self.tables(device), list(rows.features)
        listed = list(combinations(range(len(positions)), self._sparsity))
        subsets = subsets_of(listed, rows.sizes, device)
        product = table.new_zeros(subsets.total_cells, labels, labels)
        mass = table.new_zeros(subsets.total_cells, labels)
        push = table.new_zeros(len(rows), len(subsets), self.n_labels)
        codes = rows.codes.T.to(torch.int64)
        share = rows.count / rows.count.sum(dim=1, keepdim=True).clamp_min(1e-37)
        if not self.method.soft:
            predicted = rows.block % self.n_labels
            share = torch.nn.functional.one_hot(predicted, self.n_labels).to(table.dtype)
        for kappa, members in enumerate(every.members.tolist()):
            if not set(members) <= set(positions):
                continue
            part = table[every.cells_of(kappa)]
            pairs = part @ part.mT
            at = [positions.index(j) for j in members]
            cell = (codes[:, at] * every.strides[kappa]).sum(dim=1)
            moved = torch.einsum("eyf,ef->ey", part[cell][:, :-1], share)
            for place, chosen in enumerate(listed):
                if not set(chosen) <= set(at):
                    continue
                within = _coarser(every, kappa, subsets, place, [positions[j] for j in chosen])
                here = subsets.cells_of(place)
                product[here].index_add_(0, within, pairs)
                mass[here] = torch.zeros_like(mass[here]).index_add(0, within, part.sum(dim=2))
                push[:, place] += moved
        probe = torch.arange(len(rows), device=device)
        return SubsetProducts(subsets, product, mass, probe, push)


def _coarser(
    tables: Subsets, table: int, subsets: Subsets, place: int, members: list[int] | None = None
) -> Tensor:
    """(C,) for every cell of a table the cell of a subset of its features, counted from 0."""
    own = tables.members[table].tolist()
    wanted = subsets.members[place].tolist() if members is None else members
    _, levels = tables.part(table, table + 1).grid()
    chosen = levels[:, [own.index(j) for j in wanted]]
    return (chosen * subsets.strides[place]).sum(dim=1)
