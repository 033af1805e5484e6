"""Other decisions from the same probabilities: a threshold, prediction sets and intervals, the top k
labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bertkit.data.schema import Answer
from bertkit.errors import UserError
from bertkit.evaluation.conformal import inclusion_threshold
from bertkit.tasks.base import Task

Rule = Callable[[Answer], Answer]


def identity(answer: Answer) -> Answer:
    """The answer as the task decodes it."""
    return answer


def decisions(
    task: Task, threshold: float | None = None, coverage: float | None = None, top_k: int | None = None
) -> tuple[Task, Rule]:
    """The task, and what changes its answers. Raises UserError where one does not apply to the task."""
    rule = identity
    about = f"a model for {task.name} ({task.describe()})"
    if threshold is not None and coverage is not None:
        raise UserError("threshold and coverage both decide on labels: pass only one of them")
    if threshold is not None:
        kind, option = task.decision
        if not option:
            raise UserError("threshold", f"{about} has no decision threshold", "Leave it out.")
        if kind in ("single-label", "multi-label") and not 0 <= threshold <= 1:
            raise UserError("threshold", f"must be between 0 and 1, got {threshold:g}")
        task = task.with_options({option: threshold})
    if coverage is not None:
        kind = task.decision.kind
        if kind not in _SETS:
            raise UserError("coverage", f"{about} does not support prediction sets", "Leave it out.")
        if task.options.conformal is None:
            raise UserError("coverage", "the model has no calibration rows", "Calibrate it on labelled rows.")
        rule = partial(_SETS[kind], inclusion_threshold(task.options.conformal, coverage))
    if top_k is not None:
        if not task.always_has("scores"):
            raise UserError("top_k", f"{about} has no label scores", "Leave it out.")
        if top_k < 1:
            raise UserError("top_k", f"must be at least 1, got {top_k}")
        rule = partial(_best, top_k, rule)
    return task, rule


def with_word_scores(task: Task) -> Task:
    """The task, whose words have the `scores` of all types or labels."""
    if "word_scores" not in type(task.options).model_fields:
        return task
    return task.with_options({"word_scores": True})


def _with_set(least: float, answer: Answer) -> Answer:
    """least: the probability from which a label is in the set."""
    labels = [name for name, probability in _ranked(answer["scores"]) if probability >= least]
    one = {"label": labels[0], "score": answer["scores"][labels[0]]} if len(labels) == 1 else {"label": None}
    return {**answer, **one, "set": labels}


def _with_interval(least: float, answer: Answer) -> Answer:
    """least: minus the largest distance to the score."""
    return {**answer, "interval": [answer["score"] + least, answer["score"] - least]}


def _best(top_k: int, rule: Rule, answer: Answer) -> Answer:
    answer = rule(answer)
    return {**answer, "scores": dict(_ranked(answer["scores"])[:top_k])}


def _ranked(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Labels and their probabilities, best first."""
    return sorted(scores.items(), key=lambda pair: -pair[1])


_SETS: dict[str, Callable[[float, Answer], Answer]] = {
    "single-label": _with_set,
    "regression": _with_interval,
}
