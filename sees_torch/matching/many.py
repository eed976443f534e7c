"""One source and many targets: in one solve where the method can, else one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sees_torch.data import Source, Target
from sees_torch.matching.match import Match, Method


@runtime_checkable
class ManyMatcher(Protocol):
    """A method that matches many targets at once."""

    def match_many(self, source: Source, targets: Sequence[Target]) -> list[Match]: ...


def match_many(method: Method, source: Source, targets: Sequence[Target]) -> list[Match]:
    """The match of every target, as `method.match` would give it."""
    if isinstance(method, ManyMatcher):
        return method.match_many(source, targets)
    return [method.match(source, target) for target in targets]
