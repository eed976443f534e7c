"""One file a method: statistics and a solver in, a weight function out."""

from sees_torch.matching.auto import Auto
from sees_torch.matching.covariate_shift import DLU, KLIEP
from sees_torch.matching.label_shift import BBSE, MLLS
from sees_torch.matching.match import Match, Method, Ranking
from sees_torch.matching.reference import CBPE, KnownWeights, NoShift
from sees_torch.matching.sees_c import SEESc
from sees_torch.matching.sees_d import SEESd
from sees_torch.matching.sees_em import SEESem

__all__ = [
    "BBSE",
    "CBPE",
    "DLU",
    "KLIEP",
    "MLLS",
    "Auto",
    "KnownWeights",
    "Match",
    "Method",
    "NoShift",
    "Ranking",
    "SEESc",
    "SEESd",
    "SEESem",
]
