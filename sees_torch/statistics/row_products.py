"""The table products of one subset as a function of the rows' probabilities, for gradients.

SEES-d needs G w - b of its subset J at fixed weights. With D the signed mass of both samples,
w(a, y) for source rows and -1 for target rows, spread over predictions by p(f|x),

    (G w - b)[a, y] = sum over source rows u in (a, y) of  mass_u p_u . sum_kappa D_kappa(x_u):

each kappa adds rows up by its cells and hands the sums back to the rows. That is linear in p, so
the backward pass keeps one index a kappa and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.counting import group_keys, row_keys
from sees_torch.statistics.counted import CountedRows
from sees_torch.statistics.subsets import subsets_of


@dataclass(frozen=True)
class RowProducts:
    """Where the rows of both samples are, source rows first.

    Attributes:
        tables: for every kappa, (n + m,) the cell of each row and the number of cells that occur.
        cell: (n + m,) cell of J; cells: their number.
        mass: (n + m,) share of its sample.
        labels: (n,) of the source rows; n_labels: L.
    """

    tables: tuple[tuple[Tensor, int], ...]
    cell: Tensor
    cells: int
    mass: Tensor
    labels: Tensor
    n_labels: int

    @classmethod
    def of(
        cls, source: Source, target: Target, rows: CountedRows, members: tuple[int, ...]
    ) -> RowProducts:
        """Of the subset with these members, lines of `rows.codes`; counts rows, so has no graph."""
        raw = torch.cat([source.rows.codes, target.rows.codes])[:, list(rows.features)]
        # Rows of multiplicity zero may have levels that do not occur; any will do for them.
        lines = [
            torch.searchsorted(levels, line.contiguous()).clamp_max(len(levels) - 1)
            for levels, line in zip(rows.levels, raw.T, strict=True)
        ]
        codes = torch.stack(lines, dim=1)
        d = len(rows.features)
        others = [j for j in range(d) if j not in members]
        tables = []
        for more in combinations(others, min(2 * len(members), d) - len(members)):
            kappa = [*members, *more]
            groups = group_keys(*row_keys(codes[:, kappa], [rows.sizes[j] for j in kappa]))
            tables.append((groups.of_row, len(groups)))
        subset = subsets_of([members], rows.sizes, codes.device)
        return cls(
            tuple(tables),
            subset.cell_of_rows(codes).squeeze(1),
            subset.total_cells,
            torch.cat([source.mass, target.mass]),
            source.labels,
            len(source.classes),
        )

    def rest(self, weight: Tensor, proba: Tensor) -> Tensor:
        """(C, L) G w - b at weights (C, L) and probabilities (n + m, F)."""
        n = len(self.labels)
        share = proba * self.mass[:, None]
        sign = torch.cat([weight[self.cell[:n], self.labels], -torch.ones_like(self.mass[n:])])
        signed, found = share * sign[:, None], torch.zeros_like(share[:n])
        for place, size in self.tables:
            sums = signed.new_zeros(size, signed.shape[1]).index_add(0, place, signed)
            found = found + sums[place[:n]]
        pair = self.cell[:n] * self.n_labels + self.labels
        per_row = (share[:n] * found).sum(dim=1)
        sums = per_row.new_zeros(self.cells * self.n_labels).index_add(0, pair, per_row)
        return sums.reshape(self.cells, self.n_labels)
