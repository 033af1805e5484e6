"""Which rows of an unlabelled file to label next: those that a model is least sure of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.audits.parts import Row, Section, by_column, joined, named
from bertkit.data.readers import one_text_per_line, read_rows, reader_of
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Schema, columns_of
from bertkit.data.values import folded, read_inputs
from bertkit.errors import DataError, RecipeError, UserError
from bertkit.evaluation.intervals import Floats
from bertkit.inference.decisions import with_word_scores
from bertkit.inference.predict_file import like_data
from bertkit.inference.predictor import load
from bertkit.recipe.recipe import Recipe
from bertkit.tasks import get_task
from bertkit.tasks.class_labels import assigned_labels
from bertkit.text import part_of
from bertkit.vectors.cache import Encode, Vectors

TITLE = "Rows to label next"
NOTE = (
    "The least confident predictions first. Confidence is the difference between the two most probable "
    "labels; with several labels per row, the distance of the nearest one from 50%; with entities, the mean "
    "entropy of the words. Equal texts are listed once. This is not a random sample: do not use it as a "
    "test set."
)
# of tasks for which rows are chosen
NEEDS_MODEL = {
    "text-classification": False,
    "token-classification": True,
}
ADDED = ("location", "answer", "probability", "reason")  # columns of the rows that are returned


@dataclass(frozen=True)
class Unlabelled:
    """A file to choose rows from, and how many. originals: its rows with the columns that they have;
    rows: in canonical ones.

    Both have a `location`.
    """

    file: str
    count: int
    originals: Sequence[Row]
    rows: Sequence[Row]
    schema: Schema


def next_part(
    recipe: Recipe, labelled: Sequence[Row], unlabelled: Unlabelled, encode: Encode, run: Path | None
) -> Section:
    """The rows to label next. run: whose model answers them; None: a linear model on the vectors of the
    training rows.

    None are chosen for a regression, whose answers have no probabilities.
    """
    rows = unlabelled.rows
    if "score" in labelled[0]:
        return Section(
            "next",
            TITLE,
            "No rows are chosen for labelling: regression predictions have no probabilities.",
        )
    if run is None:
        schema = get_task(recipe.task.name).schema_of(recipe.task)
        labelled = [named(row, schema) for row in labelled]
        answers = head_answers(
            labelled, *(joined(by_column(part, unlabelled.schema, encode)) for part in (labelled, rows))
        )
    else:
        predictor = load(run)
        reader = replace(predictor, task=with_word_scores(predictor.task), columns={})
        answers = list(reader.stream(rows))
    read = [source for name in rows[0] for source in columns_of(recipe.data.columns.get(name, name))]
    # the page shows canonical columns anyway; and a file may have those in place of the mapped ones
    more = set(read).difference(rows[0]).intersection(*unlabelled.originals)
    columns = [name for name in read if name in more]
    return next_rows(unlabelled, answers, columns)


def read_unlabelled(recipe: Recipe, file: Path, count: int, run: Path | None) -> Unlabelled:
    """The rows of a file that is written like the recipe's data; targets are not read. run: as for
    `next_part`.

    Raises UserError if no rows can be chosen for the task, or `count` is not positive; DataError on
    unreadable rows.
    """
    needs_model = NEEDS_MODEL.get(recipe.task.name)
    if needs_model is None or (needs_model and run is None):
        raise RecipeError(
            "unlabelled",
            f"{recipe.task.name} is not supported" + ("" if run else " without a trained model"),
            "Use text classification, or a run of token classification with its model.",
        )
    if count < 1:
        raise UserError("next", f"must be at least 1, found {count}")
    schema = get_task(recipe.task.name).schema
    spec = one_text_per_line(file, like_data(recipe.data, str(file)))
    prefix = reader_of(file, spec).prefix(file.name)
    originals = list[Row]()
    for number, row in read_rows(file, spec):
        if taken := [name for name in ADDED if name in row]:
            raise DataError(file, f"the rows have a column `{taken[0]}` already", "Rename it.")
        originals.append({**row, "location": f"{prefix}{number}"})
    inputs = Columns(read_inputs(originals, schema, schema.inputs, recipe.data.columns))
    rows = [{"location": row["location"]} | read for row, read in zip(originals, inputs, strict=True)]
    return Unlabelled(file.name, count, originals, rows, schema)


def next_rows(unlabelled: Unlabelled, answers: Sequence[Answer], columns: Sequence[str] = ()) -> Section:
    """The rows to label next as they are, with ADDED. columns: those of the rows to be shown beside their
    texts.
    """
    doubts = [_doubt(answer) for answer in answers]
    total = len(unlabelled.rows)
    texts = ["\n".join(unlabelled.schema.shown(row).values()) for row in unlabelled.rows]
    indices = chosen(np.array([unsure for unsure, *_ in doubts]), texts, unlabelled.count)
    return Section(
        name="next",
        title=TITLE,
        summary=f"{part_of(len(indices), total, 'row')} to be labelled next, from {unlabelled.file}.",
        rows=[
            {**unlabelled.originals[index], **dict(zip(ADDED[1:], doubts[index][1:], strict=True))}
            for index in indices
        ],
        columns=(*columns, *ADDED[1:]),
        notes=(NOTE,),
    )


def head_answers(rows: Sequence[Row], vectors: Vectors, new: Vectors) -> list[Answer]:
    """Answers to rows with the vectors `new`, of a linear model that is fitted to labelled rows and their
    vectors.
    """
    if "labels" not in rows[0]:
        model = head(vectors, [row["label"] for row in rows])
        names = model.classes_.tolist()
        return [{"scores": dict(zip(names, row, strict=True))} for row in model.predict_proba(new).tolist()]
    names = sorted({name for row in rows for name in row["labels"]})
    columns = []
    for name in names:
        has = np.asarray([name in row["labels"] for row in rows])
        columns.append(np.ones(len(new)) if has.all() else head(vectors, has).predict_proba(new)[:, 1])
    return [assigned_labels(names, row, None) for row in np.stack(columns, axis=1).tolist()]


def head(vectors: Vectors, labels: Sequence[str] | np.ndarray[Any, Any]) -> Any:
    """A logistic regression on vectors `(rows, size)` of unit length; labels: `(rows,)`."""
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # as where labels are many
        warnings.filterwarnings("ignore", "The number of unique classes is greater")
        return LogisticRegression(max_iter=1000).fit(vectors, labels)


def chosen(scores: Floats, texts: Sequence[str], count: int) -> list[int]:
    """The rows with the highest scores `(rows,)`, at most `count`, without texts that are the same as one
    before.
    """
    first: dict[str, int] = {}
    for index in np.argsort(-scores, kind="stable"):
        first.setdefault(folded(texts[index]), int(index))
    return [*first.values()][:count]


def _doubt(answer: Answer) -> tuple[float, str, float, str]:
    """How unsure an answer is: of one label by the margin, of several by the least sure one, of words by
    their mean entropy in nats. Then the answer in words, its probability (of several decisions the least),
    and what it is unsure of.
    """
    from scipy.special import entr

    if "words" in answer:
        words = [word for word in answer["words"] if word["scores"]]  # a word may have no token
        if not words:
            return 0.0, "", 1.0, "no words"
        unsure = float(np.mean([entr(list(word["scores"].values())).sum() for word in words]))
        word = min(words, key=lambda word: max(word["scores"].values()))
        kind, probability = max(word["scores"].items(), key=lambda pair: pair[1])
        entities = [f"{entity['text']} ({entity['label']})" for entity in answer.get("entities", ())]
        return (
            unsure,
            ", ".join(entities),
            round(probability, 4),
            f"“{word['word']}”: {kind} {probability:.0%}",
        )
    if "labels" in answer:
        name, p = min(answer["scores"].items(), key=lambda pair: abs(pair[1] - 0.5))
        return 1 - 2 * abs(p - 0.5), ", ".join(answer["labels"]), round(max(p, 1 - p), 4), f"{name} {p:.0%}"
    best = sorted(answer["scores"].items(), key=lambda pair: -pair[1])[:2]
    (label, first), (_, second) = best
    return 1 - first + second, label, round(first, 4), " or ".join(f"{name} {p:.0%}" for name, p in best)
