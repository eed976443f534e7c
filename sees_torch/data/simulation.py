"""A synthetic world under sparse joint shift, with a known answer."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sees_torch.data.pairs import ShiftedPair
from sees_torch.errors import SeesError

if TYPE_CHECKING:
    import pandas as pd

ENUMERABLE = 200_000
"""Worlds with at most so many feature rows get their population gap by enumeration."""


def make_sparse_joint_shift(
    n: int = 5000,
    m: int = 5000,
    *,
    features: int = 8,
    levels: int | Sequence[int] = 3,
    classes: int = 2,
    shifted: int | Sequence[int] = 1,
    strength: float = 1.0,
    with_labels: bool = True,
    quality: float = 1.0,
    exact: bool = False,
    generator: torch.Generator | None = None,
) -> ShiftedPair:
    """A source and a target of a synthetic world under sparse joint shift.

    Features x0, x1, ... are discrete and independent given the label. The target law of the
    shifted features and the label is the source law times exp(strength * noise), everything else
    given them is unchanged.

    Args:
        n, m: rows of source and target.
        features: number of features d.
        levels: levels per feature, one number or one per feature.
        classes: number of labels L.
        shifted: which features shift, by position, or how many (then the first ones).
        strength: 0 is no shift; at 1 the log-weights have standard deviation 1.
        with_labels: the shifted features move together with the label; False moves them alone,
            whatever the label.
        quality: how much the classifier knows: its log-odds are the Bayes classifier's times this.
        exact: no sampling: every row that can occur, with its probability as multiplicity.
        generator: source of randomness, of the world and of the draw; by default a fixed one.
    """
    generator = generator or torch.Generator().manual_seed(0)
    sizes = [levels] * features if isinstance(levels, int) else list(levels)
    members = list(range(shifted)) if isinstance(shifted, int) else list(shifted)
    if len(sizes) != features or min(sizes) < 1 or classes < 2 or n < 1 or m < 1:
        raise SeesError("need one level count per feature, all >= 1, two classes and some rows.")
    if len(set(members)) != len(members) or any(not 0 <= j < features for j in members):
        raise SeesError(f"shifted must name different positions 0 to {features - 1}: {members}.")
    tilt = classes if with_labels else 1
    world = _World.draw(sizes, classes, members, strength, tilt, quality, generator)
    gap, everything = world.population_gap(generator)
    if exact:
        if everything is None:
            raise SeesError(f"exact=True needs at most {ENUMERABLE} different rows.")
        rows, joint = everything
        labels = torch.arange(classes).repeat(len(rows))
        each = rows.repeat_interleave(classes, dim=0)
        shifted_joint = joint * world.row_weights(rows)
        return replace(
            world.pair(each, labels, each, labels, gap),
            source_weight=joint.flatten().numpy(),
            target_weight=shifted_joint.flatten().numpy(),
        )
    source_rows, source_labels = world.sample(n, world.source_law, generator)
    target_rows, target_labels = world.sample(m, world.target_law, generator)
    return world.pair(source_rows, source_labels, target_rows, target_labels, gap)


@dataclass(frozen=True)
class _World:
    """p_s(y), p_s(x_i | y) and the two laws of (shifted features, label) as tables."""

    sizes: list[int]
    members: list[int]
    prior: Tensor
    given_label: list[Tensor]
    source_law: Tensor
    target_law: Tensor
    quality: float

    @classmethod
    def draw(
        cls,
        sizes: list[int],
        classes: int,
        members: list[int],
        strength: float,
        tilt: int,
        quality: float,
        generator: torch.Generator,
    ) -> _World:
        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        prior = (0.3 * noise(classes)).softmax(0)
        given = [(noise(classes, size)).softmax(1) for size in sizes]
        law = prior
        for j in members:
            # (cells so far, L) times p(x_j | y), the new feature varying fastest.
            law = (law.reshape(-1, 1, classes) * given[j].T).reshape(-1, classes)
        law = law.reshape(-1, classes)
        tilted = law * (strength * noise(len(law), tilt)).exp()
        return cls(sizes, members, prior, given, law, tilted / tilted.sum(), quality)

    def posterior(self, rows: Tensor) -> Tensor:
        """(n, L) the classifier: the source's Bayes rule, sharpened or blunted by quality."""
        return (self.quality * self._log_joint(rows)).softmax(dim=1)

    def _log_joint(self, rows: Tensor) -> Tensor:
        logs = self.prior.log().expand(len(rows), -1)
        for j, table in enumerate(self.given_label):
            logs = logs + table.log()[:, rows[:, j]].T
        return logs

    def cell(self, rows: Tensor) -> Tensor:
        index = torch.zeros(len(rows), dtype=torch.int64)
        for j in self.members:
            index = index * self.sizes[j] + rows[:, j]
        return index

    def row_weights(self, rows: Tensor) -> Tensor:
        """(n, L) p_t / p_s of rows under every label."""
        return (self.target_law / self.source_law)[self.cell(rows)]

    def sample(self, count: int, law: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        flat = torch.multinomial(law.flatten(), count, replacement=True, generator=generator)
        classes = law.shape[1]
        cell, labels = flat // classes, flat % classes
        rows = torch.zeros(count, len(self.sizes), dtype=torch.int64)
        for j in reversed(self.members):
            rows[:, j] = cell % self.sizes[j]
            cell = cell // self.sizes[j]
        for j, table in enumerate(self.given_label):
            if j not in self.members:
                # Inverse distribution function; its last step is left out against rounding.
                step = table.cumsum(dim=1)[:, :-1][labels]
                level = torch.rand(count, 1, generator=generator, dtype=table.dtype)
                rows[:, j] = (level > step).sum(dim=1)
        return rows, labels

    def population_gap(
        self, generator: torch.Generator
    ) -> tuple[float, tuple[Tensor, Tensor] | None]:
        """The gap, and every row with its joint law (U, L) when they can be enumerated.

        Otherwise the gap is the mean over 2^18 rows of the source weighted by w - 1, all labels
        of a row at once; its standard error is about 0.1 to 0.2 points.
        """
        everything = None
        if math.prod(self.sizes) <= ENUMERABLE:
            rows = torch.cartesian_prod(*(torch.arange(size) for size in self.sizes))
            rows = rows.reshape(-1, len(self.sizes))
            joint = self._log_joint(rows).exp()
            everything = (rows, joint)
        else:
            rows, _ = self.sample(2**18, self.source_law, generator)
            joint = self._log_joint(rows).softmax(dim=1) / len(rows)
        right = torch.nn.functional.one_hot(self.posterior(rows).argmax(1), joint.shape[1])
        return float((joint * (self.row_weights(rows) - 1) * right).sum()), everything

    def frame(self, rows: Tensor) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(rows.numpy(), columns=[f"x{j}" for j in range(len(self.sizes))])

    def table(self) -> dict[tuple[Hashable, ...], float]:
        ratio = self.target_law / self.source_law
        shape = tuple(self.sizes[j] for j in self.members)
        return {
            (*(int(code) for code in np.unravel_index(cell, shape)), label): float(
                ratio[cell, label]
            )
            for cell in range(len(ratio))
            for label in range(ratio.shape[1])
        }

    def pair(
        self, rows: Tensor, labels: Tensor, target_rows: Tensor, target_labels: Tensor, gap: float
    ) -> ShiftedPair:
        weights = self.row_weights(rows).gather(1, labels[:, None]).squeeze(1)
        return ShiftedPair(
            source=self.frame(rows),
            labels=labels.numpy(),
            source_proba=self.posterior(rows).numpy(),
            target=self.frame(target_rows),
            target_proba=self.posterior(target_rows).numpy(),
            target_labels=target_labels.numpy(),
            classes=tuple(range(len(self.prior))),
            features=tuple(f"x{j}" for j in self.members),
            weight_table=self.table(),
            weights=weights.numpy(),
            population_gap=gap,
        )
