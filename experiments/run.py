"""A run, a sweep, or a table or figure of the paper; every choice is a file of conf/.

    python -m experiments.run data=credit data.folder=FOLDER method=sees_d sparsity=1 seed=3
    python -m experiments.run -m method=sees_d sparsity=0,1,2,3 seed='range(20)'
    python -m experiments.run -m method=sees_c eta=1e-3,1e-2 hydra/launcher=joblib
    python -m experiments.run experiment=sample_size size=small

Runs are saved as they finish; the same command goes on where an interrupted one stopped (exit code
130 after Ctrl-C).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

import hydra
import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig

from experiments import collect, interrupts, methods, records
from experiments.measure import Tables
from sees_torch import SeesError

LOG = logging.getLogger("experiments.run")
CONF = Path(__file__).resolve().parent.parent / "conf"
INTERRUPTED = 130


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> None:
    """One run, unless it was finished before."""
    torch.set_num_threads(config.threads)
    try:
        _run(config)
    except SeesError as error:
        raise SystemExit(f"error: {error}") from None


def _run(config: DictConfig) -> None:
    """Measure the methods that were not measured on this draw before, and save a run of each."""
    interrupts.check()
    runs = Path(config.out) / records.RUNS
    parts = methods.apart(config)
    names = {method: records.key(part) for method, part in parts.items()}
    missing = [
        method
        for method, name in names.items()
        if method in config.again or not (runs / f"{name}.json").exists()
    ]
    if missing:
        start = perf_counter()
        chosen = {method: parts[method].method[method] for method in missing}
        tables = get_method(config.task)(methods.with_methods(config, chosen))
        seconds = perf_counter() - start
        for method in missing:
            records.write(runs, names[method], parts[method], _of(tables, method), seconds)
    hydra_config = HydraConfig.get()
    sweep = hydra_config.mode == RunMode.MULTIRUN
    LOG.info(
        "%s measured %s; finished before: %s",
        f"#{hydra_config.job.num}" if sweep else "",
        f"{', '.join(missing)} in {seconds:.1f} s" if missing else "nothing",
        ", ".join(method for method in names if method not in missing) or "nothing",
    )
    if sweep:
        records.note(Path(config.out) / config.name, names.values())
    else:
        tables = collect.collect(runs, names.values())
        print(next(iter(tables.values())).drop(columns=["key", "draw"]).T.to_string(header=False))


def _of(tables: Tables, method: str) -> Tables:
    """The rows of a method, and those that belong to no method."""
    return {
        name: [row for row in rows if row.get("method", method) == method]
        for name, rows in tables.items()
    }


class Report(Callback):
    """After a sweep: its tidy table, summary and figure, of its own runs only."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        (Path(config.out) / config.name / records.SWEEP).unlink(missing_ok=True)
        os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        try:
            _report(config)
        except Exception as error:  # Hydra would warn and call the sweep a success.
            traceback.print_exc()
            raise SystemExit(f"error: no report of the runs in {config.out}: {error!r}") from None


def _report(config: DictConfig) -> None:
    folder = Path(config.out) / config.name
    tables = collect.collect(folder)
    pd.set_option("display.width", 250, "display.max_columns", 40)
    print(collect.save(tables, folder, config.report.by))
    if config.report.figure is not None:
        figure = instantiate(config.report.figure, tables)
        path = folder / "figure.png"
        figure.savefig(path, dpi=150)
        print(path)


def command() -> None:
    """`main`, which Ctrl-C ends with a word and a code of its own."""
    signal.signal(signal.SIGINT, interrupts.interrupt)
    try:
        main()
    except (KeyboardInterrupt, SystemExit):  # Hydra may take what the interrupt broke for an error.
        if not interrupts.asked():
            raise
        print("\ninterrupted: the same command goes on with what is missing", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    command()
