"""Other decisions from the same probabilities: a threshold, conformal prediction sets, the top k labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from bertkit.data.schema import Answer
from bertkit.errors import Problem, UserError
from bertkit.evaluation import squad
from bertkit.evaluation.conformal import Conformal, Sample, least_by_label, least_probability
from bertkit.tasks.base import Task
from bertkit.tasks.text_classification import TextClassification
from bertkit.tasks.token_classification import TokenClassification
from bertkit.tasks.type_sets import type_of

Revise: TypeAlias = Callable[[Answer], Answer]


def as_it_is(answer: Answer) -> Answer:
    """The answer as the task decodes it."""
    return answer


def decisions(
    task: Task, threshold: float | None, coverage: float | None, class_conditional: bool, top_k: int | None
) -> tuple[Task, Revise]:
    """The task, and what changes its answers. Raises UserError where one does not apply to the task."""
    kind = task.kind if isinstance(task, TextClassification) else ""
    revise: Revise = as_it_is
    about = f"a model for {task.name} ({task.describe()})"
    if threshold is not None and coverage is not None:
        raise UserError("--threshold and --coverage both decide on labels: give one of them")
    if class_conditional and coverage is None:
        raise UserError("--class-conditional requires a coverage", "Give one, such as --coverage 0.9")
    if threshold is not None:
        task = replace(task, options=task.options.model_copy(update=_option(task, threshold, about)))
    if coverage is not None:
        task, revise = _sets(task, about, coverage, class_conditional)
    if top_k is not None:
        if kind not in ("single-label", "multi-label"):
            raise UserError(Problem("top-k", f"{about} has no label scores"))
        if top_k < 1:
            raise UserError(Problem("top-k", f"{top_k} is not above 0"))
        revise = partial(_best, top_k, revise)
    return task, revise


def _sets(task: Task, about: str, coverage: float, class_conditional: bool) -> tuple[Task, Revise]:
    """The task, and what adds sets or intervals with this coverage to its answers. Raises UserError."""
    options: Any = task.options
    kind = task.kind if isinstance(task, TextClassification) else task.name
    kind = "single-label" if kind == "sentence-similarity" and options.loss == "softmax" else kind
    if kind not in _SETS:
        raise UserError(Problem("coverage", f"{about} does not support prediction sets"))
    revise, least, by_label = _SETS[kind]
    if class_conditional and not by_label:
        raise UserError(Problem("class-conditional", f"{about} does not choose between labels"))
    known: Conformal | None = options.conformal
    least = None if class_conditional else least
    if known is None or (least is None and not known.get("labels")):
        what = "the model has no calibration rows" + (" of each label" if known else "")
        raise UserError(Problem("coverage", what, "Add them: bertkit calibrate RUN --data FILE"))
    limit = least(known, coverage) if least else least_by_label(known["labels"], coverage)
    return with_word_scores(task), partial(revise, limit)


def with_word_scores(task: Task) -> Task:
    """The same task, whose words have the `scores` of all types or labels; see `without_word_scores`."""
    if not isinstance(task, TokenClassification):
        return task
    return replace(task, options=task.options.model_copy(update={"word_scores": True}))


def without_word_scores(answer: Answer) -> Answer:
    """The answer of token classification without the `scores` of words."""
    words = [{key: value for key, value in word.items() if key != "scores"} for word in answer["words"]]
    return {**answer, "words": words}


def _option(task: Task, threshold: float, about: str) -> dict[str, Any]:
    """The option of this task that is its threshold."""
    options: Any = task.options
    if isinstance(task, TextClassification) and task.kind != "regression":
        if not 0 <= threshold <= 1:
            raise UserError(Problem("threshold", f"{threshold:g} is not a probability"))
        return {"thresholds": threshold}
    if task.name == "question-answering" and options.unanswerable:
        return {"null_threshold": threshold}
    if task.name == "sentence-similarity" and options.labels and options.loss != "softmax":
        return {"threshold": threshold}
    raise UserError(Problem("threshold", f"{about} has no decision threshold"))


def _with_set(least: Mapping[str, float] | float, answer: Answer) -> Answer:
    """least: the probability from which a label is in the set, or that of each. The vector of a text stays as it is."""
    if "scores" not in answer:
        return answer
    found = _at_least(least, answer["scores"])
    one = {"label": found[0], "score": answer["scores"][found[0]]} if len(found) == 1 else {"label": None}
    return {**answer, **one, "set": found}


def _with_unsure(least: Mapping[str, float], answer: Answer) -> Answer:
    """The labels whose set is yes alone, and `unsure`, those whose set is not one of yes and no."""
    labels, unsure = [], []
    for name, probability in answer["scores"].items():
        yes, no = probability >= least[name], 1 - probability >= least[name]
        if yes == no:
            unsure.append(name)
        elif yes:
            labels.append(name)
    return {**answer, "labels": labels, "unsure": unsure}


def _with_interval(least: float, answer: Answer) -> Answer:
    """least: minus the largest distance to the score."""
    return {**answer, "interval": [answer["score"] + least, answer["score"] - least]}


def _with_types(least: Mapping[str, float], answer: Answer) -> Answer:
    """Each word with the `set` of its types, each entity with the types in the sets of all its words; and whether
    that is `unsure`: anything but the type that it has."""
    words, typed = [], "entities" in answer
    for word, scored in zip(without_word_scores(answer)["words"], answer["words"], strict=True):
        found = _at_least(least, scored["scores"])
        words.append({**word, "set": found, "unsure": found != [type_of(word["tag"]) if typed else word["tag"]]})
    if not typed:
        return {**answer, "words": words}
    entities = []
    for entity in answer["entities"]:
        sets = [word["set"] for word in words if entity["start"] <= word["start"] and word["end"] <= entity["end"]]
        found = [name for name in sets[0] if all(name in each for each in sets)]
        entities.append({**entity, "set": found, "unsure": found != [entity["label"]]})
    return {**answer, "words": words, "entities": entities}


def _with_answers(least: float, answer: Answer) -> Answer:
    """least: the probability from which a text, or no answer, is in the set."""
    found = [each for each in squad.candidates(answer) if each["score"] >= least]
    one = found[0] if len(found) == 1 else {"answer": None, "start": None, "end": None}
    return {**answer, **one, "set": [each["answer"] for each in found]}


def _best(top_k: int, revise: Revise, answer: Answer) -> Answer:
    answer = revise(answer)
    return {**answer, "scores": dict(_ranked(answer["scores"])[:top_k])}


def _at_least(least: Mapping[str, float] | float, scores: Mapping[str, float]) -> list[str]:
    """The labels whose probability is high enough, best first. least: the limit of each, or of all."""
    limits = least if isinstance(least, Mapping) else dict.fromkeys(scores, least)
    return [name for name, probability in _ranked(scores) if probability >= limits[name]]


def _ranked(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Labels and their probabilities, best first."""
    return sorted(scores.items(), key=lambda pair: -pair[1])


# what adds sets to an answer, the limit (None: each label has its own), whether it may be that of each label
_SETS: dict[str, tuple[Callable[[Any, Answer], Answer], Callable[[Sample, float], float] | None, bool]] = {
    "single-label": (_with_set, least_probability, True),
    "multi-label": (_with_unsure, None, False),
    "regression": (_with_interval, least_probability, False),
    "token-classification": (_with_types, None, True),
    "question-answering": (_with_answers, squad.least_probability, False),
}
