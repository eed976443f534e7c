"""Solutions as differentiable functions of their data, by the implicit function theorem.

A solution x of R(x, p) = 0 moves with the data p by dx = -R_x^-1 dR. So one Newton step from x,
with R_x held fixed, has the value of x and its exact gradient: solvers run without a graph, and
neither memory nor time of the backward pass grows with their iterations. What is at zero stays
there: at the edge between zero and positive the gradient is that of one side.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sees_torch.solvers.design import Mixture
from sees_torch.solvers.mixture import cell_sums, label_sums, on_entries, pair_sums

RANK = 1e-10
"""Eigenvalues below this share of the largest count as zero: there a step is the shortest one."""


def wants_graph(*tensors: Tensor) -> bool:
    """A gradient may be asked for of something that is made from these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def moved(value: Tensor, step: Tensor) -> Tensor:
    """The value as it is, with the gradient of the step."""
    return value.detach() + (step - step.detach())


def likelihood_curve(
    rows: Mixture, mass: Tensor, moment: Tensor, group: Tensor, value: Tensor, eta: float
) -> tuple[Tensor, Tensor]:
    """Inverse of the optimality conditions of a penalised likelihood, and the penalty's slope.

        [ E[z z'/r^2] + eta blockdiag((I - e e') / |a_g|),  c ;  c',  0 ],   e = a_g / |a_g|,

    on the support. Groups that share the constant make it singular; fitted values are unique, and
    the pseudo-inverse moves entries by the shortest step.

    Args:
        rows: z, restricted to the support; mass (U,), sums to one.
        moment: (P,) c; group: (P,) group of every entry, -1 for none; value: (P,) a > 0.
        eta: strength of the penalty.
    """
    same = (group[:, None] == group) & (group >= 0)[:, None]
    norm = (same.to(value.dtype) @ value.square()).sqrt().clamp_min(1e-37)
    pull = torch.where(group >= 0, eta * value / norm, 0.0)
    eye = torch.eye(len(value), dtype=value.dtype, device=value.device)
    bend = (eye - value[:, None] * value / norm[:, None].square()) * eta / norm[:, None]
    fit = rows.fit(value[None]).clamp_min(1e-12)
    curve = rows.gram(mass / fit.square())[0] + torch.where(same, bend, 0.0)
    matrix = torch.cat(
        [torch.cat([curve, moment[:, None]], dim=1), torch.cat([moment, moment.new_zeros(1)])[None]]
    )
    return torch.linalg.pinv(matrix, rtol=RANK, hermitian=True), pull


def likelihood_solution(
    rows: Mixture, mass: Tensor, moment: Tensor, group: Tensor, value: Tensor, eta: float
) -> Tensor:
    """(P,) the minimiser of `group_likelihood` with its gradient in rows and moment.

    Args:
        rows: z of all P entries; mass (U,), sums to one.
        moment: (P,) c; group: (P,); value: (P,) the minimiser, zeros included; eta: as above.
    """
    with torch.no_grad():
        support = (value > 0).nonzero().squeeze(1)
        some = replace(rows, kept=rows.kept[support])
        a, group = value[support], group[support]
        inverse, pull = likelihood_curve(some, mass, moment[support], group, a, eta)
    c = moment[support]
    push = some.moments(mass / some.fit(a[None]).clamp_min(1e-37))[0]
    slope = push - pull - (1 - (pull * a).sum()) * c
    step = inverse @ torch.cat([slope, (1 - c @ a)[None]])
    return moved(value, torch.zeros_like(value).index_add(0, support, step[:-1]))


def quadratic_solution(
    gram: Tensor, weight: Tensor, value: Tensor, rest: Tensor, constrained: bool
) -> Tensor:
    """(C, L) the minimiser of one problem of `nonnegative_quadratic` or `least_squares`.

        [ G_FF, -c_F ; c_F', 0 ] [dw ; dnu] = [ d(b - G w)_F ; 0 ],   F the positive entries.

    Blocks that leave a direction open do not move along it.

    Args:
        gram: (C, L, L) G; weight: (C, L) c, entries with c = 0 are fixed at 0.
        value: (C, L) the minimiser.
        rest: (C, L) G w - b at the minimiser, with its graph.
        constrained: by w >= 0 and c . w = const.
    """
    with torch.no_grad():
        free = (weight > 0) & ((value > 0) if constrained else torch.ones_like(value > 0))
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        unit = torch.where(free & (diagonal > 0), diagonal, torch.inf).rsqrt()
        scaled = gram * unit[:, :, None] * unit[:, None, :]
        inverse = torch.linalg.pinv(scaled, rtol=10 * RANK, hermitian=True)
        inverse = inverse * unit[:, :, None] * unit[:, None, :]
        along = (inverse @ weight[..., None]).squeeze(-1)
    step = -(inverse @ rest[..., None]).squeeze(-1)
    if constrained:
        slope = (weight * along).sum()
        step = step - along * (weight * step).sum() / slope.clamp_min(1e-37)
    return moved(value, step)


def offset_solution(
    logits: Tensor,
    labels: Tensor,
    mass: Tensor,
    cell: Tensor,
    ridge: Tensor,
    value: Tensor,
) -> Tensor:
    """(B, L, A) what `class_offsets` found, with its gradient in the logits; arguments as there."""
    cells = value.shape[-1]
    with torch.no_grad():
        rows = label_sums(mass, labels, cell, cells, len(logits))
        present = rows > 0
        weight = ridge[:, None, None]
        share = (logits + on_entries(value, cell)).softmax(dim=1)
        sums = cell_sums(share * mass[:, None], cell, cells)
        curve = torch.diag_embed(sums.movedim(1, -1))
        curve = curve - pair_sums(share * mass[:, None], share, cell, cells)
        live = present.movedim(1, -1)
        curve = torch.where(live[..., :, None] & live[..., None, :], curve, 0.0)
        eye = torch.eye(len(logits), dtype=logits.dtype, device=logits.device)
        curve = curve + (weight[..., None] + 1e-12) * eye
    slope = cell_sums(
        (logits + on_entries(value, cell)).softmax(dim=1) * mass[:, None], cell, cells
    )
    slope = torch.where(present, slope - rows, 0.0)
    step = -torch.linalg.solve_ex(curve, slope.movedim(1, -1)[..., None]).result.squeeze(-1)
    return moved(value, step.movedim(-1, 1))


def share_solution(
    score: Tensor, mass: Tensor, cell: Tensor, prior: Tensor, value: Tensor
) -> Tensor:
    """(B, L, A) what `cell_mixtures` found, with its gradient in score and prior; as there.

    In relative steps z, q -> q (1 + z), as the solver takes them: shares near zero do no harm.
    """
    cells = prior.shape[-1]
    with torch.no_grad():
        live = prior > 0
        fit = (score * on_entries(value, cell)).sum(dim=1).clamp_min(1e-37)
        curve = pair_sums(score * (mass / fit)[:, None], score / fit[:, None], cell, cells)
        scale = torch.where(live, value, 0.0).movedim(1, -1)
        curve = curve * scale[..., :, None] * scale[..., None, :]
        curve = curve + torch.diag_embed(torch.where(live, prior, 1.0).movedim(1, -1))
    fit = (score * on_entries(value, cell)).sum(dim=1).clamp_min(1e-37)
    pull = cell_sums(score * (mass / fit)[:, None], cell, cells)
    total = cell_sums(mass, cell, cells)[:, None] + prior.sum(dim=1, keepdim=True)
    slope = torch.where(live, value * (total - pull) - prior, 0.0)
    step = -torch.linalg.solve_ex(curve, slope.movedim(1, -1)[..., None]).result.squeeze(-1)
    return moved(value, value * step.movedim(-1, 1))
