"""The metrics of classification and regression, as scikit-learn and scipy define them.

Every score is a plain float, or None where it is not defined. Higher is better, except for `ece`, the
expected calibration error, and `support/...`, the number of rows. Where the order of the sums decides the
last digit (areas, means of logarithms, correlations), the score is scikit-learn's or scipy's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bertkit.evaluation.calibration import BINS, bin_of, calibration_error
from bertkit.evaluation.graded import Scored
from bertkit.evaluation.intervals import (
    Bools,
    Floats,
    Ints,
    Values,
    blocks,
    correlation,
    floats,
    matthews,
    precision_recall_f1,
    ranking,
    roc_auc,
    roc_curves,
)

Kind = Literal["single-label", "multi-label", "regression"]

EPS = float(np.finfo(np.float64).eps)  # probabilities are clipped to [EPS, 1 - EPS] before their logarithm

_AVERAGES = ("f1_macro", "f1_micro", "f1_weighted", "precision_macro", "recall_macro")
# these are computed from probabilities, not from decisions
PROBABILISTIC = (
    "roc_auc",
    "neg_log_loss",
    "ece",
)
_PER_LABEL = ("precision", "recall", "f1", "support")
_NAMES: dict[Kind, tuple[str, ...]] = {
    "single-label": ("accuracy", *_AVERAGES, "matthews_correlation", *PROBABILISTIC),
    "multi-label": ("subset_accuracy", *_AVERAGES, *PROBABILISTIC),
    "regression": ("pearson", "spearman", "neg_mean_squared_error", "neg_mean_absolute_error"),
}


def metric_names(kind: Kind, labels: Sequence[str] = ()) -> list[str]:
    """The names of the scores of `scored`, in their order."""
    per_label = [f"{score}/{label}" for label in labels for score in _PER_LABEL]
    return [*_NAMES[kind], *(per_label if kind != "regression" else [])]


def selecting(kind: Kind, labels: Sequence[str] = ()) -> list[str]:
    """The metrics that may select a checkpoint, the default first: higher is better."""
    first = {"single-label": "accuracy", "multi-label": "f1_micro", "regression": "spearman"}[kind]
    names = (name for name in metric_names(kind, labels) if not name.startswith(("ece", "support/")))
    return list(dict.fromkeys([first, *names]))


PER_LABEL = ("precision/", "recall/", "f1/")  # prefixes of the metrics of single labels
SELECTING = frozenset([*PER_LABEL, *(name for kind in _NAMES for name in selecting(kind))])


def scored(
    kind: Kind,
    references: ArrayLike,
    table: ArrayLike,
    labels: Sequence[str],
    decisions: ArrayLike | None = None,
) -> Scored:
    """The metrics of this kind, those of `metric_names`.

    references, decisions: label ids (rows,), -1 for a decision on no label; multi-label: 0 and 1 (rows,
    labels).
    table: probabilities (rows, labels). labels: names, by id. Without decisions, the most probable label, or
    all labels from 0.5 on. Regression: references are numbers (rows,), the table holds the predictions (rows,
    1).

    Averages go over all labels, also those that no row has: such a label has precision, recall and F1 of 0,
    as has any with 0 / 0 (scikit-learn's `labels=range(n), zero_division=0`). `roc_auc` is the mean,
    one-vs-rest, over the labels that some rows have and some have not; for one of two labels, that of label
    1. `neg_log_loss` is in nats: of the true label, or for multi-label the negated binary cross-entropy, mean
    over (row, label). `ece` is taken over 15 bins of the probability of the most probable label, for
    multi-label of the decision (Guo et al. 2017). In multi-label each (row, label) is a decision, over which
    `f1_micro` and `ece` go, and `subset_accuracy` is the share of rows with exactly the right labels.
    `matthews_correlation` is 0 where truth or predictions are constant, as in scikit-learn. A row without a
    single label counts as wrong: it lowers accuracy and recall, but no precision.
    """
    if kind == "regression":
        return regression(references, np.asarray(table)[:, 0])
    probabilities = floats(table)
    if decisions is None:
        decisions = probabilities.argmax(axis=1) if kind == "single-label" else probabilities >= 0.5
    truth, chosen = (
        ids if ids.dtype.kind in "bi" else ids.astype(np.int64)
        for ids in map(np.asarray, (references, decisions))
    )
    return _classification(kind, labels, probabilities, truth, chosen)


def decision_outcomes(kind: Kind, table: Floats, truth: Ints, chosen: Ints) -> Iterator[tuple[Floats, Bools]]:
    """Probabilities of what was decided, and whether that is right, `(rows, decisions)` each, of some rows at
    a time.

    table, truth, chosen: as `table`, `references` and `decisions` of `scored`. Single-label, a row is one
    decision, the most probable label whichever is chosen; multi-label, each (row, label) is one.
    """
    for rows in blocks(len(table)):
        part = table[rows]
        if kind == "single-label":
            yield part.max(axis=1, keepdims=True), part.argmax(axis=1, keepdims=True) == truth[rows, None]
        else:
            yield np.where(chosen[rows], part, 1 - part), chosen[rows] == truth[rows]


def _classification(
    kind: Kind, labels: Sequence[str], table: Floats, references: Ints, decisions: Ints
) -> Scored:
    """Metrics from probabilities `(rows, labels)`, and from ids of true and chosen labels as `scored` takes
    them.
    """
    from scipy.sparse import csr_array

    single = kind == "single-label"
    truth, chosen = (
        ids[:, None] == np.arange(len(labels)) if single else ids == 1 for ids in (references, decisions)
    )
    columns = slice(1, None) if single and len(labels) == 2 else slice(None)
    positive = truth[:, columns]
    scores = table[:, columns]
    likelihood = table[truth][:, None] if single else np.where(truth, table, 1 - table)  # (rows, decisions)
    np.log(np.clip(likelihood, EPS, 1 - EPS, out=likelihood), out=likelihood)  # as scikit-learn's log_loss
    row_likelihood = likelihood.mean(axis=1)
    mean_likelihood = float(likelihood.mean())
    del likelihood
    exact = {  # before what is kept for the bootstrap: these take memory for a while
        "roc_auc": exact_roc_auc(positive, scores),
        "neg_log_loss": mean_likelihood,
        "ece": calibration_error(decision_outcomes(kind, table, references, decisions)),
    }
    # Sparse (labels, rows) matrices: times weights (rows, resamples) they sum by label.
    actual = csr_array(truth).T
    predicted = csr_array(chosen).T
    hits = csr_array(truth & chosen).T
    exactly = (truth == chosen).all(axis=1)
    gaps = _gaps(decision_outcomes(kind, table, references, decisions))
    curves = roc_curves(positive, scores)
    per_row = 1 if single else len(labels)  # decisions

    def weighted(weights: Floats) -> Values:
        total = weights.sum(axis=0)
        counts = (hits @ weights, predicted @ weights, actual @ weights)
        values = {
            "accuracy" if single else "subset_accuracy": exactly @ weights / total,
            **precision_recall_f1(*counts, labels),
            "roc_auc": roc_auc(curves, weights),
            "neg_log_loss": row_likelihood @ weights / total,
            "ece": np.abs(gaps @ weights).sum(axis=0) / (total * per_row),
        }
        if single:
            values["matthews_correlation"] = matthews(*counts)
        return {name: values[name] for name in metric_names(kind, labels)}

    return Scored(weighted, len(table), exact)


def _gaps(parts: Iterable[tuple[Floats, Bools]]) -> Any:
    """A sparse (BINS, rows) matrix: what each row adds to the gap between confidence and accuracy in each
    bin.
    """
    from scipy.sparse import csr_array, vstack

    sums = []
    for confidence, right in parts:
        place = BINS * np.arange(len(confidence))[:, None] + bin_of(confidence)
        gaps = np.bincount(place.ravel(), (confidence - right).ravel(), BINS * len(confidence))
        sums.append(csr_array(gaps.reshape(-1, BINS)))
    return vstack(sums, format="csr").T


def regression(references: ArrayLike, predictions: ArrayLike) -> Scored:
    """Metrics of one number per row, in the references' units; references, predictions: numbers (rows,).

    `pearson` and `spearman` are None for fewer than two rows, and where references or predictions are
    constant (for `pearson` also: constant but for rounding, by scipy's limit).
    """
    from scipy.stats import pearsonr, spearmanr

    truth, values = map(floats, (references, predictions))
    squares = (truth - values) ** 2
    distances = np.abs(truth - values)
    truth_ranks = ranking(truth)
    given_ranks = ranking(values)

    def weighted(weights: Floats) -> Values:
        total = weights.sum(axis=0)
        return {
            "pearson": correlation(truth[:, None], values[:, None], weights),
            "spearman": correlation(truth_ranks(weights), given_ranks(weights), weights),
            "neg_mean_squared_error": -(squares @ weights) / total,
            "neg_mean_absolute_error": -(distances @ weights) / total,
        }

    defined = Scored(weighted, len(truth)).scores
    correlations = {"pearson": pearsonr, "spearman": spearmanr}
    exact = {
        **{n: float(of(truth, values).statistic) for n, of in correlations.items() if defined[n] is not None},
        "neg_mean_squared_error": -float(squares.mean()),
        "neg_mean_absolute_error": -float(distances.mean()),
    }
    return Scored(weighted, len(truth), exact)


def exact_roc_auc(truth: Bools, scores: Floats) -> float | None:
    """Mean area over the columns of (rows, columns) in which both classes occur; None where none is."""
    from sklearn.metrics import roc_auc_score

    both = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
    areas = [roc_auc_score(truth[:, column], scores[:, column]) for column in both]
    return float(np.mean(areas)) if areas else None
