"""What the user hands in, as validated tensors."""

from sees_torch.data.columns import Column
from sees_torch.data.samples import Source, Target
from sees_torch.data.schema import Rows, Schema

__all__ = ["Column", "Rows", "Schema", "Source", "Target"]
