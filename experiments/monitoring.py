"""Does a monitor find the month of a change, and stay quiet when nothing changes?

    python -m experiments.monitoring --jobs 2

Two experiments, simulated. *change*: 24 months, the label and one feature shift from month 13 on.
*quiet*: unchanged streams, each with a source of its own that its threshold is learnt from; the
share of streams with any alert must not exceed the stated rate. Every stream is appended to a CSV
as it finishes: run the same command again to resume. The first stream with a change is drawn as a
picture.

    python -m experiments.monitoring --warm

What a start from the last chunk's solution saves SEES-c, in processor time of the match.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, delayed

from sees_torch import Alerts, SEESc, ShiftMonitor, Source, Target, make_sparse_joint_shift

MONTHS, CHANGE = 24, 13
CHANGED = {"source": 2000, "rows": 500, "features": 5}
QUIET = {"source": 1000, "rows": 200, "features": 3}
DROP = -0.03
"""Worlds in which the shift costs less accuracy than this are drawn again."""
RATE = {"change": Alerts(false_alarms=0.1, horizon=MONTHS)}
RATE["quiet"] = Alerts(false_alarms=0.2, horizon=6)


def stream(kind: str, seed: int) -> tuple[dict[str, Any], list[tuple[Any, Any]], float]:
    """A source, chunks (features, probabilities), and the gap of the population after a change."""
    size = CHANGED if kind == "change" else QUIET
    before = CHANGE - 1 if kind == "change" else RATE[kind].horizon
    after = MONTHS - before if kind == "change" else 1
    n, m = size["source"], size["rows"]
    generator = torch.Generator().manual_seed(seed)
    while True:
        pair = make_sparse_joint_shift(
            n + before * m, after * m, features=size["features"], generator=generator
        )
        if kind == "quiet" or pair.population_gap <= DROP:
            break
    source = {
        "source": pair.source[:n],
        "labels": pair.labels[:n],
        "source_proba": pair.source_proba[:n],
    }
    starts = range(n, n + before * m, m)
    chunks = [(pair.source[at : at + m], pair.source_proba[at : at + m]) for at in starts]
    if kind == "change":
        starts = range(0, after * m, m)
        chunks += [(pair.target[at : at + m], pair.target_proba[at : at + m]) for at in starts]
    return source, chunks, pair.population_gap


def watch(kind: str, seed: int, method: str, replicates: int) -> tuple[ShiftMonitor, float]:
    """A monitor that has seen a whole stream."""
    torch.set_num_threads(1)
    source, chunks, gap = stream(kind, seed)
    monitor = ShiftMonitor(**source, method=method, alerts=RATE[kind], replicates=replicates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for month, (features, proba) in enumerate(chunks, start=1):
            monitor.observe(features.reset_index(drop=True), proba, name=f"month {month}")
    return monitor, gap


def draw(kind: str, seed: int, method: str) -> dict[str, Any]:
    """What one stream's monitor said, gaps in points."""
    began = time.perf_counter()
    monitor, gap = watch(kind, seed, method, replicates=0)
    table = monitor.to_frame().reset_index(drop=True)
    loud = [month + 1 for month in table.index[table["alert"]]]
    changed = table.index >= CHANGE - 1
    return {
        "kind": kind,
        "method": method,
        "seed": seed,
        "alerts": len(loud),
        "first": loud[0] if loud else None,
        "early": sum(month < CHANGE for month in loud),
        "threshold": 100 * table["threshold"].iloc[0],
        "true_gap": 100 * gap if kind == "change" else 0.0,
        "mean_gap": 100 * table["gap"][changed if kind == "change" else ~changed].mean(),
        "seconds": time.perf_counter() - began,
    }


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Streams with a false alarm beside the stated rate, and how soon a change was found."""
    rows = []
    for (kind, method), group in results.groupby(["kind", "method"], sort=False):
        late = group["first"].where(group["first"] >= CHANGE) - CHANGE
        false = group["early"] > 0 if kind == "change" else group["alerts"] > 0
        rows.append(
            {
                "kind": kind,
                "method": method,
                "streams": len(group),
                "stated rate": RATE[str(kind)].false_alarms,
                "false alarms": false.mean(),
                "+-": (false.mean() * (1 - false.mean()) / len(group)) ** 0.5,
                "threshold": group["threshold"].mean(),
                "true gap": group["true_gap"].mean(),
                "found in its month": (late == 0).mean() if kind == "change" else None,
                "found": late.notna().mean() if kind == "change" else None,
                "mean delay": late.mean() if kind == "change" else None,
                "seconds": group["seconds"].mean(),
            }
        )
    return pd.DataFrame(rows)


def warm_starts(chunks: int = 8, rows: int = 1000, pooled: int = 12) -> pd.DataFrame:
    """Processor seconds of a match from a cold and from a warm start, for chunks and windows."""
    torch.set_num_threads(1)
    last = (chunks + pooled) * rows
    pair = make_sparse_joint_shift(5000, last, features=12)
    source = Source(pair.source, pair.labels, pair.source_proba)
    found = []
    for solver in ("interior", "proximal"):
        for name, length in (("chunk", 1), (f"window of {pooled}", pooled)):
            method, start = SEESc(solver=solver), None
            seconds: dict[str, list[float]] = {"cold": [], "warm": []}
            for at in range(chunks):
                part = slice(at * rows, (at + length) * rows)
                target = Target(pair.target[part], pair.target_proba[part], source)
                for kind, near in (("cold", None), ("warm", start)):
                    began = time.process_time()
                    match = method.match_from(source, target, near)
                    seconds[kind].append(time.process_time() - began)
                start = method.solution(match)
            means = {kind: sum(s[1:]) / (chunks - 1) for kind, s in seconds.items()}
            saved = 1 - means["warm"] / means["cold"]
            found.append({"solver": solver, "target": name, **means, "saved": saved})
    return pd.DataFrame(found)


def main() -> None:
    """Run the streams that are missing, print the table, draw the first change."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--changes", type=int, default=10, help="streams with a change")
    parser.add_argument("--quiet", type=int, default=200, help="streams without")
    parser.add_argument("--methods", nargs="+", default=["auto", "mlls"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, help="run at most so many streams now")
    parser.add_argument("--out", type=Path, default=Path("monitoring.csv"))
    parser.add_argument("--plot", type=Path, default=Path("monitoring.png"))
    parser.add_argument("--warm", action="store_true", help="measure warm starts instead")
    options = parser.parse_args()
    if options.warm:
        print(warm_starts().round(3).to_string(index=False))
        return
    done: set[tuple[str, int, str]] = set()
    if options.out.exists():
        old = pd.read_csv(options.out)
        done = set(zip(old["kind"], old["seed"], old["method"], strict=True))
    counts = {"change": options.changes, "quiet": options.quiet}
    wanted = [
        (kind, seed, method)
        for method in options.methods
        for kind, count in counts.items()
        for seed in range(count)
        if (kind, seed, method) not in done
    ][: options.limit]
    jobs = (delayed(draw)(*key) for key in wanted)
    runner = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for count, row in enumerate(runner(jobs), start=1):
        frame = pd.DataFrame([row])
        frame.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"{count} of {len(wanted)}", end="\r", flush=True)
    print(summary(pd.read_csv(options.out)).round(3).to_string(index=False))
    if not options.plot.exists():
        watch("change", 0, options.methods[0], replicates=200)[0].plot().savefig(
            options.plot, dpi=150
        )
        print(f"picture: {options.plot}")


if __name__ == "__main__":
    main()
