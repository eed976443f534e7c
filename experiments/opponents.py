"""What the library is timed against, and how: the same problems, solved without it.

Every opponent gets validated samples (coded tensors), so that nobody is timed on reading tables.
Other people's packages are imported inside their function: they are optional.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import cvxpy
import numpy as np
import pandas as pd
import torch

from sees_torch import (
    CBPE,
    KLIEP,
    MLLS,
    FeatureBasis,
    Match,
    SEESc,
    SEESd,
    Source,
    Target,
    estimate_shift,
)

Samples = tuple[Source, Target]
Subset = tuple[int, ...]
Cells = list[tuple[int, np.ndarray]]
ONCE = 60.0
"""Seconds; what takes longer runs once, without a warm-up."""
LEAST, MOST, ENOUGH = 3, 9, 10.0
"""Runs of a side: at least LEAST, then up to MOST while they sum to less than ENOUGH seconds."""


@dataclass(frozen=True)
class Contest:
    """Two sides on the same samples.

    Attributes:
        ours, theirs: what is timed; theirs may be missing.
        agree: from both results, whether they are the same answer, and in what sense.
        scale: their seconds are multiplied by this, where they did only a part of the work.
        profile: also say where our time goes.
    """

    samples: Samples
    ours: Callable[[], Any]
    theirs: Callable[[], Any] | None = None
    agree: Callable[[Any, Any], tuple[bool, str]] | None = None
    scale: float = 1.0
    note: str = ""
    profile: bool = False


@dataclass
class Side:
    """One side of a race: what it returned, its seconds, and its peak of memory in MiB.

    Processor seconds beside the clock's: a busy machine disturbs them less.
    """

    run: Callable[[], Any]
    result: Any = None
    times: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peak: float = np.nan

    def go(self, gauge: bool = False) -> float:
        """Seconds of one run; with `gauge`, its peak of memory above what was resident before."""
        reset = Path("/proc/self/clear_refs")  # Linux only.
        gauge = gauge and reset.exists()
        if gauge:
            ctypes.CDLL(None).malloc_trim(0)  # Freed memory that is kept would hide a peak.
            reset.write_text("5")
            before = _status("VmRSS")
        start, processor = time.perf_counter(), time.process_time()
        self.result = self.run()
        seconds = time.perf_counter() - start
        self.processor.append(time.process_time() - processor)
        if gauge:
            self.peak = (_status("VmHWM") - before) / 1024
        return seconds

    @property
    def busy(self) -> float:
        """Median processor seconds of the runs that are timed."""
        return float(np.median(self.processor[-len(self.times) :]))

    def wants_more(self) -> bool:
        seconds = sum(self.times)
        if seconds > ONCE and len(self.times) == 1:
            return False
        return len(self.times) < LEAST or (len(self.times) < MOST and seconds < ENOUGH)


def race(*runs: Callable[[], Any]) -> list[Side]:
    """The sides taking turns, so that a busy minute of the machine hits all alike."""
    sides = [Side(run) for run in runs]
    for side in sides:
        first = side.go(gauge=True)
        if first > ONCE:
            side.times.append(first)
    while any(side.wants_more() for side in sides):
        for side in sides:
            if side.wants_more():
                side.times.append(side.go(gauge=not side.times))
    return sides


def _status(name: str) -> int:
    """A field of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def one_pass(source: Source, target: Target) -> int:
    """The limit: pack the rows of both samples into int64 keys and count them, once.

    One matrix product and one sort of n + m keys; returns the number of distinct rows.
    """
    sizes = source.schema.cardinalities
    radix = np.cumprod([2, *sizes[:-1]], dtype=object)
    if int(radix[-1]) * sizes[-1] >= 2**63:
        raise ValueError("the rows do not fit into one int64 key: take fewer or smaller columns.")
    place = torch.tensor([int(r) for r in radix])
    keys = torch.cat([source.rows.codes @ place, target.rows.codes @ place + 1])
    return len(torch.unique(keys, return_counts=True)[1])


def column_by_column(source: Source, target: Target) -> int:
    """The same limit packed one column after the other, each sample counted on its own."""
    distinct = 0
    for sample in (source, target):
        keys = torch.zeros(len(sample), dtype=torch.int64)
        for codes, size in zip(sample.rows.codes.T, source.schema.cardinalities, strict=True):
            keys = keys * size + codes
        distinct += len(torch.unique(keys, return_counts=True)[1])
    return distinct


def naive_sees_d(
    source: Source,
    target: Target,
    subsets: Iterable[Subset],
    sparsity: int,
    tables: Literal["dict", "numpy"],
) -> dict[Subset, float]:
    """The distance of each subset, by the paper read literally: loops and one cvxpy solve each.

    Every marginal table that contains the subset is formed anew, with a dict entry per row
    ("dict") or by numpy's unique and bincount ("numpy").
    """
    codes, other = source.rows.codes.numpy(), target.rows.codes.numpy()
    labels, predicted = source.labels.numpy(), source.predictions.numpy()
    predicted_target = target.predictions.numpy()
    n_labels, d = len(source.classes), codes.shape[1]
    levels = [sorted(set(codes[:, j]) | set(other[:, j])) for j in range(d)]
    table = _table_by_dict if tables == "dict" else _table_by_numpy
    distances = {}
    for subset in subsets:
        cells = {cell: k for k, cell in enumerate(product(*(levels[j] for j in subset)))}
        entries: Cells = []
        rest = [j for j in range(d) if j not in subset]
        for extra in combinations(rest, min(2 * sparsity, d) - sparsity):
            columns = [*subset, *extra]
            here = np.column_stack([codes[:, columns], predicted])
            there = np.column_stack([other[:, columns], predicted_target])
            entries += table(here, labels, there, n_labels, cells, sparsity)
        here = np.column_stack([codes[:, subset], predicted])
        there = np.column_stack([other[:, subset], predicted_target])
        cell_mass = np.zeros((len(cells), n_labels + 1))
        for cell, mass in table(here, labels, there, n_labels, cells, sparsity):
            cell_mass[cell] += mass
        share = cell_mass[:, :-1]
        # Target mass in cells that the source never visits cannot be matched.
        unseen = cell_mass[~share.any(axis=1), -1].sum()
        distances[subset] = _least_distance(entries, share, 1 - unseen)
    return distances


def _table_by_dict(
    here: np.ndarray, labels: np.ndarray, there: np.ndarray, n_labels: int, cells: Any, s: int
) -> Cells:
    """Cell and (p_s(., y) for every y, p_t) of every entry of one marginal table."""
    table: dict[tuple[int, ...], np.ndarray] = {}
    for row, y in zip(here, labels, strict=True):
        table.setdefault(tuple(row), np.zeros(n_labels + 1))[y] += 1 / len(here)
    for row in there:
        table.setdefault(tuple(row), np.zeros(n_labels + 1))[-1] += 1 / len(there)
    return [(cells[key[:s]], mass) for key, mass in table.items()]


def _table_by_numpy(
    here: np.ndarray, labels: np.ndarray, there: np.ndarray, n_labels: int, cells: Any, s: int
) -> Cells:
    """The same by one sort and one bincount."""
    rows = np.concatenate([here, there])
    keys = np.ravel_multi_index(tuple(rows.T), tuple(rows.max(axis=0) + 1))
    _, first, entry = np.unique(keys, return_index=True, return_inverse=True)
    column = np.concatenate([labels, np.full(len(there), n_labels)])
    weight = np.repeat([1 / len(here), 1 / len(there)], [len(here), len(there)])
    flat = np.bincount(entry * (n_labels + 1) + column, weight, len(first) * (n_labels + 1))
    places = [cells[tuple(key)] for key in rows[first, :s]]
    return list(zip(places, flat.reshape(len(first), -1), strict=True))


def _least_distance(entries: Cells, share: np.ndarray, total: float) -> float:
    """min_w sum over entries (p_t - p_s . w_cell)^2 with w >= 0 and sum share w = total."""
    n_cells, n_labels = share.shape
    rows, goal = np.zeros((len(entries), n_cells * n_labels)), np.zeros(len(entries))
    for number, (cell, mass) in enumerate(entries):
        rows[number, cell * n_labels : (cell + 1) * n_labels] = mass[:-1]
        goal[number] = mass[-1]
    weight = cvxpy.Variable(n_cells * n_labels, nonneg=True)
    distance = cvxpy.sum_squares(rows @ weight - goal)
    problem = cvxpy.Problem(cvxpy.Minimize(distance), [share.flatten() @ weight == total])
    problem.solve(solver="CLARABEL")
    return float(problem.value)


class SEEScProblem:
    """SEES-c's problem as arrays, for cvxpy: the whole problem vectorised."""

    def __init__(self, source: Source, target: Target, eta: float) -> None:
        basis = FeatureBasis(source)
        on_source, on_target = basis(source.rows).numpy(), basis(target.rows).numpy()
        p_source, p_target = source.posterior.numpy(), target.posterior.numpy()
        self.moment = (on_source.T @ p_source / len(source)).flatten()
        stacked = on_target[:, :, None] * p_target[:, None, :]
        self.rows = stacked.reshape(len(target), -1)
        self.owner = np.repeat(basis.owners, p_source.shape[1])
        self.eta = eta

    def solve(self) -> np.ndarray:
        """The coefficients by Clarabel at its default tolerances."""
        a = cvxpy.Variable(len(self.moment), nonneg=True)
        penalty = sum(cvxpy.norm(a[self.owner == i]) for i in np.unique(self.owner))
        likelihood = cvxpy.sum(cvxpy.log(self.rows @ a)) / len(self.rows)
        problem = cvxpy.Problem(
            cvxpy.Minimize(self.eta * penalty - likelihood), [self.moment @ a == 1]
        )
        problem.solve(solver="CLARABEL")
        return np.asarray(a.value)

    def objective(self, coefficient: np.ndarray) -> float:
        """At the nearest point that satisfies the constraints exactly."""
        a = np.maximum(coefficient, 0.0)
        a = a / (self.moment @ a)
        norms = [np.linalg.norm(a[self.owner == i]) for i in np.unique(self.owner)]
        return float(self.eta * np.sum(norms) - np.log(self.rows @ a).mean())


def numpy_kliep(
    source: Source, target: Target, match: Match, widths: Sequence[float], folds: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights of source and target rows by 2,500 numpy steps a fit, and the width's multiple.

    Kernel centres are the match's. The steps are EM's, which need no step size. The width is that
    of the largest mean log weight: of rows held out in turn, or, with one fold, of fitted rows.
    """
    basis: Any = match.weight_function.get_submodule("basis")
    points, on_source = basis.inner(target.rows).numpy(), basis.inner(source.rows).numpy()
    centres = basis.centres.numpy()
    unit = _median_distance(centres)
    kernels = []
    for width in widths:
        scale = -1 / (2 * (unit * width) ** 2)
        kernels.append([np.exp(scale * _squared(x, centres)) for x in (points, on_source)])
    fold = np.arange(len(points)) % folds
    scores = []
    for kernel, from_source in kernels:
        score = 0.0
        for held_out in range(folds):
            kept = (fold != held_out) | (folds == 1)
            fitted = _em(kernel[kept], from_source.mean(axis=0))
            score += np.log(np.maximum(kernel[fold == held_out] @ fitted, 1e-30)).sum()
        scores.append(score)
    best = int(np.argmax(scores))
    kernel, from_source = kernels[best]
    coefficient = _em(kernel, from_source.mean(axis=0))
    return from_source @ coefficient, kernel @ coefficient, widths[best]


def _em(kernel: np.ndarray, moment: np.ndarray, steps: int = 2500) -> np.ndarray:
    a = np.full(len(moment), 1 / (len(moment) * moment))
    for _ in range(steps):
        a *= (1 / np.maximum(kernel @ a, 1e-300)) @ kernel / (len(kernel) * moment)
    return a


def _squared(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return (x**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * x @ centres.T


def _median_distance(centres: np.ndarray) -> float:
    apart = np.sqrt(np.maximum(_squared(centres, centres), 0.0))
    return float(np.quantile(apart[apart > 1e-6], 0.5, method="lower"))


def adapt_kliep(
    source: Source, target: Target, match: Match, widths: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights of source and target rows by adapt's KLIEP (its default, Frank-Wolfe), and the width.

    Its kernel centres are random target rows of its own.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from adapt.instance_based import KLIEP

    basis: Any = match.weight_function.get_submodule("basis")
    unit = _median_distance(basis.centres.numpy())
    gamma = [1 / (2 * (unit * width) ** 2) for width in widths]
    points, on_source = basis.inner(target.rows).numpy(), basis.inner(source.rows).numpy()
    model = KLIEP(kernel="rbf", gamma=gamma, max_centers=100, cv=5, verbose=0, random_state=0)
    here = model.fit_weights(on_source, points)
    chosen = widths[gamma.index(model.best_params_["gamma"])]
    return here, model.predict_weights(points), chosen


def quapy_emq(source: Source, target: Target, epsilon: float) -> np.ndarray:
    """Label weights by QuaPy's EMQ, its EM on the probabilities alone."""
    from quapy.method.aggregative import EMQ

    prior = source.posterior.numpy().mean(axis=0)
    return EMQ.EM(prior, target.posterior.numpy(), epsilon)[0] / prior


def nannyml_cbpe(source: Source, target: Target) -> float:
    """The target's accuracy by NannyML's CBPE, one chunk of all rows, its usage logging off."""
    os.environ["NML_DISABLE_USAGE_LOGGING"] = "1"
    import nannyml

    frames = [
        pd.DataFrame({"proba": sample.proba[:, 1].numpy(), "predicted": sample.predictions.numpy()})
        for sample in (source, target)
    ]
    frames[0]["label"] = source.labels.numpy()
    model = nannyml.CBPE(
        metrics=["accuracy"],
        y_pred_proba="proba",
        y_pred="predicted",
        y_true="label",
        problem_type="classification_binary",
        chunk_number=1,
    )
    result = model.fit(frames[0]).estimate(frames[1]).filter(period="analysis").to_df()
    return float(result[("accuracy", "value")].iloc[0])


def naive_contest(load: Callable[[], Samples], s: int, sample: int, tables: Any) -> Contest:
    """SEES-d against the loop, on a random sample of subsets."""
    source, target = load()
    subsets = list(combinations(range(len(source.schema.columns)), s))
    chosen = np.random.default_rng(0).permutation(len(subsets))[:sample]
    picked = [subsets[k] for k in chosen]

    def agree(match: Any, distances: dict[Any, float]) -> tuple[bool, str]:
        objective = dict(zip(match.ranking.subsets, match.ranking.objective.tolist(), strict=True))
        off = max(abs(objective[subset] / value - 1) for subset, value in distances.items())
        best = min(distances, key=lambda subset: distances[subset])
        same = len(picked) < len(subsets) or min(objective, key=objective.__getitem__) == best
        scope = "the least one and all" if len(picked) == len(subsets) else "sampled"
        return off < 1e-6 and same, f"{scope} distances, relative {off:.0e} (tolerance 1e-6)"

    return Contest(
        (source, target),
        partial(SEESd(sparsity=s).match, source, target),
        partial(naive_sees_d, source, target, picked, s, tables),
        agree,
        len(subsets) / len(picked),
        ""
        if len(picked) == len(subsets)
        else f"scaled from {len(picked)} of {len(subsets)} subsets",
    )


def sees_c_contest(load: Callable[[], Samples], eta: float) -> Contest:
    source, target = load()
    problem = SEEScProblem(source, target, eta)

    def agree(match: Any, coefficient: np.ndarray) -> tuple[bool, str]:
        ours = problem.objective(match.weight_function.coefficient.numpy().flatten())
        off = ours - problem.objective(coefficient)
        return off < 1e-6, f"objective, ours {off:+.0e} above theirs (tolerance 1e-6)"

    return Contest(
        (source, target),
        partial(SEESc(eta=eta).match, source, target),
        lambda: SEEScProblem(source, target, eta).solve(),
        agree,
    )


def kliep_contest(load: Callable[[], Samples], opponent: Callable[..., Any]) -> Contest:
    source, target = load()
    match = KLIEP().match(source, target)

    def agree(match: Any, theirs: tuple[np.ndarray, np.ndarray, float]) -> tuple[bool, str]:
        *weights, width = theirs
        again = KLIEP(widths=(width,)).match(source, target)
        own = [
            again.weight_function.of_rows(part.rows, torch.zeros(len(part)).long()).numpy()
            for part in (source, target)
        ]
        likelihood = [np.log(there).mean() - np.log(here.mean()) for here, there in (own, weights)]
        off, together = likelihood[0] - likelihood[1], np.corrcoef(own[0], weights[0])[0, 1]
        chosen, found = (m.weight_function.get_submodule("basis").width for m in (match, again))
        return abs(off) < 1e-3 and together > 0.95, (
            f"mean log weight at its width, ours {off:+.0e} (tolerance 1e-3), weights correlate "
            f"{together:.3f} (0.95); ours chose {'that' if chosen == found else 'another'} width"
        )

    return Contest(
        (source, target),
        partial(KLIEP().match, source, target),
        partial(opponent, source, target, match, KLIEP().widths),
        agree,
    )


def emq_contest(load: Callable[[], Samples], epsilon: float) -> Contest:
    source, target = load()

    def agree(match: Any, weight: np.ndarray) -> tuple[bool, str]:
        off = np.abs(match.weight_function.weight.numpy() - weight).max()
        tolerance = max(100 * epsilon, 1e-6)
        return off < tolerance, f"label weights, off by {off:.0e} (tolerance {tolerance:.0e})"

    return Contest(
        (source, target),
        partial(MLLS().match, source, target),
        partial(quapy_emq, source, target, epsilon),
        agree,
    )


def cbpe_contest(load: Callable[[], Samples]) -> Contest:
    source, target = load()

    def agree(report: Any, accuracy: float) -> tuple[bool, str]:
        off = 100 * abs(report.target_value - accuracy)
        return (
            off < 1,
            f"target accuracy, {off:.2f} points apart (tolerance 1: calibrations differ)",
        )

    return Contest(
        (source, target),
        partial(estimate_shift, source, target=target, method=CBPE(), confidence=None),
        partial(nannyml_cbpe, source, target),
        agree,
    )


def limit_contest(
    load: Callable[[], Samples],
    method: Any,
    profile: bool = False,
    limit: Callable[[Source, Target], int] = one_pass,
) -> Contest:
    """A method on samples that are ready, against one pass over their rows."""
    source, target = load()
    return Contest(
        (source, target),
        partial(method.match, source, target),
        partial(limit, source, target),
        profile=profile,
    )


def reading_contest(
    load: Callable[[], Samples], limit: Callable[[Source, Target], int] = one_pass
) -> Contest:
    """Making the samples from tensors of codes."""
    source, target = load()
    here, there = source.rows.codes.clone(), target.rows.codes.clone()
    labels, proba, other = source.labels.clone(), source.proba.clone(), target.proba.clone()

    def read() -> Samples:
        read_source = Source(here, labels, proba)
        return read_source, Target(there, other, read_source)

    return Contest((source, target), read, partial(limit, source, target))


def merged_contest(load: Callable[[], Samples], method: Any) -> Contest:
    """A method with the merging of equal rows; CBPE's match says nothing, so up to its gap."""
    source, target = load()

    def ours() -> Any:
        small, _ = source.merged()
        other, _ = target.merged()
        if isinstance(method, CBPE):
            return estimate_shift(small, target=other, method=method, confidence=None)
        return method.match(small, other)

    distinct = f"{len(source.merged()[0])} + {len(target.merged()[0])} distinct rows"
    limit = partial(one_pass, source, target)
    return Contest((source, target), ours, limit, note=distinct)


def alone(load: Callable[[], Samples], method: Any) -> Contest:
    source, target = load()
    if method is None:
        return Contest((source, target), partial(one_pass, source, target))
    return Contest((source, target), partial(method.match, source, target))


def many_contest(load: Callable[[], Samples], method: Any, targets: int = 60) -> Contest:
    """Many targets of 400 rows in one solve, against one after the other."""
    source, target = load()
    one = torch.ones(400, dtype=torch.float64)
    places = [(torch.arange(400) + 40 * k) % len(target) for k in range(targets)]
    many = [target.select(place, one) for place in places]

    def agree(ours: Any, theirs: Any) -> tuple[bool, str]:
        same = all(a.features == b.features for a, b in zip(ours, theirs, strict=True))
        return same, "features of every target"

    return Contest(
        (source, target),
        partial(method.match_many, source, many),
        lambda: [method.match(source, part) for part in many],
        agree,
    )


def interval_contest(load: Callable[[], Samples], method: Any) -> Contest:
    source, target = load()
    run = partial(estimate_shift, source, target=target, method=method)

    def agree(report: Any, point: Any) -> tuple[bool, str]:
        off = 100 * abs(report.gap - point.gap)
        kind = report.interval_source
        how = "bootstrap of 200" if kind == "bootstrap" else f"{kind}, no replicates are run"
        return off < 1e-9, f"gap, {off:.0e} points apart (tolerance 1e-9); interval: {how}"

    return Contest(
        (source, target), partial(run, replicates=200), partial(run, confidence=None), agree
    )
