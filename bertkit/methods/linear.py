"""A regularised linear model on the vectors of texts, by scikit-learn; its strength is chosen by
cross-validation.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unicodedata import category

import numpy as np
from scipy.special import log_expit, logit, logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits

from bertkit.evaluation.intervals import Floats
from bertkit.evaluation.metrics import Kind

STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)  # C of LogisticRegression, for vectors of length 1
ALPHAS = tuple(1 / C for C in STRENGTHS)  # of Ridge
FOLDS = 5  # at most
FEW_FOLDS = 3  # at most, of more than MANY_LABELS, which take long
MANY_LABELS = 20
UNCHECKED = 16.0  # C where no label has two rows, so that nothing can be held out
ITERATIONS = 1000
# Tolerances of the mean loss's gradient, for models that are compared, and for the one that is kept. With
# many labels scikit-learn's 1e-4 lets the model of C = 64 pass for that of C = 256.
COMPARED = 3e-5
KEPT = 1e-6
MANY_CLASSES = "The number of unique classes is greater"  # a warning that these labels may be numbers
ABSENT = 20.0  # how far the logit of a label without rows is below the lowest bias

Weights = Mapping[int, float] | None  # label id -> weight of its rows


@dataclass(frozen=True)
class Examples:
    """Vectors `(rows, size)` and their targets: label ids, 0/1 `(rows, labels)`, or numbers `(rows,)`."""

    vectors: Floats
    targets: np.ndarray

    def __getitem__(self, rows: Any) -> Examples:
        return Examples(self.vectors[rows], self.targets[rows])

    def __add__(self, other: Examples) -> Examples:
        return Examples(
            np.concatenate([self.vectors, other.vectors]), np.concatenate([self.targets, other.targets])
        )

    def scaled(self, factor: float) -> Examples:
        """These rows, with their vectors multiplied by the factor."""
        return Examples(factor * self.vectors, self.targets)


@dataclass(frozen=True)
class Linear:
    """logits = vectors @ weight.T + bias: `(labels, size)` and `(labels,)`."""

    weight: Floats
    bias: Floats
    strength: float | None  # C; of a regression 1 / alpha; of a softmax over prototypes None
    with_names: bool = False  # whether the names of the labels were rows too

    def logits(self, vectors: Floats) -> Floats:
        """`(rows, labels)`."""
        return vectors @ self.weight.T + self.bias


def words_of(names: Sequence[str]) -> list[str]:
    """Label names as texts, `card_arrival` as "card arrival"; none where a name has no letter, or two are one
    text.

    Combining marks and joiners, which vowel signs are or stand beside, stay.
    """
    spaced = list(map(_spaced, names))
    distinct = len({*map(str.casefold, spaced)}) == len(spaced)
    return spaced if distinct and all(re.search(r"[^\W\d]", name) for name in spaced) else []


def _spaced(name: str) -> str:
    kept = "".join(char if category(char)[0] in "LMN" or category(char) == "Cf" else " " for char in name)
    return " ".join(re.sub("(?<=[a-z])(?=[A-Z])", " ", kept).split())


def fit_linear(
    kind: Kind,
    rows: Examples,
    labels: int,
    *,
    names: Examples | None = None,
    weights: Weights = None,
    seed: int = 0,
    strength: float | None = None,
) -> Linear:
    """Fit on all rows, with the strength of least log loss in stratified cross-validation; of a regression,
    by generalised cross-validation of the squared error.

    names: vectors of the labels' names; they are rows too where that lowers the log loss of the real ones.
    weights: of multi-label those of positive rows. strength: without cross-validation this one, and names are
    rows.
    """
    # such small products take an eighth to a quarter of the time in one
    with threadpool_limits(1, user_api="blas"):
        if kind == "regression":
            ridge = RidgeCV(ALPHAS).fit(rows.vectors, rows.targets)
            return Linear(ridge.coef_[None], np.array([ridge.intercept_]), 1 / ridge.alpha_)
        C = strength or UNCHECKED
        if not strength and (losses := held_out_losses(kind, rows, labels, None, weights, seed)):
            C = min(losses, key=losses.__getitem__)
            if names and not held_out_losses(kind, rows, labels, names, weights, seed, [C])[C] < losses[C]:
                names = None
        (model,) = _path(kind, rows + names if names else rows, labels, [C], weights, KEPT)
        return replace(model, with_names=names is not None)


def held_out_losses(
    kind: Kind,
    rows: Examples,
    labels: int,
    names: Examples | None,
    weights: Weights,
    seed: int,
    strengths: Sequence[float] = STRENGTHS,
) -> dict[float, float]:
    """C -> log loss of held-out rows, a mean over rows (multi-label: and labels) in nats.

    Rows whose label is not in the other folds are left out. Empty where no label has two rows.
    """
    exclusive = kind == "single-label"
    most = int(np.bincount(rows.targets).max()) if exclusive else len(rows.targets)
    if most < 2:
        return {}
    folds = min(FEW_FOLDS if labels > MANY_LABELS else FOLDS, most)
    splitter = (StratifiedKFold if exclusive else KFold)(folds, shuffle=True, random_state=seed)
    totals = dict.fromkeys(strengths, 0.0)
    count = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f"The least populated class|{MANY_CLASSES}", UserWarning)
        parts = list(splitter.split(rows.vectors, rows.targets if exclusive else None))
    for learned, held in parts:
        if exclusive:
            held = held[np.isin(rows.targets[held], rows.targets[learned])]
        part = rows[learned]
        test = rows[held]
        models = _path(kind, part + names if names else part, labels, strengths, weights, COMPARED)
        for C, model in zip(strengths, models, strict=True):
            totals[C] += float(losses_of(kind, model.logits(test.vectors), test.targets).sum())
        count += len(held)
    return {C: total / count for C, total in totals.items()} if count else {}


def _path(
    kind: Kind, rows: Examples, labels: int, strengths: Sequence[float], weights: Weights, tolerance: float
) -> list[Linear]:
    """A model for each strength, each begun with the one before."""
    models = list[Linear]()
    if kind == "multi-label":
        by_label = [
            _binary(
                rows.vectors,
                rows.targets[:, label],
                strengths,
                {1: weights[label]} if weights else None,
                tolerance,
            )
            for label in range(labels)
        ]
        for C, fits in zip(strengths, zip(*by_label, strict=True), strict=True):
            weights_of, biases = zip(*fits, strict=True)
            models.append(Linear(np.stack(weights_of), np.array(biases), C))
        return models
    present = np.unique(rows.targets)
    class_weights = {label: weights[label] for label in present.tolist()} if weights else None
    for C, coefficients, intercepts in _regressions(
        rows.vectors, rows.targets, strengths, class_weights, tolerance
    ):
        if len(present) == 2:  # softmax of (-z / 2, z / 2) is the sigmoid of z
            coefficients = np.concatenate([-coefficients, coefficients]) / 2
            intercepts = np.concatenate([-intercepts, intercepts]) / 2
        weight = np.zeros((labels, rows.vectors.shape[1]))
        bias = np.full(labels, intercepts.min() - ABSENT)
        weight[present] = coefficients
        bias[present] = intercepts
        models.append(Linear(weight, bias, C))
    return models


def _binary(
    vectors: Floats, targets: Floats, strengths: Sequence[float], weights: Weights, tolerance: float
) -> list[tuple[Floats, float]]:
    """Weight `(size,)` and bias of one label for each strength; its odds alone where all rows agree.

    weights: of the positive rows, 1.
    """
    if len(np.unique(targets)) == 1:
        odds = float(logit((targets.sum() + 0.5) / (len(targets) + 1)))
        return [(np.zeros(vectors.shape[1]), odds)] * len(strengths)
    models = _regressions(vectors, targets, strengths, weights, tolerance)
    return [(coefficients[0], float(intercepts[0])) for _, coefficients, intercepts in models]


def _regressions(
    vectors: Floats, targets: np.ndarray, strengths: Sequence[float], weights: Weights, tolerance: float
) -> Iterator[tuple[float, Floats, Floats]]:
    """C, coefficients and intercepts for each strength."""
    if len(np.unique(targets)) == 1:
        yield from ((C, np.zeros((1, vectors.shape[1])), np.zeros(1)) for C in strengths)
        return
    model = LogisticRegression(max_iter=ITERATIONS, tol=tolerance, warm_start=True, class_weight=weights)
    # without it there are fewer iterations; the model is the same, as its intercept is free
    mean = vectors.mean(0)
    centred = (vectors - mean).astype(np.float32)  # which is faster
    for C in strengths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", MANY_CLASSES, UserWarning)
            model.set_params(C=C).fit(centred, targets)
        yield C, model.coef_, model.intercept_ - model.coef_ @ mean


def losses_of(kind: Kind, logits: Floats, targets: np.ndarray) -> Floats:
    """The log loss of each row `(rows,)`, in nats; multi-label: the mean over its labels."""
    if kind == "single-label":
        chosen: Floats = logsumexp(logits, axis=1) - logits[np.arange(len(targets)), targets]
        return chosen
    losses: Floats = -(targets * log_expit(logits) + (1 - targets) * log_expit(-logits))
    return np.asarray(losses.mean(1))
