"""Calibration: temperatures, thresholds per label, and the calibration error.

The temperature and the calibration error follow Guo et al. 2017, "On Calibration of Modern Neural Networks".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bertkit.evaluation.intervals import Bools, Floats, Ints, floats

ByLabel = Mapping[str, float]
Limits = ByLabel | float | None  # a threshold for each label, or one for all; None: not fixed

BINS = 15  # as in Guo et al.
POINTS = 10  # of a reliability diagram, at most
FEWEST = 20  # decisions of a point
# bounds of a fitted temperature, and how many are tried before the search
COLDEST = 0.05
HOTTEST = 20.0
STEPS = 16
# scores no further apart count as equal: in fp32 the rows beside it in a batch change a row's by less
ROUNDING = 1e-5
# the probabilities nearest to 0 and 1 with finite logits
TINY = np.finfo(np.float64).tiny
BELOW_1 = np.nextafter(1, 0)


class BinaryDecisions(NamedTuple):
    """What a model decided at some temperature, next to the gold outcomes; each `(decisions,)`."""

    confidence: Floats  # probability of the outcome that it chose
    right: Bools  # whether that is the gold outcome
    gold: Floats  # probability of the gold outcome
    rest: Floats  # of all other outcomes together

    @classmethod
    def of(cls, parts: Iterable[tuple[Floats, Ints]]) -> BinaryDecisions:
        """Each part: probabilities `(decisions, outcomes)`, of which the greatest is chosen, and gold ids."""
        columns = []
        for table, truth in parts:
            gold = np.arange(table.shape[1]) == truth[:, None]
            # 1 - gold would lose the digits of rest
            sums = (table.sum(axis=1, where=which) for which in (gold, ~gold))
            columns.append(cls(table.max(axis=1), table.argmax(axis=1) == truth, *sums))
        return cls(*map(np.concatenate, zip(*columns, strict=True)))


class Bin(NamedTuple):
    """One point of a reliability diagram: decisions of similar confidence."""

    decisions: int
    confidence: float  # mean
    accuracy: float  # share of right ones
    interval: tuple[float, float]  # of the accuracy, 95 % (Wilson 1927)


def bin_of(confidence: Floats) -> Ints:
    """The equal-width bin of each confidence: bin i holds (i / BINS, (i + 1) / BINS], bin 0 also 0 itself."""
    return np.digitize(confidence, np.linspace(0, 1, BINS + 1)[1:-1], right=True).astype(np.int64)


def reliability(confidence: ArrayLike, correct: ArrayLike) -> list[Bin]:
    """The points of a reliability diagram: at most POINTS bins of as many decisions each, ascending in
    confidence.

    Each has at least FEWEST decisions, or all of them. confidence: (decisions,) probability in [0, 1] that
    the model gave to its decision. correct: (decisions,) whether that decision was right.
    """
    from scipy.stats import binomtest

    confidences = floats(confidence)
    corrects = np.asarray(correct)
    parts = np.array_split(
        np.argsort(confidences, kind="stable"), max(1, min(POINTS, len(confidences) // FEWEST))
    )
    points = []
    for part in parts:
        right = int(corrects[part].sum())
        low, high = binomtest(right, len(part)).proportion_ci(method="wilson")
        points.append(
            Bin(len(part), float(confidences[part].mean()), right / len(part), (float(low), float(high)))
        )
    return points


def calibration_error(parts: Iterable[Sequence[ArrayLike]]) -> float:
    """Mean over decisions of |confidence - accuracy| of their bin (Guo et al. 2017, equation 3), in [0, 1].

    The bins are of equal width. Each part: confidence and correctness of some decisions, as in `reliability`.
    """
    gaps = np.zeros(BINS)
    count = 0
    for part in parts:
        confidence, correct = map(np.asarray, part)
        np.add.at(gaps, bin_of(confidence).ravel(), (confidence - correct).ravel())
        count += confidence.size
    return float(np.abs(gaps).sum() / count)


def apply_temperature(logits: ArrayLike, temperature: float, *, exclusive: bool) -> Floats:
    """Probabilities (..., labels) of logits / temperature: the softmax if labels are exclusive, else the
    sigmoid.
    """
    from scipy.special import expit, softmax

    scaled = floats(logits) / temperature
    return floats(softmax(scaled, axis=-1) if exclusive else expit(scaled))


def logits_of(probabilities: ArrayLike, *, exclusive: bool) -> Floats:
    """Finite logits of these probabilities; those of exclusive labels but for a shift, which softmax does not
    see.
    """
    from scipy.special import logit

    table = floats(probabilities)
    return np.log(np.maximum(table, TINY)) if exclusive else np.asarray(logit(np.clip(table, TINY, BELOW_1)))


def fit_temperature(probabilities: ArrayLike, references: ArrayLike, *, exclusive: bool) -> float:
    """The temperature that fits these rows, one for all labels; see `best_temperature`.

    probabilities: (rows, labels) at the temperature in use, which the result multiplies. references: label
    ids (rows,) if labels are exclusive, else 0 and 1 (rows, labels), each of them a decision of its own.
    """
    table = floats(probabilities)
    truth = np.asarray(references, dtype=np.int64)
    logits = logits_of(table, exclusive=exclusive)
    if not exclusive:  # a sigmoid is the softmax of its logit and 0
        logits = np.stack([np.zeros(table.size), logits.ravel()], axis=1)
    return best_temperature(
        lambda t: BinaryDecisions.of([(apply_temperature(logits, t, exclusive=True), truth.ravel())])
    )


def fit_thresholds(probabilities: ArrayLike, references: ArrayLike) -> list[float]:
    """Per label, the threshold that maximises its F1; a label is given where probability >= threshold.

    Candidates are those of `thresholds_of`; ties go to the nearest to 0.5, then the lower. A label without a
    positive row keeps 0.5.

    probabilities: (rows, labels) in [0, 1]. references: of 0 and 1.
    """
    chosen = []
    for label in starmap(thresholds_of, zip(floats(probabilities).T, floats(references).T, strict=True)):
        best = label.values[label.f1 == label.f1.max()]
        chosen.append(float(best[np.argmin(np.abs(best - 0.5))]) if label.positives else 0.5)
    return chosen


def label_thresholds(thresholds: Limits, names: Sequence[str], default: float) -> list[float]:
    """The threshold of each label. thresholds: by label, or one for all; default: of a label that has
    none.
    """
    if isinstance(thresholds, Mapping):
        return [thresholds.get(name, default) for name in names]
    return [default if thresholds is None else thresholds] * len(names)


def best_labels(
    table: Floats,
    names: Sequence[str],
    thresholds: Limits,
    cutoffs: ByLabel | None,
) -> tuple[Ints, Bools]:
    """The label of each row, as an id, and whether its probability reaches its threshold, if it has one;
    `(rows,)`.

    It is the most probable one of those that reach their cutoff; else of those that have none; else of all.
    table: probabilities `(rows, labels)`.
    """
    preferred = table
    if cutoffs:
        limits = label_thresholds(cutoffs, names, 0.0)
        has_one = [name in cutoffs for name in names]
        preferred = table + np.where(has_one, np.where(table >= limits, 1, -1), 0)
    best = preferred.argmax(axis=1)
    return best, table[np.arange(len(table)), best] >= np.array(label_thresholds(thresholds, names, 0.0))[
        best
    ]


class Thresholds(NamedTuple):
    """The different decision thresholds of one label, ascending, and the numbers of rows at each."""

    values: Floats  # (thresholds,)
    assigned: Floats  # (thresholds,): rows that get the label
    hits: Floats  # (thresholds,): those of them that have it
    positives: float  # rows that have it

    @property
    def precision(self) -> Floats:
        """The share of hits among the rows that get the label."""
        return self.hits / self.assigned

    @property
    def recall(self) -> Floats:
        """The share of hits among the rows that have the label; 0 where none has it."""
        return self.hits / max(self.positives, 1)

    @property
    def f1(self) -> Floats:
        """The harmonic mean of precision and recall."""
        return 2 * self.hits / (self.assigned + self.positives)


def apart(scores: Floats) -> Bools:
    """Of ascending scores `(scores,)`: whether a threshold may lie directly below each.

    It may where the gap exceeds `ROUNDING`: otherwise which side a row is on would depend on its batch.
    Scores that follow each other without such a gap are divided into groups of that width.
    """
    first = np.diff(scores, prepend=-np.inf) > ROUNDING
    start = scores[first][np.cumsum(first) - 1]
    return np.asarray(first | (np.diff((scores - start) // ROUNDING, prepend=0.0) > 0))


def thresholds_of(scores: ArrayLike, truth: ArrayLike) -> Thresholds:
    """The thresholds of a label that is given where score >= threshold.

    They lie midway between neighbouring scores that are `apart`, 0 counting as one of them; the lowest of
    cosines below 0 lies below all of these. scores: (rows,), at least one. truth: (rows,) 0 and 1.
    """
    distinct, place = np.unique(floats(scores), return_inverse=True)
    first = apart(distinct)
    group = (np.cumsum(first) - 1)[place]
    right = floats(truth)
    lowest = 0.0 if distinct[0] >= 0 else distinct[0] - 2 * ROUNDING
    below = np.concatenate([[lowest], distinct[:-1]])[first]
    values = (below + distinct[first]) / 2
    above = np.cumsum(np.bincount(group)[::-1])[::-1]  # rows at or above each threshold
    hits = np.cumsum(np.bincount(group, weights=right)[::-1])[::-1]
    return Thresholds(values, above.astype(float), hits.astype(float), float(right.sum()))


def best_temperature(decide: Callable[[float], BinaryDecisions]) -> float:
    """The temperature in [0.05, 20] of least log loss, with the smoothed targets of Platt 1999, section 2.2.

    decide: temperature -> the decisions of validation. Of n decisions each gold outcome has the target (n +
    1) / (n + 2), so the loss does not keep falling as confidence grows. A temperature below 1, which raises
    confidence, needs evidence of how often answers are wrong: there is none without an error, and with e
    errors the mean confidence does not exceed (n - e + 1) / (n + 2) (Laplace's rule of succession). 1.0 where
    no other temperature is better.

    Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood
    Methods".
    """
    from scipy.optimize import brentq, minimize_scalar

    right = decide(1.0).right
    n = len(right)
    errors = int((~right).sum())

    def loss(log_t: float) -> float:
        decisions = decide(math.exp(log_t))
        gold, rest = (float(np.log(np.maximum(chances, TINY)).sum()) for chances in decisions[2:])
        return -((n + 1) * gold + rest) / (n + 2) / max(n, 1)

    def excess(log_t: float) -> float:
        return float(decide(math.exp(log_t)).confidence.mean()) - (n - errors + 1) / (n + 2)

    # Not convex in general (posteriors of a chain, answers whose scores are summed): the best of a grid comes
    # first.
    grid = np.linspace(math.log(COLDEST) if errors else 0.0, math.log(HOTTEST), STEPS).tolist()
    place = int(np.argmin([loss(log_t) for log_t in grid]))
    around = grid[max(place - 1, 0)], grid[min(place + 1, STEPS - 1)]
    log_t = float(minimize_scalar(loss, bounds=around, method="bounded").x)
    if loss(log_t) > loss(0.0) - 1e-12:  # a smaller gain is rounding
        return 1.0
    if log_t < 0 < excess(log_t):
        return math.exp(brentq(excess, log_t, 0.0)) if excess(0.0) < 0 else 1.0
    return math.exp(log_t)
