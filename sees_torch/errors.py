"""What the library raises and warns with; messages say what was expected, what came, what to do."""


class SeesError(ValueError):
    """Any input or configuration that the library refuses."""


class ShapeError(SeesError):
    """Arrays whose shapes do not fit each other."""


class SchemaError(SeesError):
    """Columns that are missing, doubled, of another kind, or cannot be coded."""


class SupportError(SeesError):
    """Samples that are empty, or share too little with each other to be compared."""


class IdentificationError(SeesError):
    """A question that the data cannot answer in the asked form."""


class SavedFileError(SeesError):
    """A file that cannot be written, or is cut off, altered, hostile, or of another version."""


class MemoryShortError(SeesError, MemoryError):
    """Memory that does not suffice, however small the parts that the work is done in."""


class SeesWarning(UserWarning):
    """Something was treated in a way that the reader of the result should know of."""


class SupportWarning(SeesWarning):
    """Target rows outside what the source ever showed."""


class ConvergenceWarning(SeesWarning):
    """A solver stopped before its stated tolerance."""
