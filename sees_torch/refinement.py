"""What the features say about the label beyond a calibrated probability.

A model may miss what its features tell: trees grown too deep, a column it was never given, training
stopped early. Then no function of its probability alone is p(y|x). Here the calibrated scores are
stretched, and every level of every feature adds an offset: a ridge logistic regression that is
cross-fitted as the calibration is, and kept only where it clearly pays on rows it has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from sees_torch.data import Source
from sees_torch.data.schema import Rows
from sees_torch.data.thinning import part_of
from sees_torch.solvers.design import weighted_gram
from sees_torch.solvers.implicit import moved

LEAST_ROWS = 200
"""Fewer rows cannot tell that the features say more."""
MOST_ROWS = 20_000
"""Of more distinct rows so many are fitted to, as if drawn at random."""
MOST_LEVELS = 200
"""The commonest levels that have an offset."""
PSEUDO_ROWS = 10.0
"""Rows that pull every parameter to zero."""
LEAST_GAIN = 0.01
"""Held-out log loss must fall by this part of itself: less hardly moves a gap."""
STANDARD_ERRORS = 3.0
"""And by so many of its standard errors."""
STEPS = 60
HALVINGS = 10
REFRESHED = 10
"""Steps between which the curvature is kept."""


@dataclass(frozen=True)
class Refinement:
    """Scores from calibrated ones and the features, a model per fold, each fitted without its fold.

    Attributes:
        table: (K, C + 1, L) offset of every column, then how much the score is stretched.
        column: (A,) int64, the column of every code of every feature in turn; C for none.
        start: (d,) int64, the first code of every feature among these.
        gain: part of the held-out log loss that it removes.
    """

    table: Tensor
    column: Tensor
    start: Tensor
    gain: float = 0.0

    @classmethod
    def fit(cls, source: Source, share: Tensor, proba: Tensor) -> Refinement | None:
        """Fit to a labelled sample; None where the features hardly say more.

        Args:
            source: the sample.
            share: (n, K) share of the rows in each fold.
            proba: (K, n, L) calibrated probabilities, from models fitted without each fold.
        """
        if float(source.total) < LEAST_ROWS:
            return None
        column, start, width = _columns(source)
        if not width:
            return None
        levels = _Levels.of(source, share, proba, column, start, width)
        table = proba.new_zeros(len(proba), width + 1, proba.shape[-1])
        for step in range(STEPS):
            p = levels.fitted(table)
            if step % REFRESHED == 0 or step == 1:
                curve = levels.curve(p)
            slope = levels.slope(table, p)
            move = _towards(curve, slope)
            table = levels.descended(table, move)
            # The first step takes most of what there is to gain.
            if step == 0 and not levels.pays(table, part=0.5):
                return None
            if float((slope * move).sum(dim=(1, 2)).max()) < 1e-14:
                break
        if not levels.pays(table):
            return None
        return cls(table, column, start, levels.gain(table))

    def probabilities(self, proba: Tensor, rows: Rows) -> Tensor:
        """(K, n, L) of rows with calibrated probabilities (K, n, L)."""
        offset, stretch = self.table[:, :-1], self.table[:, -1:]
        offset = torch.cat([offset, torch.zeros_like(stretch)], dim=1)
        total = _scores(proba) * (1 + stretch)
        for first, code in zip(self.start, rows.codes.unbind(dim=1), strict=True):
            total = total + offset[:, self.column[code + first]]
        return total.softmax(dim=-1)

    def following(self, source: Source, share: Tensor, proba: Tensor) -> Refinement:
        """The same, with the gradient in the probabilities (K, n, L) that it was fitted to."""
        levels = self._levels(source, share, proba)
        table = self.table.detach()
        p = levels.fitted(table)
        move = _towards(levels.curve(p).detach(), levels.slope(table, p))
        return replace(self, table=moved(table, -move))

    def influence(self, source: Source, share: Tensor, proba: Tensor, slope: Tensor) -> Tensor:
        """(n,) what one more copy of each source row adds to a figure through the table.

        Args:
            source, share, proba: as fitted to.
            slope: (K, C + 1, L) gradient of the figure in the table.
        """
        levels = self._levels(source, share, proba)
        p = levels.fitted(self.table)
        along = levels.times(_towards(levels.curve(p), slope))
        pull = ((p - levels.truth) * along).sum(dim=-1) * levels.left_in
        found = torch.zeros_like(source.count)
        return found.index_add(0, levels.index, -pull.sum(dim=0).to(found.dtype))

    def _levels(self, source: Source, share: Tensor, proba: Tensor) -> _Levels:
        width = self.table.shape[1] - 1
        return _Levels.of(source, share, proba, self.column, self.start, width)


def _scores(proba: Tensor) -> Tensor:
    """Log-probabilities less their mean over the labels."""
    logs = proba.clamp_min(1e-37).log()
    return logs - logs.mean(dim=-1, keepdim=True)


def _columns(source: Source) -> tuple[Tensor, Tensor, int]:
    """The column of every code, where each feature's codes start, and how many columns."""
    sizes = source.schema.cardinalities
    starts = [0, *accumulate(sizes)]
    codes = source.rows.codes + torch.tensor(starts[:-1], device=source.count.device)
    seen = source.count.new_zeros(starts[-1])
    for code in codes.unbind(dim=1):
        seen = seen.index_add(0, code, source.count)
    least = 0.0
    if len(seen) > MOST_LEVELS:  # Levels as common as the first left out are left out with it.
        least = float(seen.sort(descending=True).values[MOST_LEVELS])
    used = seen > least
    width = int(used.sum())
    column = torch.where(used, used.cumsum(0) - 1, width)
    return column, torch.tensor(starts[:-1]).to(column), width


def _towards(curve: Tensor, slope: Tensor) -> Tensor:
    """(K, P, L) the step that a slope (K, P, L) asks for under a curvature (L, P, P).

    What offsets of all labels have in common changes nothing, and is left out.
    """
    step = torch.linalg.solve(curve, slope.permute(2, 1, 0)).permute(2, 1, 0)
    common = step.mean(dim=-1, keepdim=True)
    return step - torch.cat([common[:, :-1], torch.zeros_like(common[:, -1:])], dim=1)


@dataclass(frozen=True)
class _Levels:
    """The logistic regressions of all folds on indicators of levels and on the score.

    Attributes:
        index: (n,) the rows of the source that are used.
        design: (C, n) indicators; truth: (n, L) labels.
        count: (n,) multiplicities; mass: (K, n) those that each fold's model is fitted to, summing
            to one; held: (K, n) shares of the rows in each fold.
        score: (K, n, L) calibrated.
        ridge: (K, 1, 1) pull to zero.
    """

    index: Tensor
    design: Tensor
    truth: Tensor
    count: Tensor
    mass: Tensor
    held: Tensor
    score: Tensor
    ridge: Tensor

    @classmethod
    def of(
        cls,
        source: Source,
        share: Tensor,
        proba: Tensor,
        column: Tensor,
        start: Tensor,
        width: int,
    ) -> _Levels:
        index, count = part_of(source, MOST_ROWS)
        place = column[source.rows.codes[index] + start]
        shown = proba.new_zeros(len(index), width + 1).scatter_(1, place, 1.0)
        held = share[index].T
        mass = count * (1 - held)
        total = mass.sum(dim=1, keepdim=True)
        labels = source.labels[index]
        return cls(
            index,
            shown[:, :width].T.contiguous(),
            torch.nn.functional.one_hot(labels, proba.shape[-1]).to(proba.dtype),
            count,
            mass / total,
            held,
            _scores(proba[:, index]),
            (PSEUDO_ROWS / total)[..., None],
        )

    @property
    def left_in(self) -> Tensor:
        """(K, n) mass of one copy of every row in the rows that each model is fitted to."""
        return self.mass / self.count.clamp_min(1e-37)

    def times(self, table: Tensor) -> Tensor:
        """(K, n, L) what a table adds to the scores."""
        added = torch.einsum("cn,kcl->knl", self.design, table[:, :-1])
        return added + self.score * table[:, -1:]

    def fitted(self, table: Tensor) -> Tensor:
        """(K, n, L) probabilities."""
        return (self.score + self.times(table)).softmax(dim=-1)

    def lost(self, table: Tensor) -> Tensor:
        """(K, n) log loss of every row."""
        logs = (self.score + self.times(table)).log_softmax(dim=-1)
        return -(logs * self.truth).sum(dim=-1)

    def slope(self, table: Tensor, p: Tensor) -> Tensor:
        """(K, C + 1, L) gradient of what the table minimises, where it gives p."""
        error = self.mass[..., None] * (p - self.truth)
        levels = torch.einsum("cn,knl->kcl", self.design, error)
        stretch = (error * self.score).sum(dim=1, keepdim=True)
        return torch.cat([levels, stretch], dim=1) + self.ridge * table

    def curve(self, p: Tensor) -> Tensor:
        """(L, C + 1, C + 1) its curvature, the same for all folds and a label at a time.

        With two labels the curvature is exactly this along tables that treat them alike.
        """
        labels = p.shape[-1]
        mean, score = p.mean(dim=0).T, self.score.mean(dim=0).T
        mass = self.count / self.count.sum() * (mean * (1 - mean)) * (labels / (labels - 1))
        parts = [
            weighted_gram(torch.cat([self.design, own[None]]), weight[None])
            for own, weight in zip(score, mass, strict=True)
        ]
        eye = torch.eye(len(self.design) + 1, dtype=p.dtype, device=p.device)
        return torch.cat(parts) + self.ridge.mean() * eye

    def descended(self, table: Tensor, move: Tensor) -> Tensor:
        """The table moved by as much of the move as lowers the loss."""
        length = torch.ones_like(self.ridge)
        now = self._objective(table)
        for _ in range(HALVINGS):
            worse = self._objective(table - length * move) > now + 1e-14
            if not bool(worse.any()):
                break
            length = torch.where(worse[:, None, None], length / 2, length)
        return torch.where(worse[:, None, None], table, table - length * move)

    def _objective(self, table: Tensor) -> Tensor:
        pull = (self.ridge / 2 * table.square()).sum(dim=(1, 2))
        return (self.mass * self.lost(table)).sum(dim=1) + pull

    def _saved(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) held-out log loss of every row without tables, and what they take off it."""
        before = (self.held * self.lost(torch.zeros_like(table))).sum(dim=0)
        return before, before - (self.held * self.lost(table)).sum(dim=0)

    def gain(self, table: Tensor) -> float:
        before, saved = self._saved(table)
        return float((self.count @ saved) / (self.count @ before))

    def pays(self, table: Tensor, part: float = 1.0) -> bool:
        """Held-out log loss falls by enough, or by this part of enough."""
        before, saved = self._saved(table)
        total = self.count.sum()
        mean = self.count @ saved / total
        error = (self.count @ (saved - mean).square()).sqrt() / total
        enough = torch.maximum(STANDARD_ERRORS * error, LEAST_GAIN * (self.count @ before / total))
        return bool(mean > part * enough)
