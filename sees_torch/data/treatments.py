"""What was done to target values that the source never showed, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sees_torch.data.samples import Source, Target


def treatments(target: Target, source: Source) -> tuple[str, ...]:
    """A sentence for every column with unknown levels, gaps or clamped values."""
    notes = []
    columns = target.schema.columns
    seen = torch.tensor([column.seen_codes for column in columns], device=target.count.device)
    odd = target.rows.codes.amax(dim=0) >= seen
    odd |= torch.tensor(target.schema.continuous, device=odd.device) | (seen == 0)
    for j in odd.nonzero().squeeze(1).tolist():
        column, codes = columns[j], target.rows.codes[:, j]
        unseen = float(target.mass[codes == column.unseen].sum())
        if unseen > 0:
            notes.append(
                f"{column.name}: {unseen:.2%} of the target has levels unknown to the source"
            )
        missing = float(target.mass[codes == column.missing].sum())
        if missing > 0 and not float(source.mass[source.rows.codes[:, j] == column.missing].sum()):
            notes.append(
                f"{column.name}: {missing:.2%} of the target is missing, nothing in the source is"
            )
        clamped = float(target.mass[target.rows.clamped[:, j]].sum())
        if clamped > 0:
            notes.append(
                f"{column.name}: {clamped:.2%} of the target lies outside "
                f"{column.show(column.low)} to {column.show(column.high)} and was clamped to it"
            )
        if column.seen_codes == 0:
            notes.append(f"{column.name}: empty in the source, so it cannot explain a shift")
    return tuple(notes)
