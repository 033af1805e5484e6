"""The reliability diagram of the tasks whose answers are decisions, from the answers of the reported split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from bertkit.evaluation import squad_metrics
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.report import pictures
from bertkit.report.facts import Facts
from bertkit.report.mistakes import gold_and_given, label_of
from bertkit.report.pictures import Picture

Decisions: TypeAlias = dict[str, Any]
"""`before` and `after` calibration -> confidence of each decision and whether it was right, `(decisions, 2)`."""


def reliability(facts: Facts) -> Picture | None:
    """Before and after calibration if the answers tell both, else after it; None for tasks without decisions."""
    find = DECISIONS.get(facts.task)
    decisions = find(facts) if find and facts.rows else {}
    return pictures.reliability(decisions) if len(decisions.get("after", ())) else None


def _entities(facts: Facts) -> Decisions:
    """Each predicted entity, or each word where tags are labels of words."""
    decisions = list[tuple[float, bool]]()
    for row in facts.rows:
        gold, predicted, scores = gold_and_given(facts, row)
        right = set(gold)
        decisions += [(score, each in right) for each, score in zip(predicted, scores, strict=True)]
    return {"after": decisions}


def _answers(facts: Facts) -> Decisions:
    """Each question's answer, by exact match."""
    rows = ((row["answer"], row["answers"]["text"]) for row in facts.rows)
    return {
        "after": [(answer["score"], squad_metrics.question_scores(answer["answer"], gold)[0]) for answer, gold in rows]
    }


def _labels(facts: Facts) -> Decisions:
    """The label of each row, or each label of each row; nothing for numbers."""
    answers, kind = [row["answer"] for row in facts.rows], facts.options.get("kind", "single-label")
    if kind == "regression":
        return {}
    names = list(answers[0]["scores"])
    if kind == "single-label":
        gold: list[Any] = [names.index(label_of(facts, row["label"])) for row in facts.rows]
    else:
        labels = ({label_of(facts, value) for value in row["labels"]} for row in facts.rows)
        gold = [[name in own for name in names] for own in labels]
    graded = GradedLabels.of(kind, names, np.array(gold), answers)
    before = graded.tempered(1 / (facts.options.get("temperature") or 1.0))

    def decisions(table: Any) -> Any:
        if kind == "single-label":
            return np.stack([table.max(axis=1), table.argmax(axis=1) == graded.references], axis=1)
        confidence = np.where(graded.given, table, 1 - table)
        return np.stack([confidence.ravel(), (graded.given == graded.references).ravel()], axis=1)

    return {"before": decisions(before), "after": decisions(graded.table)}


DECISIONS: Mapping[str, Callable[[Facts], Decisions]] = {
    "text-classification": _labels,
    "token-classification": _entities,
    "question-answering": _answers,
}
