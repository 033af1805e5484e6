"""The baselines are scikit-learn's, and survive the data that people bring."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from bertkit.evaluation import metrics
from bertkit.evaluation.baselines import baselines

GOOD = ["a lovely film", "what a lovely day", "great food", "a great lovely walk", "great"]
BAD = ["an awful film", "awful food again", "boring walk", "boring and awful"]
TEXTS = GOOD + BAD
IDS = [1] * 5 + [0] * 4
LABELS = ["bad", "good"]


def features(texts):
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(TEXTS)
    return vectorizer.transform(texts)


def test_single_label_is_scikit_learns():
    texts, targets = ["lovely food", "awful day", "unknown"], [1, 0, 0]
    found = baselines("single-label", TEXTS, IDS, texts, targets, LABELS)
    dummy = DummyClassifier(strategy="prior").fit(TEXTS, IDS)
    assert found["majority"] == metrics.scored("single-label", targets, dummy.predict_proba(texts), LABELS).scores
    assert found["majority"]["accuracy"] == np.mean(dummy.predict(texts) == targets)
    linear = LogisticRegression(max_iter=1000).fit(features(TEXTS), IDS)
    expected = metrics.scored("single-label", targets, linear.predict_proba(features(texts)), LABELS).scores
    assert found["tfidf"] == expected
    assert found["tfidf"]["roc_auc"] == 1
    assert baselines("single-label", TEXTS, IDS, texts, targets, LABELS) == found


def test_multi_label_is_scikit_learns():
    train = np.array([[i, 1 - i, j % 2] for j, i in enumerate(IDS)])
    texts, targets = ["lovely food", "awful day"], np.array([[1, 0, 1], [0, 1, 0]])
    labels = ["good", "bad", "odd"]
    found = baselines("multi-label", TEXTS, train, texts, targets, labels)
    linear = OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(features(TEXTS), train)
    probabilities = linear.predict_proba(features(texts))
    expected = metrics.scored("multi-label", targets, probabilities, labels).scores
    assert found["tfidf"] == pytest.approx(expected, nan_ok=True)
    assert found["majority"]["subset_accuracy"] == 0
    assert found["majority"]["f1/good"] == pytest.approx(2 / 3)


def test_regression_is_scikit_learns():
    train, texts, targets = np.arange(9.0), ["lovely food", "awful day"], [1.0, 7.0]
    found = baselines("regression", TEXTS, train, texts, targets, [])
    ridge = Ridge().fit(features(TEXTS), train)
    assert found["tfidf"] == metrics.regression(targets, ridge.predict(features(texts))).scores
    mean = DummyRegressor().fit(TEXTS, train).predict(texts)
    assert found["majority"] == metrics.regression(targets, mean).scores
    assert found["majority"]["pearson"] is None


def test_texts_without_words_or_of_one_class_have_a_majority_only():
    for texts in (["", "  ", "😀"], ["a", "!", "?"]):
        found = baselines("single-label", texts, [0, 1, 1], ["lovely"], [1], LABELS)
        assert (list(found), found["majority"]["accuracy"]) == (["majority"], 1)
    without = baselines("single-label", TEXTS, IDS, ["", "😀"], [1, 0], LABELS)  # to be scored
    assert without["tfidf"]["accuracy"] == 0.5
    assert list(baselines("single-label", TEXTS, [1] * 9, TEXTS, IDS, LABELS)) == ["majority"]
    assert list(baselines("regression", TEXTS, [2.0] * 9, TEXTS, IDS, [])) == ["majority"]
    assert list(baselines("multi-label", TEXTS, np.ones((9, 2)), TEXTS, np.ones((9, 2)), LABELS)) == ["majority"]


def test_labels_that_do_not_vary_or_are_not_in_train():
    train = np.array([[i, 1, 0] for i in IDS])
    found = baselines("multi-label", TEXTS, train, TEXTS, train, ["good", "always", "never"])
    assert found["tfidf"]["f1/always"] == 1
    assert found["tfidf"]["support/never"] == found["tfidf"]["f1/never"] == 0
    three = baselines("single-label", TEXTS, IDS, [*TEXTS, "lovely"], [*IDS, 2], [*LABELS, "new"])
    assert three["tfidf"]["recall/new"] == 0
    one = baselines("multi-label", TEXTS, np.array(IDS)[:, None], TEXTS, np.array(IDS)[:, None], ["good"])
    assert one["tfidf"]["f1_macro"] == 1
