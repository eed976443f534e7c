"""Rows that agree in everything become one row with a count: cost follows the distinct rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sees_torch.data.counting import Groups, group_keys, group_rows, hash_columns
from sees_torch.data.schema import Rows, Schema

_WORD = 2**62


def equal_rows(schema: Schema, rows: Rows, labels: Tensor, proba: Tensor) -> Groups:
    """Groups of rows that agree in codes, values, label and probabilities.

    Groups come in an order that depends on their content only.
    """
    words, radix = _packed(rows.codes, schema.cardinalities, labels)
    # The last probability follows from the others.
    others = [*proba.T[:-1]]
    for j, continuous in enumerate(schema.continuous):
        if continuous:
            others += [rows.values[:, j], rows.clamped[:, j]]
    columns = [*words, *others]
    if len(words) == 1 and radix <= len(rows):
        # Codes and label mostly determine the rest, and few of them are counted without sorting.
        groups = group_keys(words[0], radix)
        if _agree(groups, others):
            order = hash_columns([column[groups.first] for column in columns]).argsort()
            place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)).to(order))
            return Groups(place[groups.of_row], groups.first[order])
    groups = group_keys(hash_columns(columns))
    if _agree(groups, columns):
        return groups
    # Two different rows with one hash: as good as never, and never silently.
    return group_rows(rows.codes[:, :0], [], columns)


def _agree(groups: Groups, columns: Sequence[Tensor]) -> bool:
    """Every row agrees with the first of its group."""
    if len(groups) == len(groups.of_row):
        return True
    return all(torch.equal(column[groups.first][groups.of_row], column) for column in columns)


def _packed(codes: Tensor, sizes: Sequence[int], labels: Tensor) -> tuple[list[Tensor], int]:
    """Codes and label packed by mixed radix into as few int64 words as hold them.

    Returns:
        The words, (n,) each, and a bound of the first.
    """
    first_size = int(labels.max()) + 2
    words: list[Tensor] = []
    start, bound = 0, 0
    while start < len(sizes) or not words:
        radix = first_size if not words else 1
        strides = []
        for size in sizes[start:]:
            if radix * size >= _WORD:
                break
            strides.append(radix)
            radix *= size
        stop = start + len(strides)
        word = codes[:, start:stop].to(torch.int64) @ torch.tensor(strides, device=codes.device)
        words.append(word if words else word + labels + 1)
        bound, start = bound or radix, stop
    return words, bound
