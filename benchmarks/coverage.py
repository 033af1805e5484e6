"""How often sets with a coverage have what is right, on real data.

Calibrated on a random half of a run's test rows and measured on the other, many times over: the halves are
exchangeable, so the mean must reach what was requested; its standard error is over the splits. Then calibrated on the
run's validation rows as they are and measured on all test rows, which may be from another source. That standard error
is over test rows, for types of words over sentences; it is an upper bound where a sentence is covered in part.

size: of all sets, the mean number of members; of a label, the share of sets that have it. An answer to a question must
be among the candidates; otherwise, as with too few rows, a coverage is not reached.

Run:  python benchmarks/coverage.py RUN ... [--splits 200]
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import bertkit
from bertkit.errors import UserError
from bertkit.evaluation import squad
from bertkit.evaluation.conformal import MEASURED, Sample, least_probability, row_shares, sample
from bertkit.evaluation.intervals import Floats, Ints
from bertkit.evaluation.labels import GradedLabels
from bertkit.inference.evaluate import rows_of_split
from bertkit.tasks import type_sets

EVERYTHING = "all"


class Outcomes(NamedTuple):
    """What is right in the rows of a split, `(outcomes,)` each, and the probabilities of all candidates."""

    gold: Floats  # probability
    label: Ints  # which of `names`
    row: Ints
    names: list[str]
    rows: int
    candidates: list[Floats]  # of each row, (sets, members) or (members,)


def outcomes(predictor: Any, run: str, split: str) -> Outcomes:
    """Those of the rows of this split."""
    task, rows = predictor.task, rows_of_split(run, predictor, None, split, ())[1]
    if task.name == "token-classification":
        task = replace(task, options=task.options.model_copy(update={"word_scores": True}))
    answers = list(task.answer(rows, predictor.predict_features))
    if task.name == "token-classification":
        tables, tags = type_sets.scored_words(answers, rows["tags"], task.options)
        found = type_sets.outcomes(tables, tags, task.options)
        return Outcomes(*found, type_sets.type_names(task.options), len(rows), tables)
    own = np.arange(len(rows))
    if task.name == "question-answering":
        gold = squad.gold_probabilities(answers, [each["text"] for each in rows["answers"]])
        scores = [np.array([each["score"] for each in squad.candidates(answer)]) for answer in answers]
        return Outcomes(gold, np.zeros(len(rows), np.int64), own, [EVERYTHING], len(rows), scores)
    graded: GradedLabels = task.grade(answers, rows)
    gold = graded.table[own, graded.references]
    return Outcomes(gold, graded.references, own, graded.names, len(rows), list(graded.table))


def least_of(known: Sample, coverage: float) -> float:
    """The threshold; NaN where there are too few rows, or gold answers among the candidates."""
    try:
        return least_probability(known, coverage) or np.nan
    except UserError:
        return np.nan


def measure(
    old: Outcomes, new: Outcomes, groups: dict[str, list[int]], coverage: float
) -> dict[str, tuple[float, ...]]:
    """Group of labels -> coverage, its standard error over rows, members per set."""
    found = {}
    for name, labels in groups.items():
        before, after = (np.isin(each.label, labels) for each in (old, new))
        least = least_of(sample(old.gold[before], old.row[before]), coverage)
        shares = row_shares(new.gold[after] >= least, new.row[after])
        mean = shares.mean() if len(shares) and not np.isnan(least) else np.nan
        inside = (each if name == EVERYTHING else each[..., labels] for each in new.candidates)
        size = sum((each >= least).sum() for each in inside) / sum(
            len(each) if each.ndim > 1 else 1 for each in new.candidates
        )
        found[name] = (mean, np.sqrt(mean * (1 - mean) / max(len(shares), 1)), size)
    return found


def part(whole: Outcomes, rows: Ints) -> Outcomes:
    """These rows of a split."""
    kept = np.isin(whole.row, rows)
    few = (each[kept] for each in whole[:3])
    return Outcomes(*few, whole.names, len(rows), [whole.candidates[row] for row in rows])


def report(run: str, splits: int) -> None:
    """The table of one run."""
    predictor = bertkit.load(run)
    test, validation = (outcomes(predictor, run, split) for split in ("test", "validation"))
    groups = {name: [index] for index, name in enumerate(test.names)} if len(test.names) > 1 else {}
    if predictor.task.name != "token-classification":
        groups = {EVERYTHING: list(range(len(test.names))), **groups}
    rng = np.random.default_rng(0)
    halves = [np.split(rng.permutation(test.rows), [test.rows // 2]) for _ in range(splits)]
    print(f"\n{run}: {predictor.task.describe()}; {test.rows:,} rows of test, {validation.rows:,} of validation\n")
    print("| requested | label | halves | size | from validation | size |\n|---|---|---|---|---|---|")
    for coverage in MEASURED:
        each = [measure(part(test, old), part(test, new), groups, coverage) for old, new in halves]
        whole = measure(validation, test, groups, coverage)
        for name in groups:
            table = np.array([found[name] for found in each])
            table = table[~np.isnan(table[:, 0])]
            cells = ["not reachable", "-"]
            if len(table) > 1:
                error = table[:, 0].std(ddof=1) / np.sqrt(len(table))
                some = "" if len(table) == splits else f" ({len(table)} of {splits} splits)"
                cells = [f"{table[:, 0].mean():.4f} ± {error:.4f}{some}", f"{table[:, 2].mean():.2f}"]
            mean, error, size = whole[name]
            cells += ["not reachable", "-"] if np.isnan(mean) else [f"{mean:.4f} ± {error:.4f}", f"{size:.2f}"]
            print(f"| {coverage:g} | {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--splits", type=int, default=200)
    given = parser.parse_args()
    print(platform.processor() or platform.machine())
    for run in given.runs:
        report(run, given.splits)


if __name__ == "__main__":
    main()
