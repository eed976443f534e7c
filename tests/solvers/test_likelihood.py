"""What the interior-point method leaves unsolved is solved a second time, and only that."""

import pytest
import torch

from sees_torch.solvers import likelihood
from sees_torch.solvers.group_simplex import GroupSimplex
from sees_torch.solvers.likelihood import penalised_likelihood

Z = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.7, 0.4], [0.1, 0.3, 0.8]], dtype=torch.float64)
MASS = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
SIMPLEX = GroupSimplex(Z.mean(dim=0, keepdim=True), torch.tensor([0, 0, 1]), 2)
ETA = torch.tensor([[0.0], [0.05], [0.3]], dtype=torch.float64)


@pytest.mark.parametrize("residual", [5.0, float("nan")])
def test_only_what_is_left_is_tried_again(residual, monkeypatch):
    first, tried = likelihood.group_likelihood, []

    def stuck(*given, **options):
        found = first(*given, **options)
        found.value[1], found.residual[1], found.converged[1] = 99.0, residual, False
        return found

    def second(rows, mass, simplex, eta, **options):
        tried.append(eta.flatten().tolist())
        return descend(rows, mass, simplex, eta, **options)

    descend = likelihood.descend
    whole = penalised_likelihood(Z, MASS, SIMPLEX, ETA)
    monkeypatch.setattr(likelihood, "group_likelihood", stuck)
    monkeypatch.setattr(likelihood, "descend", second)
    found = penalised_likelihood(Z, MASS, SIMPLEX, ETA)
    assert tried == [[0.05]]
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, whole.value, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.multiplier, whole.multiplier, rtol=0, atol=1e-4)
    assert torch.equal(found.value[[0, 2]], whole.value[[0, 2]])


def test_of_two_failures_the_better_is_kept(monkeypatch):
    first = likelihood.group_likelihood

    def stuck(*given, **options):
        found = first(*given, **options)
        found.residual[:], found.converged[:] = 1e-3, False
        return found

    def worse(rows, mass, simplex, eta, **options):
        found = descend(rows, mass, simplex, eta, **options)
        found.value[:], found.residual[:], found.converged[:] = 99.0, 1.0, False
        return found

    descend = likelihood.descend
    whole = penalised_likelihood(Z, MASS, SIMPLEX, ETA)
    monkeypatch.setattr(likelihood, "group_likelihood", stuck)
    monkeypatch.setattr(likelihood, "descend", worse)
    found = penalised_likelihood(Z, MASS, SIMPLEX, ETA)
    assert torch.equal(found.value, whole.value)
    assert not bool(found.converged.any())
