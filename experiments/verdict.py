"""Does the verdict deserve belief? Worlds of graded difficulty, some beyond any estimator.

    python -m experiments.verdict --draws 10

Twenty grades in three families: worlds that the data identify, worlds whose features say ever less
about the label, and worlds that break Theorem 1, which must never come out as identified. Every
draw is appended to a CSV as it finishes: run the same command again to resume.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed

from sees_torch import ShiftedPair, estimate_shift, make_sparse_joint_shift

BREAKS_THEOREM_1 = "3"
"""Families whose name begins so must never be identified."""


@dataclass(frozen=True)
class World:
    """Features independent given the label, of which the first shifts together with the label.

    Attributes:
        tables: p_s(x_j | y), (L, levels) each.
        source_law: (levels of x0, L) p_s(x0, y); target_law: the same of the target.
    """

    tables: list[np.ndarray]
    source_law: np.ndarray
    target_law: np.ndarray

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        classes: int,
        features: int,
        information: float = 1.0,
        strength: float = 1.0,
    ) -> World:
        """All but the first feature lose information about the label, down to none at 0."""
        prior = softmax(0.3 * rng.normal(size=classes))
        tables = [softmax(rng.normal(size=(classes, 3))) for _ in range(features)]
        tables[1:] = [
            information * table + (1 - information) * table.mean(axis=0) for table in tables[1:]
        ]
        law = prior * tables[0].T
        return cls(tables, law, normalised(law * np.exp(strength * rng.normal(size=law.shape))))

    def pair(self, rng: np.random.Generator, rows: int, target_rows: int) -> ShiftedPair:
        """Drawn rows with the source's Bayes rule as the classifier."""
        here, labels = self._sample(rng, self.source_law, rows)
        there, target_labels = self._sample(rng, self.target_law, target_rows)
        ratio = self.target_law / self.source_law
        return ShiftedPair(
            source=_frame(here),
            labels=labels,
            source_proba=self._posterior(here),
            target=_frame(there),
            target_proba=self._posterior(there),
            target_labels=target_labels,
            classes=tuple(range(self.source_law.shape[1])),
            features=("x0",),
            weight_table={place: float(value) for place, value in np.ndenumerate(ratio)},
            weights=ratio[here[:, 0], labels],
            population_gap=self._gap(),
        )

    def _sample(
        self, rng: np.random.Generator, law: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        first, labels = np.unravel_index(rng.choice(law.size, count, p=law.ravel()), law.shape)
        columns = [first]
        for table in self.tables[1:]:
            # The last step of the distribution function is left out against rounding.
            steps = table.cumsum(axis=1)[:, :-1][labels]
            columns.append((rng.random((count, 1)) > steps).sum(axis=1))
        return np.stack(columns, axis=1), labels

    def _joint(self, rows: np.ndarray, law: np.ndarray) -> np.ndarray:
        """(n, L) probability of every row with every label."""
        joint = law[rows[:, 0]]
        for j, table in enumerate(self.tables[1:], start=1):
            joint = joint * table.T[rows[:, j]]
        return joint

    def _posterior(self, rows: np.ndarray) -> np.ndarray:
        joint = self._joint(rows, self.source_law)
        return joint / joint.sum(axis=1, keepdims=True)

    def _gap(self) -> float:
        rows = np.array(list(product(*(range(table.shape[1]) for table in self.tables))))
        predicted = self._posterior(rows).argmax(axis=1)[:, None]
        moved = self._joint(rows, self.target_law) - self._joint(rows, self.source_law)
        return float(np.take_along_axis(moved, predicted, axis=1).sum())


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return powers / powers.sum(axis=-1, keepdims=True)


def normalised(law: np.ndarray) -> np.ndarray:
    return law / law.sum()


def _frame(rows: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[f"x{j}" for j in range(rows.shape[1])])


Maker = Callable[[int, int], ShiftedPair]
"""A world and its sample, from a seed and a number of rows."""


def library(**options: Any) -> Maker:
    """6 to 10 features and strength 0.7 to 1.2, unless told otherwise."""

    def make(seed: int, rows: int) -> ShiftedPair:
        rng = np.random.default_rng(seed)
        drawn = {"features": int(rng.integers(6, 11)), "strength": float(rng.uniform(0.7, 1.2))}
        generator = torch.Generator().manual_seed(seed)
        return make_sparse_joint_shift(rows, rows, generator=generator, **(drawn | options))

    return make


def fading(information: float) -> Maker:
    """Two to four classes, told apart ever less by the features that did not shift."""

    def make(seed: int, rows: int) -> ShiftedPair:
        rng = np.random.default_rng(seed)
        classes, features = int(rng.integers(2, 5)), int(rng.integers(6, 11))
        world = World.draw(rng, classes, features, information, float(rng.uniform(0.7, 1.2)))
        return world.pair(rng, rows, rows)

    return make


def twin_labels(features: int) -> Maker:
    """Labels 1 and 2 differ in the shifted feature only."""

    def make(seed: int, rows: int) -> ShiftedPair:
        rng = np.random.default_rng(seed)
        world = World.draw(rng, 3, features)
        for table in world.tables[1:]:
            table[2] = table[1]
        return world.pair(rng, rows, rows)

    return make


def bernoulli(noise: int) -> Maker:
    """The example in the proof of Theorem 2, where x0 or x1 fit the target exactly."""

    def make(seed: int, rows: int) -> ShiftedPair:
        rng = np.random.default_rng(seed)
        first, second = (np.array([[0.3, 0.7], [0.9, 0.1]]), np.array([[0.4, 0.6], [0.8, 0.2]]))
        coins = [np.full((2, 2), 0.5) for _ in range(noise)]
        target = np.array([[0.2, 0.3], [0.2, 0.3]])
        return World([first, second, *coins], 0.5 * first.T, target).pair(rng, rows, rows)

    return make


def mute(features: int, *, visible: bool) -> Maker:
    """Given the shifted feature nothing tells the labels apart; it may even look unmoved."""

    def make(seed: int, rows: int) -> ShiftedPair:
        rng = np.random.default_rng(seed)
        world = World.draw(rng, 2, features, information=0.0)
        if not visible:
            before, after = (law.sum(axis=1) for law in (world.source_law, world.target_law))
            world = replace(world, target_law=world.target_law * (before / after)[:, None])
        return world.pair(rng, rows, rows)

    return make


def copied(classes: int) -> Maker:
    """The shifted feature appears twice: the gap can be known, the feature cannot."""

    def make(seed: int, rows: int) -> ShiftedPair:
        pair = library(features=6, shifted=1, classes=classes)(seed, rows)
        both = ((table, table["x0"]) for table in (pair.source, pair.target))
        source, target = (table.assign(copy=shifted) for table, shifted in both)
        return replace(pair, source=source, target=target)

    return make


WORLDS: dict[tuple[str, str], Maker] = {
    ("1 identified", "1-SJS, 2 classes"): library(shifted=1, classes=2),
    ("1 identified", "1-SJS, 3 classes"): library(shifted=1, classes=3),
    ("1 identified", "1-SJS, 4 classes"): library(shifted=1, classes=4),
    ("1 identified", "label shift"): library(shifted=0),
    ("1 identified", "no shift"): library(shifted=0, strength=0.0),
    **{("2 fading", f"t = {t:g}"): fading(t) for t in (1.0, 0.5, 0.25, 0.1, 0.0)},
    ("3a twin labels", "6 features"): twin_labels(6),
    ("3a twin labels", "10 features"): twin_labels(10),
    ("3b Theorem 2", "2 features"): bernoulli(0),
    ("3b Theorem 2", "and 2 of noise"): bernoulli(2),
    ("3b Theorem 2", "and 6 of noise"): bernoulli(6),
    ("3c 2s > d", "2 of 2"): library(features=2, shifted=2),
    ("3c 2s > d", "2 of 3"): library(features=3, shifted=2),
    ("3d mute", "visible"): mute(6, visible=True),
    ("3d mute", "invisible"): mute(6, visible=False),
    ("3e copy", "6 features"): copied(2),
}


def draw(
    family: str, grade: str, rows: int, seed: int, confidence: float, replicates: int
) -> dict[str, Any]:
    """The report on one world beside the truth, gaps in points."""
    torch.set_num_threads(1)
    pair = WORLDS[family, grade](seed, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = estimate_shift(
            **pair.inputs(), method="auto", confidence=confidence, replicates=replicates
        )
    low, high = report.interval or (np.nan, np.nan)
    table = report.hypotheses()
    figures = ("label_equivalent", "power", "stability", "condition")
    return {
        "family": family,
        "grade": grade,
        "rows": rows,
        "seed": seed,
        "status": report.status,
        "hypothesis": report.hypothesis,
        "features": " ".join(report.shifted_features),
        "truth": " ".join(pair.features),
        # A copy of the shifted feature is as right as the feature.
        "right": tuple({"copy": "x0"}.get(j, j) for j in report.shifted_features) == pair.features,
        "population": 100 * pair.population_gap,
        "gap": 100 * report.gap,
        "low": 100 * low,
        "high": 100 * high,
        "rivals": bool(table["rival"].any()),
        **{name: report.diagnostics.get(name, np.nan) for name in figures},
        "reasons": "; ".join(report.reasons),
        "hypotheses": table.round(4).to_string(index=False),
    }


def confusion(results: pd.DataFrame) -> pd.DataFrame:
    """Verdicts per grade, and what those that were called identified are worth."""
    sure = results["status"] == "identified"
    error = (results["gap"] - results["population"]).abs()
    covered = results["population"].between(results["low"] - 1e-9, results["high"] + 1e-9)
    r = results.assign(
        **{name: results["status"] == name for name in ("identified", "weak", "not_identified")},
        covered=covered,
        error=error,
        sure_error=error.where(sure),
        sure_right=results["right"].astype(float).where(sure),
    )
    grouped = r.groupby(["family", "grade"], sort=False)
    table = grouped[["identified", "weak", "not_identified"]].mean()
    table["worst error | identified"] = grouped["sure_error"].max()
    table["right | identified"] = grouped["sure_right"].mean()
    table[["right", "rivals", "covered"]] = grouped[["right", "rivals", "covered"]].mean()
    table["mean error"] = grouped["error"].mean()
    table["worst error"] = grouped["error"].max()
    table["worlds"] = grouped.size()
    return in_order(table)


def graded(results: pd.DataFrame) -> pd.DataFrame:
    """Means and medians of the figures behind the verdict, infinite ones as 10,000."""
    names = ["label_equivalent", "power"]
    finite = results.assign(**results[names].clip(upper=1e4))
    grouped = finite.groupby(["family", "grade"], sort=False)[names]
    parts = [grouped.mean().add_suffix(" mean"), grouped.median().add_suffix(" median")]
    return in_order(pd.concat(parts, axis=1))


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[[key for key in WORLDS if key in table.index]]


def show(row: Any) -> None:
    """One world with its reasons and hypotheses."""
    print(
        f"\n{row.family}, {row.grade}, {row.rows} rows, seed {row.seed}: {row.status}, "
        f"{row.hypothesis} ({row.features}); gap {row.gap:.2f} [{row.low:.2f}, {row.high:.2f}], "
        f"truth {row.population:.2f}; worth {row.label_equivalent:.0f} labels, power "
        f"{row.power:.0f}, stability {row.stability:.2f}, condition {row.condition:.3g}"
    )
    print(row.reasons or "(no reasons)", row.hypotheses, sep="\n")


def main() -> None:
    """Run the draws that are missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--draws", type=int, default=10, help="worlds per grade; 10 make 200")
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--family", nargs="+", help="beginnings of names, such as 1 3a")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("verdict.csv"))
    options = parser.parse_args()
    done: set[tuple[str, str, int, int]] = set()
    if options.out.exists():
        old = pd.read_csv(options.out)
        done = set(zip(old["family"], old["grade"], old["rows"], old["seed"], strict=True))
    wanted = [
        (*world, options.rows, seed)
        for seed in range(options.first, options.first + options.draws)
        for world in WORLDS
        if options.family is None or world[0].startswith(tuple(options.family))
        if (*world, options.rows, seed) not in done
    ]
    jobs = (delayed(draw)(*key, options.confidence, options.replicates) for key in wanted)
    runner = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for count, row in enumerate(runner(jobs), start=1):
        frame = pd.DataFrame([row])
        frame.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"{count} of {len(wanted)}", end="\r", flush=True)
    words = ("reasons", "features", "truth")
    results = pd.read_csv(options.out, dtype=dict.fromkeys(words, str))
    results = results.fillna(dict.fromkeys(words, ""))
    print(confusion(results).round(2).to_string(), "", sep="\n")
    print(graded(results).round(0).to_string())
    broken = results["family"].str.startswith(BREAKS_THEOREM_1)
    for row in results[broken & (results["status"] == "identified")].itertuples():
        show(row)


if __name__ == "__main__":
    main()
