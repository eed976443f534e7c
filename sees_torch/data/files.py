"""Tables on disk, read in batches: CSV, Parquet and JSON lines."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sees_torch.errors import SchemaError, SeesError

if TYPE_CHECKING:
    import pandas as pd

ROWS = 65_536
"""Rows of a batch."""
PARQUET = (".parquet", ".pq")
JSON_LINES = (".jsonl", ".ndjson")
NUMBER = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
"""A number with decimals names no column."""
PACKED = (".gz", ".bz2", ".zip", ".xz", ".zst")


def missing_column(name: str, columns: Sequence[Any]) -> str:
    """What may be wrong when a table with these columns lacks one: a sentence, or nothing."""
    words = [str(column) for column in columns]
    if len(words) == 1:
        for mark in (";", "\t", "|"):
            if mark in words[0]:
                typed = "tab" if mark == "\t" else f"'{mark}'"
                return (
                    f" Its columns seem to be separated by {mark!r}: pass separator={mark!r}, "
                    f"on the command line --separator {typed}."
                )
    if any(NUMBER.fullmatch(word) for word in words):
        return " The first line looks like data: add a line with the names of the columns."
    near = get_close_matches(name.strip("*?"), words, 3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


class TableFile:
    """Batches (features, labels, proba) of a file, or (features, proba) without a label column.

    Args:
        path: a CSV file (compressed or not), Parquet, or JSON lines.
        proba: probability columns: one per class, or one for the second of two classes; none
            leaves the probabilities out, for a model.
        label: label column; leave it out for a target.
        drop: columns to ignore, such as identifiers.
        rows: rows of a batch.
        separator: of the columns of a CSV file.
        shard: (k, N): the k-th of N processes reads every N-th batch.

    It can be read again and again: `Source.from_batches(TableFile("s.parquet", ["p"], "y"))`.
    """

    def __init__(
        self,
        path: str | Path,
        proba: Sequence[str],
        label: str | None = None,
        *,
        drop: Sequence[str] = (),
        rows: int = ROWS,
        separator: str = ",",
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.path, self.label, self.rows, self.shard = Path(path), label, rows, shard
        self.proba, self.drop, self.separator = list(proba), list(drop), separator
        if not 0 <= shard[0] < shard[1]:
            raise SeesError(f"shard must be (k, N) with 0 <= k < N, got {shard}.")
        self._text: list[str] | None = []
        if not self.path.exists():
            raise SeesError(f"there is no file {self.path}.")
        if self.path.is_file() and not self.path.stat().st_size:
            raise SeesError(
                f"{self.path} cannot be read as a table: the file is empty. Export it again."
            )
        first = next(self._frames(1), None)
        if first is None:
            raise SeesError(f"{self.path} is empty.")
        self.columns, self._text = list(first.columns), None
        for name in [*([] if label is None else [label]), *self.proba]:
            if name not in self.columns:
                raise SchemaError(
                    f"{self.path} has no column {name!r}; it has {self.columns}."
                    + missing_column(name, self.columns)
                )

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        place, of = self.shard
        aside = [name for name in (self.label, *self.proba, *self.drop) if name in self.columns]
        for number, frame in enumerate(self._frames(self.rows)):
            if number % of != place or frame.empty:
                continue
            single = len(self.proba) == 1
            proba = frame[self.proba[0]] if single else frame[self.proba].to_numpy()
            labels = () if self.label is None else (frame[self.label],)
            yield (frame.drop(columns=aside), *labels, *([proba] if self.proba else []))

    def _frames(self, rows: int) -> Iterator[pd.DataFrame]:
        """The table in parts, every column of one type throughout; at least one part."""
        suffixes = [suffix.lower() for suffix in self.path.suffixes] or [""]
        packed = suffixes[-1] in PACKED and len(suffixes) > 1
        suffix = suffixes[-2] if packed else suffixes[-1]
        try:
            if suffix in PARQUET:
                yield from self._parquet(rows)
                return
            if suffix not in JSON_LINES and self._text is None:
                self._text = self._mixed_columns(rows)
            yield from self._text_frames(rows, lines=suffix in JSON_LINES)
        except ImportError:
            raise SeesError("Parquet needs pyarrow: install sees-torch[cli].") from None
        except SeesError:
            raise
        # pandas and pyarrow raise kinds of ValueError, cut off archives the other two.
        except (ValueError, OSError, EOFError, zlib.error) as error:
            what = str(error).rstrip(".\n")
            raise SeesError(
                f"{self.path} cannot be read as a table: {what}. Check its separator and quotes, "
                "or export it again."
            ) from None

    def _parquet(self, rows: int) -> Iterator[pd.DataFrame]:
        from pyarrow import parquet

        with parquet.ParquetFile(self.path) as file:
            empty = True
            for batch in file.iter_batches(batch_size=rows):
                empty = False
                yield batch.to_pandas()
            if empty:
                yield file.schema_arrow.empty_table().to_pandas()

    def _text_frames(self, rows: int, lines: bool = False) -> Iterator[pd.DataFrame]:
        import pandas as pd

        if lines:
            # Types are those of the file: guessed from each part they would depend on its cut.
            options: Any = {"dtype": False, "precise_float": True, "chunksize": rows}
            with pd.read_json(self.path, lines=True, **options) as parts:
                yield from parts
            return
        as_text = dict.fromkeys(self._text or [], str)
        # A part is read as a whole, so that its types do not depend on where it is cut.
        with pd.read_csv(
            self.path, sep=self.separator, chunksize=rows, dtype=as_text, low_memory=False
        ) as parts:
            for frame in parts:
                yield frame.reset_index(drop=True)

    def _mixed_columns(self, rows: int) -> list[str]:
        """Columns that hold numbers, flags or text, by part: they are text."""
        from pandas.api.types import infer_dtype

        kinds: dict[str, set[str]] = {}
        for frame in self._text_frames(rows):
            if len(frame) < rows and not kinds:
                return []
            for name in frame.columns:
                kind = infer_dtype(frame[name], skipna=True)
                if kind != "empty" and not frame[name].isna().all():
                    number = kind in ("integer", "floating", "mixed-integer-float")
                    kinds.setdefault(name, set()).add("number" if number else kind)
        return [name for name, found in kinds.items() if len(found) > 1]
