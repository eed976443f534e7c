"""Files of every version that was ever written still load, with the same numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from sees_torch import load_report, load_weights
from tests.golden.make import METHODS, monitor, world

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("name", [f"weights_{name}_v1" for name in METHODS])
def test_weights_of_old_files_are_the_same(name):
    given = world()
    found = load_weights(GOLDEN / f"{name}.sees")(given["source"], given["labels"])
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13)
    assert np.ptp(expected) > 0


def test_figures_and_words_of_old_reports_are_the_same():
    found = load_report(GOLDEN / "report_v1.sees")
    expected = json.loads((GOLDEN / "report_v1.json").read_text())
    assert found.to_dict() == expected["figures"]
    assert str(found) == expected["text"]
    assert found.gap == expected["figures"]["gap"]


def test_a_monitor_goes_on_from_an_old_state():
    watching = monitor().resume(GOLDEN / "monitor_v1.sees")
    expected = json.loads((GOLDEN / "monitor_v1.json").read_text())
    found = watching.to_frame()
    assert list(found.index) == ["from 0", "from 70", "from 140"]
    assert found["status"].iloc[0] == "skipped"
    np.testing.assert_allclose(found["gap"].iloc[1:], [*expected["gap"].values()][1:], atol=1e-9)
    given = world()
    again = watching.observe(given["target"][:70], given["target_proba"][:70], name="next")
    assert again.report is not None
    assert again.report.diagnostics["target_rows"] == 70 + len(given["target"][140:])
