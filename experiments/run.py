"""A run, a sweep, or a table or figure of the paper; every choice is a file of conf/.

    python -m experiments.run data=credit data.folder=FOLDER method=sees_d sparsity=1 seed=3
    python -m experiments.run -m method=sees_d sparsity=0,1,2,3 seed='range(20)'
    python -m experiments.run -m method=sees_c eta=1e-3,1e-2 hydra/launcher=joblib
    python -m experiments.run experiment=sample_size size=small

Runs are saved as they finish; the same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import logging
import os
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

from experiments import collect, records
from sees_torch import SeesError

LOG = logging.getLogger("experiments.run")
CONF = Path(__file__).resolve().parent.parent / "conf"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> None:
    """One run, unless it was finished before."""
    torch.set_num_threads(config.threads)
    runs = Path(config.out) / records.RUNS
    name = records.key(config)
    if (runs / f"{name}.json").exists():
        LOG.info("%s was finished before", name)
    else:
        start = perf_counter()
        try:
            tables = get_method(config.task)(config)
        except SeesError as error:
            raise SystemExit(f"error: {error}") from None
        records.write(runs, name, config, tables, perf_counter() - start)
        LOG.info("%s took %.1f s", name, perf_counter() - start)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        records.note(Path(config.out) / config.name, name)
    else:
        tables = collect.collect(runs, [name])
        print(next(iter(tables.values())).drop(columns=["key"]).T.to_string(header=False))


class Report(Callback):
    """After a sweep: its tidy table, summary and figure, of its own runs only."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        (Path(config.out) / config.name / records.SWEEP).unlink(missing_ok=True)
        os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.out) / config.name
        tables = collect.collect(folder)
        pd.set_option("display.width", 250, "display.max_columns", 40)
        print(collect.save(tables, folder, config.report.by))
        if config.report.figure is not None:
            figure = instantiate(config.report.figure, tables)
            path = folder / "figure.png"
            figure.savefig(path, dpi=150)
            print(path)


if __name__ == "__main__":
    main()
