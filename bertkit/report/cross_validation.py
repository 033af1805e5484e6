"""What a report says of cross-validation: the folds."""

from __future__ import annotations

from bertkit.report.facts import Facts
from bertkit.report.table import mean_of_folds, number
from bertkit.run import OUT_OF_FOLD


def fold_rows(facts: Facts) -> list[list[str]]:
    """The scores of each fold, and their mean with its standard deviation; the first row is the header."""
    rows = [["fold", "rows", f"{facts.headline}, {OUT_OF_FOLD}", "seconds"]]
    for each in facts.results["folds"]["each"]:
        score = number(each["metrics"].get(facts.headline))
        rows.append([str(each["fold"]), f"{each['rows']:,}", score, f"{each['seconds']:.0f}"])
    return [*rows, ["mean ± sd", "", mean_of_folds(facts.results), ""]]
