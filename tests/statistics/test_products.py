"""All forms of the table products of SEES-d against the definition."""

from itertools import combinations, product
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from sees_torch import SEESd, Source, Target
from sees_torch.statistics import counted
from sees_torch.statistics.counted import count_samples
from sees_torch.statistics.products import Route, cheapest_route, plan_products, subset_products

FORMS = get_args(Route)


def products(rows, sparsity, form, **options):
    """Table products by one of the forms."""
    return subset_products(rows, plan_products(rows, sparsity, form), **options)


def make_samples(seed, d, labels, rows=60, order=None, levels=3):
    """A source and a target of few levels; the target has a level that the source lacks."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, levels + 1, d)
    x = np.stack([rng.integers(0, size, rows) for size in sizes], axis=1)
    z = np.stack([rng.integers(0, size, rows + 9) for size in sizes], axis=1)
    z[0, 0] = 99
    y = rng.integers(0, labels, rows)
    y[:labels] = np.arange(labels)
    p, q = (rng.dirichlet(np.ones(labels), k) for k in (rows, rows + 9))
    u, v = rng.integers(1, 5, rows), rng.integers(1, 5, rows + 9)
    if order is not None:
        i, j = order.permutation(rows), order.permutation(rows + 9)
        x, y, p, u, z, q, v = x[i], y[i], p[i], u[i], z[j], q[j], v[j]
    source = Source(pd.DataFrame(x), y, p, weight=u, classes=range(labels))
    return source, Target(pd.DataFrame(z), q, source, weight=v)


def by_definition(source, target, s, soft):
    """{(J, cell): (L + 1, L + 1) product} and masses, cell by cell, in the schema's codes."""
    d, labels = len(source.schema.columns), len(source.classes)
    k = min(2 * s, d)

    def spread(sample):
        return sample.proba if soft else torch.eye(labels, dtype=torch.float64)[sample.predictions]

    codes = torch.cat([source.rows.codes, target.rows.codes]).numpy()
    label = np.r_[source.labels.numpy(), np.full(len(target), labels)]
    mass = torch.cat([source.mass[:, None] * spread(source), target.mass[:, None] * spread(target)])
    products, masses = {}, {}
    for kappa in combinations(range(d), k):
        tables: dict = {}
        for row, y, m in zip(codes[:, kappa], label, mass.numpy(), strict=True):
            tables.setdefault(tuple(row), np.zeros((labels + 1, labels)))[y] += m
        for members in combinations(range(d), s):
            if set(members) <= set(kappa):
                for cell, table in tables.items():
                    a = tuple(cell[kappa.index(j)] for j in members)
                    here = products.setdefault((members, a), 0)
                    products[members, a] = here + table @ table.T
    for members in combinations(range(d), s):
        for row, y, m in zip(codes[:, members], label, mass.numpy(), strict=True):
            key = (members, tuple(row))
            masses.setdefault(key, np.zeros(labels + 1))[y] += m.sum()
    return products, masses


def as_dictionaries(rows, found):
    """The library's products in the same form; cells that never occur must be zero."""
    keys = []
    for members in found.subsets.members.tolist():
        grid = product(*(rows.levels[j].tolist() for j in members))
        keys += [(tuple(members), cell) for cell in grid]
    assert len(keys) == len(found.product) == found.subsets.total_cells
    return (
        dict(zip(keys, found.product.numpy(), strict=True)),
        dict(zip(keys, found.mass.numpy(), strict=True)),
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize(("d", "s"), [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2), (3, 3), (4, 2)])
def test_forms_equal_the_definition(d, s, labels, soft, form):
    source, target = make_samples(10 * d + s, d, labels)
    rows = count_samples(source, target, soft)
    found = as_dictionaries(rows, products(rows, s, form))
    for actual, expected in zip(found, by_definition(source, target, s, soft), strict=True):
        assert set(expected) <= set(actual)
        for key, value in actual.items():
            # Sums of at most a few hundred products of shares: rounding is far below 1e-12.
            np.testing.assert_allclose(value, expected.get(key, 0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_forms_agree_for_every_sparsity(d, labels, soft):
    rows = count_samples(*make_samples(d, d, labels, rows=200), soft)
    for s in range(d + 1):
        tables, *others = (products(rows, s, form) for form in FORMS)
        for other in others:
            torch.testing.assert_close(tables.product, other.product, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(tables.mass, other.mass, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(tables.push, other.push, rtol=1e-10, atol=1e-12)
        default = products(rows, s, None)
        torch.testing.assert_close(default.product, tables.product, rtol=1e-10, atol=1e-12)
        assert cheapest_route(rows, s) in FORMS
        # Each sample has mass one in every subset, the product is symmetric.
        total = torch.zeros(len(tables.subsets), labels + 1, dtype=torch.float64)
        total.index_add_(0, tables.subsets.of_cell(), tables.mass)
        ones = torch.ones(len(total), dtype=torch.float64)
        torch.testing.assert_close(total[:, -1], ones, rtol=1e-12, atol=0)
        torch.testing.assert_close(total[:, :-1].sum(1), ones, rtol=1e-12, atol=0)
        torch.testing.assert_close(tables.product, tables.product.mT, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", [1, 5_000, 200_000])
def test_small_memory_gives_the_same(form, memory):
    for s in (0, 1, 2, 5):
        rows = count_samples(*make_samples(1, 5, 3, rows=120), True)
        large, small = products(rows, s, form), products(rows, s, form, memory=memory)
        torch.testing.assert_close(small.product, large.product, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(small.mass, large.mass, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(small.push, large.push, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_order_of_rows_does_not_matter(form, soft):
    plain = count_samples(*make_samples(2, 4, 3), soft)
    mixed = count_samples(*make_samples(2, 4, 3, order=np.random.default_rng(0)), soft)
    assert torch.equal(plain.codes, mixed.codes)
    for s in range(5):
        one, other = products(plain, s, form), products(mixed, s, form)
        torch.testing.assert_close(one.product, other.product, rtol=1e-12, atol=1e-15)


def test_counting_keeps_all_mass_on_distinct_rows():
    source, target = make_samples(3, 4, 3, rows=500, levels=2)
    for soft in (False, True):
        rows = count_samples(source, target, soft)
        block = rows.block
        entries = torch.cat([block[None], rows.codes])
        assert entries.unique(dim=1).shape == entries.shape
        label = block // rows.n_predictions
        mass = rows.count.sum(dim=1) * rows.scale[label]
        total = torch.zeros(4, dtype=torch.float64).index_add(0, label, mass)
        share = torch.bincount(source.labels, source.mass, minlength=3)
        torch.testing.assert_close(total[:-1], share, rtol=1e-12, atol=0)
        assert abs(float(total[-1]) - 1) < 1e-12
        assert bool((rows.count >= 0).all())


def test_many_levels_are_refused_before_memory_runs_out():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 400, (3000, 4)).astype(str)
    source = Source(pd.DataFrame(x), rng.integers(0, 2, 3000), rng.random(3000))
    rows = count_samples(source, Target(pd.DataFrame(x), rng.random(3000), source), False)
    with pytest.raises(ValueError, match="Lower the sparsity"):
        products(rows, 4, None)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_push_moves_the_products_of_the_own_cell(soft):
    """Weighed by mass over the entries of a cell and label, it is the products themselves."""
    rows = count_samples(*make_samples(4, 4, 3, rows=80), soft)
    assert len(rows) <= 512
    label = rows.block // rows.n_predictions
    mass = rows.count.sum(dim=1) * rows.scale[label]
    for s, form in product(range(4), FORMS):
        found = products(rows, s, form)
        cell = found.subsets.cell_of_rows(rows.codes.T.long())
        total = torch.zeros_like(found.product)[..., :-1]
        moved = mass[:, None, None] * found.push
        total.index_put_((cell, label[:, None].expand_as(cell)), moved, accumulate=True)
        torch.testing.assert_close(total, found.product[..., :-1], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 0.37, 5000.0], ids=["whole", "parts", "large"])
def test_multiplicities_of_any_kind(form, scale):
    """Whole ones small enough are summed in float32, exactly; others in float64."""
    source, target = make_samples(5, 4, 2, rows=70)
    source, target = source.with_count(source.count * scale), target.with_count(target.count)
    rows = count_samples(source, target, False)
    assert np.isfinite(rows.largest) == (scale != 0.37)
    for s in range(4):
        found, expected = products(rows, s, form), by_definition(source, target, s, False)
        for actual, wanted in zip(as_dictionaries(rows, found), expected, strict=True):
            for key, value in actual.items():
                np.testing.assert_allclose(value, wanted.get(key, 0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_wide_columns(form):
    """More cells than entries, and levels beyond one byte."""
    rng = np.random.default_rng(1)
    x, z = (pd.DataFrame(rng.integers(0, (300, 7, 5), (700, 3)).astype(str)) for _ in range(2))
    source = Source(x, rng.integers(0, 2, 700), rng.random(700))
    rows = count_samples(source, Target(z, rng.random(700), source), False)
    assert rows.codes.dtype != torch.uint8
    for s in (1, 2):
        one, other = products(rows, s, form), products(rows, s, "listing")
        torch.testing.assert_close(one.product, other.product, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(one.push, other.push, rtol=1e-10, atol=1e-13)


def test_rows_of_no_multiplicity_are_left_out():
    source, target = make_samples(6, 3, 2)
    for sample in (source, target):
        sample.count = sample.count * (torch.arange(len(sample)) % 3 > 0)
    rows = count_samples(source, target, False)
    assert bool((rows.count > 0).all())
    assert bool((sum(rows.count) == source.total + target.total).all())
    found, expected = products(rows, 1, None), by_definition(source, target, 1, False)
    for actual, wanted in zip(as_dictionaries(rows, found), expected, strict=True):
        for key, value in actual.items():
            np.testing.assert_allclose(value, wanted.get(key, 0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_many_rows_that_hardly_repeat_are_taken_as_they_are(monkeypatch, form, soft):
    samples = make_samples(7, 6, 3, rows=400, levels=40)
    merged = count_samples(*samples, soft)
    monkeypatch.setattr(counted, "MANY", 100)
    rows = count_samples(*samples, soft)
    assert merged.distinct
    assert not rows.distinct
    for s in (0, 1, 2):
        one, other = products(rows, s, form), products(merged, s, form)
        torch.testing.assert_close(one.product, other.product, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(one.mass, other.mass, rtol=1e-10, atol=1e-13)


def test_many_rows_that_repeat_are_merged(monkeypatch):
    monkeypatch.setattr(counted, "MANY", 100)
    samples = make_samples(8, 3, 2, rows=400)
    assert count_samples(*samples, False).distinct
    # Also if equal rows come one after the other.
    wide = make_samples(8, 6, 2, rows=200, levels=40)
    repeated = [
        sample.select(torch.arange(len(sample)).repeat_interleave(5), None) for sample in wide
    ]
    for sample in repeated:
        sample.count = torch.ones(len(sample), dtype=torch.float64)
    assert count_samples(*repeated, False).distinct


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_order_of_rows_that_are_not_merged_does_not_matter(monkeypatch, soft):
    monkeypatch.setattr(counted, "MANY", 100)
    rankings = []
    for order in (None, np.random.default_rng(0)):
        samples = make_samples(9, 4, 2, rows=1500, order=order, levels=30)
        assert not count_samples(*samples, soft).distinct
        rankings.append(SEESd(soft=soft).match(*samples).ranking)
    one, other = rankings
    assert one.subsets == other.subsets
    torch.testing.assert_close(one.score, other.score, rtol=1e-9, atol=1e-9)
