"""Covariate shift: p(y|x) is the same in both samples and only p(x) moved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sees_torch.data import Rows, Source, Target
from sees_torch.data.counting import deal, group_keys, group_rows
from sees_torch.errors import SeesError
from sees_torch.matching.match import Match
from sees_torch.solvers.logistic import ridge_logistic
from sees_torch.solvers.proximal import GroupSimplex
from sees_torch.solvers.proximal_gradient import group_likelihood
from sees_torch.solvers.solution import Solution
from sees_torch.statistics.basis import FeatureBasis, GaussianBasis, gaussian
from sees_torch.weights import BasisWeights, OddsWeights

FOLDS = 5
REACH = 1e-9
"""Kernel value below which a row counts as out of reach."""


@dataclass(frozen=True)
class KLIEP:
    """Kullback-Leibler importance estimation: w(x) a mixture of Gaussian kernels at target rows.

    Maximises E_t[log w(x)] with E_s[w(x)] = 1. The kernel width is the one with the largest
    held-out target likelihood among multiples of the median distance between kernel centres.

    Args:
        centres: at most so many target rows serve as kernel centres.
        widths: candidate widths, as multiples of the median distance. One so narrow that some
            target row is out of reach of every kernel is passed over.
        max_steps: of the solver.
    """

    centres: int = 100
    widths: tuple[float, ...] = (0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
    max_steps: int = 2500

    def __post_init__(self) -> None:
        if self.centres < 1 or not self.widths or min(self.widths) <= 0:
            raise SeesError("KLIEP needs at least one centre and positive widths.")

    @property
    def name(self) -> str:
        return "kliep"

    def match(self, source: Source, target: Target) -> Match:
        basis = FeatureBasis(source)
        rows, mass, share = _distinct_features(target)
        points, on_source = basis(rows), basis(source.rows)
        chosen = target.schema.row_hash(rows).argsort()[: self.centres]
        centres = points[chosen]
        to_target = torch.cdist(points, centres).square()
        to_source = torch.cdist(on_source, centres).square()
        between = torch.cdist(centres, centres)
        apart = between[between > 0]
        unit = apart.median() if len(apart) else points.new_ones(())
        widths = unit * torch.tensor(self.widths, dtype=points.dtype, device=points.device)
        # The largest kernel value at the loneliest target row.
        reach = gaussian(to_target.amin(dim=1).max(), widths)
        widths = widths[reach >= min(REACH, float(reach.max()))]
        held_out = torch.stack(
            [self._held_out(to_target, to_source, source, mass, share, w) for w in widths]
        )
        width = widths[held_out.argmax()]
        kernel = gaussian(to_target, width)
        weight = source.mean(gaussian(to_source, width))
        solution = self._solve(kernel, weight, mass[None], tolerance=1e-6)
        labels = len(source.classes)
        function = BasisWeights(
            source.schema,
            source.classes,
            GaussianBasis(basis, centres, float(width)),
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

    def _held_out(
        self,
        to_target: Tensor,
        to_source: Tensor,
        source: Source,
        mass: Tensor,
        share: Tensor,
        width: Tensor,
    ) -> Tensor:
        """Mean log weight of target rows under the model that was fitted without their fold."""
        kernel = gaussian(to_target, width)
        weight = source.mean(gaussian(to_source, width))
        kept = ((1 - share) * mass[:, None]).T
        kept = kept / kept.sum(dim=1, keepdim=True)
        fitted = self._solve(kernel, weight, kept, tolerance=1e-4).value
        held_out = (share * mass[:, None]).T
        return (held_out * (fitted @ kernel.T).clamp_min(1e-30).log()).sum()

    def _solve(self, kernel: Tensor, weight: Tensor, mass: Tensor, tolerance: float) -> Solution:
        """(B, centres) coefficients for a batch of row masses."""
        usable = weight > 1e-12 * weight.max()
        simplex = GroupSimplex(
            weight[usable][None], torch.full_like(weight[usable], -1, dtype=torch.int64), 0
        )
        solution = group_likelihood(
            kernel[:, usable],
            mass,
            simplex,
            mass.new_zeros(len(mass), 1),
            tolerance=tolerance,
            max_steps=self.max_steps,
        )
        coefficient = kernel.new_zeros(len(mass), len(weight))
        coefficient[:, usable] = solution.value
        return replace(solution, value=coefficient)


@dataclass(frozen=True)
class DLU:
    """Discriminative learning on the union: odds of a target-against-source classifier.

    A ridge logistic regression on the basis of the features, cross-fitted: a row is weighed by a
    model that has not seen it.

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
        inputs = torch.cat([basis(source.rows), basis(target.rows)])
        keys, share, of_source = _fold_shares(source)
        _, target_share, of_target = _fold_shares(target)
        left_out = torch.cat([share[of_source], target_share[of_target]])
        is_target = torch.cat([torch.zeros_like(source.count), torch.ones_like(target.count)])
        # Both samples weigh the same, so that the odds are the density ratio.
        rows = (source.total + target.total) / 2
        mass = torch.cat([source.mass, target.mass]) * rows
        kept = ((1 - left_out) * mass[:, None]).T
        model = ridge_logistic(inputs, is_target, kept, self.ridge)
        # Folds hold slightly unequal shares of the two samples: put the prior odds back to one.
        prior = (kept @ is_target) / (kept @ (1 - is_target))
        function = OddsWeights(
            source.schema,
            source.classes,
            basis,
            model.value[:, :-1],
            model.value[:, -1] - prior.log(),
            keys,
            share,
        )
        return Match(
            self.name,
            function,
            residual=float(model.residual.max()),
            status=model.status(),
            unseen_mass=target.unseen_mass(source),
        )


def _fold_shares(sample: Source | Target) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted hashes (U,) of distinct rows, their shares (U, F) in the folds, group of row (n,)."""
    key = sample.schema.row_hash(sample.rows)
    groups = group_keys(key)
    return key[groups.first], deal(groups.sum(sample.count), FOLDS), groups.of_row


def _distinct_features(target: Target) -> tuple[Rows, Tensor, Tensor]:
    """Distinct target rows, their mass (U,), and their share (U, F) in each fold."""
    values = [v for v, c in zip(target.rows.values.T, target.schema.continuous, strict=True) if c]
    groups = group_rows(target.rows.codes, target.schema.cardinalities, values)
    groups = groups.counted(target.count)
    rows = target.rows[groups.first]
    order = target.schema.row_hash(rows).argsort(stable=True)
    share = torch.empty(len(rows), FOLDS, dtype=torch.float64, device=order.device)
    share[order] = deal(groups.sum(target.count)[order], FOLDS)
    return rows, groups.sum(target.mass), share
