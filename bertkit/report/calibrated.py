"""Whether confidences match accuracy: the decisions on a split, and their reliability diagram."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from bertkit.data import tagging
from bertkit.evaluation import calibration, squad
from bertkit.evaluation.labels import GradedLabels
from bertkit.report import pictures
from bertkit.report.facts import Facts, Row
from bertkit.report.mistakes import label_of
from bertkit.report.pictures import Picture

Decisions: TypeAlias = dict[str, tuple[Any, Any]]
"""`before` and `after` calibration -> confidences and whether they were right, `(decisions,)` each."""


def reliability(facts: Facts) -> Picture | None:
    """Before and after calibration if the answers tell both, else after it; None for tasks without decisions."""
    find = DECISIONS.get(facts.task)
    decisions = find(facts) if find and facts.rows else None
    if not decisions or not len(decisions["after"][0]):
        return None
    bins = {name: calibration.reliability(*each) for name, each in decisions.items()}
    errors = {name: calibration.expected_calibration_error(*each) for name, each in decisions.items()}
    return pictures.reliability(bins, errors)


def _entities(facts: Facts) -> Decisions:
    """Each predicted entity."""
    return _after(pair for row in facts.rows for pair in _entities_of(row))


def _entities_of(row: Row) -> Iterator[tuple[float, bool]]:
    gold = tagging.entities(row["tags"])
    given = tagging.entities([word["tag"] for word in row["answer"]["words"]])
    for entity, answer in zip(given, row["answer"]["entities"], strict=True):
        yield answer["score"], entity in gold


def _answers(facts: Facts) -> Decisions:
    """Each question's answer, by exact match."""
    rows = ((row["answer"], row["answers"]["text"]) for row in facts.rows)
    return _after((answer["score"], squad.question_scores(answer["answer"], gold)[0] == 1) for answer, gold in rows)


def _after(pairs: Iterable[tuple[float, bool]]) -> Decisions:
    confidence, right = np.array(list(pairs), dtype=np.float64).reshape(-1, 2).T
    return {"after": (confidence, right)}


def _labels(facts: Facts) -> Decisions | None:
    """The label of each row, or each label of each row; None for answers without probabilities of labels."""
    answers, kind = [row["answer"] for row in facts.rows], facts.options.get("kind", "single-label")
    if "scores" not in answers[0]:
        return None
    names = list(answers[0]["scores"])
    if kind == "single-label":
        gold: list[Any] = [names.index(label_of(facts, row["label"])) for row in facts.rows]
    else:
        labels = ({label_of(facts, value) for value in row["labels"]} for row in facts.rows)
        gold = [[int(name in own) for name in names] for own in labels]
    after = GradedLabels.of(kind, names, np.array(gold), answers)
    before = after.tempered(1 / (facts.options.get("temperature") or 1.0))
    return {"before": _of_labels(before), "after": _of_labels(after)}


def _of_labels(graded: GradedLabels) -> tuple[Any, Any]:
    right = (graded.given == graded.references).ravel()
    if graded.kind == "single-label":
        return graded.table.max(axis=1), right
    return np.where(graded.given, graded.table, 1 - graded.table).ravel(), right


DECISIONS: Mapping[str, Callable[[Facts], Decisions | None]] = {
    "text-classification": _labels,
    "token-classification": _entities,
    "question-answering": _answers,
    "sentence-similarity": _labels,
}
