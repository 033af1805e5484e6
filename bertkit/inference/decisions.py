"""Other decisions from the same probabilities: a threshold, conformal prediction sets, the top k labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from bertkit.data.schema import Answer
from bertkit.errors import Problem, UserError
from bertkit.evaluation.conformal import least_probability
from bertkit.tasks.base import Task
from bertkit.tasks.text_classification import TextClassification

Revise: TypeAlias = Callable[[Answer], Answer]


def as_it_is(answer: Answer) -> Answer:
    """The answer as the task decodes it."""
    return answer


def decisions(task: Task, threshold: float | None, coverage: float | None, top_k: int | None) -> tuple[Task, Revise]:
    """The task, and what changes its answers. Raises UserError where one does not apply to the task."""
    kind, revise = task.kind if isinstance(task, TextClassification) else "", as_it_is
    about = f"a model for {task.name} ({task.describe()})"
    if threshold is not None and coverage is not None:
        raise UserError("--threshold and --coverage both decide on labels: give one of them")
    if threshold is not None and kind == "single-label":
        revise = partial(_sure, _probability(threshold))
    elif threshold is not None:
        task = replace(task, options=task.options.model_copy(update=_option(task, threshold, about)))
    if coverage is not None:
        if kind != "single-label":
            fix = "Use a model for single-label text classification."
            raise UserError(Problem("coverage", f"{about} does not support prediction sets", fix))
        if task.options.conformal is None:
            what, fix = "the model has no calibration rows", "Add them: bertkit calibrate RUN --data FILE"
            raise UserError(Problem("coverage", what, fix))
        revise = partial(_with_set, least_probability(task.options.conformal, coverage))
    if top_k is not None:
        if kind not in ("single-label", "multi-label"):
            raise UserError(Problem("top-k", f"{about} has no label scores"))
        if top_k < 1:
            raise UserError(Problem("top-k", f"{top_k} is not above 0"))
        revise = partial(_best, top_k, revise)
    return task, revise


def _probability(threshold: float) -> float:
    if not 0 <= threshold <= 1:
        raise UserError(Problem("threshold", f"{threshold:g} is not a probability"))
    return threshold


def _option(task: Task, threshold: float, about: str) -> dict[str, Any]:
    """The option of this task that is its threshold."""
    options: Any = task.options
    if isinstance(task, TextClassification) and task.kind == "multi-label":
        return {"thresholds": _probability(threshold)}
    if task.name == "question-answering" and options.unanswerable:
        return {"null_threshold": threshold}
    if task.name == "sentence-similarity" and options.labels and options.loss != "softmax":
        return {"threshold": threshold}
    raise UserError(Problem("threshold", f"{about} has no decision threshold"))


def _sure(threshold: float, answer: Answer) -> Answer:
    return answer if answer["score"] >= threshold else {**answer, "label": None}


def _with_set(least: float, answer: Answer) -> Answer:
    labels = [name for name, probability in _ranked(answer) if probability >= least]
    return {**answer, "label": labels[0] if len(labels) == 1 else None, "set": labels}


def _best(top_k: int, revise: Revise, answer: Answer) -> Answer:
    answer = revise(answer)
    return {**answer, "scores": dict(_ranked(answer)[:top_k])}


def _ranked(answer: Answer) -> list[tuple[str, float]]:
    """Labels and their probabilities, best first."""
    return sorted(answer["scores"].items(), key=lambda pair: -pair[1])
