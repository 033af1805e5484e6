"""Baselines that a fine-tuned model should beat: the majority answer, and a linear model over TF-IDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bertkit.data import scripts
from bertkit.evaluation.calibration import ByLabel, Limits
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.evaluation.intervals import Floats, Scores, floats
from bertkit.evaluation.metrics import Kind

ROWS = 200_000  # of train, evenly spaced, that baselines are fitted to: bounds their time and memory
RANDOM = 8  # numbers of a random vector
FEATURES = 100_000  # the most frequent n-grams: bounds time and memory for many labels
WORDS = (1, 2)  # n-grams of words
CHARACTERS = (1, 3)  # n-grams of characters: Chinese needs single ones, Thai three

if TYPE_CHECKING:
    from datasets import Dataset
    from sklearn.feature_extraction.text import TfidfVectorizer


class TextRows(NamedTuple):
    """Texts, `(rows,)`, of a pair both in one string; label ids or numbers `(rows,)`, or 0 and 1 `(rows,
    labels)`.
    """

    texts: Sequence[str]
    targets: ArrayLike


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
    train: TextRows,
    rows: TextRows,
    labels: Sequence[str],
    held_out: Sequence[tuple[TextRows, TextRows]] = (),
    *,
    weights: ByLabel | None = None,
    thresholds: Limits = None,
    cutoffs: ByLabel | None = None,
) -> dict[str, Scores]:
    """Scores of the baselines on these rows, by the functions of `metrics`; deterministic.

    majority: the shares of the labels in train as probabilities, which is scikit-learn's
    DummyClassifier(strategy="prior"); regression: the mean.

    tfidf: 1- and 2-grams of words, sublinear TF-IDF, then logistic regression (multi-label: one per label) or
    ridge regression. Left out where it cannot be fitted: no text has a word, or all targets of train are the
    same. Where train is mostly Korean or in scripts without blanks, `tfidf of characters`: 1- to 3-grams of
    characters.

    Each is treated as the model is. held_out: rows learned from, and rows on which temperature and thresholds
    are fitted, as `GradedLabels.after_fit` does. labels, weights: names, by id, and class weights of `tfidf`;
    ignored for regression. thresholds, cutoffs: where the recipe fixes them.
    """
    models = _fitted(kind, train, labels, weights)
    parts = [
        (models if learned is train else _fitted(kind, learned, labels, weights), held)
        for learned, held in held_out
    ]
    scores = {}
    for name, model in models.items():
        graded = GradedLabels.of_table(kind, labels, rows.targets, model(rows.texts), thresholds, cutoffs)
        answers = [(fits[name](held.texts), held.targets) for fits, held in parts if name in fits]
        if answers and kind != "regression":
            table, targets = map(np.concatenate, zip(*answers, strict=True))
            fitted = GradedLabels.of_table(kind, labels, targets, table, thresholds, cutoffs).after_fit()
            table = graded.tempered(fitted.temperature or 1.0)
            graded = replace(graded, table=table, thresholds=fitted.thresholds).decided()
        scores[name] = graded.scores
    return scores


def _fitted(
    kind: Kind, train: TextRows, labels: Sequence[str], weights: ByLabel | None
) -> dict[str, Callable[[Sequence[str]], Floats]]:
    """Name -> texts -> numbers `(texts, 1)` or probabilities `(texts, labels)`."""
    # One fit for every kind: regression is a column of numbers, classification columns of probabilities.
    if kind == "single-label":
        targets = np.eye(len(labels))[np.asarray(train.targets, dtype=np.int64)]
    else:
        targets = floats(train.targets).reshape(len(train.texts), -1)
    share = targets.mean(axis=0)
    models = {"majority": lambda texts: np.tile(share, (len(texts), 1))}
    if (targets != targets[0]).any() and (fitted := _tfidf(train.texts)):
        vectorizer = fitted.vectorizer  # the model keeps this alone, not the features
        by_id = [weights[name] for name in labels] if weights else None
        linear = _linear(kind, fitted.features, targets, by_id)
        models["tfidf" + fitted.unit] = lambda texts: linear(vectorizer.transform(texts))
    return models


class Tfidf(NamedTuple):
    """A vectorizer fitted to the texts of train."""

    unit: str  # what a baseline's name ends in
    vectorizer: TfidfVectorizer
    features: Any  # sparse, (train rows, n-grams)


def _tfidf(train_texts: Sequence[str]) -> Tfidf | None:
    """TF-IDF of words or characters; None where no train text has a word.

    A word is scikit-learn's, with its combining marks.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    unit = " of characters"
    vectorizer = TfidfVectorizer(
        analyzer="char", ngram_range=CHARACTERS, sublinear_tf=True, max_features=FEATURES
    )
    if scripts.share(train_texts, scripts.UNSPACED + scripts.HANGUL) < 0.5:
        unit = ""
        vectorizer.set_params(
            analyzer="word", ngram_range=WORDS, token_pattern=rf"\b\w[\w{scripts.of_category('M')}]+"
        )
    words = vectorizer.build_analyzer()
    if not any(words(text) for text in train_texts):
        return None
    return Tfidf(unit, vectorizer, vectorizer.fit_transform(train_texts))


def tfidf_vectors(train: Sequence[str], sides: Sequence[Sequence[str]]) -> dict[str, list[Any]]:
    """Name of the baseline -> sparse unit vectors of the texts of each side, `(texts, n-grams)`.

    The name is `tf-idf cosine`, or `tf-idf cosine of characters`. Empty where no train text has a word.
    """
    from scipy.sparse import csr_array

    if not (fitted := _tfidf(train)):
        return {}
    vectors = [csr_array(fitted.vectorizer.transform(side)) for side in sides]
    return {f"tf-idf cosine{fitted.unit}": vectors}


def random_vectors(sides: Sequence[Sequence[str]]) -> list[Floats]:
    """A vector for each text of each side, `(texts, size)`, which knows nothing of it."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((len(side), RANDOM)) for side in sides]


def _linear(
    kind: Kind, features: Any, targets: Floats, weights: Sequence[float] | None
) -> Callable[[Any], Floats]:
    """Linear models fitted to such targets: features -> numbers `(rows, 1)`, or probabilities `(rows,
    labels)`.

    weights: of labels; of several labels those of the positive rows.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind == "regression":
        ridge = Ridge().fit(features, targets[:, 0])
        return lambda features: np.asarray(ridge.predict(features))[:, None]
    share = targets.mean(axis=0)
    ids = targets.argmax(axis=1)
    models = []  # the labels of each, and the model

    def fit(labels: list[int], of: Any, by_id: Mapping[int, float] | None) -> None:
        models.append((labels, LogisticRegression(max_iter=1000, class_weight=by_id).fit(features, of)))

    if kind == "single-label":
        present = np.unique(ids).tolist()
        fit(present, ids, {label: weights[label] for label in present} if weights else None)
    else:
        # a label that never varies stays as it is
        varied = np.flatnonzero((targets != targets[0]).any(axis=0))
        for label in varied.tolist():
            fit([label], targets[:, label], {1: weights[label]} if weights else None)

    def answer(features: Any) -> Floats:
        probabilities = np.tile(share, (features.shape[0], 1))
        for labels, model in models:
            probabilities[:, labels] = model.predict_proba(features)[:, -len(labels) :]
        return probabilities

    return answer
