"""Its presence puts tests/ on the import path, so that tests can say `from worlds import ...`."""
