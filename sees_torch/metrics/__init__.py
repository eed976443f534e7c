"""The estimate of a shift, and weighted metrics, as torchmetrics: batches in, ranks together."""

from sees_torch.metrics.shift import PerformanceShift
from sees_torch.metrics.weighted import (
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
    "PerformanceShift",
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
]
