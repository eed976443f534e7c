"""What a shift that nobody saw would leave of the gap."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn.functional import one_hot

from sees_torch.contributions import RowValues
from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.efficient import variance, worst_condition
from sees_torch.matching.choice import Choice
from sees_torch.matching.match import Match
from sees_torch.weight_cells import cells_of

MANY_ROWS = 50_000
"""Distinct rows of a sample beyond which any shift would leave enough to go by."""
FEW_LABELS_HIDDEN = 400.0
"""A shift may hide if the gap would then be worth fewer labelled target rows. With 500, where the
verdict begins to doubt, intervals are too wide where nothing shifted."""
RULED_OUT = 3.0
"""Standard errors behind the best from which on a feature's shift is not to be reckoned with."""
HOPELESS = 1000.0
"""Condition of a cell's system beyond which the gap cannot be estimated from it."""


def worst_hidden(
    source: Source,
    target: Target,
    choice: Choice,
    fit: Callable[[int], Match],
    values: RowValues,
) -> tuple[float, int] | None:
    """The gap's largest standard error had a single feature shifted with the label.

    An answer that names no feature is precise only if it is right: where a shift of some feature
    would leave the gap uncertain, it would also go unseen.

    Args:
        source, target: the samples.
        choice: between hypotheses about them.
        fit: the match of the candidate at a position.
        values: of the metric.

    Returns:
        The error and the position of the feature, of features that are not ruled out and in whose
        cells labels can be told apart. None if there is none, if the choice names features with
        the label, or of very many rows.
    """
    candidate = choice.candidate
    named = candidate.with_labels and (len(candidate.features) > 0 or candidate.is_dense)
    if named or is_population(source, target) or max(len(source), len(target)) > MANY_ROWS:
        return None
    found = []
    for place, behind in enumerate(choice.behind.tolist()):
        candidate = choice.candidates[place]
        single = candidate.with_labels and len(candidate.features) == 1
        if not single or behind > RULED_OUT:
            continue
        function = fit(place).weight_function
        if worst_condition(source, target, function) <= HOPELESS:
            error = variance(source, target, cells_of(function, source, target), values) ** 0.5
            found.append((error, candidate.features[0]))
    return max(found, default=None)


def may_hide(source: Source, target: Target, choice: Choice, fit: Callable[[int], Match]) -> bool:
    """Accuracy would be worth few labelled rows had the worst feature shifted with the label."""
    values = accuracy_values(source, target)
    worst = worst_hidden(source, target, choice, fit, values)
    if worst is None:
        return False
    right = float(source.mean(values.own))
    return right * (1 - right) < FEW_LABELS_HIDDEN * worst[0] ** 2


def accuracy_values(source: Source, target: Target) -> RowValues:
    """Whether the model is right, on every row and under every label."""
    here, there = (
        one_hot(sample.predictions, len(source.classes)).to(sample.proba)
        for sample in (source, target)
    )
    return RowValues(here.gather(1, source.labels[:, None]).squeeze(1), here, there)
