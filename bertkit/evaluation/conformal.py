"""Prediction sets, which contain the right label with a requested probability: split conformal prediction.

The score of a label is 1 - its probability, as in Sadinle et al. 2019, "Least Ambiguous Set-Valued Classifiers With
Bounded Error Levels"; the guarantee is that of Angelopoulos & Bates 2021, arXiv 2107.07511, section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import TypedDict

from bertkit.errors import Problem, UserError
from bertkit.evaluation.intervals import Floats, Ints

MOST = 1000  # probabilities that are saved
MEASURED = (0.8, 0.9, 0.95)  # coverages reported for rows with targets


class Conformal(TypedDict):
    """What is saved of the calibration rows.

    rows: how many there were. gold: the probabilities of their gold labels, in descending order; of n > 1,000 rows only
    those at ranks ceil(j * n / 1,000), for j from 1 to 1,000.
    """

    rows: int
    gold: list[float]


class Coverage(TypedDict):
    """The prediction sets of rows with targets, measured at one coverage."""

    coverage: float  # the requested one
    measured: float  # share of rows whose set has the gold label
    mean_size: float  # labels per set
    single: float  # share of rows whose set has one label


def conformal(gold: ArrayLike) -> Conformal:
    """gold: (rows,) probabilities of the gold labels, at least one."""
    descending = -np.sort(-np.asarray(gold, dtype=np.float64))
    rows = len(descending)
    kept = min(rows, MOST)
    ranks = -(-np.arange(1, kept + 1) * rows // kept)  # rounded up
    return Conformal(rows=rows, gold=descending[ranks - 1].tolist())


def least_probability(calibrated: Conformal, coverage: float) -> float:
    """The probability from which a label is in the set.

    Of the gold labels' probabilities for n calibration rows, in descending order, it is the one at rank
    ceil((n + 1) * coverage), or the next lower one that was saved, which covers at most 1 / 1,000 more rows. The set of
    a new row that is exchangeable with them has its gold label with at least the probability `coverage`. Raises
    UserError where there are too few rows.
    """
    if not 0 < coverage < 1:
        raise UserError(Problem("coverage", f"{coverage:g} is not between 0 and 1"))
    asked, rows = Fraction(repr(float(coverage))), calibrated["rows"]  # the decimal: (9 + 1) * 0.9 must not exceed 9
    rank = ceil((rows + 1) * asked)
    if rank > rows:
        needed = ceil(1 / (1 - asked)) - 1
        what = f"{coverage:g} requires {needed:,} calibration rows, but the model has {rows:,}"
        raise UserError(
            Problem("coverage", what, "Use more rows, bertkit calibrate RUN --data FILE, or a lower coverage.")
        )
    return calibrated["gold"][(rank - 1) * len(calibrated["gold"]) // rows]


def measured(calibrated: Conformal, table: Floats, references: Ints) -> Iterator[Coverage]:
    """The usual coverages that the calibration rows allow. table: (rows, labels). references: (rows,) label ids."""
    for coverage in MEASURED:
        try:
            sets = table >= least_probability(calibrated, coverage)
        except UserError:  # too few rows
            continue
        sizes, covered = sets.sum(axis=1), sets[np.arange(len(table)), references]
        share, size, single = (float(each.mean()) for each in (covered, sizes, sizes == 1))
        yield Coverage(coverage=coverage, measured=share, mean_size=size, single=single)
