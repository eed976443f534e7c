"""Deep boosted trees trained some times faster, to the same bits.

scikit-learn looks for the rows of every leaf in turn, which for trees of thousands of leaves takes
six sevenths of the training. Here leaves of equal size are done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.ensemble import _gb

SMALLEST = 1e-150
"""Below such a second derivative scikit-learn leaves a leaf at zero."""


@contextmanager
def quick_leaves() -> Iterator[None]:
    """Within, scikit-learn's gradient boosting sets the values of all leaves of a tree at once."""
    one_by_one = _gb._update_terminal_regions

    def update(loss: Any, tree: Any, *arrays: Any, learning_rate: float = 0.1, k: int = 0) -> None:
        rows, labels, gradient, raw, weights, drawn = arrays
        binary = isinstance(loss, _gb.HalfBinomialLoss)
        if binary and drawn.all() and (weights is None or (weights == 1).all()):
            leaf = tree.apply(rows)
            _set_leaves(tree.value[:, 0, 0], leaf, labels, gradient)
            raw[:, k] += learning_rate * tree.value[:, 0, 0].take(leaf)
        else:
            one_by_one(loss, tree, *arrays, learning_rate=learning_rate, k=k)

    _replace(update)
    try:
        yield
    finally:
        _replace(one_by_one)


def _replace(update: Callable[..., None]) -> None:
    _gb._update_terminal_regions = update


def _set_leaves(
    values: np.ndarray, leaf: np.ndarray, labels: np.ndarray, gradient: np.ndarray
) -> None:
    """One Newton step of the log loss in every leaf.

    Leaves of one size are the rows of a matrix, whose sums add in the order of a single leaf's.
    """
    order = np.argsort(leaf, kind="stable")
    leaves, starts, sizes = np.unique(leaf[order], return_index=True, return_counts=True)
    for size in np.unique(sizes):
        alike = sizes == size
        rows = order[starts[alike, None] + np.arange(size)]
        slope = gradient[rows]
        share = labels[rows] - slope
        first, second = slope.sum(axis=1) / size, (share * (1 - share)).sum(axis=1) / size
        flat = np.abs(second) < SMALLEST
        values[leaves[alike]] = np.where(flat, 0.0, first / np.where(flat, 1.0, second))
