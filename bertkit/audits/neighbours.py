"""What the nearest rows say of a row: whether it is unlike all others, and whether they have its label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from math import ceil

import numpy as np

from bertkit import data as sources
from bertkit.audits.duplicates import duplicates
from bertkit.audits.parts import Evidence, Part, Row
from bertkit.audits.rows import Encode, by_column, centred, identified, joined
from bertkit.evaluation.intervals import Floats, Ints
from bertkit.inference.vector_cache import Vectors
from bertkit.report.facts import named_texts
from bertkit.tasks import get_task
from bertkit.tasks.labels import settle_labels
from bertkit.text import beginning, counted, part_of

NEAREST = 20  # neighbours that decide
SHOWN = 3  # of them, in words
SHARE = 0.01  # of the rows, listed as outliers


def row_parts(evidence: Evidence, encode: Encode) -> list[Part]:
    """Near-duplicates in all splits; outliers; and, for text classification, the rows that are not learned.

    Splits of rows that are answered together, such as queries and documents, share documents: train is compared alone.
    """
    recipe, train = evidence.recipe, [{**row, "split": "train"} for row in evidence.rows]
    kind = get_task(recipe.task.name)
    data = sources.load(recipe.data, kind.schema_of(recipe.task), partial(kind.refine, recipe.task))
    others = [
        {**row, "split": split, "location": data.origins[split].public(number)}
        for split, rows in data.rows.items()
        if split != "train" and not kind.schema.together
        for number, row in enumerate(rows)
    ]
    columns = by_column([*train, *others], encode)
    distances, near = nearest(joined(columns)[: len(train)], NEAREST)
    alike = duplicates([*train, *others], list(map(centred, columns)))
    parts = [alike, outliers(evidence.rows, distances, near)]
    if recipe.task.name == "text-classification" and "scores" in train[0]["answer"]:
        values = chain.from_iterable(row["labels"] if "labels" in row else [row["label"]] for row in train)
        names = settle_labels(getattr(recipe.task, "labels", None), list(dict.fromkeys(values)))
        parts.append(unlearned(evidence.rows, near, names))
    return parts


def nearest(vectors: Vectors, count: int) -> tuple[Floats, Ints]:
    """Cosine distances and indices of the nearest other rows, both `(rows, count)`, nearest first.

    vectors: `(rows, size)`, of unit length. Where there are fewer other rows, all of them are returned.
    """
    from sklearn.neighbors import NearestNeighbors

    count = min(count, len(vectors) - 1)
    distances, indices = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(vectors).kneighbors()
    return distances**2 / 2, indices


def outliers(rows: Sequence[Row], distances: Floats, neighbours: Ints) -> Part:
    """The hundredth of the rows with the largest mean distance to their nearest rows, and these.

    distances, neighbours: as `nearest` returns them. On vectors of texts, this measure (Angiulli and Pizzuti 2002)
    finds texts of another kind sooner than the local outlier factor does.
    """
    means = distances.mean(axis=1)
    farthest = [int(index) for index in np.argsort(-means, kind="stable")[: ceil(SHARE * len(rows))]]
    return Part(
        name="outliers",
        title="Rows least like others",
        summary=f"{counted(len(farthest), 'row')} ({SHARE:.0%} of all) with the largest mean distance to the "
        f"{neighbours.shape[1]} nearest others.",
        rows=[
            identified(rows[index])
            | {"distance": round(float(means[index]), 4), "nearest": _beginnings(rows, neighbours[index])}
            for index in farthest
        ],
        columns=("distance", "nearest"),
        notes=(
            f"`distance` is the mean cosine distance to the {NEAREST} nearest rows; half of all rows have at most "
            f"{np.median(means):.4f}. A row that is far from all others may be in another language, off the subject, "
            "damaged, or of a kind that train has too few of.",
        ),
    )


def _beginnings(rows: Sequence[Row], indices: Ints) -> str:
    texts = (" / ".join(named_texts(rows[index]).values()) for index in indices[:SHOWN])
    return " · ".join(beginning(text, 80) for text in texts)


def unlearned(rows: Sequence[Row], neighbours: Ints, names: Mapping[str, str]) -> Part:
    """The rows whose label has a lower out-of-fold probability than another, the lowest first.

    rows: of text classification, with one label or several. neighbours: as `nearest` returns them.
    names: value in the rows -> label name, where they differ.
    """
    stated = [_stated(row, names) for row in rows]
    doubts = [_least(row["answer"]["scores"], gold) for row, gold in zip(rows, stated, strict=True)]
    found = []
    for index in sorted(range(len(rows)), key=lambda index: doubts[index]):
        probability, label, answer, of_answer = doubts[index]
        if probability < of_answer:
            like_label, like_answer = (
                sum(each in stated[other] for other in neighbours[index]) for each in (label, answer)
            )
            verdict = "wrong" if like_answer > like_label else "hard"
            values = {"probability": round(probability, 4), "label": label, "answer": answer, "verdict": verdict}
            near = {"nearest_with_label": like_label, "nearest_with_answer": like_answer}
            found.append(identified(rows[index]) | values | near)
    wrong = sum(each["verdict"] == "wrong" for each in found)
    return Part(
        name="unlearned",
        title="Rows that are not learned",
        summary=f"{part_of(len(found), len(rows), 'row')} answered wrongly out of fold: their nearest rows contradict "
        f"the label of {wrong:,}, and share that of {len(found) - wrong:,}.",
        rows=found,
        columns=("probability", "label", "answer", "nearest_with_label", "nearest_with_answer", "verdict"),
        notes=(
            f"wrong: of the {NEAREST} nearest rows, more have the label of the answer, so the row's own is likely "
            "wrong. hard: at least as many have the row's own, so it is likely right; more rows like it help.",
        ),
    )


def _stated(row: Row, names: Mapping[str, str]) -> set[str]:
    """What the labels of a row state: its label; of several labels which ones it has, and which not."""
    if "labels" not in row:
        return {names.get(row["label"], row["label"])}
    own = {names.get(value, value) for value in row["labels"]}
    return {name if name in own else f"not {name}" for name in row["answer"]["scores"]}


def _least(scores: Mapping[str, float], stated: set[str]) -> tuple[float, str, str, float]:
    """The least probable of these statements with its probability, and the alternative with its own."""
    if len(stated) == 1 < len(scores):
        (label,) = stated
        answer = max(scores.keys() - stated, key=lambda name: (scores[name], name))
        return scores[label], label, answer, scores[answer]
    pairs = ((p, name, f"not {name}") if name in stated else (1 - p, f"not {name}", name) for name, p in scores.items())
    return min((p, label, answer, 1 - p) for p, label, answer in pairs)
