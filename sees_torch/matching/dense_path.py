"""Shifts of many features: fitted to all rows, and judged on rows that were held out."""

from __future__ import annotations

import warnings
from dataclasses import replace

from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.errors import SeesWarning
from sees_torch.matching import candidates
from sees_torch.matching.candidate import Candidate
from sees_torch.matching.covariates_only import CovariatesOnly
from sees_torch.matching.match import Match, quietly
from sees_torch.matching.sees_c import SEESc
from sees_torch.matching.selection import Folds, Ratios, induced_ratio

ETAS = (1e-3, 3e-3, 1e-2)
TOLERANCE = 1e-5
"""In units of the score: far below its standard error."""


def dense_path(source: Source, target: Target) -> list[tuple[Candidate, Match, Ratios]]:
    """Covariates only, then labels and many features under every penalty.

    Each with its weights on all rows and its ratios of fits without each fold.
    """
    folds = Folds.deal(source, target)
    counts = folds.training(source, target)

    def held_out(tables: tuple[Tensor, Tensor]) -> Ratios:
        return folds.held_out(induced_ratio(source, target, tables))

    covariates = CovariatesOnly(tolerance=TOLERANCE)
    match = quietly(covariates, source, target)
    tables = covariates.refits(source, target, match, *counts)
    found = [(candidates.covariates(covariates), match, held_out(tables))]
    many = SEESc(tolerance=TOLERANCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeesWarning)
        path = many.path(source, target, ETAS)
    refits = many.path_refits(source, target, ETAS, path, *counts)
    for eta, match, tables in zip(ETAS, path, refits, strict=True):
        found.append((candidates.many(replace(many, eta=eta)), match, held_out(tables)))
    return found
