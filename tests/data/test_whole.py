"""Tables of small whole numbers are read like any others, only faster."""

import numpy as np
import pytest
import torch

from sees_torch import Schema, SchemaError, Source, Target
from sees_torch.data.whole import WholeTable

RNG = np.random.default_rng(0)
HERE = torch.tensor(RNG.integers((0, -3, 5), (3, 2, 90), (400, 3)))
THERE = torch.tensor(RNG.integers((0, -5, 0), (4, 3, 99), (300, 3)))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_schema_and_rows_as_from_numbers(dtype, weighted):
    weight = torch.tensor(RNG.integers(0, 4, 400), dtype=torch.float64) if weighted else None
    schema = Schema.learn(HERE.to(dtype), weight=weight)
    assert schema == Schema.learn(HERE.to(torch.float64), weight=weight)
    assert schema.continuous == (False, False, True)
    for table in (HERE, THERE):
        fast, slow = schema.encode(table.to(dtype)), schema.encode(table.to(torch.float64))
        assert torch.equal(fast.codes, slow.codes)
        assert torch.equal(fast.values, slow.values)
        assert torch.equal(fast.clamped, slow.clamped)


def test_columns_that_lie_one_after_the_other():
    schema = Schema.learn(HERE.T.contiguous().T)
    assert schema == Schema.learn(HERE)
    assert torch.equal(schema.encode(THERE.T.contiguous().T).codes, schema.encode(THERE).codes)


def test_codes_do_not_alias_the_table():
    table = HERE[:, :1].clone()
    rows = Schema.learn(table).encode(table)
    before = rows.codes.clone()
    table += 1
    assert torch.equal(rows.codes, before)


def test_what_is_not_a_table_of_small_whole_numbers():
    assert WholeTable.of(HERE) is not None
    assert WholeTable.of(HERE.double()) is None
    assert WholeTable.of(HERE > 0) is None
    assert WholeTable.of(HERE[0]) is None
    assert WholeTable.of(HERE[:0]) is None
    assert WholeTable.of(HERE.numpy()) is None
    assert WholeTable.of(torch.tensor([[0], [10**6]])) is None


def test_refused_like_any_table():
    source = Source(HERE, RNG.integers(0, 2, 400), RNG.random(400))
    with pytest.raises(SchemaError, match="3"):
        Target(THERE[:, :2], RNG.random(300), source)
    text = Schema.learn(np.array([["a"], ["b"]], dtype=object))
    with pytest.raises(SchemaError, match="text"):
        text.encode(HERE[:, :1])


def test_notes_of_unseen_levels():
    source = Source(HERE, RNG.integers(0, 2, 400), RNG.random(400))
    target = Target(THERE, RNG.random(300), source)
    plain = Target(THERE.double(), RNG.random(300), source)
    assert target.notes == plain.notes
    assert len(target.notes) == 3
