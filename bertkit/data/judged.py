"""Pairs of a query and a document that were judged: labels checked, queries counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.data.problems import Problems
from bertkit.data.schema import Finding, note, warn
from bertkit.data.table import Table
from bertkit.errors import Problem
from bertkit.text import counted


def check_labels(table: Table, split: str) -> None:
    """Raises DataError on a `label` other than 0 and 1, with its location."""
    allowed = (0, 1, -1) if split == "test" else (0, 1)  # -1: GLUE's mark of a secret label
    problems = Problems()
    fix = "grades are scores; map them so:  data: {columns: {score: …}}"
    for row, label in enumerate(table.values.get("label", ())):
        if label is not None and label not in allowed:
            problems.add(table.origin[row], f"`label` holds {label:g}, where 0 or 1 is expected", fix)
    problems.raise_if_any()


def query_findings(split: str, queries: Sequence[int], targets: Sequence[float | None]) -> Iterator[Finding]:
    """How many documents the queries have, and which queries have nothing to order. queries: each row's, by
    number.
    """
    grades: dict[int, set[float | None]] = {}
    for query, target in zip(queries, targets, strict=True):
        grades.setdefault(query, set()).add(target)
    if len(grades) == len(targets):
        yield note(f"{split}: every query has one document; pairs are scored individually")
        return
    yield note(f"{split}: {counted(len(targets), 'document')} for {counted(len(grades), 'query')}")
    idle = sum(len(values) == 1 for values in grades.values())
    if idle:
        what = (
            f"{split}: {idle:,} of {len(grades):,} queries have one document, or equal targets: nothing "
            "to order"
        )
        yield warn(what, "Add documents that are less relevant.")


def contradictions(
    options: Any, loss: str, truth: Sequence[float], queries: Sequence[int]
) -> Iterator[Problem]:
    """What contradicts the options in the training rows. truth: each row's target; queries: its query's
    number.
    """
    if loss == "listwise" and options.score_range:
        yield Problem("task.score_range", "has no effect with loss listwise", "Remove it.")
    low, high = options.score_range or (min(truth), max(truth))
    if min(truth) == max(truth):
        what = f"every row of train has the target {low:g}; there is nothing to learn"
        yield Problem("data", what, "Add documents that are less relevant, or more.")
    elif not low <= min(truth) < max(truth) <= high:
        what = (
            f"[{low:.15g}, {high:.15g}], but targets of train go from {min(truth):.15g} to {max(truth):.15g}"
        )
        yield Problem("task.score_range", what, "Widen it, or leave it out.")
    if options.grouped and len(set(queries)) == len(queries):
        what = "true, but every query of train has one document"
        yield Problem("task.grouped", what, "Map `group`, or leave it out.")
    if loss == "listwise" and len(set(zip(queries, truth, strict=True))) == len(set(queries)):
        what = "listwise compares a query's documents, but none of train has two with different targets"
        yield Problem("task.loss", what, "Map `group`, or leave it out.")
