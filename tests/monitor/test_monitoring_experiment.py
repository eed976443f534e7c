"""The experiment on monitoring counts what its monitors said."""

import pandas as pd
import pytest

from experiments.monitoring import CHANGE, QUIET, RATE, draw, stream, summary


def test_streams_have_the_months_and_rows_that_are_stated():
    source, chunks, _ = stream("quiet", 0)
    assert len(source["source"]) == QUIET["source"]
    assert [len(features) for features, _ in chunks] == [QUIET["rows"]] * RATE["quiet"].horizon
    _, chunks, gap = stream("change", 0)
    assert len(chunks) == RATE["change"].horizon
    assert gap <= -0.03


def test_the_table_counts_false_alarms_and_delays():
    row = draw("quiet", 0, "mlls")
    rows = [row | {"alerts": 0}, row | {"alerts": 2}]
    change = row | {"kind": "change", "alerts": 3}
    rows += [
        change | {"first": CHANGE, "early": 0},
        change | {"first": CHANGE + 2, "early": 0},
        change | {"first": 3, "early": 1},
        change | {"first": None, "early": 0},
    ]
    quiet, changed = summary(pd.DataFrame(rows)).to_dict("records")
    assert quiet["false alarms"] == 0.5
    assert changed["false alarms"] == 0.25
    assert changed["found"] == 0.5
    assert changed["found in its month"] == 0.25
    assert changed["mean delay"] == pytest.approx(1.0)
