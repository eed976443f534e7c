"""How much did a deployed model's performance change, how sure is that, and which features moved?

Labelled source rows, unlabelled target rows and the model's probabilities in; the performance gap
and the shifted features out, when features and labels may both have shifted (sparse joint shift).
"""

from sees_torch.data import Schema, Source, Target
from sees_torch.data.pairs import ShiftedPair
from sees_torch.data.resampling import resample_shift
from sees_torch.data.simulation import make_sparse_joint_shift
from sees_torch.errors import (
    ConvergenceWarning,
    IdentificationError,
    SchemaError,
    SeesError,
    SeesWarning,
    ShapeError,
    SupportError,
    SupportWarning,
)
from sees_torch.matching import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    KnownWeights,
    Match,
    NoShift,
    SEESc,
    SEESd,
)
from sees_torch.report import ShiftReport, estimate_shift
from sees_torch.statistics.basis import Basis, FeatureBasis
from sees_torch.version import __version__
from sees_torch.weights import BasisWeights, ConstantWeights, TableWeights, WeightFunction

__all__ = [
    "BBSE",
    "CBPE",
    "DLU",
    "KLIEP",
    "MLLS",
    "Basis",
    "BasisWeights",
    "ConstantWeights",
    "ConvergenceWarning",
    "FeatureBasis",
    "IdentificationError",
    "KnownWeights",
    "Match",
    "NoShift",
    "SEESc",
    "SEESd",
    "Schema",
    "SchemaError",
    "SeesError",
    "SeesWarning",
    "ShapeError",
    "ShiftReport",
    "ShiftedPair",
    "Source",
    "SupportError",
    "SupportWarning",
    "TableWeights",
    "Target",
    "WeightFunction",
    "__version__",
    "estimate_shift",
    "make_sparse_joint_shift",
    "resample_shift",
]
