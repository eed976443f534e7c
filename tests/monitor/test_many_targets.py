"""One source against many targets: the same as one after the other."""

import pytest
from worlds import drawn_world

from sees_torch import SEESd, ShiftMonitor


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
