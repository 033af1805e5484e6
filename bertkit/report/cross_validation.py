"""What a report says of cross-validation: the folds, the methods that were compared, and the learning curve."""

from __future__ import annotations

from bertkit.report import table
from bertkit.report.facts import Facts
from bertkit.report.table import interval, mean_of_folds, number
from bertkit.run import OUT_OF_FOLD


def fold_rows(facts: Facts) -> list[list[str]]:
    """The scores of each fold, and their mean with its standard deviation; the first row is the header."""
    rows = [["fold", "rows", f"{facts.headline}, {OUT_OF_FOLD}", "seconds"]]
    for each in facts.results["folds"]["each"]:
        score = number(each["metrics"].get(facts.headline))
        rows.append([str(each["fold"]), f"{each['rows']:,}", score, f"{each['seconds']:.0f}"])
    return [*rows, ["mean ± sd", "", mean_of_folds(facts.results), ""]]


def method_rows(facts: Facts) -> list[list[str]]:
    """The methods that `task.method: auto` compared; the first row is the header."""
    rows = [["method", f"{facts.headline}, {OUT_OF_FOLD}", "95 % interval", "mean ± sd over folds", "seconds"]]
    for each in facts.results.get("methods", ()):
        if "first_fold" in each:
            scores = [f"first fold alone: {number(each['first_fold'])}", "", ""]
        else:
            spread = f"{number(each['mean'])} ± {number(each['sd'])}"
            scores = [number(each["score"]), interval(each["interval"]), spread]
        rows.append([each["method"], *scores, f"{each['seconds']:.0f}"])
    return rows if len(rows) > 1 else []


def curve_rows(facts: Facts) -> list[list[str]]:
    """The learning curve of head, and what it predicts; the first row is the header."""
    curve = facts.results.get("learning_curve", {})
    rows = [
        [f"{n:,}", number(score), ""] for n, score in zip(curve.get("rows", ()), curve.get("scores", ()), strict=True)
    ]
    for each in curve.get("predicted", ()):
        rows.append([f"{each['rows']:,}, predicted", number(each["score"]), interval(each["score_interval"])])
    return [["rows", f"{facts.headline} of head", "95 % interval"], *rows] if rows else []


def more_rows(facts: Facts) -> str:
    """What more rows would bring, where methods were compared."""
    curve = facts.results.get("learning_curve")
    return table.more_rows(curve, facts.headline, str(facts.options["method"])) if curve else ""
