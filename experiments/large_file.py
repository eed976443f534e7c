"""Memory and time of `sees estimate` on files that are larger than memory should be.

    python -m experiments.large_file --rows 10000000

Writes two Parquet files of a simulated shift (23 columns of three levels, the first one shifted
with the label), estimates with an interval in a process of its own, and prints its time, its
processor seconds and the peak of its memory (Linux).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS, TELLING, BATCH = 23, 8, 500_000


def batch(rows: int, tilt: float, rng: np.random.Generator) -> pd.DataFrame:
    """Rows whose first eight columns tell the label; the first one moves with it by `tilt`."""
    label = (rng.random(rows) < 0.4).astype(int)
    chance = np.array([[0.5, 0.3, 0.2], [0.25, 0.3, 0.45]])
    first = chance * np.exp(tilt * np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    laws = [first / first.sum(axis=1, keepdims=True)] + [chance] * (TELLING - 1)
    laws += [np.full((2, 3), 1 / 3)] * (COLUMNS - TELLING)
    columns = [
        (rng.random(rows)[:, None] > law.cumsum(axis=1)[label][:, :2]).sum(axis=1) for law in laws
    ]
    odds = np.log(2 / 3) + sum(np.log(chance[1] / chance[0])[c] for c in columns[:TELLING])
    frame = pd.DataFrame({f"x{j}": column.astype(np.int8) for j, column in enumerate(columns)})
    return frame.assign(y=label, p=1 / (1 + np.exp(-odds)))


def write(path: Path, rows: int, tilt: float, seed: int) -> None:
    """A Parquet file, a batch at a time."""
    rng, writer = np.random.default_rng(seed), None
    for first in range(0, rows, BATCH):
        table = pa.Table.from_pandas(batch(min(BATCH, rows - first), tilt, rng))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def main() -> None:
    """Write the files, estimate, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="of each file")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.parquet"), Path(folder, "target.parquet")
        write(source, rows, 0.0, seed=0)
        write(target, rows, 0.5, seed=1)
        command = [sys.executable, "-m", "sees_torch", "estimate", "--source", str(source)]
        command += ["--target", str(target), "--label", "y", "--proba", "p"]
        start = perf_counter()
        code = subprocess.run(command, check=False).returncode
        seconds = perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"exit code {code}; {seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} processor "
        f"seconds, peak of memory {used.ru_maxrss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()
