"""Can the data answer at all? Rival hypotheses, and the verdict.

Two things can fail: the weights given the shifted features (labels that cannot be told apart inside
a cell make the gap's variance explode), and the features themselves (another set that explains the
target as well proves that the data cannot decide).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from sees_torch.data import Source, Target
from sees_torch.efficient import (
    cells_of,
    efficient_values,
    has_cells,
    mean_variance,
    worst_condition,
)
from sees_torch.gap import Metric, estimate_gap, own_estimator, row_values
from sees_torch.matching import KnownWeights, Match, Method, SEESem
from sees_torch.matching.auto import ONE_FEATURE, is_dense
from sees_torch.matching.match import Choice, quietly
from sees_torch.matching.selection import STANDARD_ERRORS, TIE
from sees_torch.uncertainty import analytic_error
from sees_torch.weights import WeightFunction

Status = Literal["identified", "weak", "not_identified"]

FEW_LABELS, TOO_FEW_LABELS = 200.0, 20.0
"""An estimate that is worth fewer labelled target rows than this is weak, or says nothing."""
STABLE = 0.5
"""Share of the bootstrap that must choose the same features."""
UNSEEN, TOO_UNSEEN = 0.05, 0.2
"""Target mass in cells that the source never visits."""
UNRESOLVED, TOO_UNRESOLVED = 0.1, 0.5
"""Share of the metric's range by which labels of a cell stay unresolved, on average."""
BLIND = 0.8
"""The same if the most telling feature had shifted: beyond this nobody could have seen it."""
MATERIAL = 0.01
"""Differences of gaps below this share of the metric's range do not matter."""
NEARLY = 1.0
"""That no feature shifted is doubtful when another hypothesis is better by so many standard
errors; from 1.5 on the other one is chosen."""
FEW_ROWS = 30.0
"""Effective source rows."""
FEW_NATS = 2.0
"""Hypotheses whose likelihoods differ by less are rivals, however small the standard error."""
MOST_RIVALS = 5


@dataclass(frozen=True)
class Alternative:
    """A hypothesis beside the chosen one.

    Attributes:
        place: among the candidates.
        score: held-out two-sample score, higher is better.
        behind: how far it is behind the best, in standard errors.
        gap: its estimate of the headline metric's gap; error: the analytic standard error.
        rival: it is as simple as the chosen hypothesis and explains the target as well.
    """

    place: int
    score: float
    behind: float
    gap: float
    error: float | None
    rival: bool


def compare(source: Source, target: Target, choice: Choice, metric: Metric) -> list[Alternative]:
    """The best hypothesis of every rank of simplicity, and the rivals of the chosen one."""
    score, errors = choice.evidence.score(), choice.evidence.standard_errors()
    best, chosen = int(score.argmax()), choice.chosen
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
        and not is_dense(choice.candidate)
    ][:MOST_RIVALS]
    found = []
    for place in sorted({*leaders.values(), *rivals}, key=order.index):
        match = quietly(choice.candidates[place].quick(), source, target)
        gap = estimate_gap(source, target, match.weight_function, metric, own_estimator(match))
        values = row_values(source, target, metric)
        found.append(
            Alternative(
                place,
                float(score[place]),
                _in_errors(float(score[best] - score[place]), float(errors[best, place])),
                float(gap.gap.detach()),
                None if values is None else analytic_error(source, target, match, gap, values),
                place in rivals,
            )
        )
    return found


def _in_errors(behind: float, error: float) -> float:
    """A difference of scores in standard errors; without noise it is nothing or infinite."""
    if behind <= TIE:
        return 0.0
    return behind / error if error > 0 else float("inf")


def label_equivalent(source: Source, match: Match, metric: Metric, error: float) -> float:
    """How many labelled target rows would give the metric on the target with the same error."""
    values = row_values(source, source, metric)  # type: ignore[arg-type]
    if values is None or error <= 0:
        return float("inf")
    weight = match.weight_function.of_rows(source.rows, source.labels) * source.count
    spread = float(mean_variance(values.own, weight) * weight.sum())
    return spread / error**2


def resolution(
    source: Source, target: Target, match: Match, metric: Metric
) -> tuple[float, float] | None:
    """How well labels can be told apart inside the cells of the chosen features.

    Returns:
        The mean over the target of how far apart the unresolved means of the labels of a cell
        are, as a share of the metric's range: 0 when every label is resolved, 1 when none is. And
        the largest condition number of the cells that hold 1 % or more of the target. None for
        weights without cells.
    """
    function = match.weight_function
    if not has_cells(function):
        return None
    if match.estimator is not None:
        # Whatever was chosen assumes that labels stayed inside the cells: could the data tell?
        names = tuple(source.schema.names[j] for j in match.features)
        function = quietly(SEESem(features=names).quick(), source, target).weight_function
    return _unresolved(source, target, function, metric)


def blind_spot(source: Source, target: Target, metric: Metric) -> float:
    """The same share if the feature that says most about the label had shifted with it."""
    told = []
    for j, size in enumerate(source.schema.cardinalities):
        sums = torch.zeros(size, len(source.classes) + 1).to(source.posterior)
        one = torch.ones_like(source.posterior[:, :1])
        entries = torch.cat([source.posterior, one], dim=1) * source.mass[:, None]
        sums.index_add_(0, source.rows.codes[:, j], entries)
        told.append(float((sums[:, :-1].square().sum(dim=1) / sums[:, -1].clamp_min(1e-300)).sum()))
    feature = source.schema.names[told.index(max(told))]
    function = quietly(SEESem(features=(feature,)).quick(), source, target).weight_function
    return _unresolved(source, target, function, metric)[0]


def _unresolved(
    source: Source, target: Target, function: WeightFunction, metric: Metric
) -> tuple[float, float]:
    values = row_values(source, target, metric) or row_values(source, target, "accuracy")
    assert values is not None
    cells = cells_of(function, source, target)
    found = efficient_values(source, target, cells, values)
    mass = torch.zeros_like(cells.weight[:, 0]).index_add(0, cells.target, target.mass)
    here = torch.zeros_like(cells.weight).index_put(
        (cells.source, source.labels), source.mass, accumulate=True
    )
    left = found.unresolved[0]
    apart = torch.where(here > 0, left, -torch.inf).amax(dim=1)
    apart = apart - torch.where(here > 0, left, torch.inf).amin(dim=1)
    spread = float((mass * torch.where(apart.isfinite(), apart, 0.0)).sum())
    scale = float(values.source.max() - values.source.min())
    return spread / max(scale, 1e-300), worst_condition(source, target, function)


@dataclass(frozen=True)
class Verdict:
    """What can be believed, and why.

    Attributes:
        status: "identified", "weak" or "not_identified".
        reasons: in words, empty when identified.
    """

    status: Status
    reasons: tuple[str, ...]


def judge(
    source: Source,
    match: Match,
    method: Method,
    gap: float,
    interval: tuple[float, float] | None,
    alternatives: Sequence[Alternative],
    figures: dict[str, float],
) -> Verdict:
    """The verdict from the figures; thresholds are justified in experiments/RESULTS.md."""
    d, s = len(source.schema.columns), len(match.features)
    weak: list[str] = []
    broken: list[str] = []
    choice = match.choice
    compared = choice is not None or (match.ranking is not None and len(match.ranking.subsets) > 1)
    if not compared and not isinstance(method, KnownWeights):
        weak.append(f"{match.method} compares no hypotheses: what it assumes is unchecked")
    if match.ranking is not None:
        runner_up = figures.get("runner_up_score", float("inf")) - figures.get("score", 0.0)
        if len(match.ranking.ties) > 1:
            broken.append("other features fit exactly as well")
        elif runner_up < 1 and not figures["population"]:
            weak.append(
                f"the next best features are only {runner_up:.1f} standard deviations behind"
            )
    if has_cells(match.weight_function) and 2 * s >= d:
        said = f"{s} of {d} features would have shifted; fewer than half can be identified"
        (broken if 2 * s > d else weak).append(said)
    unresolved = figures.get("unresolved", 0.0)
    if unresolved > UNRESOLVED:
        said = (
            "labels cannot be told apart inside the cells of these features "
            f"({unresolved:.0%} of the metric's range is unresolved)"
        )
        (broken if unresolved > TOO_UNRESOLVED else weak).append(said)
    if figures.get("blind_spot", 0.0) > BLIND:
        weak.append(
            "one feature says nearly all about the label: had it shifted with the label, the data "
            "could not show it"
        )
    worth = figures.get("label_equivalent", float("inf"))
    if worth < FEW_LABELS:
        said = f"the estimate is worth about {worth:.0f} labelled target rows"
        (broken if worth < TOO_FEW_LABELS else weak).append(said)
    known = figures.get("power", float("inf"))
    if known < FEW_LABELS <= worth:
        weak.append(
            "the features hardly tell the labels apart: if one of them shifted with the label, the "
            f"gap would be known only as well as from {known:.0f} labelled target rows"
        )
    rivals = [a for a in alternatives if a.rival]
    if rivals:
        noise = 0.0 if figures["population"] else 1.0
        own = figures.get("analytic_error", 0.0)
        apart = max(rivals, key=lambda a: abs(a.gap - gap))
        said = f"{len(rivals)} other feature set(s) explain the target as well"
        if abs(apart.gap - gap) > 1e-6 + 2 * noise * (own**2 + (apart.error or 0.0) ** 2) ** 0.5:
            broken.append(f"{said}, one with the gap {apart.gap:+.3g}")
        else:
            weak.append(f"{said}, with about the same gap")
    stable = figures.get("stability", 1.0)
    if stable < STABLE:
        weak.append(f"only {stable:.0%} of the resamples choose these features")
    if choice is not None and is_dense(choice.candidate):
        weak.append("the shift is not sparse: many features moved")
    if interval is not None and choice is not None:
        chosen = next(a for a in alternatives if a.place == choice.chosen)
        own_score = chosen.score
        if not match.features and NEARLY < chosen.behind <= STANDARD_ERRORS:
            weak.append(
                "that no feature shifted is only just not ruled out: another hypothesis explains "
                f"the target better by {chosen.behind:.1f} standard errors"
            )
        for other in alternatives:
            # One that fits better was passed over for its complexity only: listen to it sooner.
            reach = 1.0 if other.score > own_score else 2.0
            near = other.behind <= STANDARD_ERRORS and not other.rival
            if near and not _inside(other, interval, reach, MATERIAL * figures["range"]):
                weak.append("hypotheses that explain the target as well disagree about the gap")
                break
    unseen = figures["unseen_mass"]
    if unseen > UNSEEN:
        said = f"{unseen:.0%} of the target is where the source never was"
        (broken if unseen > TOO_UNSEEN else weak).append(said)
    if figures["effective_rows"] < FEW_ROWS and not figures["population"]:
        weak.append(f"the weights leave {figures['effective_rows']:.0f} effective source rows")
    if broken:
        return Verdict("not_identified", (*broken, *weak))
    if weak:
        return Verdict("weak", tuple(weak))
    return Verdict("identified", ())


def _inside(
    alternative: Alternative, interval: tuple[float, float], errors: float, material: float
) -> bool:
    """The alternative's gap is compatible with the interval, given its own error."""
    reach = max(errors * (alternative.error or 0.0), material)
    return interval[0] - reach <= alternative.gap <= interval[1] + reach


def power(
    source: Source, match: Match, metric: Metric, alternatives: Sequence[Alternative]
) -> float:
    """Labelled rows that the best hypothesis of one feature with the label would be worth."""
    assert match.choice is not None
    candidates = match.choice.candidates
    errors = [a.error for a in alternatives if candidates[a.place].rank == ONE_FEATURE and a.error]
    return label_equivalent(source, match, metric, max(errors)) if errors else float("inf")
