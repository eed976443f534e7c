"""p(y|x) from the model's probabilities, calibrated on the labelled source and cross-fitted.

Vector scaling, p proportional to exp(a_y log p_y + b_y), for up to MANY classes, one common
temperature beyond. Parameters are pulled to the identity by a few pseudo-observations, so little
data means little change. Where the features say clearly more about the label than any function of
the probabilities does, they refine it (`sees_torch.refinement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.counting import deal, group_rows
from sees_torch.data.schema import Rows
from sees_torch.refinement import Refinement
from sees_torch.solvers.implicit import moved, wants_graph

Form = Literal["vector", "temperature"]
MANY = 10
FOLDS = 5
PSEUDO_ROWS = 10.0
FLOOR = 1e-6
"""Probabilities are floored here before their logarithm is taken."""
HALVINGS = 30
"""Of a Newton step that does not descend, before it is given up."""


@dataclass(frozen=True)
class Calibration:
    """Calibration models, one per fold, each fitted without its fold.

    Attributes:
        models: (K, L, I) parameters.
        share: (n, K) share of the source rows in each fold.
        refinement: what the features add; None where they add nothing.
    """

    models: Tensor
    share: Tensor
    refinement: Refinement | None = None

    @classmethod
    def fit(cls, source: Source, form: Form | None = None) -> Calibration:
        """Fit to a labelled sample.

        Args:
            source: the sample.
            form: "vector" or "temperature", and nothing more; by default the first for up to MANY
                classes, refined by the features where that pays, and the second beyond.
        """
        share = fold_shares(source)
        tied = form == "temperature" or (form is None and len(source.classes) > MANY)
        folds = _Folds.of(source, share, tied)
        with torch.no_grad():
            step = _minimum(folds)
        if wants_graph(source.proba):  # The minimum moves with the probabilities; folds stay.
            p = folds.fitted(step)
            slope = folds.slope(step, p)
            curve = folds.curve(p).detach()
            step = moved(step, -torch.linalg.solve(curve, slope[..., None]).squeeze(-1))
        found = cls(folds.models(step), share)
        if form is not None or tied:
            return found
        with torch.no_grad():
            proba = _apply(found.models, source.proba)
            found = replace(found, refinement=Refinement.fit(source, share, proba))
        return found._following(source) if wants_graph(source.proba) else found

    def source(self, source: Source) -> Source:
        """The same rows with a posterior from models that were fitted without them."""
        per_fold = self._per_fold(source.proba, source.rows)
        return source.with_posterior(torch.einsum("nk,knl->nl", self.share, per_fold))

    def target(self, target: Target) -> Target:
        """Other rows with the mean posterior of all models."""
        return target.with_posterior(self.posterior(target.proba, target.rows))

    def posterior(self, proba: Tensor, rows: Rows) -> Tensor:
        """(n, L) mean over the models of what they make of probabilities (n, L) and rows."""
        return self._per_fold(proba, rows).mean(dim=0)

    def leaves(self, source: Source) -> tuple[Calibration, tuple[Tensor, ...]]:
        """The same with parameters that a gradient can be taken in, and these."""
        models = self.models.detach().requires_grad_()
        free = replace(self, models=models)._following(source)
        if free.refinement is None:
            return free, (models,)
        table = torch.zeros_like(free.refinement.table).requires_grad_()
        added = replace(free.refinement, table=free.refinement.table + table)
        return replace(free, refinement=added), (models, table)

    def influence(self, source: Source, slopes: Sequence[Tensor]) -> Tensor:
        """(n,) what one more copy of each source row adds to a figure through the calibration.

        The copy takes every model that is fitted to it one Newton step further.

        Args:
            source: the sample that was fitted.
            slopes: gradient of the figure in the leaves.
        """
        slope, *further = slopes
        folds = _Folds.of(source, self.share, tied=self.models.shape[-1] == 1)
        p = _apply(self.models, source.proba)
        towards = torch.linalg.solve(folds.curve(p), (slope.flatten(1) @ folds.lift)[..., None])
        along = (towards.squeeze(-1) @ folds.lift.T).reshape(slope.shape)
        pull = torch.einsum("knl,nli,kli->nk", p - folds.truth(p), folds.design, along)
        total = source.count @ (1 - self.share)
        found = -(pull * (1 - self.share) / total).sum(dim=1)
        if self.refinement is None:
            return found
        return found + self.refinement.influence(source, self.share, p, *further)

    def _following(self, source: Source) -> Calibration:
        """The same, with the refinement's gradient in the models and probabilities."""
        if self.refinement is None:
            return self
        proba = _apply(self.models, source.proba)
        return replace(self, refinement=self.refinement.following(source, self.share, proba))

    def _per_fold(self, proba: Tensor, rows: Rows) -> Tensor:
        """(K, n, L) probabilities under each model."""
        p = _apply(self.models, proba)
        if self.refinement is None:
            return p
        return self.refinement.probabilities(p, rows)


def fold_shares(source: Source) -> Tensor:
    """(n, K) share of every row's mass in each fold.

    Rows are put in an order that depends on their probabilities only and dealt out in turn, a row
    of multiplicity c like c equal rows. So folds are balanced in the score, and neither the order
    of rows, their merging nor the order of classes changes them.
    """
    proba = source.proba.detach()
    groups = group_rows(source.labels[:, None], [len(source.classes)], list(proba.unbind(dim=1)))
    own = proba.gather(1, source.labels[:, None]).squeeze(1)[groups.first]
    spread = proba.square().sum(dim=1)[groups.first]
    # Rounded, since the same numbers summed in another order of classes differ in the last bit.
    alike = group_rows(
        torch.zeros(len(groups), 0, dtype=torch.int64, device=own.device),
        [],
        [own, (spread * 2**40).round()],
    )
    # Groups that only the order of classes could tell apart are dealt together.
    return deal(alike.sum(groups.sum(source.count)), FOLDS)[alike.of_row][groups.of_row]


def _design(proba: Tensor, tied: bool) -> Tensor:
    """(n, L, I) inputs of every class's score."""
    logs = proba.clamp_min(FLOOR).log()
    if tied:
        return logs[..., None]
    return torch.stack([logs, torch.ones_like(logs)], dim=-1)


def _scores(design: Tensor, models: Tensor) -> Tensor:
    return torch.einsum("nli,kli->knl", design, models)


def _apply(models: Tensor, proba: Tensor) -> Tensor:
    """(K, n, L) probabilities under each of the K models, (K, L, I)."""
    return _scores(_design(proba, models.shape[-1] == 1), models).softmax(dim=-1)


@dataclass(frozen=True)
class _Folds:
    """The logistic regressions of all folds, in steps (K, P) away from the identity.

    Attributes:
        design: (n, L, I) inputs; labels: (n,).
        mass: (K, n) rows that each model is fitted to, summing to one.
        ridge: (K, 1) pull to the identity.
        lift: (L I, P) parameters from steps; tied ones are one vector repeated over the classes.
    """

    design: Tensor
    labels: Tensor
    mass: Tensor
    ridge: Tensor
    lift: Tensor

    @classmethod
    def of(cls, source: Source, share: Tensor, tied: bool) -> _Folds:
        design = _design(source.proba, tied)
        _, n_classes, inputs = design.shape
        mass = (source.count[:, None] * (1 - share)).T
        total = mass.sum(dim=1, keepdim=True)
        # The floor keeps directions that no data determine solvable, however many rows there are.
        ridge = (PSEUDO_ROWS / total).clamp_min(1e-10)
        free = inputs if tied else n_classes * inputs
        lift = torch.eye(free, dtype=design.dtype, device=design.device)
        lift = lift.repeat(n_classes, 1) if tied else lift
        return cls(design, source.labels, mass / total, ridge, lift)

    def models(self, step: Tensor) -> Tensor:
        """(K, L, I) parameters."""
        _, n_classes, inputs = self.design.shape
        identity = self.design.new_zeros(n_classes, inputs)
        identity[:, 0] = 1.0
        return identity + (step @ self.lift.T).reshape(len(step), n_classes, inputs)

    def equal(self, step: Tensor) -> Tensor:
        """(K, P) steps to models that make all classes equally likely."""
        inputs = self.design.shape[2]
        to_zero = step.new_zeros(step.shape[1])
        to_zero[::inputs] = -1.0
        return to_zero.expand_as(step)

    def loss(self, step: Tensor) -> Tensor:
        """(K,) what the steps minimise."""
        logs = _scores(self.design, self.models(step)).log_softmax(dim=-1)
        own = logs.gather(-1, self.labels.expand(len(step), -1)[..., None]).squeeze(-1)
        pull = self.ridge.squeeze(1) / 2 * step.square().sum(dim=1)
        return -(self.mass * own).sum(dim=1) + pull

    def fitted(self, step: Tensor) -> Tensor:
        """(K, n, L) probabilities."""
        return _scores(self.design, self.models(step)).softmax(dim=-1)

    def truth(self, p: Tensor) -> Tensor:
        """(n, L) what the probabilities p should be."""
        return torch.nn.functional.one_hot(self.labels, p.shape[-1]).to(p.dtype)

    def slope(self, step: Tensor, p: Tensor) -> Tensor:
        """(K, P) gradient of the loss, where the fitted probabilities are p."""
        slope = torch.einsum("kn,knl,nli->kli", self.mass, p - self.truth(p), self.design)
        return slope.flatten(1) @ self.lift + self.ridge * step

    def curve(self, p: Tensor) -> Tensor:
        """(K, P, P) its curvature."""
        spread = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
        curve = torch.einsum("kn,knlm,nli,nmj->klimj", self.mass, spread, self.design, self.design)
        size = len(self.lift)
        curve = self.lift.T @ curve.reshape(len(p), size, size) @ self.lift
        eye = torch.eye(curve.shape[-1], dtype=curve.dtype, device=curve.device)
        return curve + self.ridge[..., None] * eye


def _minimum(folds: _Folds, *, steps: int = 50) -> Tensor:
    """(K, P) the minimisers, by damped Newton steps.

    From the identity, or from equal probabilities where these fit better: rows that are certain and
    wrong have a slope and no curvature, and no Newton step leads away from them.
    """
    step = folds.design.new_zeros(len(folds.mass), folds.lift.shape[1])
    equal = folds.equal(step)
    step = torch.where((folds.loss(equal) < folds.loss(step))[:, None], equal, step)
    for _ in range(steps):
        p = folds.fitted(step)
        slope = folds.slope(step, p)
        move = torch.linalg.solve(folds.curve(p), slope[..., None]).squeeze(-1)
        length = torch.ones_like(folds.ridge)
        now = folds.loss(step)
        for _ in range(HALVINGS):
            worse = (folds.loss(step - length * move) > now + 1e-14)[:, None]
            length = torch.where(worse, length / 2, length)
            if not bool(worse.any()):
                break
        step = torch.where(worse, step, step - length * move)
        if float((slope * move).sum(dim=1).max()) < 1e-14:
            break
    return step
