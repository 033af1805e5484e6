"""The scores of classification and regression, as scikit-learn and scipy define them.

Every score is a plain float, or None where it is not defined. Higher is better, but for `ece`, the expected
calibration error, and `support/...`, the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertkit.errors import ModelError, Problem
from bertkit.evaluation.calibration import expected_calibration_error

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Kind: TypeAlias = Literal["single-label", "multi-label", "regression"]
Scores: TypeAlias = dict[str, float | None]

EPS = float(np.finfo(np.float64).eps)  # probabilities are clipped to [EPS, 1 - EPS] before their logarithm
CONSTANT = EPS**0.75  # scipy's limit: deviations below this part of the mean are rounding, not variation

_AVERAGES = ("f1_macro", "f1_micro", "f1_weighted", "precision_macro", "recall_macro")
_PROBABILISTIC = ("roc_auc", "neg_log_loss", "ece")
_PER_LABEL = ("precision", "recall", "f1", "support")
_NAMES: dict[Kind, tuple[str, ...]] = {
    "single-label": ("accuracy", *_AVERAGES, "matthews_correlation", *_PROBABILISTIC),
    "multi-label": ("subset_accuracy", *_AVERAGES, *_PROBABILISTIC),
    "regression": ("pearson", "spearman", "neg_mean_squared_error", "neg_mean_absolute_error"),
}


def metric_names(kind: Kind, labels: Sequence[str] = ()) -> list[str]:
    """The names that `single_label`, `multi_label` or `regression` emit, in their order."""
    per_label = [f"{score}/{label}" for label in labels for score in _PER_LABEL]
    return [*_NAMES[kind], *(per_label if kind != "regression" else [])]


def single_label(
    references: ArrayLike,
    probabilities: ArrayLike,
    labels: Sequence[str],
    predictions: ArrayLike | None = None,
) -> Scores:
    """Scores of one label per row.

    Averages go over all labels, also those that no row has: such a label has precision, recall and F1 of 0,
    as has any with 0 / 0 (scikit-learn's `labels=range(n), zero_division=0`). `roc_auc` is that of label 1
    where there are two labels, else the mean one-vs-rest over the labels that some rows have and some have
    not. `ece` is taken over 15 bins of the prediction's probability (Guo et al. 2017). `neg_log_loss` is in
    nats. `matthews_correlation` is 0 where truth or predictions are constant, as in scikit-learn.

    Args:
        references: (rows,) label ids.
        probabilities: (rows, labels), each row summing to 1.
        labels: Names, by id.
        predictions: (rows,) label ids; None: the most probable label.

    Raises:
        ValueError: There is no row, a shape does not fit, or an id or probability is out of range.
        ModelError: A probability is not a finite number.
    """
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    truth, given, chosen = checked_single_label(references, probabilities, labels, predictions)
    rows = np.arange(len(truth))
    varied = len(np.union1d(truth, chosen)) > 1  # scikit-learn warns of one class, and returns 0
    averages, per_label = _precision_recall_f1(truth, chosen, labels)
    return {
        "accuracy": float(accuracy_score(truth, chosen)),
        **averages,
        "matthews_correlation": float(matthews_corrcoef(truth, chosen)) if varied else 0.0,
        "roc_auc": _roc_auc(*one_vs_rest(truth, given)),
        "neg_log_loss": float(log_likelihood(given[rows, truth]).mean()),
        "ece": expected_calibration_error(given[rows, chosen], chosen == truth),
        **per_label,
    }


def multi_label(
    references: ArrayLike, probabilities: ArrayLike, predictions: ArrayLike, labels: Sequence[str]
) -> Scores:
    """Scores of any number of labels per row.

    `subset_accuracy` is the share of rows with exactly the right labels. Averages are over all labels, 0 / 0
    counting as 0; `f1_micro` is over all (row, label) decisions. `roc_auc` is the mean over the labels that
    some rows have and some have not. `neg_log_loss` is the negated binary cross-entropy in nats, mean over
    (row, label). `ece` is over all (row, label) decisions, in 15 bins: p is the confidence of giving a label,
    1 - p of not giving it.

    Args:
        references: (rows, labels) of 0 and 1.
        probabilities: (rows, labels) in [0, 1].
        predictions: (rows, labels) of 0 and 1, after the thresholds.
        labels: Names, by column.

    Raises:
        ValueError: There is no row, a shape does not fit, or a value is out of range.
        ModelError: A probability is not a finite number.
    """
    from sklearn.metrics import accuracy_score

    truth, given, chosen = checked_multi_label(references, probabilities, predictions, labels)
    # scikit-learn reads a single column as binary, with scores for "no" too; another column prevents that.
    spare = np.zeros((len(truth), 1), dtype=np.int64)
    truth_and, chosen_and = np.hstack([truth, spare]), np.hstack([chosen, spare])
    averages, per_label = _precision_recall_f1(truth_and, chosen_and, labels)
    return {
        "subset_accuracy": float(accuracy_score(truth_and, chosen_and)),
        **averages,
        "roc_auc": _roc_auc(truth == 1, given),
        "neg_log_loss": float(log_likelihood(np.where(truth == 1, given, 1 - given)).mean()),
        "ece": expected_calibration_error(np.where(chosen == 1, given, 1 - given).ravel(), (chosen == truth).ravel()),
        **per_label,
    }


def regression(references: ArrayLike, predictions: ArrayLike) -> Scores:
    """Scores of one number per row, in the references' units.

    `pearson` and `spearman` are None for fewer than two rows, and where references or predictions are
    constant (for `pearson` also: constant but for rounding, by scipy's limit).

    Args:
        references: (rows,) numbers.
        predictions: (rows,) numbers.

    Raises:
        ValueError: There is no row, or the shapes differ.
        ModelError: A prediction is not a finite number.
    """
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    truth, given = checked_regression(references, predictions)
    ranked = len(truth) > 1 and bool(np.ptp(truth) > 0) and bool(np.ptp(given) > 0)
    linear = ranked and _varies(truth) and _varies(given)
    return {
        "pearson": float(pearsonr(truth, given).statistic) if linear else None,
        "spearman": float(spearmanr(truth, given).statistic) if ranked else None,
        "neg_mean_squared_error": -float(mean_squared_error(truth, given)),
        "neg_mean_absolute_error": -float(mean_absolute_error(truth, given)),
    }


def confusion_matrix(references: ArrayLike, predictions: ArrayLike, labels: int) -> list[list[int]]:
    """Counts (labels, labels): row = truth, column = prediction.

    Args:
        references: (rows,) label ids.
        predictions: (rows,) label ids.
        labels: Number of labels.
    """
    from sklearn.metrics import confusion_matrix as confusion

    counts: list[list[int]] = confusion(np.asarray(references), np.asarray(predictions), labels=range(labels)).tolist()
    return counts


def multi_label_confusion_matrices(references: ArrayLike, predictions: ArrayLike) -> list[list[list[int]]]:
    """Counts (labels, 2, 2): per label [[not given, wrongly given], [missed, rightly given]].

    Args:
        references: (rows, labels) of 0 and 1.
        predictions: (rows, labels) of 0 and 1.
    """
    columns = zip(np.asarray(references).T, np.asarray(predictions).T, strict=True)
    return [confusion_matrix(truth, chosen, 2) for truth, chosen in columns]


def log_likelihood(probabilities: Floats) -> Floats:
    """Natural logarithm of probabilities clipped to [eps, 1 - eps] of float64, as scikit-learn's log_loss."""
    clipped: Floats = np.log(np.clip(probabilities, EPS, 1 - EPS))
    return clipped


def one_vs_rest(references: Ints, probabilities: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Truth and scores (rows, columns) that make `roc_auc`: a column per label; of two labels, label 1's."""
    columns = np.array([1]) if probabilities.shape[1] == 2 else np.arange(probabilities.shape[1])
    return references[:, None] == columns, probabilities[:, columns]


def checked_single_label(
    references: ArrayLike, probabilities: ArrayLike, labels: Sequence[str], predictions: ArrayLike | None
) -> tuple[Ints, Floats, Ints]:
    """References (rows,), probabilities (rows, labels) and predictions (rows,) for `single_label`."""
    given = _checked_probabilities(probabilities, labels)
    chosen = given.argmax(axis=1) if predictions is None else predictions
    return (
        _checked_ids(references, given.shape[:1], len(labels)),
        given,
        _checked_ids(chosen, given.shape[:1], len(labels)),
    )


def checked_multi_label(
    references: ArrayLike, probabilities: ArrayLike, predictions: ArrayLike, labels: Sequence[str]
) -> tuple[Ints, Floats, Ints]:
    """References, probabilities and predictions, all (rows, labels), as `multi_label` wants them."""
    given = _checked_probabilities(probabilities, labels)
    return _checked_ids(references, given.shape, 2), given, _checked_ids(predictions, given.shape, 2)


def checked_regression(references: ArrayLike, predictions: ArrayLike) -> tuple[Floats, Floats]:
    """References and predictions, both (rows,), as `regression` wants them."""
    truth = np.asarray(references, dtype=np.float64)
    given = _finite(np.asarray(predictions, dtype=np.float64), "predictions")
    if truth.ndim != 1 or not truth.size or truth.shape != given.shape:
        raise ValueError(f"expected twice (rows,), not {truth.shape} and {given.shape}")
    if not np.isfinite(truth).all():
        raise ValueError("references hold a number that is not finite")
    return truth, given


def _checked_probabilities(probabilities: ArrayLike, labels: Sequence[str]) -> Floats:
    given = _finite(np.asarray(probabilities, dtype=np.float64), "probabilities")
    if given.ndim != 2 or not given.size or given.shape[1] != len(labels):
        raise ValueError(f"expected probabilities (rows, {len(labels)}), not {given.shape}")
    if given.min() < 0 or given.max() > 1 + 1e-6:  # room for the rounding of float32
        raise ValueError(f"probabilities are in [0, 1], not [{given.min():.3g}, {given.max():.3g}]: are they logits?")
    return given


def _checked_ids(ids: ArrayLike, shape: tuple[int, ...], count: int) -> Ints:
    checked = np.asarray(ids, dtype=np.int64)
    if checked.shape != shape:
        raise ValueError(f"expected label ids {shape}, not {checked.shape}")
    if checked.min() < 0 or checked.max() >= count:
        raise ValueError(f"label ids are in 0..{count - 1}, not {checked.min()}..{checked.max()}")
    return checked


def _finite(values: Floats, what: str) -> Floats:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise ModelError(
            Problem(
                "",
                f"the model's {what} are not finite numbers (first in row {bad[0][0]}, 0-based)",
                "Training has diverged: lower learning_rate, or use bf16 or fp32 instead of fp16.",
            )
        )
    return values


def _precision_recall_f1(truth: Ints, chosen: Ints, labels: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Averages over labels, and per-label scores; of ids (rows,) or of 0 and 1 (rows, at least labels)."""
    from sklearn.metrics import precision_recall_fscore_support as scores

    ids = range(len(labels))
    precision, recall, f1, support = scores(truth, chosen, labels=ids, average=None, zero_division=0)
    averages = {
        "f1_macro": float(np.mean(f1)),
        "f1_micro": float(scores(truth, chosen, labels=ids, average="micro", zero_division=0)[2]),
        "f1_weighted": float(scores(truth, chosen, labels=ids, average="weighted", zero_division=0)[2]),
        "precision_macro": float(np.mean(precision)),
        "recall_macro": float(np.mean(recall)),
    }
    columns = (precision, recall, f1, support)
    per_label = {
        f"{name}/{label}": float(column[i])
        for i, label in enumerate(labels)
        for name, column in zip(_PER_LABEL, columns, strict=True)
    }
    return averages, per_label


def _roc_auc(truth: NDArray[np.bool_], scores: Floats) -> float | None:
    """Mean area over the columns of (rows, columns) in which both classes occur; None where none is."""
    from sklearn.metrics import roc_auc_score

    both = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
    areas = [roc_auc_score(truth[:, column], scores[:, column]) for column in both]
    return float(np.mean(areas)) if areas else None


def _varies(values: Floats) -> bool:
    mean = values.mean()
    return bool(np.linalg.norm(values - mean) > CONSTANT * abs(mean))
