"""Bootstrap 95 % percentile intervals over rows (Efron & Tibshirani 1993), and sums over weighted rows.

A resample draws as many rows as there are, with replacement: it is a whole-number weight per row. So a metric
is written as a function of row weights that computes many resamples at a time, from sums over rows that are
sparse matrix products; with weights of one it is the metric of the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Scores = dict[str, float | None]
Interval = tuple[float, float]
Values = dict[str, Floats]  # of metrics, by their names
Weighted = Callable[[Floats], Values]
"""Weights (rows, resamples) -> score name -> value per resample (resamples,), NaN where undefined."""

CHUNK = 2**18  # weights held at a time: 2 MiB, which caches hold
ROWS = 2**14  # rows at a time, where each gives several numbers
# scipy's limit: smaller deviations from the mean are rounding
CONSTANT = float(np.finfo(np.float64).eps) ** 0.75
COUNTS = ("support/", "invalid_tags")  # of rows: whole numbers without an interval


def bootstrap(
    weighted: Weighted, rows: int, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Interval | None]:
    """95 % percentile intervals of metrics given as a function of row weights (rows, some resamples).

    None where a metric is undefined in more than half of the resamples, or a bound is infinite. Metrics of
    the same rows under the same seed see the same resamples.
    """
    rng = np.random.default_rng(seed)
    step = max(1, min(64, CHUNK // rows))
    parts = []
    for start in range(0, resamples, step):
        weights = np.empty((rows, min(step, resamples - start)))
        for column in range(weights.shape[1]):
            weights[:, column] = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        parts.append(weighted(weights))
    names = [name for name in parts[0] if not name.startswith(COUNTS)]
    return {name: _percentiles(joined(parts, name)) for name in names}


def joined(parts: Sequence[Values], name: str) -> Floats:
    """The values of one score in all parts, `(resamples,)`."""
    return np.concatenate([part[name] for part in parts])


def floats(values: Any) -> Floats:
    """The values as an array of fp64: itself, where they are one."""
    return np.asarray(values, dtype=np.float64)


def blocks(rows: int) -> Iterator[slice]:
    """Of rows that are worked on some at a time."""
    return (slice(start, start + ROWS) for start in range(0, rows, ROWS))


def summed_by(group: Ints, groups: int, values: Floats | None = None) -> Any:
    """A sparse (groups, rows) matrix: times weights (rows, resamples) it sums weight * value by group.

    group, values: `(rows,)`, or `(rows, values)` for several values per row.
    """
    from scipy.sparse import csr_array

    data = np.ones(group.shape) if values is None else values
    rows = np.repeat(np.arange(len(group)), group.size // len(group))
    return csr_array((data.ravel(), (group.ravel(), rows)), shape=(groups, len(group)))


def ratio(top: Floats, bottom: Floats, undefined: float = 0.0) -> Floats:
    """top / bottom, `undefined` where bottom is 0."""
    quotient: Floats = np.divide(top, bottom, out=np.full(np.shape(top), undefined), where=bottom != 0)
    return quotient


def precision_recall_f1(hits: Floats, predicted: Floats, actual: Floats, labels: Sequence[str]) -> Values:
    """Averages over labels, then the metrics of each; from weights by label, each (labels, resamples)."""
    precision = ratio(hits, predicted)
    recall = ratio(hits, actual)
    f1 = ratio(2 * hits, predicted + actual)
    averages = {
        "f1_macro": f1.mean(axis=0),
        "f1_micro": ratio(2 * hits.sum(axis=0), (predicted + actual).sum(axis=0)),
        "f1_weighted": ratio((f1 * actual).sum(axis=0), actual.sum(axis=0)),
        "precision_macro": precision.mean(axis=0),
        "recall_macro": recall.mean(axis=0),
    }
    per_label = (("precision", precision), ("recall", recall), ("f1", f1), ("support", actual))
    return averages | {f"{name}/{label}": of[i] for i, label in enumerate(labels) for name, of in per_label}


def matthews(hits: Floats, predicted: Floats, actual: Floats) -> Floats:
    """Gorodkin 2004, from weights by label, each (labels, resamples). Rows without a prediction are one more
    class.
    """
    total = actual.sum(axis=0)
    none = total - predicted.sum(axis=0)
    covariance = hits.sum(axis=0) * total - (actual * predicted).sum(axis=0)
    variances = (total**2 - (predicted**2).sum(axis=0) - none**2) * (total**2 - (actual**2).sum(axis=0))
    return ratio(covariance, np.sqrt(variances))


def roc_curves(truth: Bools, scores: Floats) -> list[Any]:
    """Per column with both classes, a matrix that sums weights by (step of rising score, class)."""
    from scipy.sparse import csc_array

    curves = []
    ones = np.ones(len(truth))  # one array for all
    ends = np.arange(len(truth) + 1, dtype=np.int32)  # another: each row is in one place
    for column in np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0)):
        _, group = np.unique(scores[:, column], return_inverse=True)
        share = np.bincount(group, truth[:, column]) / np.bincount(group)
        # Neighbouring scores that only one class has make one step: they order no pair of rows.
        same = (share[1:] == share[:-1]) & ((share[1:] == 0) | (share[1:] == 1))
        step = np.cumsum(np.append(False, ~same), dtype=np.int32)
        place = 2 * step[group] + truth[:, column]
        curves.append(csc_array((ones, place, ends), shape=(2 * int(step[-1]) + 2, len(truth))))
    return curves


def roc_auc(curves: list[Any], weights: Floats) -> Floats:
    """Share of (positive, negative) pairs in the right order, mean over the columns defined in a resample."""
    areas = np.zeros(weights.shape[1])
    defined = np.zeros(weights.shape[1])
    for curve in curves:
        sums = curve @ weights
        negative = sums[0::2]
        positive = sums[1::2]
        lower = np.cumsum(negative, axis=0) - negative / 2  # a tie is half an order
        pairs = negative.sum(axis=0) * positive.sum(axis=0)
        areas += ratio((positive * lower).sum(axis=0), pairs)
        defined += pairs > 0
    return ratio(areas, defined, undefined=np.nan)


def ranking(values: Floats) -> Callable[[Floats], Floats]:
    """Weights -> ranks, both (rows, resamples), among the repeated rows, mean rank for ties."""
    distinct, group = np.unique(values, return_inverse=True)
    sums = summed_by(group, len(distinct))

    def ranks(weights: Floats) -> Floats:
        tied = sums @ weights
        ranked: Floats = (np.cumsum(tied, axis=0) - (tied - 1) / 2)[group]
        return ranked

    return ranks


def correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's r per resample, of (rows, resamples or 1); NaN where x or y is constant, by scipy's limit."""
    total = weights.sum(axis=0)
    x_mean = (weights * x).sum(axis=0) / total
    y_mean = (weights * y).sum(axis=0) / total
    x = x - x_mean
    y = y - y_mean
    x_norm = np.sqrt((weights * x * x).sum(axis=0))
    y_norm = np.sqrt((weights * y * y).sum(axis=0))
    varied = (x_norm > CONSTANT * np.abs(x_mean)) & (y_norm > CONSTANT * np.abs(y_mean))
    norms = np.where(varied, x_norm * y_norm, 0)
    return np.clip(ratio((weights * x * y).sum(axis=0), norms, undefined=np.nan), -1, 1)


def _percentiles(values: Floats) -> Interval | None:
    defined = values[~np.isnan(values)]
    if 2 * len(defined) < len(values):
        return None
    with np.errstate(invalid="ignore"):  # between two infinities
        low, high = np.quantile(defined, [0.025, 0.975])
    return (float(low), float(high)) if np.isfinite([low, high]).all() else None


def mean(scores: Iterable[float | None]) -> float | None:
    """The mean; None if one of the scores is not defined."""
    values = list(scores)
    defined = [score for score in values if score is not None]
    return fmean(defined) if len(defined) == len(values) else None
