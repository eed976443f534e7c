"""Hypotheses beside the chosen one, and what a shift that nobody saw would leave of the gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sees_torch.data import Source, Target
from sees_torch.gap import Metric, estimate_gap, own_estimator, row_values
from sees_torch.matching.hidden import worst_hidden
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.selection import STANDARD_ERRORS, TIE
from sees_torch.uncertainty import analytic_error, label_equivalent

FEW_NATS = 2.0
"""Hypotheses whose likelihoods differ by less are rivals, however small the standard error."""
MOST_RIVALS = 5
MOST_BESIDE = 5


@dataclass(frozen=True)
class Alternative:
    """A hypothesis beside the chosen one.

    Attributes:
        place: among the candidates.
        score: two-sample score, higher is better.
        behind: how far it is behind the best, in standard errors.
        gap: its estimate of the headline metric's gap; error: the analytic standard error. Both as
            they are in the averaged gap where that holds it under other or several penalties.
        rival: it is as simple as the chosen hypothesis and explains the target as well.
        share: its part in the averaged gap, under whatever penalty; 1 for the chosen one where
            nothing is averaged.
    """

    place: int
    score: float
    behind: float
    gap: float
    error: float | None
    rival: bool
    share: float


def compare(
    source: Source, target: Target, hypotheses: Hypotheses, metric: Metric
) -> list[Alternative]:
    """The best hypothesis of every rank of simplicity, and the rivals of the chosen one."""
    choice = hypotheses.choice
    assert choice is not None
    score, errors = choice.evidence.score(), choice.evidence.standard_errors
    chosen = choice.chosen
    rank = choice.candidate.rank
    order = score.argsort(descending=True, stable=True).tolist()
    leaders: dict[int, int] = {rank: chosen}
    for place in order:
        leaders.setdefault(choice.candidates[place].rank, place)
    behind = score[chosen] - score
    close = behind <= STANDARD_ERRORS * errors[chosen] + TIE
    if not choice.evidence.population:
        close |= behind * target.total < FEW_NATS
    rivals = [
        place
        for place in order
        if choice.candidates[place].rank == rank
        and bool(close[place])
        and place != chosen
        and not choice.candidate.is_dense
    ][:MOST_RIVALS]
    places = sorted({*leaders.values(), *rivals}, key=order.index)
    return _described(source, target, hypotheses, metric, places, rivals)


def averaged_beside(
    source: Source,
    target: Target,
    hypotheses: Hypotheses,
    metric: Metric,
    known: Sequence[Alternative],
) -> list[Alternative]:
    """Those of the largest shares in the averaged gap that are not among the known ones."""
    choice = hypotheses.choice
    assert choice is not None
    listed = {choice.candidates[alternative.place].says for alternative in known}
    shares = choice.shares(choice.evidence.score())
    others = [place for place in choice.parts if choice.candidates[place].says not in listed]
    largest = sorted(others, key=lambda place: (-float(shares[place]), place))[:MOST_BESIDE]
    return _described(source, target, hypotheses, metric, largest)


def _described(
    source: Source,
    target: Target,
    hypotheses: Hypotheses,
    metric: Metric,
    places: Sequence[int],
    rivals: Sequence[int] = (),
) -> list[Alternative]:
    choice = hypotheses.choice
    assert choice is not None
    score, errors = choice.evidence.score(), choice.evidence.standard_errors
    best, chosen = int(score.argmax()), choice.chosen
    shares = choice.shares(score).tolist()
    values = row_values(source, target, metric)

    def of_match(place: int) -> tuple[float, float | None]:
        method, match = hypotheses.fit(place)
        gap = estimate_gap(source, target, match.weight_function, metric, own_estimator(match))
        given = source, target, method, match, gap
        error = None if values is None else analytic_error(*given, values)
        return float(gap.gap.detach()), error

    found = []
    for place in places:
        says = choice.candidates[place].says
        same = [each for each in choice.parts if choice.candidates[each].says == says]
        share = sum(shares[each] for each in same) if choice.parts else float(place == chosen)
        parts = [(shares[each] / share, *of_match(each)) for each in same]
        gap, error = _mixture(parts) if parts else of_match(place)
        found.append(
            Alternative(
                place,
                float(score[place]),
                _in_errors(float(score[best] - score[place]), float(errors[best, place])),
                gap,
                error,
                place in rivals,
                share,
            )
        )
    return found


def _mixture(parts: list[tuple[float, float, float | None]]) -> tuple[float, float | None]:
    """Mean and standard deviation of a mixture: share, mean and deviation of each part."""
    mean = sum(share * gap for share, gap, _ in parts)
    square, known = 0.0, True
    for share, gap, error in parts:
        known = known and error is not None
        square += share * ((gap - mean) ** 2 + (error or 0.0) ** 2)
    return mean, square**0.5 if known else None


def _in_errors(behind: float, error: float) -> float:
    """A difference of scores in standard errors; without noise it is nothing or infinite."""
    if behind <= TIE:
        return 0.0
    return behind / error if error > 0 else float("inf")


def power(
    source: Source, target: Target, hypotheses: Hypotheses, metric: Metric
) -> tuple[float, int] | None:
    """Labelled rows that the gap would be worth had the worst feature shifted with the label.

    Returns:
        The number, and the position of the feature; None where `worst_hidden` has none.
    """
    choice, values = hypotheses.choice, row_values(source, target, metric)
    if choice is None or values is None:
        return None
    worst = worst_hidden(source, target, choice, lambda place: hypotheses.fit(place)[1], values)
    if worst is None:
        return None
    error, feature = worst
    chosen = hypotheses.fit(hypotheses.chosen)[1]
    return label_equivalent(source, chosen, metric, error), feature
