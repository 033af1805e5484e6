"""Scores of pairs by their cosine: against grades, against two labels, and of positives among the other
rows'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from bertkit.data.on_disk import numbers
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer
from bertkit.evaluation.calibration import ROUNDING, thresholds_of
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.intervals import Floats, Ints, Values, floats
from bertkit.evaluation.metrics import regression
from bertkit.text import Json, Record

if TYPE_CHECKING:
    from datasets import Dataset


GRADED = ("spearman", "pearson")
LABELLED = ("accuracy", "average_precision")
RANKED = ("mrr", "accuracy_at_1", "triplet_accuracy")
SELECTING = (*GRADED, *LABELLED, *RANKED)


MIDDLE = 0.5  # the threshold where none is set or fitted


def unit(vectors: Any) -> Any:
    """Vectors `(…, size)` with length 1; those of length 0 stay as they are."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def by_cosine(
    sides: Sequence[Any], rows: Dataset, labels: Sequence[str], threshold: float | None
) -> list[Answer]:
    """Answers from the unit vectors of each side of a pair, `(rows, size)` each, dense or sparse: `score`,
    the cosine.

    With two labels also `label`, the second from the threshold on; where rows have a `positive`, its `rank`:
    how many of their different texts are at least as near; with a third side `negative_score`.
    """

    def rowwise(a: Any, b: Any) -> list[float]:
        return np.asarray(np.clip((a * b).sum(axis=1), -1, 1)).ravel().tolist()

    columns: dict[str, Sequence[Any]] = {"score": rowwise(sides[0], sides[1])}
    if len(labels) == 2:
        limit = MIDDLE if threshold is None else threshold
        columns["label"] = [labels[score >= limit] for score in columns["score"]]
    if "positive" in rows.column_names:
        number: dict[str, int] = {}
        texts = np.array([number.setdefault(text, len(number)) for text in rows["positive"]])
        table = sides[0] @ sides[1][np.unique(texts, return_index=True)[1]].T
        columns["rank"] = places(table if isinstance(table, np.ndarray) else table.toarray(), texts)
    if len(sides) > 2:
        columns["negative_score"] = rowwise(sides[0], sides[2])
    return [*Columns(columns)]


def graded(targets: ArrayLike, cosines: ArrayLike) -> Scored:
    """Spearman's and Pearson's correlation of cosines with grades."""
    scored = regression(targets, cosines)

    def weighted(weights: Floats) -> Values:
        values = scored.weighted(weights)
        return {name: values[name] for name in GRADED}

    return Scored(weighted, scored.rows)


def labelled(similar: ArrayLike, cosines: ArrayLike, threshold: float | None) -> Scored:
    """Accuracy of `cosine >= threshold` (None: 0.5), and average precision: the mean precision at each
    similar pair.

    Average precision is scikit-learn's: pairs of one cosine are one step.
    """
    truth = np.asarray(similar, dtype=bool)
    scores = floats(cosines)
    right = ((scores >= (MIDDLE if threshold is None else threshold)) == truth).astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)

    def weighted(weights: Floats) -> Values:
        hits = np.cumsum(weights[order] * truth[order, None], axis=0)[ends]
        seen = np.cumsum(weights[order], axis=0)[ends]
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = np.where(seen > 0, hits / seen, 0.0)
            gains = np.diff(hits, axis=0, prepend=0.0)
            average = (precision * gains).sum(axis=0) / hits[-1]
        return {"accuracy": right @ weights / weights.sum(axis=0), "average_precision": average}

    return Scored(weighted, len(truth))


@dataclass(frozen=True, eq=False)
class LabelledPairs(Graded):
    """Cosines of pairs, `(pairs,)`, compared with two labels, 1 where similar; threshold: None where none is
    set.
    """

    similar: ArrayLike
    cosines: ArrayLike
    threshold: float | None = None

    @cached_property
    def scored(self) -> Scored:
        """Accuracy and average precision; see `labelled`."""
        return labelled(self.similar, self.cosines, self.threshold)

    def after_fit(self) -> Self:
        """These pairs, with a fitted threshold of best accuracy where none is set."""
        return replace(self, **self.calibrated())

    def calibrated(self) -> Json:
        return {"threshold": best_threshold(self.similar, self.cosines)} if self.threshold is None else {}


def ranked(ranks: ArrayLike, beats: ArrayLike | None) -> Scored:
    """Mean reciprocal rank and the share of first places; `beats`: is the positive nearer than the row's
    negative?
    """
    places = floats(ranks)
    values = {"mrr": 1 / places, "accuracy_at_1": (places == 1).astype(np.float64)}
    if beats is not None:
        values["triplet_accuracy"] = floats(beats)
    return Scored(
        lambda weights: {n: v @ weights / weights.sum(axis=0) for n, v in values.items()}, len(places)
    )


def best_threshold(similar: ArrayLike, cosines: ArrayLike) -> float:
    """The cosine from which calling a pair similar is most often right, the highest of equals: see
    `thresholds_of`.
    """
    candidates = thresholds_of(cosines, similar)
    scores = floats(cosines)
    values = np.concatenate([[scores.min() - ROUNDING], candidates.values[1:], [scores.max() + ROUNDING]])
    # answers, but for a constant; the last calls no pair similar
    right = np.append(2 * candidates.hits - candidates.assigned, 0)
    return float(values[np.flatnonzero(right == right.max())[-1]])


def places(similarities: Floats, texts: Ints) -> list[int]:
    """The place of each row's text, from 1, by similarities `(rows, texts)`: a tie is not a gain, see
    `ranking`. texts: the index of each row's own, `(rows,)`.
    """
    positives = np.take_along_axis(similarities, texts[:, None], axis=1)
    places: list[int] = (similarities >= positives).sum(axis=1).tolist()
    return places


def of(answers: Sequence[Record], name: str) -> Floats:
    """One number of all answers, `(rows,)`."""
    return np.fromiter((answer[name] for answer in answers), np.float64, len(answers))


def of_rows(answers: Sequence[Record], rows: Dataset) -> Scored:
    """Cosines against the rows' `score`; or the ranks of their `positive`, nearer than a `negative` or
    not.
    """
    if "score" in rows.column_names:
        return graded(numbers(rows, "score"), of(answers, "score"))
    beats = of(answers, "score") > of(answers, "negative_score") if "negative" in rows.column_names else None
    return ranked(of(answers, "rank"), beats)
