"""The noise of SEES-d's objective against its definition, row by row and table by table."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from sees_torch.statistics import noise
from sees_torch.statistics.counted import count_samples
from sees_torch.statistics.noise import RIDGE, sampling_noise
from tests.statistics.test_products import as_dictionaries, by_definition, make_samples, products


def by_rows(source, target, s, soft, weight, n, m):
    """(expected, freedom, scale) of every subset; weight is {(J, cell): (L,)}."""
    d, labels = len(source.schema.columns), len(source.classes)
    k, both = min(2 * s, d), 1 / m + 1 / n
    grams, masses = by_definition(source, target, s, soft)
    codes = torch.cat([source.rows.codes, target.rows.codes]).numpy()
    label = [*source.labels.tolist(), *[labels] * len(target)]
    share = torch.cat([source.mass, target.mass]).numpy()
    proba = torch.cat([source.proba, target.proba]).numpy()
    if not soft:
        proba = np.eye(labels)[torch.cat([source.predictions, target.predictions]).numpy()]
    # Rows with equal codes and label are one entry, whose noise is that of their mean prediction;
    # hard predictions are told apart.
    entry: dict = {}
    keys = [(*x, y, *(() if soft else p)) for x, y, p in zip(codes, label, proba, strict=True)]
    for key, mass, p in zip(keys, share, proba, strict=True):
        total = entry.setdefault(key, [0.0, np.zeros(labels)])
        total[0], total[1] = total[0] + mass, total[1] + mass * p
    mean = [entry[key][1] / entry[key][0] for key in keys]
    tables: dict = {}
    for kappa in combinations(range(d), k):
        for x, y, mass, p in zip(codes, label, share, proba, strict=True):
            key = kappa, tuple(x[list(kappa)])
            tables.setdefault(key, np.zeros((labels + 1, labels)))[y] += mass * p
    found = []
    for members in combinations(range(d), s):
        above = [kappa for kappa in combinations(range(d), k) if set(members) <= set(kappa)]
        assert len(above) == math.comb(d - s, k - s)
        spread = {key: np.zeros((labels, labels)) for key in grams if key[0] == members}
        square = {key: np.zeros(labels) for key in spread}
        on_target = 0.0
        for x, y, mass, p, q in zip(codes, label, share, proba, mean, strict=True):
            key = members, tuple(x[list(members)])
            push = sum(tables[kappa, tuple(x[list(kappa)])][:labels] @ q for kappa in above)
            rate = 1 / m if y == labels else weight[key][y] ** 2 / n
            spread[key] += mass * rate * np.outer(push, push)
            if y == labels:
                on_target += mass * p @ p
            else:
                square[key][y] += mass * p @ p
        on_source = freedom = induced = constant = 0.0
        for key, covariance in spread.items():
            gram, w, live = grams[key][:labels, :labels], weight[key], masses[key][:labels] > 0
            unit = 1 / np.sqrt(np.where(live, np.diag(gram), 1.0))
            scaled = gram * np.outer(unit, unit) + RIDGE * np.eye(labels)
            half = np.linalg.solve(scaled, covariance * np.outer(unit, unit))
            full = np.linalg.solve(scaled, half.T)
            freedom += np.diag(half)[live].sum()
            left = np.maximum(w**2 - np.where(live, np.diag(full) * unit**2, 0.0), 0.0)
            on_source += square[key] @ left
            induced += w @ gram @ w
            constant += grams[key][-1, -1]
        expected = len(above) * (on_target / m + on_source / n) - constant * both
        found.append((expected, freedom - induced * both, math.sqrt(2 * constant) * both))
    return np.array(found).T


@pytest.mark.parametrize("chunk", [1, 2**21])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize(("d", "s", "labels"), [(3, 0, 2), (3, 1, 3), (4, 2, 2), (3, 2, 3)])
def test_noise_equals_its_definition(d, s, labels, soft, chunk, monkeypatch):
    monkeypatch.setattr(noise, "CHUNK", chunk)
    source, target = make_samples(7 * d + s, d, labels, rows=40)
    rows = count_samples(source, target, soft)
    found = products(rows, s, "tables")
    rng = np.random.default_rng(s)
    weight = torch.tensor(rng.random((found.subsets.total_cells, labels)) * 3)
    keys = list(as_dictionaries(rows, found)[0])
    given = dict(zip(keys, weight.numpy(), strict=True))
    n, m = 40.0, 17.0
    actual = sampling_noise(rows, found, weight, n, m)
    expected = by_rows(source, target, s, soft, given, n, m)
    for one, other in zip((actual.expected, actual.freedom, actual.scale), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-9, atol=1e-13)


def test_a_score_is_what_is_left_in_standard_deviations():
    given = noise.Noise(*(torch.tensor([value]) for value in (3.0, 1.0, 2.0)))
    assert given.score(torch.tensor([8.0])).tolist() == [3.0]
