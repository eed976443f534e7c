"""The hypotheses behind a match, fitted when they are first asked for."""

from __future__ import annotations

from sees_torch.data import Source, Target
from sees_torch.matching.match import Match, Method, quietly
from sees_torch.matching.reference import NoShift
from sees_torch.matching.sees_em import SEESem


class Hypotheses:
    """The candidates of a choice, or the one method that there is when nothing was chosen.

    Args:
        source, target: the samples.
        match: of the samples, with its choice if the method made one.
        method: that made the match.
    """

    def __init__(self, source: Source, target: Target, match: Match, method: Method) -> None:
        self.source, self.target = source, target
        self.choice = match.choice
        self.chosen = 0 if self.choice is None else self.choice.chosen
        used = method if self.choice is None else self.choice.candidate.method
        self._fitted: dict[int, tuple[Method, Match]] = {
            self.chosen: (match.settings or used, match)
        }
        self._labels: tuple[Method, Match] | None = None

    def fit(self, place: int) -> tuple[Method, Match]:
        """A candidate's method and match; the chosen one is as it was matched."""
        if place not in self._fitted:
            assert self.choice is not None
            method = self.choice.candidates[place].quick()
            match = self.choice.fitted.get(place) or quietly(method, self.source, self.target)
            self._fitted[place] = method, match
        return self._fitted[place]

    def uncertain(self, place: int) -> tuple[Method, Match]:
        """The same, but nothing shifted is as uncertain as labels only: a small shift may hide."""
        method, match = self.fit(place)
        if not isinstance(method, NoShift):
            return method, match
        if self._labels is None:
            labels = SEESem(features=())
            self._labels = labels, quietly(labels, self.source, self.target)
        return self._labels
