"""What decisions are fitted for: a goal, the options that reach it on labelled rows, and what these change there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.errors import Problem, UserError
from bertkit.evaluation.calibration import label_thresholds, thresholds_of
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.evaluation.intervals import Bools, Floats
from bertkit.evaluation.similarity import MIDDLE, LabelledPairs
from bertkit.tasks.base import Task
from bertkit.tasks.class_labels import names_of

MEASURES = ("precision", "recall", "f1")


class ThresholdTarget(NamedTuple):
    """The best F1, or the least precision or recall of each label."""

    metric: str = "f1"
    least: float = 0.0

    def __str__(self) -> str:
        return f"{self.metric} of at least {self.least:g}" if self.least else "best F1"


def threshold_target(task: Task, precision: float | None, recall: float | None) -> ThresholdTarget:
    """The goal that `calibrate` is called with. Raises UserError where it does not apply to the task."""
    asked = {name: value for name, value in (("precision", precision), ("recall", recall)) if value is not None}
    if len(asked) > 1:
        raise UserError("precision and recall exclude each other: give one of them")
    kind, about = kind_of(task), f"a model for {task.name} ({task.describe()})"
    for name, value in asked.items():
        if not kind or not task.decision.threshold:
            fix = "Models that give labels to texts have them, and those of two labels by cosine."
            raise UserError(Problem(name, f"{about} has no thresholds of labels", fix))
        if name == "recall" and kind == "single-label":
            what = f"{about} gives the best label or none: a threshold can only lower its recall"
            raise UserError(Problem("recall", what, "Give a precision."))
        if not 0 < value <= 1:
            raise UserError(Problem(name, f"{value:g} is not above 0 and at most 1"))
        return ThresholdTarget(name, value)
    return ThresholdTarget()


def kind_of(task: Task) -> str:
    """single-label, multi-label, or by cosine; empty where the model gives no labels to rows."""
    kind = task.decision.kind
    return "" if kind == "regression" else kind


class LabelDecisions(NamedTuple):
    """Labels given to rows, compared with their targets; single: one label at most."""

    names: Sequence[str]
    scores: Floats  # (rows, labels)
    truth: Bools  # (rows, labels)
    given: Bools  # (rows, labels)
    thresholds: Mapping[str, float]
    single: bool = False


def decided(task: Task, graded: Graded) -> LabelDecisions:
    """The labels that a task with a `kind_of` gave. Of two labels by cosine, only the second has a threshold."""
    if isinstance(graded, LabelledPairs):
        scores, truth = (np.asarray(each)[:, None] for each in (graded.cosines, graded.similar))
        name, limit = names_of(task.options.labels)[1], MIDDLE if graded.threshold is None else graded.threshold
        return LabelDecisions([name], scores, truth == 1, scores >= limit, {name: limit})
    assert isinstance(graded, GradedLabels)
    names, single = graded.names, graded.kind == "single-label"
    truth, given = (
        np.asarray(ids)[:, None] == np.arange(len(names)) if single else ids == 1
        for ids in (graded.references, graded.given)
    )
    limits = [] if graded.thresholds is None else label_thresholds(graded.thresholds, names, 0.0 if single else 0.5)
    return LabelDecisions(names, graded.table, truth, given, dict(zip(names, limits, strict=False)), single)


def fitted(decided: LabelDecisions, goal: ThresholdTarget) -> dict[str, Any]:
    """The option `thresholds` that reaches the goal on these rows; nothing for the best F1, which training fits.

    Raises UserError, which names the labels that do not reach it.
    """
    if not goal.least:
        return {}
    limits, problems = {}, []
    for name, scores, truth, given in zip(
        decided.names, decided.scores.T, decided.truth.T, decided.given.T, strict=True
    ):
        rows = given if decided.single else slice(None)  # a threshold can take a single label away, not give it
        if not truth.any() or not len(scores[rows]):
            lacking = "no row has it" if not truth.any() else "it is the best label of no row"
            problems.append(Problem(f"label {name}", f"{lacking}, so no threshold has a {goal.metric}"))
            continue
        each = thresholds_of(scores[rows], truth[rows])
        values = getattr(each, goal.metric)
        if (values >= goal.least).any():
            limits[name] = float(each.values[values >= goal.least][0 if goal.metric == "precision" else -1])
        else:
            what = f"no threshold has a {goal} on these rows; the best has {values.max():.4f}"
            problems.append(Problem(f"label {name}", what))
    if problems:
        raise UserError(problems)
    return {"thresholds": limits}


def changes(before: LabelDecisions, after: LabelDecisions) -> dict[str, Any]:
    """`labels` and `overall`, as `calibrate` returns them."""
    both = zip(_by_label(after), _by_label(before), strict=True)
    labels = [own | {"before": {name: old[name] for name in ("threshold", *MEASURES)}} for own, old in both]
    return {"labels": labels, "overall": {**_overall(after), "before": _overall(before)}}


def _by_label(decided: LabelDecisions) -> Iterator[dict[str, Any]]:
    from sklearn.metrics import precision_recall_fscore_support

    for name, truth, given in zip(decided.names, decided.truth.T, decided.given.T, strict=True):
        scores = precision_recall_fscore_support(truth, given, average="binary", zero_division=0.0)
        named = dict(zip(MEASURES, map(float, scores), strict=False))
        yield {"label": name, "threshold": decided.thresholds.get(name), **named, "support": int(truth.sum())}


def _overall(decided: LabelDecisions) -> dict[str, float]:
    scores = {"accuracy": float((decided.truth == decided.given).all(axis=1).mean())}
    return scores | ({"answered": float(decided.given.any(axis=1).mean())} if decided.single else {})
