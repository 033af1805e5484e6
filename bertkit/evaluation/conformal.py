"""Prediction sets and intervals, which contain what is right with a requested probability: split conformal
prediction.

The score of a label is 1 - its probability, as in Sadinle et al. 2019, "Least Ambiguous Set-Valued
Classifiers With Bounded Error Levels"; the guarantee is that of Angelopoulos & Bates 2021, arXiv 2107.07511,
section 1.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NotRequired

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import TypedDict

from bertkit.errors import UserError
from bertkit.evaluation.calibration import ROUNDING

MAX_PROBABILITIES = 1000  # probabilities that are saved
MEASURED = (0.8, 0.9, 0.95)  # coverages reported for rows with targets


class Conformal(TypedDict):
    """What is saved of the calibration rows.

    rows: how many there were. gold: the probabilities of their gold labels, in descending order; of n > 1,000
    rows only those at ranks ceil(j * n / 1,000), for j from 1 to 1,000.
    """

    rows: int
    gold: list[float]


class Coverage(TypedDict):
    """The prediction sets of rows with targets, measured at one coverage."""

    coverage: float  # the requested one
    measured: float  # share of rows whose set has what is right
    mean_size: NotRequired[float]  # members per set
    single: NotRequired[float]  # share of sets that have one member
    mean_width: NotRequired[float]  # of intervals


def conformal(gold: ArrayLike) -> Conformal:
    """gold: (rows,) probabilities of what is right."""
    ordered = -np.sort(-np.asarray(gold, dtype=np.float64))
    count = len(ordered)
    kept = min(count, MAX_PROBABILITIES)
    ranks = -(-np.arange(1, kept + 1) * count // max(kept, 1))  # rounded up
    return Conformal(rows=count, gold=ordered[ranks - 1].tolist())


def inclusion_threshold(saved: Conformal, coverage: float) -> float:
    """The probability from which a label is in the set.

    Of the gold labels' probabilities for n calibration rows, in descending order, it is the one at rank
    ceil((n + 1) * coverage), or the next lower one that was saved, which covers at most 1 / 1,000 more rows;
    lowered by the share `ROUNDING`, so that the row it comes from is covered in any batch. The set of a new
    row that is exchangeable with them has its gold label with at least the probability `coverage`. Raises
    UserError where there are too few rows.
    """
    rows = saved["rows"]
    needed = _rows_needed(coverage)
    if rows < needed:
        raise UserError(
            "coverage",
            f"{coverage:g} requires {needed:,} calibration rows, but the model has {rows:,}",
            "Calibrate it on more rows, or choose a lower coverage.",
        )
    rank = ceil((rows + 1) * _decimal(coverage))
    least = saved["gold"][(rank - 1) * len(saved["gold"]) // rows]
    return least - ROUNDING * abs(least)  # of an interval it is negative


def supported_coverages(saved: Conformal) -> dict[float, float]:
    """The usual coverages that the calibration rows suffice for, each with its `inclusion_threshold`."""
    return {
        coverage: inclusion_threshold(saved, coverage)
        for coverage in MEASURED
        if saved["rows"] >= _rows_needed(coverage)
    }


def _decimal(coverage: float) -> Fraction:
    """The number as written, without rounding: (9 + 1) * 0.9 must not exceed 9."""
    return Fraction(repr(float(coverage)))


def _rows_needed(coverage: float) -> int:
    """The fewest rows that allow this coverage. Raises UserError if it is not a share."""
    if not 0 < coverage < 1:
        raise UserError("coverage", f"must be between 0 and 1, got {coverage:g}")
    return ceil(1 / (1 - _decimal(coverage))) - 1
