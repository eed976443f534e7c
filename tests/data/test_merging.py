"""Equal rows become one with a count: nothing is lost, nothing else is merged."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import Source, Target
from sees_torch.data import merging

PROBA = np.array([[0.9, 0.1], [0.25, 0.75], [0.5, 0.5]])


def content(sample) -> list[tuple]:
    """Every row of a sample as one hashable value: codes, values, clamped, label, probability."""
    rows = sample.rows
    parts = (rows.codes, rows.values, rows.clamped, sample.labels[:, None], sample.proba)
    return [tuple(row) for row in torch.cat([p.double() for p in parts], dim=1).tolist()]


def counted(sample) -> Counter:
    total = Counter()
    for row, count in zip(content(sample), sample.count.tolist(), strict=True):
        total[row] += count
    return total


def repetitive(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A table with a continuous column in which most rows come several times."""
    table = pd.DataFrame(
        {
            "town": rng.choice(["a", "b"], rows),
            "age": rng.choice(np.linspace(0, 1, 25), rows),
            "size": rng.choice([0.0, 1.0, np.nan], rows),
        }
    )
    return table, rng.integers(0, 2, rows), PROBA[rng.integers(0, 3, rows)]


@pytest.fixture
def whole() -> Source:
    table, labels, proba = repetitive(np.random.default_rng(0), 2000)
    found = Source(table, labels, proba)
    assert found.schema.continuous == (False, True, False)
    return found


def assert_merged(whole, merged, of_row) -> None:
    """The distinct rows of a sample, each once, with the sum of its counts."""
    assert len(set(content(merged))) == len(merged)
    assert counted(merged) == counted(whole)
    kept = of_row < len(merged)
    back = content(merged)
    for row, place, there in zip(content(whole), of_row.tolist(), kept.tolist(), strict=True):
        assert not there or back[place] == row


def test_distinct_rows_with_their_counts(whole):
    merged, of_row = whole.merged()
    assert len(merged) <= 2 * 25 * 3 * 2 * 3
    assert_merged(whole, merged, of_row)
    assert float(merged.total) == 2000
    assert merged.classes == whole.classes
    assert merged.schema is whole.schema
    assert len(whole) == 2000


def test_merging_twice_changes_nothing(whole):
    merged, _ = whole.merged()
    again, of_row = merged.merged()
    assert content(again) == content(merged)
    assert torch.equal(again.count, merged.count)
    assert of_row.tolist() == list(range(len(merged)))


def test_the_order_depends_on_the_content_only():
    table, labels, proba = repetitive(np.random.default_rng(1), 500)
    order = np.random.default_rng(2).permutation(500)
    one, of_row = Source(table, labels, proba).merged()
    other, of_moved = Source(table.iloc[order], labels[order], proba[order]).merged()
    assert content(one) == content(other)
    assert torch.equal(one.count, other.count)
    assert torch.equal(of_row[order], of_moved)


def test_counts_are_multiplicities_and_rows_of_none_are_dropped():
    table, labels, proba = repetitive(np.random.default_rng(3), 400)
    weight = np.random.default_rng(4).integers(0, 3, 400).astype(float)
    whole = Source(table, labels, proba, weight=weight, kinds={"age": "continuous"})
    merged, of_row = whole.merged()
    assert bool((merged.count > 0).all())
    expected = Counter({row: n for row, n in counted(whole).items() if n > 0})
    assert counted(merged) == expected
    dropped = of_row == len(merged)
    assert bool((whole.count[dropped] == 0).all())
    assert bool(dropped.any())
    gone = {row for row, out in zip(content(whole), dropped.tolist(), strict=True) if out}
    assert gone.isdisjoint(expected)
    assert int(of_row.max()) <= len(merged)


@pytest.mark.parametrize("part", ["code", "value", "label", "probability"])
def test_rows_that_differ_in_one_thing_stay_apart(part):
    table = pd.DataFrame({"town": ["a"] * 60, "age": np.arange(60.0)})
    labels, proba = np.array([0, 1] * 30), np.tile(PROBA[0], (60, 1))
    base = Source(table, labels, proba)
    table, labels, proba = table.iloc[[0, 0]].copy(), np.array([0, 0]), proba[:2].copy()
    if part == "code":
        table["town"] = ["a", None]
    if part == "value":
        table["age"] = [3.0, 3.0 + 1e-9]
    if part == "label":
        labels = np.array([0, 1])
    if part == "probability":
        proba[1] = [0.9 - 1e-12, 0.1 + 1e-12]
    pair = Source(table, labels, proba, schema=base.schema, classes=[0, 1], part=True)
    assert len(pair.merged()[0]) == 2


def test_a_value_clamped_to_the_bound_is_not_the_bound_itself():
    table = np.arange(60.0)[:, None]
    source = Source(table, [0, 1] * 30, np.tile(PROBA[0], (60, 1)))
    target = Target([[59.0], [70.0], [59.0]], np.tile(PROBA[0], (3, 1)), source)
    merged, of_row = target.merged()
    assert sorted(merged.count.tolist()) == [1.0, 2.0]
    assert of_row[0] == of_row[2] != of_row[1]


def test_known_labels_of_the_target_are_kept_apart_from_unknown_ones():
    source = Source([[0], [1]] * 20, [0, 1] * 20, np.tile(PROBA[0], (40, 1)))
    labels = [0, None, 1, 0, None, None]
    target = Target([[0]] * 6, np.tile(PROBA[0], (6, 1)), source, labels=labels)
    merged, of_row = target.merged()
    assert dict(zip(merged.labels.tolist(), merged.count.tolist(), strict=True)) == {
        -1: 3.0,
        0: 2.0,
        1: 1.0,
    }
    assert torch.equal(merged.labels[of_row], target.labels)


def test_a_posterior_moves_with_its_row(whole):
    posterior = whole.proba.square() / whole.proba.square().sum(dim=1, keepdim=True)
    merged, of_row = whole.with_posterior(posterior).merged()
    assert torch.equal(merged.posterior[of_row], posterior)
    assert torch.equal(merged.proba[of_row], whole.proba)


def test_rows_of_one_hash_are_told_apart(whole, monkeypatch):
    monkeypatch.setattr(
        merging, "hash_columns", lambda columns: torch.zeros_like(columns[0], dtype=torch.int64)
    )
    merged, of_row = whole.merged()
    assert len(merged) > 100
    assert_merged(whole, merged, of_row)


def test_a_hash_that_mixes_up_a_single_pair_is_noticed(whole, monkeypatch):
    """All distinct rows keep their hash but two, which share one."""
    honest = merging.hash_columns

    def mostly(columns):
        found = honest(columns)
        first, second = found.unique()[:2].tolist()
        return found.masked_fill(found == first, second)

    expected = whole.merged()[0]
    monkeypatch.setattr(merging, "hash_columns", mostly)
    merged, of_row = whole.merged()
    assert len(merged) == len(expected)
    assert_merged(whole, merged, of_row)


@pytest.mark.parametrize("hashed", [True, False], ids=["by hash", "by exact grouping"])
def test_more_columns_than_one_word_holds(hashed, monkeypatch):
    """60 columns of 10 levels: 12^60 possible rows, of which some differ in one column only."""
    rng = np.random.default_rng(5)
    base = rng.integers(0, 10, (50, 60))
    base[:10] = np.arange(10)[:, None]
    moved = base.copy()
    moved[np.arange(50), np.arange(50) + 10] = (moved[np.arange(50), np.arange(50) + 10] + 1) % 10
    table = np.repeat(np.r_[base, moved], 3, axis=0)
    order = rng.permutation(300)
    labels, proba = np.arange(300) // 3 % 2, np.tile(PROBA[1], (300, 1))
    if not hashed:
        monkeypatch.setattr(
            merging, "hash_columns", lambda columns: torch.zeros_like(columns[0]).long()
        )
    whole = Source(table[order], labels[order], proba)
    assert {column.codes for column in whole.schema.columns} == {12}
    merged, of_row = whole.merged()
    assert len(merged) == 100
    assert bool((merged.count == 3).all())
    assert_merged(whole, merged, of_row)


def test_three_classes_with_equal_first_probabilities():
    proba = np.array([[0.5, 0.2, 0.3], [0.5, 0.3, 0.2], [0.5, 0.2, 0.3]])
    whole = Source(np.zeros((3, 1)), [0, 1, 0], proba, classes=[0, 1, 2])
    assert whole.merged()[0].count.tolist() in ([1.0, 2.0], [2.0, 1.0])


def test_distinct_rows_alone_are_only_put_in_order():
    table = np.arange(100.0)[:, None]
    whole = Source(table, [0, 1] * 50, np.tile(PROBA[0], (100, 1)))
    merged, of_row = whole.merged()
    assert sorted(of_row.tolist()) == list(range(100))
    assert torch.equal(merged.rows.values[of_row], whole.rows.values)
    assert torch.equal(merged.labels[of_row], whole.labels)
