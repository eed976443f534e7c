"""How much did a deployed model's performance change, how sure is that, and which features moved?

Labelled source rows, unlabelled target rows and the model's probabilities in; the performance gap
and the shifted features out, when features and labels may both have shifted (sparse joint shift).
"""

from typing import TYPE_CHECKING, Any

from sees_torch.correction import CorrectedClassifier
from sees_torch.data import Schema, Source, Target
from sees_torch.data.files import TableFile
from sees_torch.data.pairs import ShiftedPair
from sees_torch.data.resampling import resample_shift
from sees_torch.data.simulation import make_sparse_joint_shift
from sees_torch.errors import (
    ConvergenceWarning,
    IdentificationError,
    MemoryShortError,
    SavedFileError,
    SchemaError,
    SeesError,
    SeesWarning,
    ShapeError,
    SupportError,
    SupportWarning,
)
from sees_torch.estimate import estimate_shift
from sees_torch.matching import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    Auto,
    KnownWeights,
    Match,
    NoShift,
    SEESc,
    SEESd,
    SEESem,
)
from sees_torch.monitor import Alerts, Observation, ShiftMonitor, estimate_many
from sees_torch.report import ShiftReport
from sees_torch.saving import SavedReport, load_report, load_weights, save_weights
from sees_torch.statistics.basis import Basis, FeatureBasis
from sees_torch.target_loss import TargetLoss
from sees_torch.training import ImportanceWeights, importance_weights
from sees_torch.version import __version__
from sees_torch.weighted_metrics import (
    auroc,
    average_precision,
    balanced_accuracy,
    cost,
    expected_calibration_error,
    f1,
    precision,
    recall,
)
from sees_torch.weights import BasisWeights, ConstantWeights, TableWeights, WeightFunction

if TYPE_CHECKING:
    from sees_torch.metrics import (
        PerformanceShift,
        WeightedAccuracy,
        WeightedAUROC,
        WeightedAveragePrecision,
        WeightedBalancedAccuracy,
        WeightedBrier,
        WeightedCalibrationError,
        WeightedF1,
        WeightedLogLoss,
        WeightedPrecision,
        WeightedRecall,
    )

__all__ = [
    "BBSE",
    "CBPE",
    "DLU",
    "KLIEP",
    "MLLS",
    "Alerts",
    "Auto",
    "Basis",
    "BasisWeights",
    "ConstantWeights",
    "ConvergenceWarning",
    "CorrectedClassifier",
    "FeatureBasis",
    "IdentificationError",
    "ImportanceWeights",
    "KnownWeights",
    "Match",
    "MemoryShortError",
    "NoShift",
    "Observation",
    "PerformanceShift",
    "SEESc",
    "SEESd",
    "SEESem",
    "SavedFileError",
    "SavedReport",
    "Schema",
    "SchemaError",
    "SeesError",
    "SeesWarning",
    "ShapeError",
    "ShiftMonitor",
    "ShiftReport",
    "ShiftedPair",
    "Source",
    "SupportError",
    "SupportWarning",
    "TableFile",
    "TableWeights",
    "Target",
    "TargetLoss",
    "WeightFunction",
    "WeightedAUROC",
    "WeightedAccuracy",
    "WeightedAveragePrecision",
    "WeightedBalancedAccuracy",
    "WeightedBrier",
    "WeightedCalibrationError",
    "WeightedF1",
    "WeightedLogLoss",
    "WeightedPrecision",
    "WeightedRecall",
    "__version__",
    "auroc",
    "average_precision",
    "balanced_accuracy",
    "cost",
    "estimate_many",
    "estimate_shift",
    "expected_calibration_error",
    "f1",
    "importance_weights",
    "load_report",
    "load_weights",
    "make_sparse_joint_shift",
    "precision",
    "recall",
    "resample_shift",
    "save_weights",
]


def __getattr__(name: str) -> Any:
    """The metrics are loaded when asked for: torchmetrics takes as long to import as torch."""
    if name in __all__:
        from sees_torch import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
