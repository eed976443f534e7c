"""Covariate shift: p(y|x) is the same in both samples and only p(x) moved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from sees_torch.data import Rows, Source, Target
from sees_torch.data.counting import deal, group_keys
from sees_torch.errors import SeesError
from sees_torch.matching.match import Match
from sees_torch.matching.parameters import Parameters
from sees_torch.matching.penalised import check_size
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.interior_point import group_likelihood
from sees_torch.solvers.logistic import ridge_logistic
from sees_torch.solvers.solution import Solution
from sees_torch.statistics.basis import (
    FeatureBasis,
    GaussianBasis,
    gaussian,
    pieces,
    squared_distances,
)
from sees_torch.weights import BasisWeights, OddsWeights

FOLDS = 5
REACH = 1e-9
"""Kernel value below which a row counts as out of reach."""


@dataclass(frozen=True)
class KLIEP(Parameters):
    """Kullback-Leibler importance estimation: w(x) a mixture of Gaussian kernels at target rows.

    Maximises E_t[log w(x)] with E_s[w(x)] = 1. The kernel width is the one with the largest
    held-out target likelihood among multiples of the median distance between kernel centres: too
    narrow ones and too wide ones lose more the further they are off, so that the search climbs
    from the middle one.

    Args:
        centres: at most so many target rows serve as kernel centres.
        widths: candidate widths, as multiples of the median distance. One so narrow that some
            target row is out of reach of every kernel is passed over.
        max_steps: of the solver.
        rows: at most so many distinct rows of each sample choose the width.
    """

    centres: int = 100
    widths: tuple[float, ...] = (0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
    max_steps: int = 150
    rows: int = 20_000

    def __post_init__(self) -> None:
        if self.centres < 1 or not self.widths or min(self.widths) <= 0:
            raise SeesError("KLIEP needs at least one centre and positive widths.")
        if self.rows < 1:
            raise SeesError(f"rows must be positive, got {self.rows!r}.")

    @property
    def name(self) -> str:
        return "kliep"

    def match(self, source: Source, target: Target) -> Match:
        basis = FeatureBasis(source)
        here, there = _Distinct.of(source), _Distinct.of(target)
        centres = basis(there.top(self.centres).rows)
        width = self._width(basis, centres, here, there)
        kernels = GaussianBasis(basis, centres, float(width))
        weight = torch.stack(
            [here.mass[at] @ kernels(part) for at, part in pieces(here.rows, len(centres))]
        )
        weight = weight.sum(dim=0)
        solution = self._solve(kernels(there.rows), weight, there.mass[None], tolerance=1e-6)
        labels = len(source.classes)
        function = BasisWeights(
            source.schema,
            source.classes,
            kernels,
            solution.value[0][:, None].expand(-1, labels).clone(),
            weight.new_zeros(labels),
        )
        return Match(
            self.name,
            function,
            residual=float(solution.residual[0]),
            status=solution.status(),
            unseen_mass=target.unseen_mass(source),
        )

    def _width(
        self, basis: FeatureBasis, centres: Tensor, here: _Distinct, there: _Distinct
    ) -> Tensor:
        """The candidate with the largest held-out likelihood, by climbing."""
        between = squared_distances(centres, centres).sqrt()
        apart = between[between > 1e-6]
        unit = apart.median() if len(apart) else centres.new_ones(())
        widths = unit * torch.tensor(sorted(self.widths), dtype=unit.dtype, device=unit.device)
        # The largest kernel value at the loneliest target row.
        lonely = [
            squared_distances(basis(part), centres).amin(dim=1).max()
            for _, part in pieces(there.rows, len(basis.owners))
        ]
        reach = gaussian(torch.stack(lonely).max(), widths)
        widths = widths[reach >= min(REACH, float(reach.max()))]
        if len(widths) == 1:
            return widths[0]
        here, there = here.top(self.rows), there.top(self.rows)
        to_source, to_target = (
            squared_distances(basis(sample.rows), centres) for sample in (here, there)
        )
        kept = ((1 - there.share) * there.mass[:, None]).T
        kept = kept / kept.sum(dim=1, keepdim=True)
        held_out = (there.share * there.mass[:, None]).T

        @cache
        def score(place: int) -> float:
            kernel = gaussian(to_target, widths[place])
            weight = here.mass @ gaussian(to_source, widths[place])
            fitted = self._solve(kernel, weight, kept, tolerance=1e-4).value
            return float((held_out * (fitted @ kernel.T).clamp_min(1e-30).log()).sum())

        best = (len(widths) - 1) // 2
        for step in (-1, 1):
            while 0 <= best + step < len(widths) and score(best + step) > score(best):
                best += step
        return widths[best]

    def _solve(self, kernel: Tensor, weight: Tensor, mass: Tensor, tolerance: float) -> Solution:
        """(B, centres) coefficients for a batch of row masses that differ little."""
        usable = weight > 1e-12 * weight.max()
        free = torch.full_like(weight[usable], -1, dtype=torch.int64)
        solution = group_likelihood(
            kernel if bool(usable.all()) else kernel[:, usable],
            mass,
            GroupSimplex(weight[usable][None], free, 0),
            mass.new_zeros(len(mass), 1),
            tolerance=tolerance,
            max_steps=self.max_steps,
            alike=True,
        )
        coefficient = kernel.new_zeros(len(mass), len(weight))
        coefficient[:, usable] = solution.value
        return replace(solution, value=coefficient)


@dataclass(frozen=True)
class DLU(Parameters):
    """Discriminative learning on the union: odds of a target-against-source classifier.

    A ridge logistic regression on the basis of the features, cross-fitted: a row is weighed by a
    model that has not seen it. More than 4,000 levels are refused.

    Args:
        ridge: penalty on the coefficients, in rows.
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise SeesError(f"ridge must be positive, got {self.ridge!r}.")

    @property
    def name(self) -> str:
        return "dlu"

    def match(self, source: Source, target: Target) -> Match:
        basis = FeatureBasis(source)
        check_size(source, basis, "DLU has a coefficient for every level", 1)
        here, there = _Distinct.of(source), _Distinct.of(target)
        n = len(here.key)
        design = here.mass.new_ones(len(basis.owners) + 1, n + len(there.key))
        for sample, place in ((here, design[:-1, :n]), (there, design[:-1, n:])):
            for at, part in pieces(sample.rows, len(basis.owners)):
                place[:, at] = basis(part).T
        is_target = torch.cat([torch.zeros_like(here.mass), torch.ones_like(there.mass)])
        # Both samples weigh the same, so that the odds are the density ratio.
        rows = (source.total + target.total) / 2
        mass = torch.cat([here.mass, there.mass]) * rows
        kept = ((1 - torch.cat([here.share, there.share])) * mass[:, None]).T.contiguous()
        model = ridge_logistic(design, is_target, kept, self.ridge, alike=True)
        # Folds hold slightly unequal shares of the two samples: put the prior odds back to one.
        prior = (kept @ is_target) / (kept @ (1 - is_target))
        function = OddsWeights(
            source.schema,
            source.classes,
            basis,
            model.value[:, :-1],
            model.value[:, -1] - prior.log(),
            here.key,
            here.share,
        )
        return Match(
            self.name,
            function,
            residual=float(model.residual.max()),
            status=model.status(),
            unseen_mass=target.unseen_mass(source),
        )


@dataclass(frozen=True)
class _Distinct:
    """Rows of a sample that differ in some feature, in an order that their content decides.

    Attributes:
        rows: U rows; key: (U,) their sorted hashes.
        mass: (U,) sums to one; share: (U, F) the part of each row in every fold.
    """

    rows: Rows
    key: Tensor
    mass: Tensor
    share: Tensor

    @classmethod
    def of(cls, sample: Source | Target) -> _Distinct:
        key = sample.schema.row_hash(sample.rows)
        groups = group_keys(key).counted(sample.count)
        count = groups.sum(sample.count).to(torch.float64)
        rows = sample.rows[groups.first]
        return cls(rows, key[groups.first], count / count.sum(), deal(count, FOLDS))

    def top(self, rows: int) -> _Distinct:
        """The first rows, which are as good as drawn at random."""
        if len(self.key) <= rows:
            return self
        mass = self.mass[:rows]
        first = self.rows[torch.arange(rows, device=mass.device)]
        return _Distinct(first, self.key[:rows], mass / mass.sum(), self.share[:rows])
