"""Counting equal rows, dealing them into folds, and hashing their content."""

import numpy as np
import pytest
import torch

from sees_torch.data.counting import (
    chance_rows,
    combined_keys,
    content_hash,
    deal,
    group_keys,
    group_rows,
    hash_codes,
)


def assert_groups_equal_numpy(groups, table: np.ndarray) -> None:
    """`groups` must be the partition of np.unique over rows."""
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    of_row = groups.of_row.numpy()
    assert len(groups) == len(first)
    assert len(set(zip(of_row, inverse.reshape(-1), strict=True))) == len(first)
    assert sorted(groups.first.tolist()) == sorted(first.tolist())
    assert of_row[groups.first.numpy()].tolist() == list(range(len(groups)))


@pytest.mark.parametrize("rows", [1, 2, 7, 500])
@pytest.mark.parametrize("sizes", [(3,), (2, 5, 3), (1, 1), (4,) * 6])
def test_groups_equal_numpy_unique(rows, sizes):
    generator = torch.Generator().manual_seed(rows)
    codes = torch.stack([torch.randint(s, (rows,), generator=generator) for s in sizes], dim=1)
    assert_groups_equal_numpy(group_rows(codes, sizes), codes.numpy())


@pytest.mark.parametrize("width", [1, 3, 8, 40])
@pytest.mark.parametrize("size", [2**15, 2**31, 2**50])
def test_columns_too_wide_for_one_key_are_still_told_apart(width, size):
    """The product of the sizes exceeds 2^62 for all but the narrowest tables."""
    generator = torch.Generator().manual_seed(width)
    levels = torch.randint(size, (6,), generator=generator)
    codes = levels[torch.randint(6, (300, width), generator=generator)]
    codes[150:] = codes[:150]
    codes[200, -1] = size - 1
    codes[201, 0] = 0
    assert_groups_equal_numpy(group_rows(codes, [size] * width), codes.numpy())


def test_rows_that_differ_only_before_or_after_the_overflow():
    codes = torch.zeros(5, 40, dtype=torch.int64)
    codes[1, 0] = codes[2, 39] = codes[3, 20] = 1
    groups = group_rows(codes, [1000] * 40)
    assert len(groups) == 4
    assert groups.of_row[0] == groups.of_row[4]


def test_other_columns_are_compared_exactly():
    codes = torch.zeros(6, 2, dtype=torch.int64)
    tiny = torch.tensor([0.0, 1e-300, 0.0, 1.0, 1.0, 1.0 + 2**-52], dtype=torch.float64)
    flag = torch.tensor([True, True, True, True, False, True])
    assert len(group_rows(codes, [3, 3], [tiny])) == 4
    groups = group_rows(codes, [3, 3], [tiny, flag])
    table = np.c_[tiny.numpy(), flag.numpy()]
    assert_groups_equal_numpy(groups, table)
    wide = group_rows(codes, [2**50, 2**50], [tiny, flag])
    assert torch.equal(wide.of_row, groups.of_row)


def test_sums_over_groups():
    codes = torch.tensor([[2], [0], [2], [1], [2]])
    groups = group_rows(codes, [3])
    assert groups.sum(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])).tolist() == [2.0, 8.0, 21.0]
    assert groups.sum(torch.eye(5)).shape == (3, 5)
    assert groups.first.tolist() == [1, 3, 0]


def test_keys_come_out_in_order():
    groups = group_keys(torch.tensor([5, -3, 5, 2**62, -3]))
    assert groups.of_row.tolist() == [1, 0, 1, 2, 0]
    assert groups.first.tolist() == [1, 0, 3]
    assert len(group_keys(torch.zeros(0, dtype=torch.int64))) == 0


# Folds


@pytest.mark.parametrize("folds", [2, 5])
def test_rows_are_dealt_in_turn_and_evenly(folds):
    share = deal(torch.ones(103, dtype=torch.float64), folds)
    assert torch.equal(share.argmax(dim=1), torch.arange(103) % folds)
    assert set(share.unique().tolist()) == {0.0, 1.0}
    held = share.sum(dim=0)
    assert held.max() - held.min() <= 1


def test_a_multiplicity_is_dealt_like_equal_rows():
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(0, 7, (60,), generator=generator)
    one_by_one = deal(torch.ones(int(count.sum()), dtype=torch.float64), 5)
    owner = torch.repeat_interleave(torch.arange(60), count)
    received = torch.zeros(60, 5, dtype=torch.float64).index_add(0, owner, one_by_one)
    merged = deal(count.double(), 5)
    torch.testing.assert_close(merged * count[:, None], received, rtol=0, atol=1e-12)
    torch.testing.assert_close(merged.sum(dim=1), torch.ones(60, dtype=torch.float64))
    fractional = deal(count.double() + 0.25, 5)
    torch.testing.assert_close(fractional.sum(dim=1), torch.ones(60, dtype=torch.float64))


def test_too_few_rows_are_in_every_fold_alike():
    few, enough = (deal(torch.ones(n, dtype=torch.float64), 5) for n in (49, 50))
    assert few.unique().tolist() == [0.2]
    assert enough.unique().tolist() == [0.0, 1.0]


# Hashes


@pytest.fixture
def blocks() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(9, (400, 4), generator=generator)
    return codes, torch.randn(400, 2, generator=generator, dtype=torch.float64)


def test_hash_follows_its_row(blocks):
    codes, values = blocks
    shuffle = torch.randperm(400, generator=torch.Generator().manual_seed(2))
    assert torch.equal(
        content_hash(codes, values)[shuffle], content_hash(codes[shuffle], values[shuffle])
    )


def test_hash_ignores_the_order_of_columns_and_blocks(blocks):
    codes, values = blocks
    expected = content_hash(codes, values)
    assert torch.equal(content_hash(codes[:, [2, 0, 3, 1]], values.flip(1)), expected)
    assert torch.equal(content_hash(values, codes), expected)
    assert torch.equal(content_hash(codes[:, :1], values, codes[:, 1:]), expected)


def test_salt_belongs_to_its_column(blocks):
    codes, _ = blocks
    order, salt = [2, 0, 3, 1], torch.tensor([5, -7, 11, 13])
    salted = content_hash(codes, salt=salt)
    assert torch.equal(content_hash(codes[:, order], salt=salt[order]), salted)
    assert not torch.equal(content_hash(codes[:, order], salt=salt), salted)
    swapped = torch.tensor([[0, 1], [1, 0]])
    assert len(content_hash(swapped).unique()) == 1
    assert len(content_hash(swapped, salt=salt[:2]).unique()) == 2
    assert len(salted.unique()) == len(codes.unique(dim=0))


def test_hash_ignores_batching_and_dtype(blocks):
    codes, values = blocks
    expected = content_hash(codes, values)
    parts = [content_hash(c, v) for c, v in zip(codes.split(7), values.split(7), strict=True)]
    assert torch.equal(torch.cat(parts), expected)
    assert torch.equal(content_hash(codes.double(), values), expected)
    strided = codes.T.contiguous().T
    assert torch.equal(content_hash(strided, values), expected)


def test_hash_tells_contents_apart_and_spreads_evenly(blocks):
    _, values = blocks
    distinct = content_hash(values)
    assert len(distinct.unique()) == 400
    moved = values.clone()
    moved[0, 0] = torch.nextafter(moved[0, 0], torch.tensor(9.0, dtype=torch.float64))
    assert (content_hash(moved) != distinct).tolist() == [True] + [False] * 399
    counter = torch.arange(20_000)[:, None]
    share = (content_hash(counter) % 5).bincount(minlength=5) / 20_000
    # Five standard errors of a share of one fifth.
    assert (share - 0.2).abs().max() < 5 * (0.2 * 0.8 / 20_000) ** 0.5
    assert (content_hash(counter) % 5 >= 0).all()


def test_hashes_of_codes_are_those_of_their_content():
    sizes, salt = (3, 1, 7), torch.tensor([5, 9, 2])
    codes = torch.stack([torch.arange(50) % size for size in sizes], dim=1)
    assert torch.equal(hash_codes(codes, sizes, salt), content_hash(codes, salt=salt))


def test_combined_keys_order_rows_by_one_column_after_the_other():
    columns = [torch.tensor([1, 0, 1, 0]), torch.tensor([0, 4, 3, 2])]
    key, bound = combined_keys(columns, (2, 5))
    assert key.tolist() == [5, 4, 8, 2]
    assert bound == 10
    # More than int64 can number: ranks take their place, the order stays.
    many = [torch.tensor([2, 0, 1]), *[torch.tensor([7, 8, 9])] * 30]
    key, _ = combined_keys(many, (3, *[100] * 30))
    assert key.argsort().tolist() == [1, 2, 0]


def test_chance_rows_are_spread_over_all():
    some = chance_rows(10, 5000, torch.device("cpu"))
    assert torch.equal(some, chance_rows(10, 5000, torch.device("cpu")))
    counts = torch.bincount(some, minlength=10)
    # 500 each, standard deviation 21: four of them.
    assert bool(((counts - 500).abs() < 85).all())
