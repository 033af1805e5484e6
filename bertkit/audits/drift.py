"""Whether two files are alike: their labels, their words, and whether vectors tell their rows apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import hypot, sqrt
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.words import words
from bertkit.evaluation.intervals import Floats, Interval, bootstrap, roc_auc, roc_curves
from bertkit.inference.vector_cache import Vectors

PRIOR = 500  # words of the prior, with the frequencies of both files together
ROWS = 10_000  # of each file, drawn at random, that the classifier is fitted to and tested on


class Shift(NamedTuple):
    """A label's share of the rows of both files; interval: 95 %, of second - first."""

    label: str
    first: float
    second: float
    interval: Interval

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval[0] > 0 or self.interval[1] < 0


def label_shifts(first: Sequence[Collection[str]], second: Sequence[Collection[str]]) -> list[Shift]:
    """How the shares of the labels differ, the largest difference first. A row has one label or several.

    Intervals are Newcombe's hybrid of Wilson's (1998, method 10).
    """
    counts = [Counter(label for labels in rows for label in set(labels)) for rows in (first, second)]
    found = [
        _shift(label, (counts[0][label], len(first)), (counts[1][label], len(second)))
        for label in sorted({*counts[0], *counts[1]})
    ]
    return sorted(found, key=lambda each: -abs(each.second - each.first))


def _shift(label: str, first: tuple[int, int], second: tuple[int, int]) -> Shift:
    from scipy.stats import binomtest

    (p, (p_low, p_high)), (q, (q_low, q_high)) = (
        (count / rows, binomtest(count, rows).proportion_ci(method="wilson")) for count, rows in (first, second)
    )
    low, high = q - p - hypot(q - q_low, p_high - p), q - p + hypot(q_high - q, p - p_low)
    return Shift(label, p, q, (low, high))


class Word(NamedTuple):
    """A word, how often each file has it, and the z-score of its log odds ratio, above 0 where the second has more."""

    word: str
    first: int
    second: int
    z: float


def counted_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, without regard to case; punctuation is left out."""
    found = (text[start:end].casefold() for text in texts for start, end in words(text))
    return Counter(word for word in found if any(map(str.isalnum, word)))


def word_shifts(first: Mapping[str, int], second: Mapping[str, int]) -> list[Word]:
    """The words of both files, the most over-represented one in the second first.

    By the log odds ratio with an informative Dirichlet prior (Monroe et al. 2008, section 3.5.1).
    """
    totals = sum(first.values()), sum(second.values())
    found = []
    for word in {**first, **second}:
        counts = first.get(word, 0), second.get(word, 0)
        prior = PRIOR * sum(counts) / sum(totals)
        odds = [(n + prior) / (total + PRIOR - n - prior) for n, total in zip(counts, totals, strict=True)]
        deviation = sqrt(sum(1 / (n + prior) for n in counts))
        found.append(Word(word, *counts, float(np.log(odds[1] / odds[0])) / deviation))
    return sorted(found, key=lambda each: (-each.z, each.word))


class TwoSamples(NamedTuple):
    """How well vectors tell two files apart: 0.5 is chance. interval: 95 %, None where it is not defined.

    second: the probability of each row of the second file to be of that file, by a model that was not fitted to it.
    """

    auc: float
    interval: Interval | None
    second: Floats


def two_samples(first: Vectors, second: Vectors, seed: int = 0) -> TwoSamples:
    """The classifier two-sample test (Lopez-Paz and Oquab 2017): logistic regression on vectors `(rows, size)`.

    It is fitted to a random half of both files. AUC and interval (bootstrap) are those of the other half, which is
    independent of it, so that files of the same distribution have 0.5 in 95 % of intervals.
    """
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    order = [rng.permutation(len(each)) for each in (first, second)]
    halves = [[indices[part::2][: ROWS // 2] for indices in order] for part in (0, 1)]

    def fitted(half: Sequence[Any]) -> Any:
        vectors = np.concatenate([first[half[0]], second[half[1]]])
        model = LogisticRegression(class_weight="balanced", max_iter=1000)
        return model.fit(vectors, np.repeat([0, 1], [len(half[0]), len(half[1])]))

    models = [fitted(half) for half in halves]
    probabilities = np.empty(len(second))
    for part in (0, 1):
        rest = order[1][part::2]
        probabilities[rest] = models[1 - part].predict_proba(second[rest])[:, 1]
    tested = halves[1]
    scores = models[0].predict_proba(np.concatenate([first[tested[0]], second[tested[1]]]))[:, [1]]
    truth = np.repeat([False, True], [len(tested[0]), len(tested[1])])[:, None]
    curves = roc_curves(truth, scores)
    auc = float(roc_auc(curves, np.ones((len(truth), 1)))[0])
    interval = bootstrap(lambda weights: {"auc": roc_auc(curves, weights)}, len(truth))["auc"]
    return TwoSamples(auc, interval, probabilities)
