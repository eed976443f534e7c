"""Speed and memory against named opponents and against the limit, in one run.

    python -m experiments.benchmark --data FOLDER
    python -m experiments.benchmark --size small --only sees-d kliep

One CSV row a case, written as it finishes: run the same command again to resume, delete the CSV or
name another to measure anew. Every case has a process of its own, in which both sides of a ratio
get the same samples and take turns; the seconds are medians after a warm-up (a side that needs
more than a minute runs once), by the clock and of the processor. The peak of memory is VmHWM of
that process (Linux), reset before a run, less what was resident then: inputs are not in it.
Without a folder, simulated tables of the same shape stand in for CREDIT and the COVID-19 tests;
opponents that are not installed are left out. On cores that others use as well, waiting OpenMP
threads cost most of the time: set `--threads 1`, or OMP_WAIT_POLICY=passive.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import os
import pstats
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info

from experiments import opponents
from experiments.datasets import TABLES, load_shift
from experiments.opponents import Contest, Samples, race
from experiments.simulated import table_pair
from sees_torch import (
    BBSE,
    CBPE,
    DLU,
    KLIEP,
    MLLS,
    Auto,
    SEESc,
    SEESd,
    SEESem,
    ShiftedPair,
    Source,
    Target,
    make_sparse_joint_shift,
)

CREDIT_LEVELS = (2, 2, 7, 3, 4, *[2] * 18)
COVID_LEVELS = (2, 2, 2, 2, 2, 3, 3, 3)
TESTS = 1_264_912
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "naive": [(1, 2000, 3), (2, 500, 2), (1, 500, 23)],
        "rows": 1000,
        "many": 20_000,
        "tests": 40_000,
        "growth": [2000, 5000, 10_000, 20_000],
        "features": [5, 10, 20],
        "large": [(2, 20), (3, 10)],
    },
    "full": {
        "naive": [(1, 20_000, 23), (2, 5000, 8), (1, 1000, 23), (2, 1000, 253)],
        "rows": 5000,
        "many": 1_000_000,
        "tests": TESTS,
        "growth": [10_000, 30_000, 100_000, 300_000, 1_000_000],
        "features": [5, 10, 23, 50, 100],
        "large": [(2, 100), (3, 23)],
    },
}
"""naive: (s, n, subsets that the loop is run on); large: (s, d)."""
METHODS = {
    "SEES-d s=1": SEESd(sparsity=1),
    "SEES-c": SEESc(),
    "SEES-em s=1": SEESem(sparsity=1),
    "MLLS": MLLS(),
    "Auto": Auto(),
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
PRINTED = [
    "what", "against", "data", "n", "m", "d", "s", "L", "ours [s]", "opponent [s]", "ratio",
    "ratio, processor", "ratio is", "goal", "met", "ours [MiB]", "opponent [MiB]", "same answer",
    "agreement", "note",
]  # fmt: skip


ITEMS = (
    "sees-d", "sees-c", "kliep", "mlls", "cbpe", "limit", "auto", "few-rows", "growth-n",
    "growth-d", "large-s", "interval", "many",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One row of the table; `faster` ratios are theirs / ours, others ours / theirs."""

    size: str
    item: str
    what: str
    against: str
    data: str
    n: int
    d: int
    s: int | None
    build: Callable[[], Contest]
    goal: str = ""
    faster: bool = True
    needs: str | None = None

    @property
    def key(self) -> str:
        setting = f"n={self.n} d={self.d} s={self.s}"
        return " | ".join([self.size, self.item, self.what, self.against, self.data, setting])


def credit(folder: Path | None, n: int) -> Samples:
    """CREDIT under its simulated shift, n + n rows; or a simulated table of that shape."""
    if folder is None:
        return simulated(n, 23, CREDIT_LEVELS)
    return coded(table_pair("credit", folder, load_shift("credit"), n, "draw-first", 3, 0))


def simulated(n: int, d: int, levels: Sequence[int] | None = None) -> Samples:
    """Eight columns that tell the labels apart about as well at any d, the others noise.

    The model reads a little into the noise, as models do, so that probabilities hardly repeat.
    """
    sizes = [3] * d if levels is None else list(levels)
    generator = torch.Generator().manual_seed(1)
    pair = make_sparse_joint_shift(
        n, n, features=len(sizes[:8]), levels=sizes[:8], generator=generator
    )
    slope = 0.1 * torch.randn(len(sizes[8:]), generator=generator).numpy()
    sides = []
    for frame, proba in ((pair.source, pair.source_proba), (pair.target, pair.target_proba)):
        share = torch.rand(n, len(slope), generator=generator).numpy()
        noise = (share * np.array(sizes[8:])).astype(np.int64)
        odds = proba[:, 1] / proba[:, 0] * np.exp((noise - noise.mean(axis=0)) @ slope)
        columns = [f"x{j}" for j in range(8, len(sizes))]
        sides.append((frame.join(pd.DataFrame(noise, columns=columns)), odds / (1 + odds)))
    (source, source_proba), (target, target_proba) = sides
    probabilities = {"source_proba": source_proba, "target_proba": target_proba}
    return coded(replace(pair, source=source, target=target, **probabilities))


def coded(pair: ShiftedPair) -> Samples:
    """The two samples from tensors of codes."""
    both = pd.concat([pair.source, pair.target]).apply(lambda column: pd.factorize(column)[0])
    codes = torch.tensor(both.to_numpy(dtype=np.int64))
    n = len(pair.source)
    source = Source(codes[:n], pair.labels, pair.source_proba, classes=pair.classes)
    return source, Target(codes[n:], pair.target_proba, source)


def covid(folder: Path | None, tests: int, split: str) -> Samples:
    """Tests one by one in random order, with a logistic regression's probabilities.

    The halves are drawn at random, or are the earlier and the later months.
    """
    if folder is None:
        pair = make_sparse_joint_shift(
            tests // 2,
            tests // 2,
            features=8,
            levels=COVID_LEVELS,
            strength=float(split == "months"),
        )
        return coded(pair)
    table = pd.read_csv(folder / TABLES["covid"].path).fillna("missing")
    label = (table[TABLES["covid"].label] == "positive").to_numpy(dtype=np.int64)
    codes = table.drop(columns=["month", TABLES["covid"].label, "count"])
    codes = codes.apply(lambda column: pd.factorize(column)[0]).to_numpy(dtype=np.int64)
    one_hot = pd.get_dummies(pd.DataFrame(codes).astype("category")).to_numpy(dtype=float)
    count = table["count"].to_numpy()
    model = LogisticRegression().fit(one_hot, label, sample_weight=count)
    proba = model.predict_proba(one_hot)
    generator = np.random.default_rng(0)
    rows = generator.permutation(np.arange(len(table)).repeat(count))[:tests]
    late = (table["month"] >= "2020-08").to_numpy()[rows]
    there = late if split == "months" else generator.random(len(rows)) < 0.5
    here, there = rows[~there], rows[there]
    source = Source(torch.tensor(codes[here]), label[here], proba[here])
    return source, Target(torch.tensor(codes[there]), proba[there], source)


def all_cases(size: str, folder: Path | None) -> Iterator[Case]:
    """Every row of the table, in order."""
    chosen = SIZES[size]
    case = partial(Case, size)
    rows, many = chosen["rows"], chosen["many"]
    table = "simulated like CREDIT" if folder is None else "CREDIT"
    on_credit = partial(credit, folder)
    for s, n, sample in chosen["naive"]:
        for tables, words in (("dict", "a dict entry a row"), ("numpy", "numpy's unique")):
            if tables == "dict" and sample > 23:
                continue  # An hour.
            build = partial(opponents.naive_contest, partial(on_credit, n), s, sample, tables)
            goal = {(1, 20_000): ">= 300", (2, 5000): ">= 200"}.get((s, n), "")
            goal = goal if tables == "dict" else ""
            against = f"loop over subsets and tables ({words}), cvxpy"
            yield case("sees-d", f"SEES-d s={s}", against, table, n, 23, s, build, goal)
    load = partial(on_credit, rows)
    for eta in (1e-3, 1e-2):
        build = partial(opponents.sees_c_contest, load, eta)
        against = "cvxpy, vectorised, Clarabel"
        yield case("sees-c", f"SEES-c eta={eta:g}", against, table, rows, 23, None, build, ">= 5")
    for folds in (1, 5):
        build = partial(opponents.kliep_contest, load, partial(opponents.numpy_kliep, folds=folds))
        against = f"numpy, 2,500 steps for each width and {folds} fold{'s' * (folds > 1)}"
        goal = ">= 20" if folds > 1 else ""
        yield case("kliep", "KLIEP", against, table, rows, 23, None, build, goal)
    build = partial(opponents.kliep_contest, load, opponents.adapt_kliep)
    yield case("kliep", "KLIEP", "adapt", table, rows, 23, None, build, needs="adapt")
    three = partial(simulated, many, 23)
    for data, n, samples in ((table, rows, load), ("simulated", many, three)):
        for epsilon in (1e-4, 1e-10):
            build = partial(opponents.emq_contest, samples, epsilon)
            against = f"QuaPy's EMQ, epsilon={epsilon:g}"
            yield case("mlls", "MLLS", against, data, n, 23, 0, build, needs="quapy")
        build = partial(opponents.cbpe_contest, samples)
        yield case("cbpe", "CBPE", "NannyML", data, n, 23, None, build, needs="nannyml")
    limit = "one pass over the rows"
    by_column = opponents.column_by_column
    for against, least in ((limit, opponents.one_pass), (f"{limit}, by column", by_column)):
        for name, s, build, goal in (
            ("Source(...) and Target(...)", None, partial(opponents.reading_contest, three), ""),
            ("SEES-d s=1", 1, partial(opponents.limit_contest, three, SEESd()), "<= 5"),
            ("SEES-d s=1 soft", 1, partial(opponents.limit_contest, three, SEESd(soft=True)), ""),
        ):
            build = partial(build, limit=least)
            yield case("limit", name, against, "simulated", many, 23, s, build, goal, False)
    build = partial(opponents.limit_contest, three, Auto(), True)
    yield case("auto", "Auto", limit, "simulated", many, 23, None, build, faster=False)
    more = {"BBSE": BBSE(), "KLIEP": KLIEP(), "DLU": DLU(), "CBPE": CBPE()}
    for split in ("halves", "months"):
        tests = partial(covid, folder, chosen["tests"], split)
        data = f"{'simulated like COVID' if folder is None else 'COVID'}, {split}"
        for name, method in (METHODS | more).items():
            build = partial(opponents.merged_contest, tests, method)
            n = chosen["tests"]
            yield case("few-rows", name, limit, data, n, 8, None, build, "<= 3", False)
    for name, method in [("one pass", None), *METHODS.items()]:
        for n in chosen["growth"]:
            build = partial(opponents.alone, partial(simulated, n, 23), method)
            goal = "<= 1.05" if name == "SEES-d s=1" else ""
            yield case("growth-n", name, "", "simulated", n, 23, None, build, goal)
        for d in chosen["features"]:
            build = partial(opponents.alone, partial(simulated, rows, d), method)
            if method is not None:
                yield case("growth-d", name, "", "simulated", rows, d, None, build)
    for s, d in chosen["large"]:
        build = partial(opponents.alone, partial(simulated, rows, d), SEESd(sparsity=s))
        yield case("large-s", f"SEES-d s={s}", "", "simulated", rows, d, s, build)
    for name in ("SEES-em s=1", "SEES-d s=1", "Auto"):
        build = partial(opponents.interval_contest, load, METHODS[name])
        goal = "<= 50" if name == "SEES-em s=1" else ""
        words = f"{name}, with interval"
        yield case("interval", words, "the point alone", table, rows, 23, None, build, goal, False)
    for name, many_at_once in (("BBSE", BBSE()), ("SEES-d s=1", SEESd())):
        build = partial(opponents.many_contest, partial(simulated, 4000, 8), many_at_once)
        yield case("many", name, "60 targets in turn", "simulated", 4000, 8, None, build)


def measure(size: str, folder: Path | None, key: str) -> tuple[dict[str, Any], str]:
    """The row of one case, and where our time goes if that was asked; in a process of its own."""
    warnings.simplefilter("ignore")  # Both sides': the agreement is looked at below.
    case = next(case for case in all_cases(size, folder) if case.key == key)
    goal = case.goal if size == "full" else ""  # Goals are for the settings that they name.
    load = os.getloadavg()[0]
    contest = case.build()
    runs = [contest.ours] if contest.theirs is None else [contest.ours, contest.theirs]
    ours, *others = race(*runs)
    row = {
        "key": key,
        "size": size,
        "item": case.item,
        "what": case.what,
        "against": case.against,
        "data": case.data,
        "n": len(contest.samples[0]),
        "m": len(contest.samples[1]),
        "d": case.d,
        "s": case.s,
        "L": len(contest.samples[0].classes),
        "ours [s]": float(np.median(ours.times)),
        "ours [MiB]": ours.peak,
        "ours [processor s]": ours.busy,
        "goal": goal,
        "note": contest.note,
        "runs": " and ".join(str(len(side.times)) for side in (ours, *others)),
        "threads": f"torch {torch.get_num_threads()}, BLAS {blas_threads()}",
        "waiting": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load": load,
        "finished": time.strftime("%Y-%m-%d %H:%M"),
    }
    for side in others:
        seconds = contest.scale * float(np.median(side.times))
        ratio = seconds / row["ours [s]"]
        row |= {"opponent [s]": seconds, "opponent [MiB]": side.peak}
        row["ratio"] = ratio if case.faster else 1 / ratio
        processor = contest.scale * side.busy
        least = processor / row["ours [processor s]"]
        row["ratio, processor"] = least if case.faster else 1 / least
        row["ratio is"] = "opponent / ours" if case.faster else "ours / opponent"
        if goal:
            bound = float(goal.split()[1])
            met = row["ratio"] >= bound if goal.startswith(">=") else row["ratio"] <= bound
            row["met"] = "yes" if met else "no"
        if contest.agree is not None:
            same, words = contest.agree(ours.result, side.result)
            row |= {"same answer": "yes" if same else "no", "agreement": words}
    profile = ""
    if contest.profile:
        row["note"], profile = own_times(contest.ours)
    return row, profile


def blas_threads() -> int:
    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


def own_times(run: Callable[[], Any]) -> tuple[str, str]:
    """Where our time goes, torch's functions among ours: the first three in words, and tables."""
    profiler = cProfile.Profile()
    profiler.runcall(run)
    text = io.StringIO()
    stats: Any = pstats.Stats(profiler, stream=text).strip_dirs()
    stats.sort_stats("tottime").print_stats(15)
    stats.sort_stats("cumulative").print_stats(r"\.py", 25)
    own = sorted(((entry[2], where[2]) for where, entry in stats.stats.items()), reverse=True)
    names = [name.split("'")[1] if "'" in name else name for _, name in own]  # <method 'log' of ...
    shares = [f"{seconds / stats.total_tt:.0%}" for seconds, _ in own]
    words = [f"{name} {share}" for name, share in list(zip(names, shares, strict=True))[:3]]
    return "own time: " + ", ".join(words), text.getvalue()


def with_exponents(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the slopes of log seconds: over a whole curve, and over its last decade."""
    slopes = ["exponent", "exponent, last decade"]
    table = table.drop(columns=slopes, errors="ignore").assign(**dict.fromkeys(slopes, np.nan))
    table["met"] = table.get("met", pd.Series(dtype=object)).astype(object)
    for axis in ("n", "d"):
        curves = table[table["item"] == f"growth-{axis}"].groupby(["size", "what"])
        for _, curve in curves:
            for name, least in zip(slopes, (0, curve[axis].max() / 10), strict=True):
                part = curve[curve[axis] >= least]
                if len(part) > 1:
                    x, y = np.log(part[axis].astype(float)), np.log(part["ours [s]"])
                    table.loc[curve.index, name] = np.polyfit(x, y, 1)[0]
            goal = str(curve["goal"].iloc[0])
            if goal.startswith("<="):
                largest = table.loc[curve.index[0], slopes].max()
                met = largest <= float(goal.split()[1])
                table.loc[curve.index, "met"] = "yes" if met else "no"
    return table


def plot(table: pd.DataFrame, path: Path) -> None:
    """Seconds against rows and against features, with the slopes, and memory against rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(16, 5.6), layout="constrained")
    style = dict(zip([*METHODS, "one pass"], zip(COLOURS, "osD^vX", strict=True), strict=True))
    rows = "rows in each sample, n = m"
    for panel, axis, words in zip(panels, ("n", "d"), (rows, "features, d"), strict=False):
        curves = table[table["item"] == f"growth-{axis}"]
        for name, (colour, marker) in style.items():
            curve = curves[curves["what"] == name].sort_values(axis)
            if curve.empty:
                continue
            slope, last = curve[["exponent", "exponent, last decade"]].iloc[0]
            label = f"{name}: {slope:.2f}" + (f", last decade {last:.2f}" if axis == "n" else "")
            line = "--" if name == "one pass" else "-"
            panel.loglog(curve[axis], curve["ours [s]"], line, c=colour, marker=marker, label=label)
        other = curves["d" if axis == "n" else "n"].unique()
        fixed = ", ".join(f"{int(value):,}" for value in other)
        panel.set(xlabel=words, ylabel="seconds (median)")
        panel.set_title(f"{'d' if axis == 'n' else 'n'} = {fixed}, three levels, two classes")
        panel.grid(which="major", alpha=0.3)
        places = sorted(curves[axis].unique())
        panel.set_xticks(places, [f"{int(place):,}" for place in places])
        panel.xaxis.minorticks_off()
        if not curves.empty:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 2}
            panel.legend(title="slope of log seconds", fontsize="small", **below)
    curves = table[table["item"] == "growth-n"]
    for name, (colour, marker) in style.items():
        curve = curves[curves["what"] == name].sort_values("n")
        line = "--" if name == "one pass" else "-"
        panels[2].loglog(curve["n"], curve["ours [MiB]"], line, c=colour, marker=marker, label=name)
    panels[2].set(xlabel=rows, ylabel="peak memory above the samples [MiB]", title="memory")
    panels[2].set_xticks(panels[0].get_xticks(), panels[0].get_xticklabels())
    panels[2].xaxis.minorticks_off()
    panels[2].grid(which="major", alpha=0.3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def show(table: pd.DataFrame) -> None:
    """Print the races and the growth."""
    table = table.astype(dict.fromkeys(["n", "m", "d", "s", "L"], "Int64"))
    format_number = "{:.3g}".format
    growth = table[table["item"].str.startswith("growth")]
    races = table.drop(growth.index)
    columns = [name for name in PRINTED if name in races]
    if not races.empty:
        text = races[columns].to_string(index=False, float_format=format_number, na_rep="")
        print(text.replace("<NA>", "    "))
    if not growth.empty:
        columns = ["what", "n", "d", "ours [s]", "ours [MiB]", "exponent", "exponent, last decade"]
        columns += ["goal", "met"]
        print(growth[columns].to_string(index=False, float_format=format_number, na_rep=""))


def main() -> None:
    """Measure the cases that are missing, write the table and the plot, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the tables; simulated ones without")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of: {', '.join(ITEMS)}")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="cases of these methods only")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmark"))
    parser.add_argument("--threads", type=int, help="of both sides; all cores without")
    options = parser.parse_args()
    if options.threads is not None:  # Read by torch and BLAS when the processes start.
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    unknown = set(options.only or ()) - set(ITEMS)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}: take {', '.join(ITEMS)}")
    path = options.out.with_suffix(".csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.read_csv(path) if path.exists() else pd.DataFrame({"key": []})
    wanted = [
        case
        for case in all_cases(options.size, options.data)
        if (not options.only or case.item in options.only)
        and (not options.methods or case.what in options.methods)
    ]
    for name in {case.needs for case in wanted if case.needs}:
        if find_spec(name) is None:
            print(f"{name} is not installed: its rows are skipped.")
            wanted = [case for case in wanted if case.needs != name]
    todo = [case for case in wanted if case.key not in set(table["key"])]
    failed = []
    for number, case in enumerate(todo, start=1):
        print(f"{number} of {len(todo)}: {case.key} ... ", end="", flush=True)
        try:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                row, profile = pool.submit(measure, options.size, options.data, case.key).result()
        except Exception as problem:  # One case must not take the others with it.
            failed.append(f"{case.key}: {problem!r}")
            print(f"failed: {problem!r}")
            continue
        ratio = f", ratio {row['ratio']:.3g}" if "ratio" in row else ""
        if "ratio, processor" in row:
            ratio += f", of processor seconds {row['ratio, processor']:.3g}"
        print(f"{row['ours [s]']:.3g} s{ratio} (threads: {row['threads']}; load {row['load']:.1f})")
        print(profile, end="")
        table = with_exponents(pd.concat([table, pd.DataFrame([row])], ignore_index=True))
        table.to_csv(path, index=False)
    order = {case.key: place for place, case in enumerate(wanted)}
    table = table[table["key"].isin(order)].sort_values("key", key=lambda keys: keys.map(order))
    if table.empty:
        raise SystemExit("nothing was measured.")
    plot(table, path.with_suffix(".png"))
    show(table)
    print(f"written: {path} and {path.with_suffix('.png')}")
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
