"""Rows that agree in everything become one row with a count: cost follows the distinct rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sees_torch.data.counting import Groups, group_keys, group_rows, hash_columns
from sees_torch.data.schema import Rows, Schema

_WORD = 2**62


def equal_rows(schema: Schema, rows: Rows, labels: Tensor, proba: Tensor) -> Groups:
    """Groups of rows that agree in codes, values, label and probabilities.

    Groups come in an order that depends on their content only.
    """
    codes = [labels + 1, *rows.codes.T]
    sizes = [int(labels.max()) + 2, *schema.cardinalities]
    # The last probability follows from the others.
    columns = [*_packed(codes, sizes), *proba.T[:-1]]
    for j, continuous in enumerate(schema.continuous):
        if continuous:
            columns += [rows.values[:, j], rows.clamped[:, j]]
    groups = group_keys(hash_columns(columns))
    first = groups.first[groups.of_row]
    copies = (first != torch.arange(len(rows), device=first.device)).nonzero().squeeze(1)
    for column in columns:
        if not torch.equal(column[first[copies]], column[copies]):
            # Two different rows with one hash: as good as never, and never silently.
            return group_rows(rows.codes[:, :0], [], columns)
    return groups


def _packed(codes: Sequence[Tensor], sizes: Sequence[int]) -> Iterator[Tensor]:
    """(n,) codes packed by mixed radix into as few int64 words as hold them."""
    word, radix = codes[0], sizes[0]
    for column, size in zip(codes[1:], sizes[1:], strict=True):
        if radix * size >= _WORD:
            yield word
            word, radix = torch.zeros_like(word), 1
        word = torch.add(column, word, alpha=size)
        radix *= size
    yield word
