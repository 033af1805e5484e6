"""Pictures that only some tasks have, from the answers of the reported split: their own, and reliability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bertkit.evaluation import squad_metrics
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.report import pictures
from bertkit.report.facts import Facts
from bertkit.report.mistakes import gold_and_given, label_of
from bertkit.report.pictures import Picture
from bertkit.report.rankings import is_ranked, queries

RANKS = {"1": 1, "2 or 3": 3, "4 to 10": 10, "11 to 100": 100, "beyond": np.inf}  # bar -> its greatest value
NDCGS = {"0": 0.0, "to 0.25": 0.25, "to 0.5": 0.5, "to 0.75": 0.75, "below 1": 1 - 1e-9, "1": np.inf}
ERRORS = (
    "boundary: right type, wrong extent; type: right extent, wrong type; both: neither is right; missed: no entity "
    "was predicted there; spurious: an entity was predicted where there is none."
)


def task_pictures(facts: Facts) -> list[Picture]:
    """The pictures of this task."""
    draw = PICTURES.get(facts.task)
    return list(draw(facts)) if draw else []


def _entity_errors(facts: Facts) -> Iterator[Picture]:
    if "errors" in facts.scores:  # labels of words have none
        yield pictures.bars("Entities by kind of error", facts.scores["errors"], ERRORS)


def _gold_scores(facts: Facts) -> Iterator[Picture]:
    if "score" in next(iter(facts.rows), ()):
        points = [(row["score"], row["answer"]["score"]) for row in facts.rows]
        # Regression has the scale of its targets; cosines and relevance have scales of their own.
        alike = facts.options.get("kind") == "regression"
        yield pictures.scatter(points, "gold score", "predicted score", alike)


def _rankings(facts: Facts) -> Iterator[Picture]:
    if not is_ranked(facts):
        yield from _gold_scores(facts)
    elif facts.rows:
        asked = queries(facts)
        ndcgs = histogram(NDCGS, [each.ndcg for each in asked if each.ndcg is not None])
        yield pictures.bars("Queries by their nDCG@10", ndcgs, "1: best order; 0: nothing was found.")
        ranks = histogram(RANKS, [each.relevant[0][0] for each in asked])
        note = "MRR is the mean of 1 / rank. Queries without a relevant document are left out."
        yield pictures.bars("Queries by the rank of their first relevant document", ranks, note)


def histogram(bars: Mapping[str, float], values: Sequence[float]) -> dict[str, int]:
    """How many values each bar has. bars: name -> greatest value, ascending."""
    bar_of = np.searchsorted(list(bars.values()), values)
    return dict(zip(bars, np.bincount(bar_of, minlength=len(bars)).tolist(), strict=True))


PICTURES: Mapping[str, Callable[[Facts], Iterator[Picture]]] = {
    "text-classification": _gold_scores,
    "token-classification": _entity_errors,
    "sentence-similarity": _gold_scores,
    "retrieval": _rankings,
    "text-ranking": _rankings,
}


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
