"""The moment equations of SEES-d's tables from single rows, which its gradients need."""

import numpy as np
import torch

from sees_torch import Source, Target
from sees_torch.statistics.counted import count_samples
from sees_torch.statistics.row_products import RowProducts

LEVELS = np.array([["a", "b"], ["b", "a"], ["a", "a"], ["b", "b"], ["z", "z"]])
SOURCE = np.array([0, 1, 2, 3, 0, 1, 4])
LABELS = np.array([0, 1, 0, 1, 1, 0, 1])
PROBA = np.array([0.2, 0.7, 0.4, 0.9, 0.3, 0.6, 0.5])


def left_over(rows):
    """What the weights of a table on the first feature leave, of the first so many source rows."""
    count = np.where(SOURCE == 4, 0.0, 1.0)[:rows]
    source = Source(LEVELS[SOURCE[:rows]], LABELS[:rows], PROBA[:rows], weight=count)
    target = Target(LEVELS[[0, 1, 3]], PROBA[:3], source)
    products = RowProducts.of(source, target, count_samples(source, target, soft=True), (0,))
    weight = torch.linspace(0.5, 1.5, 2 * products.cells).reshape(-1, 2).double()
    return products.rest(weight, torch.cat([source.proba, target.proba]).double())


def test_a_row_that_counts_for_nothing_changes_nothing():
    """Its level, "z", comes after all that occur."""
    torch.testing.assert_close(left_over(7), left_over(6), rtol=0, atol=1e-12)
