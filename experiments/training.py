"""Does a network get better on the target when its training knows the shift? Five settings.

    OMP_NUM_THREADS=1 python -m experiments.training --seeds 20

A small network is trained on rows of the source's law. From other labelled source rows and
unlabelled target rows a report is made; then the network is fine-tuned on all labelled rows,
weighted in several ways, or corrected without training. Accuracy on target rows, in points.
"unweighted" is the control: the same rows and steps without weights. Each seed is appended to a
CSV as it finishes: run the same command again to resume.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

from sees_torch import (
    CorrectedClassifier,
    KnownWeights,
    ShiftReport,
    TargetLoss,
    estimate_shift,
    importance_weights,
    make_sparse_joint_shift,
    resample_shift,
)

CLIP = 10.0
BATCH = 250
Order = Literal["split-first", "classifier-first"]
EPOCHS = 15


@dataclass(frozen=True)
class Sample:
    """What the network sees, what the report sees, and the labels."""

    inputs: Tensor
    features: pd.DataFrame
    labels: Tensor

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            torch.cat([self.inputs, other.inputs]),
            pd.concat([self.features, other.features], ignore_index=True),
            torch.cat([self.labels, other.labels]),
        )

    def part(self, start: int, stop: int | None = None) -> Sample:
        rows = slice(start, stop)
        return Sample(self.inputs[rows], self.features.iloc[rows], self.labels[rows])


@dataclass(frozen=True)
class Task:
    """Labelled rows to train on and to estimate from, target rows to estimate from and to test.

    Where `source_in_test`, the source shares rows with the test: nothing is fine-tuned on it.
    """

    train: Sample
    source: Sample
    target: Sample
    test: Sample
    weights: KnownWeights
    shifted: tuple[str, ...]
    source_in_test: bool = False

    def report(self, network: nn.Module, method: Any = "auto") -> ShiftReport:
        with torch.no_grad():
            proba = [network(sample.inputs).softmax(1) for sample in (self.source, self.target)]
        return estimate_shift(
            self.source.features,
            self.source.labels,
            self.target.features,
            source_proba=proba[0],
            target_proba=proba[1],
            method=method,
            replicates=0,
        )


def simulated(seed: int, strength: float = 2.0) -> Task:
    """A world under 1-SJS that turns the Bayes classifier around in some cells."""
    generator = torch.Generator().manual_seed(seed)
    pair = make_sparse_joint_shift(5000, 13000, features=5, strength=strength, generator=generator)

    def sample(frame: pd.DataFrame, labels: np.ndarray) -> Sample:
        codes = torch.tensor(frame.to_numpy())
        inputs = nn.functional.one_hot(codes, 3).flatten(1).float()
        return Sample(inputs, frame, torch.tensor(labels))

    source, target = sample(pair.source, pair.labels), sample(pair.target, pair.target_labels)
    return Task(
        source.part(0, 2000),
        source.part(2000),
        target.part(0, 3000),
        target.part(3000),
        KnownWeights(pair.weight_table, pair.features),
        pair.features if strength else (),
    )


def unshifted(seed: int) -> Task:
    """The same world without a shift: what does it cost to correct for nothing?"""
    return simulated(seed, strength=0.0)


CANCER = ["mean smoothness", "mean symmetry", "mean fractal dimension", "texture error"]
CANCER_LAWS: list[dict[str, dict[int, float]]] = [
    {"low": {0: 0.06, 1: 0.27}, "middle": {0: 0.12, 1: 0.21}, "high": {0: 0.19, 1: 0.15}},
    {"low": {0: 0.25, 1: 0.08}, "middle": {0: 0.15, 1: 0.15}, "high": {0: 0.07, 1: 0.30}},
]


def breast_cancer(seed: int, order: Order = "split-first") -> Task:
    """Breast cancer from a few weak measurements; texture comes to mean the opposite.

    Split first, source and target repeat about 190 rows each, different ones: by chance all other
    columns differ too, and the shift is no longer sparse.
    """
    data = load_breast_cancer(as_frame=True)
    texture = pd.qcut(data.data["mean texture"], 3, labels=["low", "middle", "high"]).astype(str)
    frame = data.data[CANCER].assign(texture=texture, label=data.target)
    drawn = []

    def fit(features: pd.DataFrame, labels: np.ndarray) -> Any:
        drawn.append((features, labels))
        return lambda table: np.full((len(table), 2), 0.5)  # The network is trained later.

    generator = torch.Generator().manual_seed(seed)
    pair = resample_shift(
        frame,
        "label",
        ["texture"],
        *CANCER_LAWS,
        n=400,
        m=1200,
        fit=fit,
        order=order,
        generator=generator,
    )
    ((train, train_labels),) = drawn
    middle, scale = train[CANCER].mean(), train[CANCER].std()

    def sample(table: pd.DataFrame, labels: np.ndarray) -> Sample:
        levels = [(table["texture"] == level).to_numpy() for level in CANCER_LAWS[0]]
        numbers = ((table[CANCER] - middle) / scale).to_numpy()
        inputs = np.column_stack([numbers, *levels])
        return Sample(torch.tensor(inputs).float(), table, torch.tensor(labels))

    target = sample(pair.target, pair.target_labels)
    return Task(
        sample(train, train_labels),
        sample(pair.source, pair.labels),
        target.part(0, 400),
        target.part(400),
        KnownWeights(pair.weight_table, pair.features),
        pair.features,
        source_in_test=order != "split-first",
    )


def breast_cancer_shared(seed: int) -> Task:
    """The same with source and target drawn from the same rows: exactly sparse."""
    return breast_cancer(seed, "classifier-first")


SITES = ("north", "south", "west")


def digits(seed: int, noise: float = 7.0, rows: int = 1500) -> Task:
    """Noisy images of digits, each from a site; the report sees only site, scanner and weekday.

    In the source sites write the same digits, in the target every site mostly its own. The network
    sees pixels only: fine-tuning it can only learn the new shares of digits.
    """
    rng = np.random.default_rng(seed)
    data = load_digits()
    parts = np.array_split(rng.permutation(len(data.target)), 4)
    even = np.full((3, 10), 1 / 30)
    own = np.array(
        [[4.0 if digit % 3 == site else 0.4 for digit in range(10)] for site in range(3)]
    )
    own = own * np.array([1.0, 0.8, 0.6])[:, None] / (own * [[1.0], [0.8], [0.6]]).sum()

    def sample(law: np.ndarray, part: np.ndarray) -> Sample:
        cell = rng.choice(30, rows, p=law.flatten())
        site, label = np.array(SITES)[cell // 10], cell % 10
        pools = [part[data.target[part] == digit] for digit in range(10)]
        image = data.data[[rng.choice(pools[digit]) for digit in label]]
        pixels = (image + rng.normal(0, noise, image.shape)) / 16
        features = pd.DataFrame(
            {
                "site": site,
                "scanner": rng.choice(["a", "b"], rows),
                "weekday": rng.integers(0, 7, rows),
            }
        )
        return Sample(torch.tensor(pixels).float(), features, torch.tensor(label))

    table = {
        (name, digit): own[place, digit] / even[place, digit]
        for place, name in enumerate(SITES)
        for digit in range(10)
    }
    train, source = sample(even, parts[0]), sample(even, parts[1])
    target, test = sample(own, parts[2]), sample(own, parts[3])
    return Task(train, source, target, test, KnownWeights(table, ("site",)), ("site",))


TASKS: dict[str, Callable[[int], Task]] = {
    "simulated 1-SJS": simulated,
    "simulated, no shift": unshifted,
    "breast cancer": breast_cancer,
    "breast cancer, shared rows": breast_cancer_shared,
    "digits with sites": digits,
}
BatchLoss = Callable[[nn.Module, Tensor], Tensor]
"""(network, rows of the batch) -> loss."""


def trained(
    network: nn.Module, batches: Iterator[Tensor], loss: BatchLoss, rate: float
) -> nn.Module:
    """A copy of the network after one Adam step per batch."""
    network = copy.deepcopy(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate, weight_decay=1e-4)
    for rows in batches:
        optimiser.zero_grad()
        loss(network, rows).backward()
        optimiser.step()
    return network


def batches(count: int, seed: int, sampler: Any = None) -> Iterator[Tensor]:
    """Row numbers of EPOCHS epochs."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        order = torch.randperm(count, generator=generator)
        yield from (order if sampler is None else torch.tensor(list(sampler))).split(BATCH)


def source_network(task: Task, seed: int) -> nn.Module:
    """A small network, trained on the training sample."""
    classes = int(task.train.labels.max()) + 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(task.train.inputs.shape[1], 32), nn.ReLU(), nn.Linear(32, classes)
        )

    def loss(network: nn.Module, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            network(task.train.inputs[rows]), task.train.labels[rows]
        )

    rows = (
        part for epoch in range(3) for part in batches(len(task.train.labels), 10 * seed + epoch)
    )
    return trained(network, rows, loss, 5e-3)


def draw(setting: str, seed: int) -> list[dict[str, Any]]:
    """Accuracy on new target rows of every way to use the shift."""
    torch.set_num_threads(1)
    task = TASKS[setting](seed)
    network = source_network(task, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report, truth = task.report(network), task.report(network, task.weights)
    known = task.train if task.source_in_test else task.train + task.source
    count = len(known.labels)

    def weighted(weight: Tensor) -> BatchLoss:
        def loss(network: nn.Module, rows: Tensor) -> Tensor:
            value = nn.functional.cross_entropy(
                network(known.inputs[rows]), known.labels[rows], reduction="none"
            )
            return (weight[rows] * value).mean()

        return loss

    target_loss = TargetLoss(report, logits=True, clip=CLIP)
    coded = target_loss.encode(known.features)

    def on_target(network: nn.Module, rows: Tensor) -> Tensor:
        return target_loss(network(known.inputs[rows]), known.labels[rows], coded[rows])

    estimated = importance_weights(report, known.features, known.labels, clip=CLIP)
    true = importance_weights(truth, known.features, known.labels, clip=CLIP)
    ones = weighted(torch.ones(count))

    def tuned(loss: BatchLoss, sampler: Any = None) -> nn.Module:
        return trained(network, batches(count, seed, sampler), loss, 2e-3)

    generator = torch.Generator().manual_seed(seed)
    networks = {
        "source model": network,
        "unweighted": tuned(ones),
        "importance weights": tuned(weighted(estimated.weights.float())),
        "sampler": tuned(ones, estimated.sampler(generator=generator)),
        "TargetLoss": tuned(on_target),
        "true importance weights": tuned(weighted(true.weights.float())),
    }
    test = task.test
    with torch.no_grad():
        scores = {name: net(test.inputs) for name, net in networks.items()}
        for name, shift in (("CorrectedClassifier", report), ("CorrectedClassifier, true", truth)):
            scores[name] = CorrectedClassifier(network, shift, logits=True)(
                test.inputs, test.features
            )
    identified = report.status == "identified"
    careful = "CorrectedClassifier" if identified else "source model"
    scores["CorrectedClassifier, if identified"] = scores[careful]
    return [
        {
            "setting": setting,
            "seed": seed,
            "method": name,
            "accuracy": 100 * float((score.argmax(1) == test.labels).double().mean()),
            "found": set(report.shifted_features) == set(task.shifted),
            "identified": identified,
            "effective": estimated.effective_rows / count,
        }
        for name, score in scores.items()
    ]


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy and paired differences with their standard errors, in points."""
    rows = []
    for setting, part in results.groupby("setting", sort=False):
        wide = part.pivot(index="seed", columns="method", values="accuracy")
        for method in part["method"].unique():
            row: dict[str, Any] = {
                "setting": setting,
                "method": method,
                "accuracy": wide[method].mean(),
                "se": wide[method].sem(),
            }
            for base in ("source model", "unweighted"):
                difference = wide[method] - wide[base]
                row |= {f"- {base}": difference.mean(), f"se {base}": difference.sem()}
            rows.append(row)
    return pd.DataFrame(rows).set_index(["setting", "method"])


def verdicts(results: pd.DataFrame) -> list[str]:
    """What the table says, in words; two standard errors count as a difference."""
    table, lines = summary(results), []
    for setting, part in results.groupby("setting", sort=False):
        first = part.drop_duplicates("seed")
        lines.append(
            f"{setting}: {len(first)} seeds, shifted features found in {first['found'].mean():.0%}"
            f", identified {first['identified'].mean():.0%}, effective rows "
            f"{first['effective'].mean():.0%}"
        )
        for method in part["method"].unique()[2:]:
            base = "source model" if method.startswith("Corrected") else "unweighted"
            row = table.loc[(setting, method)]
            change, error = row[f"- {base}"], row[f"se {base}"]
            word = "no clear difference"
            if abs(change) > 2 * error:
                word = "helps" if change > 0 else "hurts"
            rival = "the source model" if base == "source model" else "unweighted fine-tuning"
            lines.append(f"  {method} against {rival}: {word} ({change:+.2f} +- {error:.2f})")
    return lines


def main() -> None:
    """Run the seeds that are missing, print the table and what it says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--setting", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--out", type=Path, default=Path("training.csv"))
    options = parser.parse_args()
    done: set[tuple[str, int]] = set()
    if options.out.exists():
        old = pd.read_csv(options.out)
        done = set(zip(old["setting"], old["seed"], strict=True))
    wanted = [
        (setting, seed)
        for seed in range(options.seeds)
        for setting in options.setting
        if (setting, seed) not in done
    ]
    for count, key in enumerate(wanted, start=1):
        frame = pd.DataFrame(draw(*key))
        frame.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
        print(f"{count} of {len(wanted)}", end="\r", flush=True)
    results = pd.read_csv(options.out)
    results = results[results["setting"].isin(options.setting) & (results["seed"] < options.seeds)]
    print(summary(results).round(2).to_string())
    print("\n".join(verdicts(results)))


if __name__ == "__main__":
    main()
