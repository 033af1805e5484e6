"""Confident learning (Northcutt et al. 2021): which given labels are likely wrong, from out-of-fold
probabilities.

cleanlab, by the same authors, is the oracle of the tests. bertkit does not depend on it, because its licence,
the AGPL, would reach the programs of those who use bertkit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.evaluation.intervals import Bools, Floats, Interval, Ints, Values, bootstrap, ratio, summed_by

ROUNDING = 1e-6  # by which a probability may be below a threshold, as in cleanlab


class ErrorEstimate(NamedTuple):
    """A share of wrong labels, with its 95 % interval if it has one; and the share that the models answer as
    given.
    """

    value: float
    interval: Interval | None
    agreed: float


def table_of(scores: Sequence[Mapping[str, float]]) -> tuple[list[str], Floats]:
    """The names of the labels, which all rows share, and their probabilities `(rows, labels)`."""
    names = list(scores[0])
    return names, np.array([list(map(row.__getitem__, names)) for row in scores])


def likely_wrong(table: Floats, labels: Ints) -> Bools:
    """`(rows,)`: another label is more probable, and another is as probable as it is on average where it is
    given.

    table: probabilities `(rows, labels)`. labels: label ids `(rows,)`. These are the off-diagonal rows of the
    confident joint, cleanlab's `filter_by="confident_learning"`.
    """
    rows = np.arange(len(labels))
    other = table >= _averages(table, labels) - ROUNDING
    other[rows, labels] = False
    return np.asarray(other.any(axis=1) & (table[rows, labels] < table.max(axis=1)))


def margins(table: Floats, labels: Ints) -> Floats:
    """`(rows,)`: the probability of the given label minus that of the most probable other one."""
    rows = np.arange(len(labels))
    others = table.copy()
    others[rows, labels] = -np.inf
    return np.asarray(table[rows, labels] - others.max(axis=1))


def guesses(table: Floats, labels: Ints) -> Ints:
    """`(rows,)`: the label that a row is counted for in the confident joint, -1 where no label reaches its
    average.
    """
    reached = table >= _averages(table, labels) - ROUNDING
    several = reached.sum(axis=1) > 1
    return np.where(reached.any(axis=1), np.where(several, table.argmax(axis=1), reached.argmax(axis=1)), -1)


def wrong_share(labels: Ints, best: Ints, guess: Ints, unit: Ints) -> ErrorEstimate:
    """The share of given labels outside the diagonal of the joint, whose rows sum to how often each label is
    given.

    labels, best, guess: label ids `(decisions,)`: those in the data, the most probable, those of the joint,
    -1 for none.
    unit: the row or sentence of each decision, by which the bootstrap resamples; the averages that labels
    must reach stay as they are.
    """
    by_unit = summed_by(unit, int(unit.max()) + 1).T

    def by_label(chosen: Floats | Bools) -> Any:
        return summed_by(labels, int(labels.max()) + 1, chosen.astype(np.float64)) @ by_unit

    counted = by_label(np.ones(len(labels)))
    confident = by_label(guess >= 0)
    right = by_label(guess == labels)

    def weighted(weights: Floats) -> Values:
        counts = counted @ weights
        hits = right @ weights
        wrong = confident @ weights - hits
        # A label without a confident row counts as right once, as in cleanlab.
        return {
            "wrong": (counts * ratio(wrong, wrong + np.maximum(hits, 1))).sum(axis=0) / counts.sum(axis=0)
        }

    value = weighted(np.ones((counted.shape[1], 1)))["wrong"]
    return ErrorEstimate(
        float(value[0]), bootstrap(weighted, counted.shape[1])["wrong"], float((best == labels).mean())
    )


def _averages(table: Floats, labels: Ints) -> Floats:
    """`(labels,)`: the mean probability of each label in the rows where it is given; infinite where there is
    none.
    """
    size = table.shape[1]
    sums = np.bincount(labels, table[np.arange(len(labels)), labels], size)
    counts = np.bincount(labels, minlength=size)
    return ratio(sums.astype(np.float64), counts.astype(np.float64), undefined=np.inf)
