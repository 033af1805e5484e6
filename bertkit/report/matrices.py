"""Square tables of a report: the confusion matrix, and the transition scores of a CRF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from bertkit.report.facts import Facts
from bertkit.report.mistakes import Mistakes
from bertkit.text import Lines

MAX_NUMBERS = 30  # labels of a matrix whose cells have room for numbers of any size
MAX_LABELS = 120  # of a matrix that is drawn
MAX_FREQUENT = 30  # confusions in the list of the most frequent
FAINTEST = 0.15  # of a mistake: it is visible

Pair = tuple[str, str]
"""A true and a predicted label."""


class Cell(NamedTuple):
    """title: in full. mark: its hue, `plus` or `minus`. share: in [0, 1], how dark. pair: of mistakes to link
    to.
    """

    text: str = ""
    title: str = ""
    mark: str = ""
    share: float = 0.0
    pair: Pair | None = None


class Matrix(NamedTuple):
    """A square table by names."""

    names: Sequence[str]
    rows: list[list[Cell]]

    @property
    def dense(self) -> bool:
        """Whether its cells are small."""
        return len(self.names) > MAX_NUMBERS


def confusion(facts: Facts, mistakes: Mistakes | None) -> Matrix | None:
    """Counts by true and predicted label, with links to the mistakes that are listed; None for too many
    labels.
    """
    names, counts = _counts(facts)
    size = len(names)
    if not 0 < size <= MAX_LABELS:
        return None
    shares = _shares(counts)
    wrong = shares * (1 - np.eye(size))
    darkness = FAINTEST + (1 - FAINTEST) * wrong / max(wrong.max(), 1e-9)
    linked = {(mistake.gold, mistake.answer) for mistake in mistakes.top} if mistakes else set[Pair]()

    def cell(place: tuple[int, int]) -> Cell:
        count = int(counts[place])
        if not count:
            return Cell()
        gold, predicted = place
        pair = (names[gold], names[predicted])
        right = gold == predicted
        title = f"{pair[0]}, predicted {'correctly' if right else pair[1]}: {count:,} ({shares[place]:.1%})"
        text = "" if right and size > MAX_NUMBERS else f"{count:,}"
        share = shares[place] if right else darkness[place]
        return Cell(text, title, "plus" if right else "minus", share, pair if pair in linked else None)

    order = range(size)
    return Matrix(names, [[*map(cell, product([gold], order))] for gold in order])


def confused(facts: Facts) -> Lines:
    """The most frequent confusions of many labels; the first row is the header. Empty without any or for few
    labels.
    """
    names, counts = _counts(facts)
    if len(names) <= MAX_NUMBERS:
        return []
    wrong = counts * (1 - np.eye(len(names), dtype=np.int64))
    shares = _shares(counts)
    gold, predicted = np.unravel_index(
        np.argsort(-wrong, axis=None, kind="stable")[:MAX_FREQUENT], wrong.shape
    )
    pairs = [(i, j) for i, j in zip(gold, predicted, strict=True) if wrong[i, j]]
    rows = [[names[i], names[j], f"{wrong[i, j]:,}", f"{shares[i, j]:.1%}"] for i, j in pairs]
    return [["true", "predicted", "count", "share of the true label"], *rows] if rows else []


def _counts(facts: Facts) -> tuple[Sequence[str], Any]:
    """Labels, and counts of true by predicted ones; none for rows with several labels."""
    scores = facts.scores
    confusion = scores.get("confusion") or {
        "labels": scores.get("labels"),
        "matrix": scores.get("confusion_matrix"),
    }
    counts = np.asarray(confusion["matrix"] or [], dtype=np.int64)
    return (confusion["labels"], counts) if counts.ndim == 2 else ((), counts)


def _shares(counts: Any) -> Any:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def transitions(facts: Facts) -> Matrix | None:
    """The scores that a CRF learned for one tag after another, in nats; None without a CRF, or for many
    tags.
    """
    if facts.transitions is None or len(facts.options["tags"]) > MAX_NUMBERS:
        return None
    names = list(facts.options["tags"])
    largest = max(np.abs(facts.transitions).max(), 1e-9)

    def cells(name: str, row: Sequence[float]) -> Iterator[Cell]:
        for after, score in zip(names, row, strict=True):
            mark = "plus" if score > 0 else "minus"
            yield Cell(f"{score:+z.2f}", f"{after} after {name}: {score:+z.2f}", mark, abs(score) / largest)

    pairs = zip(names, facts.transitions.tolist(), strict=True)
    return Matrix(names, [list(cells(name, row)) for name, row in pairs])
