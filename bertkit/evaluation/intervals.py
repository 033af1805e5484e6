"""Bootstrap 95 % percentile intervals over rows, for the scores of `metrics` (Efron & Tibshirani 1993).

A resample draws as many rows as there are, with replacement: it is a whole-number weight per row. So each
score is written here once more, as a formula over weights that does many resamples at a time, from sums over
rows that are sparse matrix products. Tests keep every formula equal to `metrics` on the repeated rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertkit.evaluation.calibration import BINS, bin_of
from bertkit.evaluation.metrics import (
    CONSTANT,
    Floats,
    Ints,
    checked_multi_label,
    checked_regression,
    checked_single_label,
    log_likelihood,
    one_vs_rest,
)

Interval: TypeAlias = tuple[float, float]
Weighted: TypeAlias = Callable[[Floats], dict[str, Floats]]
"""Weights (rows, resamples) -> score name -> value per resample (resamples,), NaN where undefined."""

CHUNK = 2**18  # weights held at a time: 2 MiB, which caches hold


def intervals_single_label(
    references: ArrayLike,
    probabilities: ArrayLike,
    labels: Sequence[str],
    predictions: ArrayLike | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval | None]:
    """Intervals of the scores of `metrics.single_label`, but for `support/...`; arguments as there.

    Returns:
        Score name -> (low, high); None where the score is undefined in more than half of the resamples.

    Raises:
        ValueError: As `metrics.single_label`.
        ModelError: As `metrics.single_label`.
    """
    weighted = weighted_single_label(references, probabilities, labels, predictions)
    return bootstrap(weighted, len(np.asarray(references)), resamples=resamples, seed=seed)


def intervals_multi_label(
    references: ArrayLike,
    probabilities: ArrayLike,
    predictions: ArrayLike,
    labels: Sequence[str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval | None]:
    """Intervals of the scores of `metrics.multi_label`, but for `support/...`; arguments as there.

    Returns:
        Score name -> (low, high); None where the score is undefined in more than half of the resamples.

    Raises:
        ValueError: As `metrics.multi_label`.
        ModelError: As `metrics.multi_label`.
    """
    weighted = weighted_multi_label(references, probabilities, predictions, labels)
    return bootstrap(weighted, len(np.asarray(references)), resamples=resamples, seed=seed)


def intervals_regression(
    references: ArrayLike, predictions: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Interval | None]:
    """Intervals of the scores of `metrics.regression`; arguments as there.

    Returns:
        Score name -> (low, high); None where the score is undefined in more than half of the resamples.

    Raises:
        ValueError: As `metrics.regression`.
        ModelError: As `metrics.regression`.
    """
    weighted = weighted_regression(references, predictions)
    return bootstrap(weighted, len(np.asarray(references)), resamples=resamples, seed=seed)


def bootstrap(weighted: Weighted, rows: int, *, resamples: int = 1000, seed: int = 0) -> dict[str, Interval | None]:
    """95 % percentile intervals of scores given as functions of row weights.

    Args:
        weighted: The scores, from weights (rows, some resamples).
        rows: Number of rows.
        resamples: Number of resamples.
        seed: Seed of the draw. Scores of the same rows under the same seed see the same resamples.
    """
    rng = np.random.default_rng(seed)
    step = max(1, min(64, CHUNK // rows))
    parts: list[dict[str, Floats]] = []
    for start in range(0, resamples, step):
        weights = np.empty((rows, min(step, resamples - start)))
        for column in range(weights.shape[1]):
            weights[:, column] = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        parts.append(weighted(weights))
    return {name: _percentiles(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def weighted_single_label(
    references: ArrayLike,
    probabilities: ArrayLike,
    labels: Sequence[str],
    predictions: ArrayLike | None = None,
) -> Weighted:
    """The scores of `metrics.single_label`, but for `support/...`, as a function of row weights."""
    truth, given, chosen = checked_single_label(references, probabilities, labels, predictions)
    rows, count = given.shape
    right = chosen == truth
    actual, predicted = _summing(truth, count), _summing(chosen, count)
    hits = _summing(truth, count, right.astype(np.float64))
    likelihood = log_likelihood(given[np.arange(rows), truth])
    confidence = given[np.arange(rows), chosen]
    gaps = _summing(bin_of(confidence), BINS, confidence - right)
    curves = _roc_curves(*one_vs_rest(truth, given))

    def weighted(weights: Floats) -> dict[str, Floats]:
        total, counts = weights.sum(axis=0), (hits @ weights, predicted @ weights, actual @ weights)
        averages, per_label = _precision_recall_f1(*counts, labels)
        return {
            "accuracy": counts[0].sum(axis=0) / total,
            **averages,
            "matthews_correlation": _matthews(*counts),
            "roc_auc": _roc_auc(curves, weights),
            "neg_log_loss": likelihood @ weights / total,
            "ece": np.abs(gaps @ weights).sum(axis=0) / total,
            **per_label,
        }

    return weighted


def weighted_multi_label(
    references: ArrayLike, probabilities: ArrayLike, predictions: ArrayLike, labels: Sequence[str]
) -> Weighted:
    """The scores of `metrics.multi_label`, but for `support/...`, as a function of row weights."""
    from scipy.sparse import csr_array

    truth, given, chosen = checked_multi_label(references, probabilities, predictions, labels)
    rows, count = given.shape
    actual, predicted, hits = (csr_array(of.T.astype(np.float64)) for of in (truth, chosen, truth * chosen))
    exact = (chosen == truth).all(axis=1).astype(np.float64)
    likelihood = log_likelihood(np.where(truth == 1, given, 1 - given)).mean(axis=1)
    confidence = np.where(chosen == 1, given, 1 - given)
    bins = np.repeat(np.arange(rows), count) * BINS + bin_of(confidence.ravel())
    by_row = np.bincount(bins, (confidence - (chosen == truth)).ravel(), minlength=rows * BINS)
    gaps = csr_array(by_row.reshape(rows, BINS).T)
    curves = _roc_curves(truth == 1, given)

    def weighted(weights: Floats) -> dict[str, Floats]:
        total, counts = weights.sum(axis=0), (hits @ weights, predicted @ weights, actual @ weights)
        averages, per_label = _precision_recall_f1(*counts, labels)
        return {
            "subset_accuracy": exact @ weights / total,
            **averages,
            "roc_auc": _roc_auc(curves, weights),
            "neg_log_loss": likelihood @ weights / total,
            "ece": np.abs(gaps @ weights).sum(axis=0) / (total * count),
            **per_label,
        }

    return weighted


def weighted_regression(references: ArrayLike, predictions: ArrayLike) -> Weighted:
    """The scores of `metrics.regression` as a function of row weights."""
    truth, given = checked_regression(references, predictions)
    squares, distances = (truth - given) ** 2, np.abs(truth - given)
    truth_ranks, given_ranks = _ranking(truth), _ranking(given)

    def weighted(weights: Floats) -> dict[str, Floats]:
        total = weights.sum(axis=0)
        return {
            "pearson": _correlation(truth[:, None], given[:, None], weights),
            "spearman": _correlation(truth_ranks(weights), given_ranks(weights), weights),
            "neg_mean_squared_error": -(squares @ weights) / total,
            "neg_mean_absolute_error": -(distances @ weights) / total,
        }

    return weighted


def _summing(group: Ints, groups: int, values: Floats | None = None) -> Any:
    """A sparse (groups, rows) matrix: times weights (rows, resamples) it sums weight * value by group."""
    from scipy.sparse import csr_array

    data = np.ones(len(group)) if values is None else values
    return csr_array((data, (group, np.arange(len(group)))), shape=(groups, len(group)))


def _ratio(top: Floats, bottom: Floats, undefined: float = 0.0) -> Floats:
    ratio: Floats = np.divide(top, bottom, out=np.full(np.shape(top), undefined), where=bottom != 0)
    return ratio


def _precision_recall_f1(
    hits: Floats, predicted: Floats, actual: Floats, labels: Sequence[str]
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Averages over labels, and per-label scores; from weights by label, each (labels, resamples)."""
    precision, recall, f1 = (
        _ratio(hits, predicted),
        _ratio(hits, actual),
        _ratio(2 * hits, predicted + actual),
    )
    averages = {
        "f1_macro": f1.mean(axis=0),
        "f1_micro": _ratio(2 * hits.sum(axis=0), (predicted + actual).sum(axis=0)),
        "f1_weighted": _ratio((f1 * actual).sum(axis=0), actual.sum(axis=0)),
        "precision_macro": precision.mean(axis=0),
        "recall_macro": recall.mean(axis=0),
    }
    per_label = {
        f"{name}/{label}": scores[i]
        for i, label in enumerate(labels)
        for name, scores in (("precision", precision), ("recall", recall), ("f1", f1))
    }
    return averages, per_label


def _matthews(hits: Floats, predicted: Floats, actual: Floats) -> Floats:
    """Gorodkin 2004, from weights by label, each (labels, resamples)."""
    total = actual.sum(axis=0)
    together = hits.sum(axis=0) * total - (actual * predicted).sum(axis=0)
    spread = (total**2 - (predicted**2).sum(axis=0)) * (total**2 - (actual**2).sum(axis=0))
    return _ratio(together, np.sqrt(spread))


def _roc_curves(truth: NDArray[np.bool_], scores: Floats) -> list[Any]:
    """Per column with both classes, a matrix that sums weights by (step of rising score, class)."""
    curves = []
    for column in np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0)):
        _, group = np.unique(scores[:, column], return_inverse=True)
        share = np.bincount(group, truth[:, column]) / np.bincount(group)
        # Neighbouring scores that only one class has make one step: no pair of rows is told apart by them.
        same = (share[1:] == share[:-1]) & ((share[1:] == 0) | (share[1:] == 1))
        step = np.concatenate([[0], np.cumsum(~same)])
        curves.append(_summing(2 * step[group] + truth[:, column], 2 * int(step[-1]) + 2))
    return curves


def _roc_auc(curves: list[Any], weights: Floats) -> Floats:
    """Share of (positive, negative) pairs in the right order, mean over the columns defined in a resample."""
    areas, defined = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
    for curve in curves:
        sums = curve @ weights
        negative, positive = sums[0::2], sums[1::2]
        lower = np.cumsum(negative, axis=0) - negative / 2  # a tie is half an order
        pairs = negative.sum(axis=0) * positive.sum(axis=0)
        areas += _ratio((positive * lower).sum(axis=0), pairs)
        defined += pairs > 0
    return _ratio(areas, defined, undefined=np.nan)


def _ranking(values: Floats) -> Callable[[Floats], Floats]:
    """Weights -> ranks, both (rows, resamples), among the repeated rows, mean rank for ties."""
    distinct, group = np.unique(values, return_inverse=True)
    sums = _summing(group, len(distinct))

    def ranks(weights: Floats) -> Floats:
        tied = sums @ weights
        ranked: Floats = (np.cumsum(tied, axis=0) - (tied - 1) / 2)[group]
        return ranked

    return ranks


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's r per resample, of (rows, resamples or 1); NaN where x or y is constant, by scipy's limit."""
    total = weights.sum(axis=0)
    x_mean, y_mean = (weights * x).sum(axis=0) / total, (weights * y).sum(axis=0) / total
    x, y = x - x_mean, y - y_mean
    x_norm, y_norm = np.sqrt((weights * x * x).sum(axis=0)), np.sqrt((weights * y * y).sum(axis=0))
    varied = (x_norm > CONSTANT * np.abs(x_mean)) & (y_norm > CONSTANT * np.abs(y_mean))
    norms = np.where(varied, x_norm * y_norm, 0)
    return np.clip(_ratio((weights * x * y).sum(axis=0), norms, undefined=np.nan), -1, 1)


def _percentiles(values: Floats) -> Interval | None:
    defined = values[~np.isnan(values)]
    if 2 * len(defined) < len(values):
        return None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)
