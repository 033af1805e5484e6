"""Two systems compared on the same rows: paired bootstrap, McNemar's exact test, approximate
randomisation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bertkit.evaluation.graded import Scored
from bertkit.evaluation.intervals import CHUNK, Floats, Interval, Values, bootstrap

RESAMPLES = 1000


class Difference(NamedTuple):
    """A metric of the first and of the second system; interval: 95 %, of second - first, None where not
    defined.
    """

    first: float
    second: float
    interval: Interval | None

    @property
    def value(self) -> float:
        """By how much the second is higher."""
        return self.second - self.first


def differences(first: Scored, second: Scored) -> dict[str, Difference]:
    """The metrics that both systems have on the same rows, each resample of which is scored for both (Koehn
    2004).
    """

    def weighted(weights: Floats) -> Values:
        before = first.weighted(weights)
        after = second.weighted(weights)
        return {name: after[name] - before[name] for name in before if name in after}

    bounds = bootstrap(weighted, first.rows, resamples=RESAMPLES)
    pairs = {name: (first.scores.get(name), second.scores.get(name)) for name in bounds}
    return {
        name: Difference(a, b, bounds[name])
        for name, (a, b) in pairs.items()
        if a is not None and b is not None
    }


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value (McNemar 1947) from the numbers of rows that only one system answers right."""
    from scipy.stats import binomtest

    return float(binomtest(only_first, only_first + only_second).pvalue) if only_first + only_second else 1.0


def randomisation(both: Scored, metric: str) -> float:
    """Two-sided p-value of approximate randomisation (Noreen 1989): the share of relabellings that differ as
    much.

    both: the first system's answers to all rows, then the second's to the same rows. A relabelling exchanges
    the two answers to each row with probability 1/2.
    """
    rows = both.rows // 2
    rng = np.random.default_rng(0)

    def differ(exchanged: Floats) -> Floats:
        sides = [np.concatenate([exchanged, 1 - exchanged]), np.concatenate([1 - exchanged, exchanged])]
        before, after = (both.weighted(side)[metric] for side in sides)
        return np.abs(before - after)

    observed = differ(np.zeros((rows, 1)))[0]
    step = max(1, min(64, CHUNK // (2 * rows)))
    reached = 1
    for start in range(0, RESAMPLES, step):
        drawn = differ(rng.integers(0, 2, (rows, min(step, RESAMPLES - start))).astype(float))
        reached += int((drawn >= observed - 1e-12).sum())  # sums in another order differ in their last digit
    return reached / (RESAMPLES + 1)
