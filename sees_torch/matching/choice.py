"""The choice between hypotheses about the shift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from sees_torch.matching.candidate import COVARIATES, FEATURES, MANY, Candidate
from sees_torch.matching.selection import (
    LEAST_GAIN,
    LEAST_SHARE,
    STANDARD_ERRORS,
    TIE,
    Evidence,
    simplest,
)

if TYPE_CHECKING:
    from sees_torch.matching.match import Match

LEAST_NEW = 1e-3
"""A hypothesis that explains no more than a special case of it counts by so much, not by nothing:
in a resample none of those that are averaged may explain more."""


@dataclass(frozen=True)
class Choice:
    """Hypotheses that were compared, their evidence, and which was chosen.

    Attributes:
        candidates: H hypotheses.
        evidence: their ratios.
        eligible: (H,) bool; those that could be chosen.
        chosen: position of the chosen one.
        averaged: positions of those that share the gap by their odds, in order; empty for the
            chosen one alone.
        resampled: the same for resamples, where the chosen one alone has a share that counts:
            it and others that would have one in some resamples; empty to choose anew in each.
        hedges: parts in the gap, by position, of shifts of many features whatever their odds; 0
            before they are known.
        belief: part of an averaged gap that is taken for a change; the rest is prior knowledge
            that gaps are seldom large.
        extremes: positions by story, of the simplest stories that allow for all features; where no
            hypothesis explains the data fully they have the part of the gap that is not explained.
        silent: positions of those that would be averaged if labels could be told apart in their
            cells, without which they know nothing of the gap.
        fitted: matches of those that were fitted to all rows, by position; of all averaged ones.
        dispersion: at least 1; evidence counts by so much less in the average, since no hypothesis
            explains the data fully.
    """

    candidates: tuple[Candidate, ...]
    evidence: Evidence
    eligible: Tensor
    chosen: int
    averaged: tuple[int, ...] = ()
    resampled: tuple[int, ...] = ()
    hedges: Mapping[int, float] = field(default_factory=dict)
    belief: float = 1.0
    extremes: tuple[tuple[int, ...], ...] = ()
    silent: tuple[int, ...] = ()
    fitted: Mapping[int, Match] = field(default_factory=dict)
    dispersion: float = 1.0

    @classmethod
    def make(
        cls, candidates: tuple[Candidate, ...], evidence: Evidence, eligible: Tensor
    ) -> Choice:
        """The simplest eligible hypothesis that is not clearly behind the best."""
        open_choice = cls(candidates, evidence, eligible, 0)
        return replace(open_choice, chosen=int(open_choice.pick(evidence.score())))

    def pick(self, score: Tensor, limit: float = STANDARD_ERRORS) -> Tensor:
        """(...,) the choice by scores (..., H)."""
        rank = torch.tensor([candidate.rank for candidate in self.candidates], device=score.device)
        usable = torch.where(self.eligible, score, -torch.inf)
        return simplest(usable, self.evidence.standard_errors, rank, limit)

    @property
    def candidate(self) -> Candidate:
        return self.candidates[self.chosen]

    @property
    def hedge(self) -> float:
        """Part of the hedges in the gap, all together."""
        return sum(self.hedges.values())

    @property
    def parts(self) -> tuple[int, ...]:
        """Positions of all that have a share in the gap, in order; none if it is the chosen one's.

        Some may say the same, under another penalty.
        """
        others = {place for story in self.extremes for place in story}
        others |= {place for place, part in self.hedges.items() if part}
        if not self.averaged and not others:
            return ()
        return tuple(sorted({*(self.averaged or (self.chosen,)), *others}))

    @property
    def stories(self) -> int:
        """How many different things the gap rests on; 0 if on what the chosen one says alone."""
        said = {self.candidates[place].says for place in self.parts}
        return 0 if said <= {self.candidate.says} else len(said)

    @property
    def unexplained(self) -> float:
        """Part of the gap that is left to the simplest stories."""
        return 1 - 1 / self.dispersion if self.extremes else 0.0

    @property
    def passed_over(self) -> bool:
        """A hypothesis that could not be chosen is clearly better than the chosen one."""
        score = self.evidence.score()
        ahead = torch.where(self.eligible, -torch.inf, score - score[self.chosen])
        error = self.evidence.standard_errors[self.chosen]
        return bool((ahead > STANDARD_ERRORS * error + TIE).any())

    @property
    def behind_silent(self) -> float:
        """Standard errors that the best silent hypothesis is ahead of all that the gap rests on.

        Zero if by so small a part of its score that it would not have been chosen for it.
        """
        if not self.silent:
            return 0.0
        score = self.evidence.score()
        heard = max(self.averaged or (self.chosen,), key=score.__getitem__)
        silent = max(self.silent, key=score.__getitem__)
        lead = score[silent] - score[heard]
        error = self.evidence.standard_errors[silent, heard].clamp_min(1e-37)
        return float(lead / error) if lead > LEAST_GAIN * score[silent] else 0.0

    @property
    def behind(self) -> Tensor:
        """(H,) how far each is behind the best that could be chosen, in standard errors."""
        return self._behind(torch.where(self.eligible, self.evidence.score(), -torch.inf))

    def lags(self) -> Tensor:
        """(H,) how far each is behind the best of all, in standard errors."""
        return self._behind(self.evidence.score())

    def _behind(self, score: Tensor) -> Tensor:
        best = int(score.argmax())
        error = self.evidence.standard_errors[best]
        return ((score[best] - score) / error.clamp_min(1e-37)).where(score < score[best], 0.0)

    def likely(self, open_to: Tensor, least: float = LEAST_SHARE) -> list[int]:
        """Those of `open_to` whose share in an average over all of them would count."""
        usable = torch.where(open_to, self._log_odds(self.evidence.score()), -torch.inf)
        return (usable.softmax(dim=0) >= least).nonzero().squeeze(1).tolist()

    def shares(self, score: Tensor) -> Tensor:
        """(..., H) share of every hypothesis in the gap, by scores (..., H)."""
        shares = self._by_odds(score, self.averaged or (self.chosen,)) * (1 - self.hedge)
        for place, part in self.hedges.items():
            shares[..., place] += part
        shares = shares * (1 - self.unexplained)
        for place, share in self.story_shares.items():
            shares[..., place] += share
        return shares

    @property
    def story_shares(self) -> dict[int, float]:
        """Part in the gap that a hypothesis has as one of the simplest stories, by position."""
        each = self.unexplained / max(len(self.extremes), 1)
        return {place: each / len(story) for story in self.extremes for place in story}

    def resampled_shares(self, score: Tensor, luck: Tensor) -> Tensor:
        """(B, H) the same in resamples, by scores (B, H) and luck (B, 2) between 0 and 1.

        In each, one of the simplest stories has all of what no hypothesis explains, and the average
        or one of its hedges all of the rest: they need not hold in part, one may hold alone.
        """
        shares = self._by_odds(score, self.averaged or self.resampled or (self.chosen,))
        before = 0.0
        for place, part in self.hedges.items():
            alone = torch.zeros_like(shares[0])
            alone[place] = 1.0
            holds = (before <= luck[:, :1]) & (luck[:, :1] < before + part)
            shares = torch.where(holds, alone, shares)
            before += part
        shares = shares * (1 - self.unexplained)
        for place, members in enumerate(self.extremes):
            holds = (luck[:, 1] * len(self.extremes)).floor() == place
            shares[:, list(members)] += holds[:, None] * (self.unexplained / len(members))
        return shares

    def _by_odds(self, score: Tensor, members: tuple[int, ...]) -> Tensor:
        """(..., H) shares of some hypotheses by their odds alone."""
        usable = torch.full_like(score, -torch.inf)
        usable[..., list(members)] = self._log_odds(score)[..., list(members)]
        return usable.softmax(dim=-1)

    def completed(self) -> Choice:
        """With the shifts of many features that may hedge, and the simplest stories, if fitted."""
        many = tuple(p for p, each in enumerate(self.candidates) if each.rank == MANY)
        if not many:
            return self
        found = replace(self, hedges=dict.fromkeys(many, 0.0))
        if self.dispersion <= 1:
            return found
        alone = [
            next(p for p, each in enumerate(self.candidates) if each.rank == rank)
            for rank in (FEATURES, COVARIATES)
        ]
        return replace(found, extremes=(*((place,) for place in alone), many))

    def share_naming(self, features: tuple[int, ...]) -> float:
        """Share, in the average, of hypotheses that name these features, others beside them or not.

        The hedge names none and does not count.
        """
        members = self.averaged or (self.chosen,)
        shares = self._by_odds(self.evidence.score(), members)
        return sum(
            float(shares[place])
            for place in members
            if set(features) <= set(self.candidates[place].features)
        )

    def _log_odds(self, score: Tensor) -> Tensor:
        """(..., H) logarithm of the odds of every hypothesis given the data.

        It counts by what it explains beyond the best of its special cases: with a feature too many
        it explains as much as without, and many such would outvote what they add nothing to.
        """
        before = torch.tensor([candidate.odds for candidate in self.candidates]).to(score).log()
        explained = self.evidence.log_odds(score)
        # A small part of all that is explained tells hypotheses apart no better than it names them.
        unsure = LEAST_GAIN * explained.amax(dim=-1, keepdim=True).clamp_min(0.0)
        own = explained / (self.dispersion + unsure) + before
        cases = pad(own, (0, 1), value=-torch.inf)[..., self._cases].amax(dim=-1)
        new = -torch.expm1((cases - own).clamp_max(0.0))
        return own + new.clamp_min(LEAST_NEW).log()

    @cached_property
    def _cases(self) -> Tensor:
        """(H, most) positions of the special cases of each, H where there are no more."""
        places = {
            (candidate.with_labels, candidate.features): place
            for place, candidate in enumerate(self.candidates)
            if candidate.rank < COVARIATES
        }
        d = 1 + max((j for candidate in self.candidates for j in candidate.features), default=0)
        found = [
            [places[case] for case in candidate.cases(d) if case in places]
            for candidate in self.candidates
        ]
        none, most = len(found), max(1, *map(len, found))
        padded = [cases + [none] * (most - len(cases)) for cases in found]
        return torch.tensor(padded, device=self.eligible.device)
