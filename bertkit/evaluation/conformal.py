"""Prediction sets, which contain what is right with a requested probability: split conformal prediction.

The score of a label is 1 - its probability, as in Sadinle et al. 2019, "Least Ambiguous Set-Valued Classifiers With
Bounded Error Levels"; the guarantee is that of Angelopoulos & Bates 2021, arXiv 2107.07511, section 1. Thresholds by
label, from the rows that have the label, are label-conditional (Vovk 2012, "Conditional Validity of Inductive
Conformal Predictors"). Where a row has several outcomes, such as the entities of a sentence, the share of them that is
covered is controlled: conformal risk control, Angelopoulos et al. 2022, arXiv 2208.02814.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import NotRequired, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import TypedDict

from bertkit.errors import Problem, UserError
from bertkit.evaluation.intervals import Floats, Ints

MOST, LEAST = 1000, 100  # numbers that are saved: at most, of labels together; at least, of each label that has them
MEASURED = (0.8, 0.9, 0.95)  # coverages reported for rows with targets
MORE_ROWS = "Use more rows, bertkit calibrate RUN --data FILE, or a lower coverage."


T = TypeVar("T")


class Sample(TypedDict):
    """What is saved of some calibration rows.

    rows: how many there were. gold: the probabilities of their gold labels, in descending order; of n > 1,000 rows only
    those at ranks ceil(j * n / 1,000), for j from 1 to 1,000.
    """

    rows: int
    gold: list[float]


class Conformal(Sample):
    """What is saved of all calibration rows, and of those of each label; gold: empty where sets are always by label."""

    labels: NotRequired[dict[str, Sample]]  # not in models calibrated by earlier versions


class Coverage(TypedDict):
    """The prediction sets of rows with targets, measured at one coverage."""

    coverage: float  # the requested one
    measured: float  # share of rows whose set has what is right; with `labels`, the mean of theirs
    mean_size: NotRequired[float]  # members per set
    single: NotRequired[float]  # share of sets that have one member
    mean_width: NotRequired[float]  # of intervals
    labels: NotRequired[dict[str, float]]  # `measured` of each label that occurs


def sample(gold: ArrayLike, rows: ArrayLike | None = None, most: int = MOST) -> Sample:
    """gold: (outcomes,) probabilities of what is right. rows: (outcomes,) the row that each is of; None: one of each.

    A row counts 1, whatever the number of its outcomes. most: how many numbers are saved.
    """
    given = np.asarray(gold, dtype=np.float64)
    order = np.argsort(-given, kind="stable")
    _, own, counts = np.unique(np.arange(len(given)) if rows is None else rows, return_inverse=True, return_counts=True)
    reached = np.cumsum(1 / counts[own[order]]) + 1e-6  # how many rows have this probability or a higher one
    count, kept = len(counts), min(len(counts), most)
    ranks = -(-np.arange(1, kept + 1) * count // max(kept, 1))  # rounded up
    return Sample(rows=count, gold=given[order][np.searchsorted(reached, ranks)].tolist())


def conformal(gold: ArrayLike, labels: dict[str, Sample] | None = None) -> Conformal:
    """gold: (rows,) as for `sample`. labels: `by_label`, where sets by label are possible too."""
    return Conformal(**sample(gold), labels=labels or {})


def row_shares(covered: ArrayLike, rows: ArrayLike) -> Floats:
    """(rows,): which share of a row's outcomes is covered, of rows that have some. covered, rows: `(outcomes,)`."""
    _, own, counts = np.unique(rows, return_inverse=True, return_counts=True)
    return np.bincount(own, np.asarray(covered, dtype=np.float64), len(counts)) / counts


def by_label(gold: ArrayLike, labels: Ints, names: Sequence[str], rows: Ints | None = None) -> dict[str, Sample]:
    """The sample of each label. gold, rows: as for `sample`. labels: (outcomes,) which of `names` is right."""
    given = np.asarray(gold, dtype=np.float64)
    own = np.arange(len(given)) if rows is None else rows
    order, most = np.argsort(labels, kind="stable"), max(MOST // len(names), LEAST)
    parts = np.split(order, np.searchsorted(labels[order], np.arange(1, len(names))))
    return {name: sample(given[part], own[part], most) for name, part in zip(names, parts, strict=True)}


def least_probability(known: Sample, coverage: float) -> float:
    """The probability from which a label is in the set.

    Of the gold labels' probabilities for n calibration rows, in descending order, it is the one at rank
    ceil((n + 1) * coverage), or the next lower one that was saved, which covers at most 1 / 1,000 more rows. The set of
    a new row that is exchangeable with them has its gold label with at least the probability `coverage`. Raises
    UserError where there are too few rows.
    """
    rows, needed = known["rows"], _rows_needed(coverage)
    if rows < needed:
        what = f"{coverage:g} requires {needed:,} calibration rows, but the model has {rows:,}"
        raise UserError(Problem("coverage", what, MORE_ROWS))
    rank = ceil((rows + 1) * _decimal(coverage))
    return known["gold"][(rank - 1) * len(known["gold"]) // rows]


def least_by_label(known: Mapping[str, Sample], coverage: float) -> dict[str, float]:
    """Label -> `least_probability` of its own rows. Raises UserError, which names the labels with too few rows."""
    needed = _rows_needed(coverage)
    if few := [f"{each['rows']:,} of {name}" for name, each in known.items() if each["rows"] < needed]:
        what = f"{coverage:g} requires {needed:,} calibration rows of each label, but the model has {', '.join(few)}"
        raise UserError(Problem("coverage", what, MORE_ROWS))
    return {name: least_probability(each, coverage) for name, each in known.items()}


def usual(least: Callable[[float], T]) -> Iterator[tuple[float, T]]:
    """The usual coverages that the calibration rows suffice for, each with its threshold or thresholds."""
    for coverage in MEASURED:
        try:
            found = least(coverage)
        except UserError:  # too few rows
            continue
        yield coverage, found


def measured(coverage: float, covered: ArrayLike, sizes: ArrayLike) -> Coverage:
    """covered: (rows,) whether the set has what is right. sizes: (rows,) members of the set."""
    right, many = np.asarray(covered, np.float64), np.asarray(sizes)
    share, size, single = (float(each.mean()) for each in (right, many, many == 1))
    return Coverage(coverage=coverage, measured=share, mean_size=size, single=single)


def measured_by_label(coverage: float, covered: Mapping[str, ArrayLike], sizes: ArrayLike) -> Coverage:
    """covered: label -> (rows,) the covered share of its outcomes in each row that has some."""
    labels = {name: float(np.asarray(each).mean()) for name, each in covered.items() if np.size(each)}
    return {**measured(coverage, list(labels.values()), sizes), "labels": labels}


def _decimal(coverage: float) -> Fraction:
    """As it was written: (9 + 1) * 0.9 must not exceed 9."""
    return Fraction(repr(float(coverage)))


def _rows_needed(coverage: float) -> int:
    """The fewest rows that allow this coverage. Raises UserError where it is no share."""
    if not 0 < coverage < 1:
        raise UserError(Problem("coverage", f"{coverage:g} is not between 0 and 1"))
    return ceil(1 / (1 - _decimal(coverage))) - 1
