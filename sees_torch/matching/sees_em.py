"""SEES-em: table weights under the likelihood, one label shift in every cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sees_torch.data import Source, Target
from sees_torch.data.tables import Name
from sees_torch.errors import SchemaError, SeesError
from sees_torch.matching.batch import Batch
from sees_torch.matching.cells import CellWeights, chunks, fit_cells, fit_shares
from sees_torch.matching.match import Match, chosen_again, whole_number
from sees_torch.matching.parameters import Parameters
from sees_torch.matching.selection import MANY_ROWS, Evidence, Ratios, thinned
from sees_torch.solvers.solution import Status
from sees_torch.statistics.products import MEMORY
from sees_torch.statistics.subsets import Subsets, subsets_of
from sees_torch.weights import ConstantWeights, TableWeights, WeightFunction

CACHED = 2**25
"""Bytes of intermediate tensors beyond which larger batches are slower, not faster."""
SHRINKAGE = 10.0
"""Pseudo-rows of the prior while subsets are compared; chosen by evidence for the answer."""
CAUTIOUS_ROWS = 10.0
"""While subsets are compared, cells with few source rows of a class count for less: a hypothesis
that lives on them can fit a natural shift that is not sparse, and then errs by tens of points."""
SHRINKAGES = (3.0, 10.0, 30.0, 100.0)
LABEL_SHRINKAGE = 1e-3
"""Label shift has all rows to go by and nothing to shrink to."""


@dataclass(frozen=True)
class SEESem(Parameters):
    """Shift of the labels and of a few features, by maximum likelihood in every cell.

    Given the shifted features J, sparse joint shift is label shift inside every cell of X_J. The
    label shares of each cell maximise the likelihood of the target rows in it, with p(y|x)
    calibrated inside the cell and a Dirichlet prior that pulls cells with few rows to the overall
    label shift. Known target labels enter the likelihood.

    Args:
        sparsity: how many features shift with the label: a number, or "auto" to let the
            two-sample score decide between nothing, labels only, and 1, 2, ... features.
        features: the features that shift, by name, where they are known; then nothing is chosen.
        shrinkage: strength of the prior in rows, or "auto" for the best by that score.
        memory_budget: bytes that intermediate tensors may take, 256 MiB by default.
    """

    sparsity: int | Literal["auto"] = "auto"
    features: tuple[Name, ...] | None = None
    shrinkage: float | Literal["auto"] = "auto"
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        if self.sparsity != "auto":
            object.__setattr__(self, "sparsity", whole_number(self.sparsity, "sparsity"))
        if self.features is not None:
            if not isinstance(self.features, (tuple, list)):
                raise SeesError(f"features must be a list of column names, got {self.features!r}.")
            object.__setattr__(self, "features", tuple(self.features))
        number = isinstance(self.shrinkage, (int, float))
        if self.shrinkage != "auto" and not (number and 0 < self.shrinkage < float("inf")):
            raise SeesError(f"shrinkage must be 'auto' or positive rows, got {self.shrinkage!r}.")
        if self.memory_budget is not None and not self.memory_budget > 0:
            raise SeesError(f"memory_budget must be positive bytes, got {self.memory_budget!r}.")

    @property
    def name(self) -> str:
        return "sees-em"

    @property
    def memory(self) -> int:
        return self.memory_budget or MEMORY

    def quick(self) -> SEESem:
        """The same with a fixed prior: the efficient gap hardly depends on it."""
        return replace(self, shrinkage=SHRINKAGE) if self.shrinkage == "auto" else self

    def match(self, source: Source, target: Target) -> Match:
        """The chosen features and their weights."""
        if self.features is None:
            from sees_torch.matching.auto import choose_tables

            with torch.no_grad():
                found = choose_tables(self, source, target)
            return chosen_again(found, source, target)
        return self.fit(source, target, positions(source, self.features))

    def fit(self, source: Source, target: Target, members: tuple[int, ...]) -> Match:
        """The weights when the features at these positions shift."""
        batch = Batch.of(source, target)
        labels = label_weights(batch)
        if not members:
            function: WeightFunction = ConstantWeights(
                source.schema, source.classes, labels.weight[0, :, 0]
            )
            return Match(self.name, function, **_evidence(labels))
        subset = subsets_of([members], batch.sizes, batch.codes.device)
        shrinkage = self.shrinkage
        if shrinkage == "auto":
            with torch.no_grad():
                shrinkage = best_shrinkage(source, target, members)
        fitted = fit_cells(batch, subset, float(shrinkage), labels.weight[:, :, 0])
        return _table(source, batch, members, fitted, self.name)

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of all rows under many multiplicities, for the features that were matched."""
        batch = Batch.of(source, target, here, there)
        fitted = label_weights(batch)
        if match.features:
            subset = subsets_of([match.features], batch.sizes, batch.codes.device)
            shrinkage = SHRINKAGE if self.shrinkage == "auto" else float(self.shrinkage)
            fitted = fit_cells(batch, subset, shrinkage, fitted.weight[:, :, 0])
        return fitted.on_rows(batch)


@dataclass(frozen=True)
class CellShares:
    """Shift of a few features alone: everything else given them stayed, labels included.

    Args:
        features: the features, by name.
    """

    features: tuple[Name, ...]

    @property
    def name(self) -> str:
        return "cell-shares"

    def match(self, source: Source, target: Target) -> Match:
        """Weights p_t(a) / p_s(a), the same for every label."""
        members = positions(source, self.features)
        batch = Batch.of(source, target)
        subset = subsets_of([members], batch.sizes, batch.codes.device)
        fitted = fit_shares(batch, subset)
        found = _table(source, batch, members, fitted, self.name)
        # `dr` also allows for shifts of other features that leave p(y|x) alone.
        return replace(found, estimator="dr")

    def replicate(
        self, source: Source, target: Target, match: Match, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights of all rows under many multiplicities."""
        batch = Batch.of(source, target, here, there)
        subset = subsets_of([match.features], batch.sizes, batch.codes.device)
        return fit_shares(batch, subset).on_rows(batch)


def label_weights(batch: Batch) -> CellWeights:
    """Label shift: the subset without features, one cell."""
    nothing = subsets_of([()], batch.sizes, batch.codes.device)
    return fit_cells(batch, nothing, LABEL_SHRINKAGE)


def fitted_ratios(
    batch: Batch, subsets: Subsets, memory: int, fit: Callable[[Batch, Subsets], CellWeights]
) -> Ratios:
    """Of every subset, some at a time, as memory and the processor's cache allow.

    Args:
        batch: both samples.
        subsets: of features.
        memory: bytes.
        fit: to the batch, of some subsets.
    """
    n, found = len(batch.labels), []
    for chosen in chunks(batch, subsets, min(memory, CACHED)):
        fitted = fit(batch, chosen)
        ratio = fitted.ratio(batch)[0]
        found.append(Ratios.of(ratio[:, :n], ratio[:, n:], fitted.parameters[0]))
    return Ratios.together(found)


def best_shrinkage(source: Source, target: Target, members: tuple[int, ...]) -> float:
    """The strength of the prior with the best score, on part of very many rows."""
    source, target = thinned(source, MANY_ROWS), thinned(target, MANY_ROWS)
    batch = Batch.of(source, target)
    subset = subsets_of([members], batch.sizes, batch.codes.device)
    labels = label_weights(batch).weight[:, :, 0]

    def fit(strength: float) -> Callable[[Batch, Subsets], CellWeights]:
        return lambda part, chosen: fit_cells(part, chosen, strength, labels, CAUTIOUS_ROWS)

    ratios = [fitted_ratios(batch, subset, CACHED, fit(strength)) for strength in SHRINKAGES]
    return SHRINKAGES[int(Evidence.of(source, target, ratios).score().argmax())]


def positions(source: Source, features: tuple[Name, ...]) -> tuple[int, ...]:
    """Positions of named columns, ascending."""
    names = source.schema.names
    unknown = [name for name in features if name not in names]
    if unknown:
        raise SchemaError(f"source has no columns {unknown}; it has {names}.")
    return tuple(sorted({names.index(name) for name in features}))


def _table(
    source: Source, batch: Batch, members: tuple[int, ...], fitted: CellWeights, name: str
) -> Match:
    grid = torch.cartesian_prod(*(batch.levels[j] for j in members))
    visited = fitted.visited[0]
    function = TableWeights(
        source.schema,
        source.classes,
        members,
        grid.reshape(len(visited), len(members))[visited],
        fitted.weight[0].T[visited],
        fitted.fallback[0],
    )
    return Match(name, function, members, **_evidence(fitted))


def _evidence(fitted: CellWeights) -> dict[str, Any]:
    return {
        "residual": float(fitted.residual.max()),
        "status": Status.CONVERGED if fitted.converged else Status.MAX_STEPS,
        "unseen_mass": float(fitted.unseen.max()),
    }
