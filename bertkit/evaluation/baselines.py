"""Baselines that a fine-tuned model should beat: the majority answer, and a linear model over TF-IDF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bertkit.evaluation.intervals import Floats, Scores
from bertkit.evaluation.metrics import Kind, scored

ROWS = 200_000  # of train, evenly spaced, that baselines are fitted to: bounds their time and memory
FEATURES = 100_000  # the most frequent 1- and 2-grams: bounds time and memory for many labels

if TYPE_CHECKING:
    from datasets import Dataset
    from sklearn.feature_extraction.text import TfidfVectorizer


def enough(train: Dataset) -> Dataset:
    """The rows of train that baselines are fitted to: all, or ROWS of them."""
    if len(train) <= ROWS:
        return train
    return train.select(np.linspace(0, len(train) - 1, ROWS).round().astype(np.int64))


def joined_texts(rows: Dataset) -> list[str]:
    """Each row's text, or both texts of its pair in one string."""
    if "text" in rows.column_names:
        return list(rows["text"])
    return [f"{a}\n{b}" for a, b in zip(rows["text_a"], rows["text_b"], strict=True)]


def baselines(
    kind: Kind,
    train_texts: Sequence[str],
    train_targets: ArrayLike,
    texts: Sequence[str],
    targets: ArrayLike,
    labels: Sequence[str],
) -> dict[str, Scores]:
    """Scores of the baselines on the evaluation rows, by the functions of `metrics`; deterministic.

    majority: the most frequent label (multi-label: for each label, whether most rows have it), with the shares in
    train as probabilities, which is scikit-learn's DummyClassifier(strategy="prior"); regression: the mean.

    tfidf: 1- and 2-grams, sublinear TF-IDF, then logistic regression (multi-label: one per label, given from
    0.5 on) or ridge regression. Left out where it cannot be fitted: no text has a word, or all targets of
    train are the same.

    train_texts, texts: (train rows,) and (rows,) texts; for a pair, both in one string. train_targets, targets: label
    ids or numbers; multi-label: (rows, labels) of 0 and 1. labels: names, by id; ignored for regression.
    """
    # One fit for every kind: regression is a column of numbers, classification columns of probabilities.
    if kind == "regression":
        train = np.asarray(train_targets, dtype=np.float64)[:, None]
    elif kind == "multi-label":
        train = np.asarray(train_targets, dtype=np.float64)
    else:
        train = np.eye(len(labels))[np.asarray(train_targets, dtype=np.int64)]
    share = train.mean(axis=0)
    answers = {"majority": np.tile(share, (len(texts), 1))}
    if (train != train[0]).any() and (fitted := _tfidf(train_texts)):
        vectorizer, features = fitted
        answers["tfidf"] = _linear(kind, features, train, vectorizer.transform(texts))
    return {name: scored(kind, targets, answer, labels).scores for name, answer in answers.items()}


def _tfidf(train_texts: Sequence[str]) -> tuple[TfidfVectorizer, Any] | None:
    """A fitted vectorizer and the sparse features (train rows, n-grams); None where no train text has a word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=FEATURES)
    words = vectorizer.build_analyzer()
    if not any(words(text) for text in train_texts):
        return None
    return vectorizer, vectorizer.fit_transform(train_texts)


def tfidf_vectors(train: Sequence[str], sides: Sequence[Sequence[str]]) -> list[Any] | None:
    """Sparse unit vectors of the texts of each side, `(texts, n-grams)`; None where no train text has a word."""
    from scipy.sparse import csr_array

    fitted = _tfidf(train)
    return [csr_array(fitted[0].transform(side)) for side in sides] if fitted else None


def tfidf_chunks(train: Dataset, rows: Dataset, names: Sequence[str], size: int) -> Iterator[list[Any]]:
    """`tfidf_vectors` of `rows`, `size` rows at a time, fitted to `train`. Columns that `rows` lack are left out.

    Yields nothing where no train text has a word.
    """
    train, names = enough(train), [name for name in names if name in rows.column_names]
    sides = tfidf_vectors([text for name in names for text in train[name]], [rows[name][:] for name in names])
    for start in range(0, len(rows), size) if sides else ():
        yield [side[start : start + size] for side in sides or ()]


def _linear(kind: Kind, train_features: Any, train: Floats, features: Any) -> Floats:
    """Numbers (rows, 1) or probabilities (rows, labels) of linear models fitted to such targets."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind == "regression":
        return np.asarray(Ridge().fit(train_features, train[:, 0]).predict(features))[:, None]
    probabilities = np.tile(train.mean(axis=0), (features.shape[0], 1))
    if kind == "single-label":
        model = LogisticRegression(max_iter=1000).fit(train_features, train.argmax(axis=1))
        probabilities[:, model.classes_] = model.predict_proba(features)
        return probabilities
    for column in np.flatnonzero((train != train[0]).any(axis=0)):  # a label that never varies stays as it is
        model = LogisticRegression(max_iter=1000).fit(train_features, train[:, column])
        probabilities[:, column] = model.predict_proba(features)[:, 1]
    return probabilities
