"""What more rows would bring: the scores of `head` after fewer rows, and the power law through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bertkit.data.table import numbers
from bertkit.evaluation.graded import Scored
from bertkit.evaluation.intervals import Floats, Ints, bootstrap
from bertkit.inference.runner import Runner
from bertkit.tasks.text_classification import TextClassification
from bertkit.training.few_shot import examples_of, fit_head, names_of
from bertkit.training.preflight import Job

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the rows of the other folds
MORE = 50  # rows
LEAST = 10  # rows in the smallest share
EXPONENTS = np.linspace(0.01, 2, 200)  # c of a - b n^-c

Curve: TypeAlias = Callable[[Floats], Floats]
"""Weights of all rows (rows, resamples) -> the score of each share (shares, resamples)."""


def learning_curve(job: Job, runner: Runner, headline: str) -> dict[str, Any]:
    """`rows` and `scores` of head by cross-validation, where the same rows are held out for each share of the others,
    and what `extrapolated` says of them.

    runner: of it only the vectors are used. `reason` alone where there are too few rows, or for a metric of the user.
    """
    total = len(job.folds)
    sizes = [round(share * (total - total / max(job.folds))) for share in SHARES]
    if sizes[0] < LEAST:
        return {"reason": f"25 % of the rows of the other folds is fewer than {LEAST}"}
    if headline not in job.task.metrics:
        return {"reason": f"{headline} is not a metric of the task"}
    scored = _scored(job, runner)
    return extrapolated(lambda weights: np.stack([each.weighted(weights)[headline] for each in scored]), sizes, total)


def _scored(job: Job, runner: Runner) -> list[Scored]:
    """For each share all rows, scored by heads that have learned this share of the rows of the other folds."""
    task: TextClassification = job.task  # type: ignore[assignment]
    rows, folds = job.data.rows["train"], np.asarray(job.folds)
    seed, names, examples = job.recipe.seeds[0], names_of(runner), examples_of(runner, job.features)
    _, starts = np.unique(numbers(job.features, "row"), return_index=True)
    logits = np.zeros((len(SHARES), len(folds), len(task.names) or 1))
    for fold in np.unique(folds):
        others = np.flatnonzero(folds != fold)
        labels = examples.targets[others] if task.kind == "single-label" else np.zeros(len(others), int)
        order = others[stratified_order(labels, seed)]
        for of, share in zip(logits, SHARES, strict=True):
            head = fit_head(task, examples[order[: round(share * len(order))]], names, seed)
            of[folds == fold] = head.logits(examples.vectors[folds == fold])
    one_each = job.features.select(starts)
    return [task.grade(task.decode(list(of), one_each, rows), rows).scored for of in logits]


def stratified_order(labels: Ints, seed: int) -> Ints:
    """The rows in an order whose every beginning has the labels in about the proportions of all rows."""
    draw, place = np.random.default_rng(seed), np.empty(len(labels))
    for label in np.unique(labels):
        count = int((labels == label).sum())
        place[labels == label] = (draw.permutation(count) + draw.random()) / count
    return np.argsort(place)


def extrapolated(curve: Curve, sizes: list[int], total: int) -> dict[str, Any]:
    """`rows`, `scores`, and `predicted`: for 50 rows more than `total`, and for twice `total`, `rows`, how many
    `more` these are, `score`, its `gain` over `total` rows, and 95 % intervals of both, by bootstrap over the rows.

    sizes: numbers of rows of the curve. `reason` in place of `predicted` where the score or an interval is not defined,
    or the interval of the rise from the first size to the last includes 0.
    """
    later = (total + MORE, 2 * total)

    def weighted(weights: Floats) -> dict[str, Floats]:
        scores = curve(weights)
        last, now, *then = power_law(sizes, scores, (sizes[-1], total, *later))
        values = {"rise": scores[-1] - scores[0]}
        for rows, value in zip(later, then, strict=True):
            score = np.minimum(scores[-1] + value - last, 1)  # not below the one that was measured
            values |= {f"score {rows}": score, f"gain {rows}": value - now}
        return values

    once = np.ones((total, 1))
    at, intervals = weighted(once), bootstrap(weighted, total)
    found: dict[str, Any] = {
        "rows": sizes,
        "scores": [each if np.isfinite(each) else None for each in curve(once)[:, 0].tolist()],
    }
    if None in found["scores"] or None in intervals.values():
        return found | {"reason": "the score of head is not defined for each number of rows"}
    if not (rise := intervals["rise"]) or rise[0] <= 0:
        return found | {"reason": "the score of head does not clearly rise with the number of rows"}
    predicted = [
        {"rows": rows, "more": rows - total}
        | {name: float(at[f"{name} {rows}"][0]) for name in ("score", "gain")}
        | {f"{name}_interval": intervals[f"{name} {rows}"] for name in ("score", "gain")}
        for rows in later
    ]
    return found | {"predicted": predicted}


def power_law(sizes: Any, scores: Floats, at: Any) -> Floats:
    """a - b n^-c at these n, by least squares with b >= 0 and a <= 1: `(at, k)`, from scores `(sizes, k)`."""
    n, wanted = np.asarray(sizes)[:, None] / sizes[-1], np.asarray(at)[:, None] / sizes[-1]
    values, least = np.empty((len(wanted), scores.shape[1])), np.full(scores.shape[1], np.inf)
    for c in EXPONENTS:  # of a given c it is a straight line
        x = -(n**-c)
        b = np.maximum(((x - x.mean()) * (scores - scores.mean(0))).sum(0) / ((x - x.mean()) ** 2).sum(), 0)
        a = scores.mean(0) - b * x.mean()
        b = np.where(a > 1, np.maximum((x * (scores - 1)).sum(0) / (x**2).sum(), 0), b)
        a = np.minimum(a, 1)
        errors = ((a + b * x - scores) ** 2).sum(0)
        values = np.where(errors < least, a - b * wanted**-c, values)
        least = np.minimum(errors, least)
    return np.where(np.isfinite(scores).all(0), values, np.nan)
