"""Basis functions of coded rows: their values, owners and behaviour on what the source lacks."""

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import mixed_frame

from sees_torch import Basis, FeatureBasis, SeesError, Source
from sees_torch.statistics.basis import GaussianBasis

FORMS = {
    "linear": lambda x: [x],
    "paired": lambda x: [x, 1 - x],
    "quadratic": lambda x: [x**2, 2 * x * (1 - x), (1 - x) ** 2],
}


def make_source(frame, weight=None):
    rng = np.random.default_rng(0)
    labels = np.arange(len(frame)) % 2
    return Source(frame, labels, rng.random(len(frame)), weight=weight)


@pytest.fixture
def frame():
    return mixed_frame(np.random.default_rng(1), 200)


@pytest.mark.parametrize("form", FORMS)
def test_values_by_hand(frame, form):
    source = make_source(frame)
    basis = FeatureBasis(source, form)
    columns, owners = [], []
    for j, name in enumerate(frame.columns):
        column = frame[name].to_numpy()
        if j < 2:
            here = [(column == level).astype(float) for level in np.unique(column)]
        else:
            here = FORMS[form]((column - column.min()) / (column.max() - column.min()))
        columns += here
        owners += [j] * len(here)
    assert basis.owners == tuple(owners)
    values = basis(source.rows)
    assert values.dtype == torch.float64
    np.testing.assert_allclose(values, np.stack(columns, axis=1), atol=1e-15)


@pytest.mark.parametrize("form", ["paired", "quadratic"])
def test_every_feature_sums_to_one_seen_missing_or_unseen(frame, form):
    frame.loc[:20, "age"] = np.nan
    frame.loc[10:30, "town"] = None
    source = make_source(frame)
    basis = FeatureBasis(source, form)
    strange = frame.assign(town="Nowhere", size=77, age=1e9)
    strange.loc[:50, "income"] = np.nan
    owner = torch.tensor(basis.owners)
    for rows in (source.rows, source.schema.encode(strange)):
        values = basis(rows)
        assert float(values.min()) >= 0
        sums = torch.stack([values[:, owner == j].sum(1) for j in range(4)], dim=1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)


def test_missing_values_have_an_indicator_where_the_source_has_them(frame):
    frame.loc[:19, "age"] = np.nan
    frame.loc[:9, "town"] = None
    source = make_source(frame)
    basis = FeatureBasis(source)
    values = basis(source.rows)
    owner = np.array(basis.owners)
    assert (owner == 2).sum() == 3
    assert (owner == 0).sum() == 4
    assert (owner == 3).sum() == 2
    age = values[:, owner == 2].numpy()
    np.testing.assert_array_equal(age[:20], np.tile([0.0, 0.0, 1.0], (20, 1)))
    assert (age[20:, 2] == 0).all()
    town = values[:, owner == 0].numpy()
    np.testing.assert_array_equal(town[:10], np.tile([0.0, 0.0, 0.0, 1.0], (10, 1)))


def test_what_the_source_never_shows_gets_the_source_mean(frame):
    """Unseen levels, and missing values of a column without any; multiplicities count."""
    weight = np.random.default_rng(2).integers(0, 5, len(frame)).astype(float)
    source = make_source(frame, weight)
    basis = FeatureBasis(source)
    mean = np.average(basis(source.rows).numpy(), axis=0, weights=weight)
    strange = frame.iloc[:3].assign(town=["Nowhere", None, "Bern"], age=[np.nan, 40.0, np.nan])
    values = basis(source.schema.encode(strange)).numpy()
    owner = np.array(basis.owners)
    for row, column in [(0, 0), (1, 0), (0, 2), (2, 2)]:
        here = owner == column
        np.testing.assert_allclose(values[row, here], mean[here], atol=1e-14)
    np.testing.assert_array_equal(values[2, owner == 0], [1.0, 0.0, 0.0])


def test_levels_that_only_rows_of_multiplicity_zero_show_are_unseen():
    frame = pd.DataFrame({"a": ["x", "y", "z", "x"], "b": [0, 1, 0, 1]})
    source = make_source(frame, [1.0, 1.0, 0.0, 1.0])
    basis = FeatureBasis(source)
    assert basis.owners == (0, 0, 1, 1)
    values = basis(source.rows).numpy()
    np.testing.assert_allclose(values[2], [2 / 3, 1 / 3, 1.0, 0.0], atol=1e-15)


def test_numbers_outside_the_source_range_are_clamped(frame):
    source = make_source(frame)
    far = frame.iloc[:2].assign(age=[-1e9, 1e9])
    values = FeatureBasis(source)(source.schema.encode(far)).numpy()
    age = np.array(FeatureBasis(source).owners) == 2
    np.testing.assert_array_equal(values[:, age], [[0.0, 1.0], [1.0, 0.0]])


def test_one_level_and_one_value():
    frame = pd.DataFrame({"one": ["only"] * 6, "x": np.ones(6)})
    source = Source(
        frame, np.arange(6) % 2, np.full(6, 0.5), kinds={"x": "continuous", "one": "categorical"}
    )
    values = FeatureBasis(source)(source.rows)
    np.testing.assert_array_equal(values[:, 0], np.ones(6))
    np.testing.assert_allclose(values.sum(1), 2 * np.ones(6))


def test_state_survives_and_float32_stays_float32(frame):
    source = make_source(frame)
    basis, other = FeatureBasis(source), FeatureBasis(make_source(frame.iloc[::-1]))
    other.load_state_dict(basis.state_dict())
    assert torch.equal(other(source.rows), basis(source.rows))
    single = FeatureBasis(source).to(torch.float32)(source.rows)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), basis(source.rows), rtol=1e-6, atol=1e-6)


def test_gaussians_belong_to_no_feature(frame):
    source = make_source(frame)
    inner = FeatureBasis(source)
    points = inner(source.rows)
    basis = GaussianBasis(inner, points[:7], 0.8)
    assert basis.owners == (-1,) * 7
    apart = ((points[:, None] - points[None, :7]) ** 2).sum(-1)
    # cdist of near-equal rows goes through a square root: 1e-8 in the distance.
    torch.testing.assert_close(
        basis(source.rows), torch.exp(-apart / (2 * 0.64)), rtol=0, atol=1e-7
    )


def test_refusals(frame):
    with pytest.raises(SeesError, match="linear, paired, quadratic"):
        FeatureBasis(make_source(frame), "cubic")
    with pytest.raises(TypeError, match="must implement forward"):
        Basis()(make_source(frame).rows)
