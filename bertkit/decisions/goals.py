"""What decisions are fitted for: a goal, the options that reach it on labelled rows, and what these change
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertkit.data.checks import FEW_ROWS
from bertkit.data.schema import Finding, warn
from bertkit.errors import Problem, UserError
from bertkit.evaluation.calibration import ByLabel, fit_thresholds, label_thresholds, thresholds_of
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.evaluation.intervals import Bools, Floats
from bertkit.evaluation.similarity import MIDDLE, LabelledPairs
from bertkit.tasks.base import Task
from bertkit.tasks.class_labels import names_of
from bertkit.text import Json, Record, escape_controls
from bertkit.validation import did_you_mean

ALL = ""  # in place of a label: all of them together
MEASURES = ("precision", "recall", "f1")


class ThresholdTarget(NamedTuple):
    """The best F1, or the least precision or recall: of each label, of one, or of all answers together."""

    metric: str = "f1"
    least: float = 0.0
    label: str | None = None
    overall: bool = False

    @property
    def measure(self) -> str:
        """What is to be reached."""
        return f"{self.metric} of at least {self.least:g}" if self.least else "best F1"

    def __str__(self) -> str:
        of = f" for label {self.label}" if self.label else ""
        if self.overall:
            of = " over all answers"
        return self.measure + of


def threshold_target(
    task: Task, precision: float | None, recall: float | None, label: str | None, overall: bool
) -> ThresholdTarget:
    """The goal that `calibrate` is called with. Raises UserError where it does not apply to the task."""
    asked = {
        name: value for name, value in (("precision", precision), ("recall", recall)) if value is not None
    }
    if len(asked) > 1:
        raise UserError("", "precision and recall exclude each other", "Use one of them.")
    if overall and (label or not asked):
        what = "overall needs a precision or a recall, and excludes a label"
        raise UserError("overall", what, "Add precision or recall, or leave out overall.")
    kind = kind_of(task)
    about = f"a model for {task.name} ({task.describe()})"
    for name, value in {**asked, **({"label": 1.0} if label else {})}.items():
        if not kind or not task.decision.threshold:
            raise UserError(
                name,
                f"{about} has no thresholds of labels",
                "Calibrate a model that classifies texts, or pairs of texts by cosine.",
            )
        if not 0 < value <= 1:
            raise UserError(
                name, f"must be above 0 and at most 1, found {value:g}", "Use a share, such as 0.95."
            )
    names = names_of(getattr(task.options, "labels", None))[kind == "by cosine" :]
    if label is not None and label not in names:
        raise UserError(
            "label",
            f"{label!r} has no threshold{did_you_mean(label, names)}",
            f"Labels with a threshold: {', '.join(names)}.",
        )
    if recall is not None and kind == "single-label" and label is None:
        raise UserError(
            "recall",
            f"{about} gives the best label or none, so a threshold can only lower recall",
            "Use precision, or recall of one label: label.",
        )
    metric, least = next(iter(asked.items()), ("f1", 0.0))
    return ThresholdTarget(metric, least, label, overall and kind != "by cosine")


def kind_of(task: Task) -> str:
    """single-label, multi-label, or by cosine; empty where the model gives no labels to rows."""
    kind = task.decision.kind
    return "" if kind == "regression" else kind


class LabelDecisions(NamedTuple):
    """Labels assigned to rows, compared with their targets; single: one label at most."""

    names: Sequence[str]
    scores: Floats  # (rows, labels)
    truth: Bools  # (rows, labels)
    assigned: Bools  # (rows, labels)
    thresholds: ByLabel
    single: bool = False
    cutoffs: Mapping[str, float] = {}


def decided(task: Task, graded: Graded) -> LabelDecisions:
    """The labels that a task with a `kind_of` gave. Of two labels by cosine, only the second has a
    threshold.
    """
    if isinstance(graded, LabelledPairs):
        scores = np.asarray(graded.cosines)[:, None]
        truth = np.asarray(graded.similar)[:, None] == 1
        name = names_of(task.options.labels)[1]
        limit = MIDDLE if graded.threshold is None else graded.threshold
        return LabelDecisions([name], scores, truth, scores >= limit, {name: limit})
    assert isinstance(graded, GradedLabels)
    names = graded.names
    single = graded.kind == "single-label"
    truth, assigned = (
        np.asarray(ids)[:, None] == np.arange(len(names)) if single else ids == 1
        for ids in (graded.references, graded.chosen)
    )
    limits = (
        []
        if graded.thresholds is None
        else label_thresholds(graded.thresholds, names, 0.0 if single else 0.5)
    )
    thresholds = dict(zip(names, limits, strict=False))
    return LabelDecisions(names, graded.table, truth, assigned, thresholds, single, graded.cutoffs or {})


def fitted(decided: LabelDecisions, goal: ThresholdTarget) -> Json:
    """The options that reach the goal on these rows; nothing for the best F1 of all labels, which training
    fits.

    Raises UserError, which names the labels that do not reach it.
    """
    if not goal.least and goal.label is None:
        return {}
    limits = dict[str, float]()
    problems = list[Problem]()
    for name, scores, truth, part in _choices(decided, goal):
        where = f"label {name}" if name else "all labels"
        if not truth.any() or not part.any():
            lacking = "no row has it" if not truth.any() else "it is the best label of no row"
            what = f"{lacking}, so no threshold has a {goal.metric}"
            problems.append(
                Problem(
                    where,
                    what,
                    "Use rows that have it, or fit the others: each (label), or all together (overall).",
                )
            )
            continue
        if not goal.least:
            (limits[name],) = fit_thresholds(scores[part][:, None], truth[part][:, None])
            continue
        curve = thresholds_of(scores[part], truth[part])
        values = getattr(curve, goal.metric)
        if (values >= goal.least).any():
            limits[name] = float(curve.values[values >= goal.least][0 if goal.metric == "precision" else -1])
        else:
            what = f"no threshold reaches a {goal.measure} on these rows; the best is {values.max():.4f}"
            problems.append(Problem(where, what))
    if problems:
        raise UserError(
            [*problems, Problem("", "the model is unchanged", "Lower the goal, or calibrate on more rows.")]
        )
    if goal.overall:
        return {"thresholds": limits[ALL]}
    if goal.label is None:
        return {"thresholds": limits}
    if not decided.single:
        return {"thresholds": {**decided.thresholds, **limits}}
    others = {name: value for name, value in decided.thresholds.items() if name != goal.label}
    return {"thresholds": others or None, "cutoffs": {**decided.cutoffs, **limits}}


def _choices(decided: LabelDecisions, goal: ThresholdTarget) -> Iterator[tuple[str, Floats, Bools, Bools]]:
    """For each threshold to be chosen: its label, or ALL; scores, truth, and which rows it decides about."""
    # such a threshold gives no label that is not the best one
    takes_away = decided.single and goal.label is None
    rows = decided.assigned if takes_away else np.full(decided.assigned.shape, True)
    if goal.overall:
        yield ALL, decided.scores, decided.truth, rows
        return
    for name, *columns in zip(decided.names, decided.scores.T, decided.truth.T, rows.T, strict=True):
        if goal.label in (None, name):
            yield name, *columns


def few_rows(labels: Sequence[Record], goal: ThresholdTarget) -> Iterator[Finding]:
    """Thresholds that few rows decided. labels: as `calibrate` returns them."""
    chosen = [
        label for label in labels if label["threshold"] is not None and goal.label in (None, label["label"])
    ]
    counts = {label["label"]: label["support"] for label in chosen}
    if goal.overall:
        counts = {"all labels": sum(counts.values())}
    few = [f"{escape_controls(name)} {count}" for name, count in counts.items() if count < FEW_ROWS]
    if few:
        what = f"thresholds chosen on fewer than {FEW_ROWS} rows that have the label: {', '.join(few)}"
        yield warn(
            what, "Label more rows: on new rows, precision and recall may be far from the numbers below."
        )


def changes(before: LabelDecisions, after: LabelDecisions) -> Json:
    """`labels` and `overall`, as `calibrate` returns them."""
    labels = []
    for new, old in zip(_by_label(after), _by_label(before), strict=True):
        labels.append(new | {"before": {name: old[name] for name in ("threshold", *MEASURES)}})
    return {"labels": labels, "overall": {**_overall(after), "before": _overall(before)}}


def _by_label(decided: LabelDecisions) -> Iterator[Json]:
    from sklearn.metrics import precision_recall_fscore_support

    for name, truth, assigned in zip(decided.names, decided.truth.T, decided.assigned.T, strict=True):
        scores = precision_recall_fscore_support(truth, assigned, average="binary", zero_division=0.0)
        named = dict(zip(MEASURES, map(float, scores), strict=False))
        yield {
            "label": name,
            "threshold": decided.cutoffs.get(name, decided.thresholds.get(name)),
            **named,
            "support": int(truth.sum()),
        }


def _overall(decided: LabelDecisions) -> dict[str, float]:
    hits = (decided.truth & decided.assigned).sum()
    assigned = decided.assigned.sum()
    scores = {
        "accuracy": float((decided.truth == decided.assigned).all(axis=1).mean()),
        "precision": float(hits / max(assigned, 1)),
    }
    return scores | ({"answered": float(decided.assigned.any(axis=1).mean())} if decided.single else {})
