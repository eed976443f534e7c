"""What the user hands in, as validated tensors."""

from sees_torch.data.samples import Source, Target
from sees_torch.data.schema import Column, Rows, Schema

__all__ = ["Column", "Rows", "Schema", "Source", "Target"]
