"""Label shift: p(x|y) is the same in both samples and only p(y) moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.matching.likelihood import distinct_target
from sees_torch.matching.match import Match
from sees_torch.matching.parameters import Parameters
from sees_torch.matching.sees_d import SEESd
from sees_torch.matching.sees_em import SEESem
from sees_torch.solvers.design import Mixture
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.implicit import likelihood_solution, wants_graph
from sees_torch.solvers.likelihood import penalised_likelihood
from sees_torch.weights import ConstantWeights


@dataclass(frozen=True)
class BBSE(Parameters):
    """Black box shift estimation: label weights from the confusion matrix.

    Solves  sum_y p_s(f, y) w(y) = p_t(f)  in least squares with w >= 0 and E_s[w] = 1, which is
    the published C^-1 q wherever that is a distribution. It is SEES-d without features.

    Args:
        soft: use predicted probabilities instead of predicted classes. Only these have a gradient:
            predicted classes do not move with the probabilities.
    """

    soft: bool = False

    @property
    def name(self) -> str:
        return "bbse"

    def match(self, source: Source, target: Target) -> Match:
        return self.match_many(source, [target])[0]

    def match_many(self, source: Source, targets: Sequence[Target]) -> list[Match]:
        """The matches of one source to many targets, in one solve."""
        return [
            Match(self.name, found.weight_function, residual=found.residual, status=found.status)
            for found in SEESd(sparsity=0, soft=self.soft).match_many(source, targets)
        ]


@dataclass(frozen=True)
class MLLS(Parameters):
    """Maximum-likelihood label shift: label weights that make the target likeliest.

    Maximises  E_t[ log sum_y p(y|x) w(y) ]  over w >= 0 with E_s[ sum_y p(y|x) w(y) ] = 1, the
    fixed point of the EM algorithm of Saerens et al.
    """

    @property
    def name(self) -> str:
        return "mlls"

    def match(self, source: Source, target: Target) -> Match:
        moment = source.mean(source.posterior)
        free = torch.full_like(moment, -1, dtype=torch.int64)
        weight = torch.zeros_like(moment)
        with torch.no_grad():
            _, posterior, mass = distinct_target(target)
            possible = moment > 0
            simplex = GroupSimplex(moment[possible][None], free[possible], 0)
            solution = penalised_likelihood(
                posterior[:, possible], mass[None], simplex, moment.new_zeros(1, 1)
            )
            weight[possible] = solution.value[0]
        if wants_graph(source.posterior, target.posterior):
            rows = Mixture.plain(target.posterior)
            weight = likelihood_solution(rows, target.mass, moment, free, weight, 0.0)
        return Match(
            self.name,
            ConstantWeights(source.schema, source.classes, weight),
            residual=float(solution.residual[0]),
            status=solution.status(),
        )

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of all rows under many multiplicities; the likelihood is that of SEES-em."""
        return SEESem(features=()).replicate(source, target, match, here, there)
