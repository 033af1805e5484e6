"""Is the model as sure as it is right? The decisions of a split, and their reliability diagram."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bertkit.data import tagging
from bertkit.evaluation import calibration, squad
from bertkit.report import pictures
from bertkit.report.facts import Facts, Row
from bertkit.report.mistakes import label_of
from bertkit.report.pictures import Picture


def reliability(facts: Facts) -> Picture | None:
    """Before and after the temperature where the answers tell both, else after it."""
    decisions = DECISIONS.get(facts.task)
    decided = decisions(facts) if decisions and facts.rows else None
    if not decided or not len(decided["after"][0]):
        return None
    bins = {name: calibration.reliability(*own) for name, own in decided.items()}
    return pictures.reliability(
        bins, {name: calibration.expected_calibration_error(*own) for name, own in decided.items()}
    )


Decisions = dict[str, tuple[Any, Any]]  # `before` and `after` -> confidences and whether right, `(decisions,)` each


def entities(facts: Facts) -> Decisions:
    """Each entity that was found."""
    return _after(pair for row in facts.rows for pair in _entities_of(row))


def answers(facts: Facts) -> Decisions:
    """Each question's answer, by exact match."""
    rows = ((row["answer"], row["answers"]["text"]) for row in facts.rows)
    return _after((answer["score"], squad.question_scores(answer["answer"], gold)[0] == 1) for answer, gold in rows)


def _after(pairs: Iterable[tuple[float, bool]]) -> Decisions:
    confidence, right = np.array(list(pairs), dtype=np.float64).reshape(-1, 2).T
    return {"after": (confidence, right)}


def _entities_of(row: Row) -> Iterator[tuple[float, bool]]:
    gold = tagging.entities(row["tags"])
    found = tagging.entities([word["tag"] for word in row["answer"]["words"]])
    for entity, given in zip(found, row["answer"]["entities"], strict=True):
        yield given["score"], entity in gold


def labels(facts: Facts) -> Decisions | None:
    """The label of each row, or each label of each row; a number is no decision."""
    if facts.options.get("kind") == "regression":
        return None
    names, cold = list(facts.rows[0]["answer"]["scores"]), 1 / (facts.options.get("temperature") or 1.0)
    after = np.array([[row["answer"]["scores"][name] for name in names] for row in facts.rows])
    tiny = np.finfo(np.float64).tiny
    if facts.options["kind"] == "single-label":
        gold = np.array([names.index(label_of(facts, row["label"])) for row in facts.rows])
        before = calibration.apply_temperature_softmax(np.log(np.maximum(after, tiny)), cold)
        tables = {"before": before, "after": after}
        return {key: (table.max(axis=1), after.argmax(axis=1) == gold) for key, table in tables.items()}
    from scipy.special import logit

    truth = np.array([[name in {label_of(facts, v) for v in row["labels"]} for name in names] for row in facts.rows])
    given = np.array([[name in row["answer"]["labels"] for name in names] for row in facts.rows])
    before = calibration.apply_temperature_sigmoid(logit(np.clip(after, tiny, np.nextafter(1, 0))), cold)
    return {
        key: (np.where(given, table, 1 - table).ravel(), (given == truth).ravel())
        for key, table in {"before": before, "after": after}.items()
    }


DECISIONS: Mapping[str, Callable[[Facts], Decisions | None]] = {
    "text-classification": labels,
    "token-classification": entities,
    "question-answering": answers,
}
