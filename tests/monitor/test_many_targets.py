"""One source against many targets: the same as one after the other."""

import pytest
from worlds import drawn_world

from sees_torch import SEESd, ShiftMonitor
from sees_torch.assessment import report_match
from sees_torch.estimates import point_estimates
from sees_torch.monitor import splits


@pytest.mark.parametrize("method", [SEESd(), SEESd(soft=True), "mlls", "auto"])
def test_at_once_equals_one_by_one(method):
    pair = drawn_world(4, 900, 1200, features=4)
    parts = {"a": slice(0, 500), "b": slice(500, 900), "c": slice(900, 1200)}
    tables = {name: pair.target[part] for name, part in parts.items()}
    probas = {name: pair.target_proba[part] for name, part in parts.items()}

    def monitor():
        return ShiftMonitor(
            pair.source, pair.labels, source_proba=pair.source_proba, method=method, replicates=20
        )

    single, many = monitor(), monitor()
    alone = [single.add(tables[name], probas[name], name=name) for name in parts]
    together = many.add_many(tables, probas)
    for one, other in zip(alone, together, strict=True):
        assert other.gap == pytest.approx(one.gap, abs=1e-10)
        assert other.interval == (one.interval and pytest.approx(one.interval, abs=1e-10))
        assert other.shifted_features == one.shifted_features
        assert other.status == one.status
    assert list(many.to_frame().index) == list(parts)


def test_a_split_is_estimated_as_a_chunk_is(monkeypatch):
    """Averages over hypotheses included: else what chance does would be underrated."""
    pair = drawn_world(3, 600, 400, features=8)
    monitor = ShiftMonitor(
        pair.source, pair.labels, source_proba=pair.source_proba, calibrate=False, confidence=None
    )
    seen = []

    def kept(source, target, match, method, *more):
        seen.append((report_match(source, target, match, method).gap, match))
        return point_estimates(source, target, match, method, *more)

    monkeypatch.setattr(splits, "point_estimates", kept)
    gaps = [
        splits.split_gap(monitor.estimation, monitor.source.merged, 200, 0, draw)
        for draw in range(6)
    ]
    assert any(match.choice.averaged for *_, match in seen)
    assert gaps == pytest.approx([reported for reported, _ in seen], abs=1e-12)
