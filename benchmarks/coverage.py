"""How often the prediction sets of a classifier have the right label, on real data.

Calibrated on a random half of a run's test rows and measured on the other, many times over: the halves are
exchangeable, so the mean must reach what was requested; its standard error is over the splits. Then
calibrated on the run's validation rows as they are and measured on all test rows, which may be from another
source; that standard error is over test rows. size: the mean number of labels in a set.

Run:  python benchmarks/coverage.py RUN ... [--splits 200]
"""

from __future__ import annotations

import argparse
import platform
from typing import Any

import numpy as np

import bertkit
from bertkit.evaluation.conformal import MEASURED, conformal, inclusion_threshold
from bertkit.evaluation.intervals import Floats
from bertkit.inference.evaluate import rows_of_split


def outcomes(predictor: Any, run: str, split: str) -> tuple[Floats, Floats]:
    """The probabilities of the gold labels, `(rows,)`, and of all, `(rows, labels)`, of the rows of this
    split.
    """
    rows = rows_of_split(run, predictor, None, split, ())[1]
    graded = predictor.task.grade(list(predictor.task.answer(rows, predictor.predict_features)), rows)
    return graded.table[np.arange(len(rows)), graded.references], graded.table


def measure(known: Floats, gold: Floats, table: Floats, coverage: float) -> tuple[float, float]:
    """Coverage and mean size. known: the gold labels' probabilities in the calibration rows."""
    least = inclusion_threshold(conformal(known), coverage)
    return float((gold >= least).mean()), float((table >= least).sum(axis=1).mean())


def report(run: str, splits: int) -> None:
    """The table of one run."""
    predictor = bertkit.load(run)
    (gold, table), (validation, _) = (outcomes(predictor, run, split) for split in ("test", "validation"))
    rng = np.random.default_rng(0)
    halves = [np.split(rng.permutation(len(gold)), [len(gold) // 2]) for _ in range(splits)]
    print(
        f"\n{run}: {predictor.task.describe()}; {len(gold):,} rows of test, {len(validation):,} of "
        "validation\n"
    )
    print("| requested | halves | size | from validation | size |\n|---|---|---|---|---|")
    for coverage in MEASURED:
        each = np.array([measure(gold[old], gold[new], table[new], coverage) for old, new in halves])
        (mean, size), error = each.mean(axis=0), each[:, 0].std(ddof=1) / np.sqrt(splits)
        share, width = measure(validation, gold, table, coverage)
        deviation = np.sqrt(share * (1 - share) / len(gold))
        cells = f"{mean:.4f} ± {error:.4f} | {size:.2f} | {share:.4f} ± {deviation:.4f} | {width:.2f}"
        print(f"| {coverage:g} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--splits", type=int, default=200)
    given = parser.parse_args()
    print(platform.processor() or platform.machine())
    for run in given.runs:
        report(run, given.splits)


if __name__ == "__main__":
    main()
