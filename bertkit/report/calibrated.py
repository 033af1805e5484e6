"""Whether confidences match accuracy: the decisions on a split, and their reliability diagram."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from bertkit.data import tagging
from bertkit.evaluation import calibration, squad
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
    """The label of each row, or each label of each row; a number is no decision."""
    if facts.options.get("kind") == "regression":
        return None
    names, back = list(facts.rows[0]["answer"]["scores"]), 1 / (facts.options.get("temperature") or 1.0)
    after = np.array([[row["answer"]["scores"][name] for name in names] for row in facts.rows])
    tiny = np.finfo(np.float64).tiny
    if facts.options["kind"] == "single-label":
        gold = np.array([names.index(label_of(facts, row["label"])) for row in facts.rows])
        before = calibration.apply_temperature_softmax(np.log(np.maximum(after, tiny)), back)
        right = after.argmax(axis=1) == gold
        return {"before": (before.max(axis=1), right), "after": (after.max(axis=1), right)}
    from scipy.special import logit

    truth = np.array([[name in {label_of(facts, v) for v in row["labels"]} for name in names] for row in facts.rows])
    given = np.array([[name in row["answer"]["labels"] for name in names] for row in facts.rows])
    before = calibration.apply_temperature_sigmoid(logit(np.clip(after, tiny, np.nextafter(1, 0))), back)
    tables = {"before": before, "after": after}
    right = (given == truth).ravel()
    return {name: (np.where(given, table, 1 - table).ravel(), right) for name, table in tables.items()}


DECISIONS: Mapping[str, Callable[[Facts], Decisions | None]] = {
    "text-classification": _labels,
    "token-classification": _entities,
    "question-answering": _answers,
}
