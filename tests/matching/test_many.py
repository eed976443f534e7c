"""Many targets at once are the same as one after the other."""

import pytest
import torch
from worlds import drawn_world, samples

from sees_torch import BBSE, MLLS, SEESd, Target
from sees_torch.matching.many import ManyMatcher, match_many


def one_source_many_targets():
    """Targets of different sizes, shifts and levels; the last one has a level of its own."""
    pair = drawn_world(0, 700, 500, features=5, classes=3)
    source, target = samples(pair)
    later = pair.target.iloc[100:].copy()
    other = pair.target.copy()
    other.iloc[:20, 0] = 99
    targets = [target, Target(later, pair.target_proba[100:], source)]
    targets.append(Target(other, pair.target_proba, source))
    targets.append(Target(pair.source, pair.source_proba, source))
    return source, targets


@pytest.mark.parametrize(
    "method",
    [
        SEESd(),
        SEESd(soft=True),
        SEESd(sparsity=2, route="matches"),
        SEESd(constrained=False),
        SEESd(sparsity=0),
        SEESd(sparsity="auto"),
        BBSE(),
        BBSE(soft=True),
        MLLS(),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sees_torch.SupportWarning")
def test_equal_to_one_after_the_other(method):
    source, targets = one_source_many_targets()
    assert isinstance(method, ManyMatcher) == isinstance(method, SEESd | BBSE)
    together = match_many(method, source, targets)
    assert len(together) == len(targets)
    for found, target in zip(together, targets, strict=True):
        alone = method.match(source, target)
        assert found.features == alone.features
        assert abs(found.unseen_mass - alone.unseen_mass) < 1e-12
        weights = (
            match.weight_function.of_rows(source.rows, source.labels) for match in (found, alone)
        )
        torch.testing.assert_close(*weights, rtol=0, atol=1e-10)
        if alone.ranking is not None:
            assert found.ranking.subsets == alone.ranking.subsets
            torch.testing.assert_close(
                found.ranking.objective, alone.ranking.objective, rtol=1e-10, atol=1e-14
            )


def test_no_targets():
    source, _ = one_source_many_targets()
    assert match_many(SEESd(), source, []) == []
