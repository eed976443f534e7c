"""Sums over the rows of a likelihood, in few passes and bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 2**19
"""Numbers in a temporary of a Gram matrix: what stays in cache."""


@dataclass(frozen=True)
class Mixture:
    """z, the rows of the likelihood, as products  z_{kl} = phi_k p_l  that are never written out.

    Attributes:
        phi: (K, U) >= 0; rows come last, which is the faster order for few problems.
        share: (L, U) p >= 0.
        kept: (P,) positions k L + l of the entries that are used.
    """

    phi: Tensor
    share: Tensor
    kept: Tensor

    @classmethod
    def plain(cls, z: Tensor) -> Mixture:
        """The rows (U, P) themselves."""
        every = torch.arange(z.shape[1], device=z.device)
        return cls(z.T.contiguous(), torch.ones_like(z[:, 0])[None], every)

    @property
    def _direct(self) -> bool:
        """Entries are those of phi themselves, one label and all of them used."""
        return len(self.share) == 1 and len(self.kept) == len(self.phi)

    @property
    def cost(self) -> int:
        """Multiplications for one Gram matrix, about."""
        labels, (functions, rows) = len(self.share), self.phi.shape
        return labels * (labels + 1) // 2 * functions**2 * rows

    def fit(self, entries: Tensor) -> Tensor:
        """(B, U) r = z . a."""
        labels, functions = len(self.share), len(self.phi)
        if self._direct:
            return (entries @ self.phi) * self.share
        table = entries.new_zeros(len(entries), functions * labels)
        table[:, self.kept] = entries
        scores = table.reshape(-1, functions, labels).mT.reshape(-1, functions) @ self.phi
        return (scores.reshape(len(entries), labels, -1) * self.share).sum(dim=1)

    def moments(self, mass: Tensor) -> Tensor:
        """(B, P) sum_u mass_u z_u for masses (B, U)."""
        if self._direct:
            return (mass * self.share) @ self.phi.T
        sums = (mass[:, None] * self.share).flatten(0, 1) @ self.phi.T
        return sums.reshape(len(mass), len(self.share), -1).mT.flatten(1)[:, self.kept]

    def gram(self, mass: Tensor) -> Tensor:
        """(B, P, P) sum_u mass_u z_u z_u', a block per pair of labels."""
        labels, functions = len(self.share), len(self.phi)
        first, second = torch.triu_indices(labels, labels, device=mass.device)
        pairs = mass[:, None] * self.share[first] * self.share[second]
        blocks = weighted_gram(self.phi, pairs.flatten(0, 1))
        place = torch.empty(labels, labels, dtype=torch.int64, device=mass.device)
        place[first, second] = place[second, first] = torch.arange(len(first), device=mass.device)
        blocks = blocks.reshape(len(mass), len(first), functions, functions)[:, place]
        matrix = blocks.permute(0, 3, 1, 4, 2).reshape(len(mass), functions * labels, -1)
        return matrix[:, self.kept[:, None], self.kept]


def weighted_gram(columns: Tensor, mass: Tensor) -> Tensor:
    """(B, K, K) sum_u mass_u x_u x_u' of columns (K, U) under masses (B, U), in bounded memory."""
    members, width = len(mass), len(columns)
    total = columns.new_zeros(members * width, width)
    step = max(CHUNK // len(total), 256)
    for at in range(0, mass.shape[1], step):
        part = columns[:, at : at + step]
        total.addmm_((mass[:, None, at : at + step] * part).flatten(0, 1), part.T)
    return total.reshape(members, width, width)
