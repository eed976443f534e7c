"""One run: draw, train the classifier, apply the methods, and return the rows of a tidy table."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.classifiers import Remembered
from experiments.methods import PARAMETERS, TrueWeights, calibration_for, methods_of
from experiments.shifts import Draw, Drawing
from sees_torch import KnownWeights, SeesWarning, ShiftReport, estimate_shift

MOST_LEVELS = 12
Tables = dict[str, list[dict[str, Any]]]


def measure(config: DictConfig) -> Tables:
    """All methods on the draws of a configuration.

    Returns:
        results: a row a draw and method, gaps in points; cells: shares and weights by the levels
        of the shifted features and the label; marginals: shares of levels in source and target.
    """
    table, shift, classifier = (
        instantiate(config[part]) for part in ("data", "shift", "classifier")
    )
    if config.remember is not None:
        classifier = Remembered(classifier, Path(config.remember), str(config.classifier))
    how = Drawing(config.rows, config.target_rows, config.order, config.seed)
    methods = methods_of(config)
    tables: Tables = {"results": [], "cells": [], "marginals": []}
    for draw in shift.draws(table, classifier, how):
        same = {"pair": draw.pair}
        for row, cells in _apply(draw, methods, config.confidence):
            tables["results"].append(same | row)
            tables["cells"].extend(same | cell for cell in cells)
        tables["marginals"].extend(same | row for row in _marginals(draw, table.label))
    return tables


def _apply(
    draw: Draw, methods: Mapping[str, Any], confidence: float | None
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    for name, method in methods.items():
        if isinstance(method, TrueWeights):
            if draw.truth is None:
                continue
            method = KnownWeights(draw.truth.weight_table, draw.truth.features)
        start = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeesWarning)
            report = estimate_shift(
                **draw.inputs,
                method=method,
                confidence=confidence,
                calibrate=calibration_for(method),
            )
        seconds = perf_counter() - start
        row = {"method": name, **_parameters(method), **_gaps(draw, report)}
        row |= {"status": report.status, "seconds": round(seconds, 3)}
        yield row | _truth(draw, report), _cells(draw, report, name)


def _parameters(method: Any) -> dict[str, Any]:
    return {name: getattr(method, name) for name in PARAMETERS if hasattr(method, name)}


def _gaps(draw: Draw, report: ShiftReport) -> dict[str, Any]:
    """Gaps in points: own estimator, the paper's (weighted source rows), interval, truth."""
    classes = np.asarray(draw.inputs["classes"], dtype=object)
    right = classes[draw.inputs["source_proba"].argmax(axis=1)] == draw.inputs["labels"]
    weighted = float(np.mean((report.weights.numpy() - 1) * right))
    low, high = report.interval or (np.nan, np.nan)
    population = np.nan if draw.truth is None else draw.truth.population_gap
    gaps = {"gap": report.gap, "gap ipw": weighted, "low": low, "high": high}
    gaps |= {"realised": draw.realised_gap, "population": population}
    return {name: 100 * gap for name, gap in gaps.items()} | {
        "source accuracy": 100 * report.source_value,
        "features": " ".join(map(str, report.shifted_features)),
    }


def _truth(draw: Draw, report: ShiftReport) -> dict[str, Any]:
    if draw.truth is None:
        return {}
    weights, truth = report.weights.numpy(), draw.truth.weights
    spread = min(weights.std(), truth.std()) > 1e-12
    match = report.match
    named = any(part is not None for part in (match.ranking, match.importance, match.choice))
    found = set(report.shifted_features) == set(draw.truth.features)
    return {
        "weight MSE": float(np.mean((weights - truth) ** 2)),
        "weight PCC": float(np.corrcoef(weights, truth)[0, 1]) if spread else np.nan,
        "found": float(found) if named else np.nan,
    }


def _cells(draw: Draw, report: ShiftReport, method: str) -> list[dict[str, Any]]:
    """Shares of every cell of a simulated shift and the mean weight of its source rows."""
    if draw.truth is None:
        return []
    features = list(draw.truth.features)
    source = draw.truth.source[features].assign(label=draw.truth.labels)
    target = draw.truth.target[features].assign(label=draw.truth.target_labels)
    columns = [*features, "label"]
    weights = source.assign(weight=report.weights.numpy(), truth=draw.truth.weights)
    means = weights.groupby(columns)[["weight", "truth"]].mean()
    shares = {
        "source": source.value_counts(columns, normalize=True),
        "target": target.value_counts(columns, normalize=True),
    }
    joined = means.join(pd.DataFrame(shares)).fillna(0.0)
    rows = []
    for cell, row in joined.iterrows():
        levels = cell if isinstance(cell, tuple) else (cell,)
        rows.append({"method": method, "cell": ", ".join(map(str, levels)), **row.to_dict()})
    return rows


def _marginals(draw: Draw, label: str) -> Iterator[dict[str, Any]]:
    """Shares of the levels of features that have few, and of the label."""
    source, target = draw.inputs["source"], draw.inputs["target"]
    sides = [(name, source[name], target[name]) for name in source]
    if draw.target_labels is not None:
        sides.append((label, pd.Series(draw.inputs["labels"]), pd.Series(draw.target_labels)))
    for name, here, there in sides:
        levels = sorted(set(here.dropna()) | set(there.dropna()), key=str)
        if len(levels) <= MOST_LEVELS:
            for level in levels:
                shares = {"source": float((here == level).mean())}
                shares["target"] = float((there == level).mean())
                yield {"feature": name, "level": str(level), **shares}
