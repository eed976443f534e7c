"""Are the probability columns in the order of the classes? A swap turns every answer round."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sees_torch.data.samples import Source

FEW_ROWS = 10
"""Rows of a class below which nothing is said."""
SURE = 5.0
"""Standard errors by which every column in doubt must favour another class than its own."""


def doubt_about_order(source: Source) -> str:
    """A warning if the columns fit the labels far better in another order; else nothing.

    The column of a class should be largest among its own rows. Where each is largest among the
    rows of a class of its own, but not of the one it stands for, the order is suspect. A model that
    knows nothing, or misjudges how frequent classes are, raises no suspicion.
    """
    labels, proba = source.labels, source.proba.detach().to(torch.float64)
    member = one_hot(labels, len(source.classes)).to(proba) * source.count[:, None].to(proba)
    rows = member.sum(dim=0)
    if bool((rows < FEW_ROWS).any()):
        return ""
    mean = member.T @ proba / rows[:, None]
    order = (mean / mean.mean(dim=0).clamp_min(1e-37)).argmax(dim=0)
    place = torch.arange(len(order), device=order.device)
    moved = order != place
    if not bool(moved.any()) or len(torch.unique(order)) < len(order):
        return ""
    noise = (member.T @ proba.square() / rows[:, None] - mean.square()).clamp_min(0.0)
    noise = noise / rows[:, None]
    lead = mean[order, place] - mean[place, place]
    error = (noise[order, place] + noise[place, place]).sqrt()
    if not bool((lead > SURE * error)[moved].all()):
        return ""
    now, then = (_accuracy(source, proba, of) for of in (place, order))
    if then <= now:
        return ""
    names = [source.classes[k] for k in order.tolist()]
    return (
        f"the model is right on {now:.0%} of the source, and would be on {then:.0%} if its "
        f"probability columns stood for {names} in this order, not for {list(source.classes)}. "
        "If they do, give `classes` (--classes) in their order."
    )


def _accuracy(source: Source, proba: Tensor, order: Tensor) -> float:
    """Share of the rows whose largest column stands for their label."""
    return float(source.mean((order[proba.argmax(dim=1)] == source.labels).to(torch.float64)))
