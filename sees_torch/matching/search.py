"""Hypotheses about the shift with their evidence, added from simple to complex."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Literal

import torch

from sees_torch.data import Source, Target
from sees_torch.data.samples import is_population
from sees_torch.efficient import worst_condition
from sees_torch.errors import SupportError
from sees_torch.matching import candidates
from sees_torch.matching.batch import Batch
from sees_torch.matching.candidate import COVARIATES, FEATURES, MOST_FEATURES, NOTHING, Candidate
from sees_torch.matching.cells import CellWeights, fit_cells, fit_shares
from sees_torch.matching.choice import Choice
from sees_torch.matching.dense_path import dense_path
from sees_torch.matching.hidden import HOPELESS, may_hide
from sees_torch.matching.match import Match, quietly
from sees_torch.matching.penalised import MOST_UNKNOWNS
from sees_torch.matching.sees_em import (
    CAUTIOUS_ROWS,
    SHRINKAGE,
    fitted_ratios,
    label_weights,
)
from sees_torch.matching.selection import (
    LEAST_SHARE,
    Evidence,
    Ratios,
    misfit,
    thinned,
)
from sees_torch.statistics.counted import shared_features
from sees_torch.statistics.subsets import Subsets, subsets_of
from sees_torch.weight_cells import has_cells

SCREENED = 50_000
"""Feature sets are first compared on about so many distinct rows of each sample."""
MOST_ENTRIES = 1000
"""Unknowns of a shift of many features, one for every level and label, up to which it is looked at
unasked; with more unknowns than rows only up to FEW_ENTRIES, asked or not."""
FEW_ENTRIES = 1000
CONTENDERS = 4
"""Feature sets of each size that are then compared on all rows."""
CONTESTED = 0.7
"""Standard errors that "nothing shifted" may be behind the best before it is doubted and gaps are
averaged. With 3/4 small samples that shifted err more, with less intervals are wider where nothing
did, and soon more than half as wide again as those of somebody who knows."""
RESAMPLED_SHARE = LEAST_SHARE / 20
"""A hypothesis with such a share may have one that counts in a resample."""
MOST_REFUSED = 8
MOST_PAIRS = 60
"""More pairs of features than this are not all tried: only those of the best single ones."""


class Search:
    """Hypotheses with their ratios, as they are added."""

    def __init__(
        self,
        source: Source,
        target: Target,
        memory: int,
        shrinkage: float | Literal["auto"] = "auto",
    ) -> None:
        self.source, self.target, self.memory = source, target, memory
        self.shrinkage = shrinkage
        self.candidates: list[Candidate] = []
        self.ratios: list[Ratios] = []
        self.fitted: dict[int, Match] = {}
        self._compared: Evidence | None = None

    def add_nothing(self) -> None:
        here, there = (torch.ones_like(each.count)[None] for each in (self.source, self.target))
        self._add([candidates.nothing()], Ratios.of(here, there, torch.zeros_like(here[:, 0])))

    def add_tables(self, sparsity: int | None, screen: bool = True) -> None:
        """Labels alone, then more and more features; or all subsets of one size.

        Args:
            sparsity: the size, None for more and more.
            screen: of very many rows, compare on a part of them first.
        """
        batch = Batch.of(self.source, self.target)
        d = len(batch.sizes)
        if not shared_features(batch.codes, batch.sizes, self.source, self.target):
            raise SupportError(
                "source and target have no level in common in any feature. Check that the columns "
                "are coded alike."
            )
        labels = label_weights(batch).weight[:, :, 0]
        names, settings = self.source.schema.names, (self.shrinkage, self.memory)

        def fit(part: Batch, chosen: Subsets) -> CellWeights:
            return fit_cells(part, chosen, SHRINKAGE, labels, CAUTIOUS_ROWS)

        def add(subsets: Iterable[tuple[int, ...]]) -> None:
            listed = list(subsets)
            if listed:
                chosen = subsets_of(listed, batch.sizes, batch.codes.device)
                if listed[0] and sparsity is None:
                    shares = fitted_ratios(batch, chosen, self.memory, fit_shares)
                    self._add([candidates.shares(names, members) for members in listed], shares)
                tables = [candidates.table(names, members, *settings) for members in listed]
                self._add(tables, fitted_ratios(batch, chosen, self.memory, fit))

        if screen and max(len(self.source), len(self.target)) > 2 * SCREENED:
            for contenders in self._contenders(sparsity):
                add(contenders)
            return
        if sparsity is not None:
            add(combinations(range(d), sparsity))
            return
        add([()])
        add((j,) for j in range(d))
        singles = self._by_score(1)
        kept = d if d * (d - 1) // 2 <= MOST_PAIRS else max(1, MOST_PAIRS // (d - 1))
        leaders = {members[0] for members in singles[:kept]}
        add(pair for pair in combinations(range(d), 2) if leaders & set(pair))
        for size in range(3, min(MOST_FEATURES + 1, d // 2) + 1):
            best = self._by_score(size - 1)[0]
            if len(self._choice().candidate.features) < size - 1:
                break
            add(tuple(sorted((*best, j))) for j in range(d) if j not in best)

    def _contenders(self, sparsity: int | None) -> list[list[tuple[int, ...]]]:
        """By size, the feature sets that do best on part of the rows."""
        part = Search(thinned(self.source, SCREENED), thinned(self.target, SCREENED), self.memory)
        if sparsity is None:
            part.add_nothing()
        # Equal rows are thinned together: a part may hold as many of them, each counting for less.
        part.add_tables(sparsity, screen=False)
        sizes = sorted({len(candidate.features) for candidate in part.candidates})
        return [part._by_score(size)[:CONTENDERS] for size in sizes]

    def is_dense(self) -> bool:
        """Even one feature more than a sparse answer may have explains the target better."""
        return len(self._choice().candidate.features) > MOST_FEATURES

    def is_moved(self) -> bool:
        """Something shifted, or that nothing did is not about as good as the best."""
        choice = self._choice()
        contested = (
            bool(choice.behind[choice.chosen] > CONTESTED) and not choice.evidence.population
        )
        return choice.candidate.rank != NOTHING or contested

    def doubt_nothing(self) -> bool:
        """Whether a shift may hide; "nothing shifted" then has lower odds."""
        hidden = may_hide(self.source, self.target, self._choice(), self._fit)
        if hidden:
            self.candidates[0] = candidates.nothing(candidates.HIDDEN)
        return hidden

    def misfit(self) -> float:
        """What the best hypothesis so far leaves unexplained; above 1 more features moved."""
        evidence = self._evidence()
        best = int(evidence.score().argmax())
        return misfit(self.source, self.target, evidence.on_target[best].exp())

    def is_dense_cheap(self, most: int = MOST_UNKNOWNS) -> bool:
        """Shifts of many features have so few unknowns that they can be fitted in bounded time."""
        unknowns = sum(self.source.schema.cardinalities) * len(self.source.classes)
        rows = max(len(self.source), len(self.target))
        return unknowns <= min(most, max(rows, FEW_ENTRIES))

    def add_dense_path(self) -> None:
        """Shifts of many features, with the label and without."""
        for candidate, match, ratios in dense_path(self.source, self.target):
            self.fitted[len(self.candidates)] = match
            self._add([candidate], ratios)

    def _add(self, hypotheses: list[Candidate], ratios: Ratios) -> None:
        self.candidates += hypotheses
        self.ratios.append(ratios)
        self._compared = None

    def _by_score(self, size: int) -> list[tuple[int, ...]]:
        """Feature sets of one size, best first."""
        score = self._evidence().score().tolist()
        of_size = [
            (-value, candidate.features)
            for value, candidate in zip(score, self.candidates, strict=True)
            if candidate.rank == FEATURES + 2 * size
        ]
        return [features for _, features in sorted(of_size)]

    def _evidence(self) -> Evidence:
        """Of all hypotheses so far; made by passes over all rows, so kept until one is added."""
        if self._compared is None:
            self._compared = Evidence.of(self.source, self.target, self.ratios)
        return self._compared

    def _fit(self, place: int) -> Match:
        if place not in self.fitted:
            method = self.candidates[place].quick()
            self.fitted[place] = quietly(method, self.source, self.target)
        return self.fitted[place]

    def _hopeless(self, match: Match) -> bool:
        """Labels cannot be told apart in a cell of the table.

        Such a hypothesis may explain the target well and still know nothing of the gap.
        """
        if not match.features or match.estimator is not None:
            return False
        function = match.weight_function
        if not has_cells(function) or is_population(self.source, self.target):
            return False
        return worst_condition(self.source, self.target, function) > HOPELESS

    def _choice(self, dense: bool = False) -> Choice:
        rank = torch.tensor([c.rank for c in self.candidates], device=self.source.count.device)
        eligible = rank >= COVARIATES if dense else torch.ones_like(rank, dtype=torch.bool)
        return Choice.make(tuple(self.candidates), self._evidence(), eligible)

    def choose(self, dense: bool = False, dispersion: float | None = None) -> Match:
        """The chosen hypothesis, fitted to all rows.

        Args:
            dense: choose among hypotheses of many features only.
            dispersion: of the evidence, to average the gap over the hypotheses that the data leave
                open; None for the gap of the chosen one.
        """
        choice = self._choice(dense)
        match = self._match(choice)
        for _ in range(MOST_REFUSED):
            simpler = int(choice.eligible.sum()) > 1 and choice.candidates[0].rank == NOTHING
            if not (simpler and self._hopeless(match)):
                break
            eligible = choice.eligible.clone()
            eligible[choice.chosen] = False
            choice = Choice.make(choice.candidates, choice.evidence, eligible)
            match = self._match(choice)
        if dispersion is not None:
            choice = self._averaged(replace(choice, dispersion=dispersion))
        choice = replace(choice, fitted=dict(self.fitted))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # What there was to warn of has been said.
            return replace(match, choice=choice)

    def _match(self, choice: Choice) -> Match:
        """The match of the chosen hypothesis, with what there is to warn of said."""
        if choice.candidate.rank >= COVARIATES:
            return replace(self.fitted[choice.chosen])
        return choice.candidate.method.match(self.source, self.target)

    def _averaged(self, choice: Choice) -> Choice:
        """The choice with the hypotheses that the data leave open and that know of the gap.

        Naming features takes strong evidence; a gap does not wait for it. Where several hypotheses
        explain the data, their average errs less than any rule that takes one of them.

        Nothing is averaged if only the chosen one is left.
        """
        open_to = torch.ones_like(choice.eligible)
        while True:
            members = choice.likely(open_to)
            hopeless = [place for place in members if self._hopeless(self._fit(place))]
            if not hopeless:
                silent = (~open_to).nonzero().squeeze(1).tolist()
                choice = replace(choice, silent=tuple(silent)).completed()
                for place in {place for story in choice.extremes for place in story}:
                    self._fit(place)
                if members != [choice.chosen]:
                    return replace(choice, averaged=tuple(members))
                near = choice.likely(open_to, RESAMPLED_SHARE)
                known = [place for place in near if not self._hopeless(self._fit(place))]
                return replace(choice, resampled=tuple(known))
            open_to[hopeless] = False
