"""The reliability diagram of the tasks whose answers are decisions, from the answers of the reported split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from bertkit.evaluation import squad_metrics
from bertkit.evaluation.metrics import decision_outcomes
from bertkit.report import pictures
from bertkit.report.facts import Facts, graded, task_of
from bertkit.report.mistakes import gold_and_given
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
    if facts.options.get("kind") == "regression":
        return {}
    own: Any = graded(task_of(facts), facts.rows)

    def decisions(table: Any) -> Any:
        parts = decision_outcomes(own.kind, table, own.references, own.given)
        return np.concatenate([np.stack([confidence.ravel(), right.ravel()], axis=1) for confidence, right in parts])

    return {"before": decisions(own.tempered(1 / (own.temperature or 1.0))), "after": decisions(own.table)}


DECISIONS: Mapping[str, Callable[[Facts], Decisions]] = {
    "text-classification": _labels,
    "token-classification": _entities,
    "question-answering": _answers,
}
