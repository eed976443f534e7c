"""Can the data answer at all? The verdict.

Two things can fail: the weights given the shifted features (labels that cannot be told apart inside
a cell make the gap's variance explode), and the features themselves (another set that explains the
target as well proves that the data cannot decide).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sees_torch.alternatives import Alternative
from sees_torch.data import Source
from sees_torch.data.tables import Name
from sees_torch.gap import is_rate
from sees_torch.labelling import FEWEST
from sees_torch.matching import KnownWeights, Match, Method
from sees_torch.matching.choice import Choice
from sees_torch.matching.search import CONTESTED
from sees_torch.matching.selection import STANDARD_ERRORS
from sees_torch.uncertainty import normal_interval
from sees_torch.weight_cells import has_cells

Status = Literal["identified", "weak", "not_identified"]

FEW_LABELS, TOO_FEW_LABELS = 200.0, 20.0
"""An estimate that is worth fewer labelled target rows says little, or nothing."""
FEW_LABELS_OTHERWISE = 500.0
"""The same for an answer that names no feature with the label, had the worst one shifted. Where
such answers are wrong (47 draws of CREDIT, 1,000 rows) it would be worth 0 to 520, half of them up
to 250; where they are right (60 worlds of experiments/coverage.py, 1,000 rows), 200 to 8,600, half
of them up to 1,600."""
STABLE = 0.5
"""Share of the bootstrap that must choose the same features."""
MOSTLY = 0.5
"""Share of an averaged gap that hypotheses must have which name the features that are named, and
that labelled rows may have alone."""
UNEXPLAINED = 0.1
"""Share of an averaged gap that no hypothesis explains."""
UNSEEN, TOO_UNSEEN = 0.05, 0.2
"""Target mass in cells that the source never visits."""
UNRESOLVED, TOO_UNRESOLVED = 0.1, 0.5
"""Share of the metric's range by which labels of a cell stay unresolved, on average."""
BLIND = 0.8
"""The same if the most telling feature had shifted: beyond this nobody could have seen it."""
MATERIAL = 0.01
"""Differences of gaps below this share of the metric's range do not matter."""
FEW_ROWS = 30.0
"""Effective source rows."""
CONFIDENCE = 0.95
"""Of the interval that other hypotheses' gaps are compared with."""


@dataclass(frozen=True)
class Verdict:
    """What can be believed, and why.

    Attributes:
        status: "identified", "weak" or "not_identified".
        reasons: in words, empty when identified.
    """

    status: Status
    reasons: tuple[str, ...]


@dataclass
class _Doubts:
    """What speaks against an estimate: a little, or altogether."""

    weak: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, said: str, fatal: bool = False) -> None:
        (self.broken if fatal else self.weak).append(said)


def judge(
    source: Source,
    match: Match,
    method: Method,
    metric: str,
    gap: float,
    alternatives: Sequence[Alternative],
    figures: dict[str, float],
    unseen: Name | None = None,
) -> Verdict:
    """The verdict on the gap of a metric from the figures.

    `unseen` is the feature whose shift with the label would be known worst. Thresholds are
    justified in experiments/RESULTS.md.
    """
    doubts = _Doubts()
    _doubt_comparison(doubts, match, method, figures)
    _doubt_resolution(doubts, match, len(source.schema.columns), figures)
    _doubt_precision(doubts, figures, unseen)
    _doubt_features(doubts, match, metric, alternatives, figures)
    if match.choice is not None and "standard_error" in figures:
        _doubt_hypothesis(doubts, match, match.choice, gap, alternatives, figures)
    _doubt_support(doubts, figures)
    if doubts.broken:
        return Verdict("not_identified", (*doubts.broken, *doubts.weak))
    return Verdict("weak" if doubts.weak else "identified", tuple(doubts.weak))


def _doubt_comparison(
    doubts: _Doubts, match: Match, method: Method, figures: dict[str, float]
) -> None:
    """Was anything compared, and did one subset of SEES-d come out first?"""
    ranking = match.ranking
    compared = match.choice is not None or (ranking is not None and len(ranking.subsets) > 1)
    if not compared and not isinstance(method, KnownWeights):
        doubts.add(f"{match.method} compares no hypotheses: what it assumes is unchecked")
    if ranking is not None:
        runner_up = figures.get("runner_up_score", float("inf")) - figures.get("score", 0.0)
        if len(ranking.ties) > 1:
            doubts.add("other features fit exactly as well", fatal=True)
        elif runner_up < 1 and not figures["population"]:
            doubts.add(
                f"the next best features are only {runner_up:.1f} standard deviations behind"
            )


def _doubt_resolution(doubts: _Doubts, match: Match, d: int, figures: dict[str, float]) -> None:
    """Can labels be told apart given the features that shifted?"""
    s = len(match.features)
    if has_cells(match.weight_function) and 2 * s >= d:
        doubts.add(
            f"{s} of {d} features would have shifted; fewer than half can be identified",
            # Target labels tell what the features that stayed cannot.
            fatal=2 * s > d and figures.get("labelled_rows", 0.0) < FEWEST,
        )
    unresolved = figures.get("unresolved", 0.0)
    if unresolved > UNRESOLVED:
        doubts.add(
            "labels cannot be told apart inside the cells of these features "
            f"({unresolved:.0%} of the metric's range is unresolved)",
            fatal=unresolved > TOO_UNRESOLVED,
        )
    if figures.get("blind_spot", 0.0) > BLIND:
        doubts.add(
            "one feature says nearly all about the label: had it shifted with the label, the data "
            "could not show it"
        )


def _doubt_precision(doubts: _Doubts, figures: dict[str, float], unseen: Name | None) -> None:
    """Is the estimate worth enough labelled rows?"""
    worth = figures.get("label_equivalent", float("inf"))
    if worth < FEW_LABELS:
        doubts.add(
            f"the estimate is worth about {worth:.0f} labelled target rows",
            fatal=worth < TOO_FEW_LABELS,
        )
    otherwise = figures.get("power", float("inf"))
    if otherwise < FEW_LABELS_OTHERWISE:
        doubts.add(
            f"{unseen} may have shifted with the label unseen: the gap would then be known only as "
            f"well as from {otherwise:.0f} labelled target rows"
        )


def _doubt_features(
    doubts: _Doubts,
    match: Match,
    metric: str,
    alternatives: Sequence[Alternative],
    figures: dict[str, float],
) -> None:
    """Are these the features? Rivals, resamples, and shifts of many features."""
    rivals = [a for a in alternatives if a.rival]
    if rivals:
        noise = 0.0 if figures["population"] else 1.0
        # Not the report's gap, which may be an average that the rivals are part of.
        own = next(a for a in alternatives if match.choice and a.place == match.choice.chosen)
        apart = max(rivals, key=lambda a: abs(a.gap - own.gap))
        errors = ((own.error or 0.0) ** 2 + (apart.error or 0.0) ** 2) ** 0.5
        said = f"{len(rivals)} other feature set(s) explain the target as well"
        if abs(apart.gap - own.gap) > 1e-6 + 2 * noise * errors:
            shown = f"{100 * apart.gap:+.1f} points" if is_rate(metric) else f"{apart.gap:+.3g}"
            doubts.add(f"{said}, one with the gap {shown}", fatal=True)
        else:
            doubts.add(f"{said}, with about the same gap")
    stable = figures.get("stability", 1.0)
    if stable < STABLE:
        doubts.add(f"only {stable:.0%} of the resamples choose these features")
    choice = match.choice
    if choice is None:
        return
    if figures.get("told", 0.0) > MOSTLY:
        doubts.add("the labelled target rows contradict these features, or know more than they do")
    named = choice.share_naming(match.features)
    if named < MOSTLY and not choice.candidate.is_dense:
        doubts.add(
            f"only {named:.0%} of the averaged gap is of hypotheses that name these features"
        )
    if choice.unexplained > UNEXPLAINED:
        doubts.add(
            "no hypothesis explains the target fully: "
            f"{choice.unexplained:.0%} of the gap is the mean of the simplest stories (labels "
            "alone, features alone, many of both)"
        )
    if choice.candidate.is_dense:
        few = f"the label and {len(match.features)} features or more moved"
        none = "no table on a few features explains the target"
        doubts.add(f"{few if choice.candidate.features else none}: the shift is not sparse")
    # Where no table could be chosen, one that fits better was not passed over.
    if choice.passed_over and (choice.eligible[0] or not choice.candidate.is_dense):
        chosen = next(a for a in alternatives if a.place == choice.chosen)
        doubts.add(
            f"another hypothesis is {chosen.behind:.1f} standard errors better, but labels cannot "
            "be told apart inside its cells",
            fatal=True,
        )
    elif choice.behind_silent > STANDARD_ERRORS:
        doubts.add(
            f"a hypothesis that is {choice.behind_silent:.1f} standard errors better than all that "
            "the gap rests on cannot tell labels apart inside its cells",
            fatal=True,
        )


def _doubt_hypothesis(
    doubts: _Doubts,
    match: Match,
    choice: Choice,
    gap: float,
    alternatives: Sequence[Alternative],
    figures: dict[str, float],
) -> None:
    """Do other hypotheses that explain the target disagree about the gap?"""
    chosen = next(a for a in alternatives if a.place == choice.chosen)
    if not match.features and chosen.behind > CONTESTED and not choice.passed_over:
        doubts.add(
            "that no feature shifted is doubtful: another hypothesis explains the target better by "
            f"{chosen.behind:.1f} standard errors"
        )
    # Not the interval that is shown: the verdict is the same at any confidence.
    low, high = normal_interval(gap, figures["standard_error"], CONFIDENCE)
    for other in alternatives:
        # One that fits better was passed over for its complexity only: listen to it sooner.
        reach = 1.0 if other.score > chosen.score else 2.0
        near = other.behind <= STANDARD_ERRORS and not other.rival
        if near and not _inside(other, (low, high), reach, MATERIAL * figures["range"]):
            doubts.add("hypotheses that explain the target as well disagree about the gap")
            break


def _doubt_support(doubts: _Doubts, figures: dict[str, float]) -> None:
    """Did the source show what the target holds?"""
    unseen = figures["unseen_mass"]
    if unseen > UNSEEN:
        doubts.add(
            f"{unseen:.0%} of the target is where the source never was", fatal=unseen > TOO_UNSEEN
        )
    new = figures["unseen_levels"]
    if new > UNSEEN >= unseen:
        doubts.add(
            f"{new:.0%} of the target has a level of some feature that the source never showed"
        )
    if figures["effective_rows"] < FEW_ROWS and not figures["population"]:
        doubts.add(f"the weights leave {figures['effective_rows']:.0f} effective source rows")


def _inside(
    alternative: Alternative, interval: tuple[float, float], errors: float, material: float
) -> bool:
    """The alternative's gap is compatible with the interval, given its own error."""
    reach = max(errors * (alternative.error or 0.0), material)
    return interval[0] - reach <= alternative.gap <= interval[1] + reach
