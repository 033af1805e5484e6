"""Is the model as sure as it is right? The decisions of a split, and their reliability diagram."""

from __future__ import annotations

from collections.abc import Iterator
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
    decided = _decisions(facts)
    if not len(decided["after"][0]):
        return None
    bins = {name: calibration.reliability(*own) for name, own in decided.items()}
    return pictures.reliability(
        bins, {name: calibration.expected_calibration_error(*own) for name, own in decided.items()}
    )


def _decisions(facts: Facts) -> dict[str, tuple[Any, Any]]:
    """`before` and `after` -> confidences and whether they were right, `(decisions,)` each."""
    if facts.task == "text-classification" and facts.options.get("kind") != "regression" and facts.rows:
        return _class_decisions(facts)
    pairs: Iterator[tuple[float, bool]] = iter(())
    if facts.task == "token-classification":
        pairs = (pair for row in facts.rows for pair in _entity_decisions(row))
    if facts.task == "question-answering":
        pairs = (
            (row["answer"]["score"], bool(squad.question_scores(row["answer"]["answer"], row["answers"]["text"])[0]))
            for row in facts.rows
        )
    confidence, right = np.array(list(pairs), dtype=np.float64).reshape(-1, 2).T
    return {"after": (confidence, right)}


def _entity_decisions(row: Row) -> Iterator[tuple[float, bool]]:
    gold = tagging.entities(row["tags"])
    found = tagging.entities([word["tag"] for word in row["answer"]["words"]])
    for entity, given in zip(found, row["answer"]["entities"], strict=True):
        yield given["score"], entity in gold


def _class_decisions(facts: Facts) -> dict[str, tuple[Any, Any]]:
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
