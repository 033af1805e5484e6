"""Sets of labels that contain the right one as often as asked for: split conformal prediction.

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

MOST = 1000  # probabilities that are kept
MEASURED = (0.8, 0.9, 0.95)  # coverages that are measured on rows with targets


class Conformal(TypedDict):
    """What is kept of calibration rows.

    rows: how many there were. gold: the probabilities of their gold labels, from high to low; of n > 1,000 rows the
    j-th of them, from 1, is that at place ceil(j * n / 1,000).
    """

    rows: int
    gold: list[float]


class Coverage(TypedDict):
    """How sets did on rows with targets."""

    coverage: float  # that was asked for
    measured: float  # share of rows whose set has the gold label
    mean_size: float  # labels of a set
    single: float  # share of rows whose set has one label


def conformal(gold: ArrayLike) -> Conformal:
    """gold: (rows,) probabilities of the gold labels, at least one."""
    descending = -np.sort(-np.asarray(gold, dtype=np.float64))
    rows = len(descending)
    kept = min(rows, MOST)
    places = -(-np.arange(1, kept + 1) * rows // kept)  # rounded up
    return Conformal(rows=rows, gold=descending[places - 1].tolist())


def least_probability(calibrated: Conformal, coverage: float) -> float:
    """The probability from which a label is in the set.

    Of n calibration rows it is that of the gold label at place ceil((n + 1) * coverage), from high to low, or the next
    lower one that was kept: then at most 1 / 1,000 more rows are covered. A new row that is exchangeable with them has
    its gold label in the set with at least this probability. Raises UserError where that takes more rows.
    """
    if not 0 < coverage < 1:
        raise UserError(Problem("coverage", f"{coverage:g} is not between 0 and 1"))
    asked, rows = Fraction(repr(float(coverage))), calibrated["rows"]  # the decimal: (9 + 1) * 0.9 must not exceed 9
    place = ceil((rows + 1) * asked)
    if place > rows:
        needed = ceil(1 / (1 - asked)) - 1
        what = f"{coverage:g} takes {needed:,} calibration rows, but the model has {rows:,}"
        raise UserError(Problem("coverage", what, "Give more: bertkit calibrate RUN --data FILE; or ask for less."))
    return calibrated["gold"][(place - 1) * len(calibrated["gold"]) // rows]


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
