"""Which rows of an unlabelled file to label next: those that a model is unsure of, and that differ from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.audits.parts import Evidence, Part, Row
from bertkit.audits.rows import Encode, by_column, joined
from bertkit.data.readers import format_of, read_rows, row_prefix, text_a_row
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, columns_of
from bertkit.data.values import read_inputs
from bertkit.errors import DataError, Problem, RecipeError
from bertkit.evaluation.intervals import Floats, Ints
from bertkit.inference.predict_file import like_data
from bertkit.inference.predictor import load
from bertkit.inference.vector_cache import Vectors
from bertkit.recipe.recipe import Recipe
from bertkit.tasks import get_task
from bertkit.text import part_of

NOTE = (
    "The model is unsure of these rows, and they differ from each other: they are k-means++ seeds among the gradients "
    "of its last layer, the longest first (BADGE, Ash et al. 2020). They are no random sample: do not test with them."
)
ADDED = ("location", "answer", "probability", "reason")  # columns of the rows that are returned


def next_part(evidence: Evidence, file: Path, count: int, encode: Encode, run: Path | None) -> Part:
    """The rows of an unlabelled file to label next. Raises DataError and RecipeError.

    run: whose model answers them; None: a linear model on the vectors of the training rows.
    """
    recipe, labelled = evidence.recipe, evidence.rows
    classified = recipe.task.name == "text-classification" and "score" not in labelled[0]
    if not classified and (run is None or recipe.task.name != "token-classification"):
        what = f"no rows to label next are found for {recipe.task.name}" + ("" if run else " without a trained model")
        fix = "Classification needs a recipe or a run, with one label or several; token classification a run."
        raise RecipeError(Problem("--unlabelled", what, fix))
    own, rows = file_rows(recipe, file)
    vectors = joined(by_column(rows, encode))
    if run is None:
        answers = head_answers(labelled, joined(by_column(labelled, encode)), vectors)
    else:
        predictor = load(run)
        if "word_scores" in type(predictor.task.options).model_fields:
            options = predictor.task.options.model_copy(update={"word_scores": True})
            predictor = replace(predictor, task=replace(predictor.task, options=options))
        answers = list(predictor.stream(rows))
    read = [source for name in rows[0] for source in columns_of(recipe.data.columns.get(name, name))]
    return next_rows(file.name, own, answers, vectors, [name for name in read if name not in rows[0]], count)


def file_rows(recipe: Recipe, file: Path) -> tuple[list[Row], list[Row]]:
    """The rows of a file in the layout of the recipe's data: with the columns that they have; and in canonical columns.

    Targets are not read. Each row has its `location`. Raises DataError.
    """
    schema, spec = get_task(recipe.task.name).schema, text_a_row(file, like_data(recipe.data, str(file)))
    prefix, own = row_prefix(file.name, format_of(file, spec)), list[Row]()
    for number, row in read_rows(file, spec):
        if taken := [name for name in ADDED if name in row]:
            raise DataError(Problem(str(file), f"the rows have a column `{taken[0]}` already", "Rename it."))
        own.append({**row, "location": f"{prefix}{number}"})
    inputs = Columns(read_inputs(own, schema, schema.inputs, recipe.data.columns))
    return own, [{"location": row["location"]} | read for row, read in zip(own, inputs, strict=True)]


def next_rows(
    file: str, rows: Sequence[Row], answers: Sequence[Answer], vectors: Vectors, columns: Sequence[str], count: int
) -> Part:
    """The rows of a file to label next, as they are, with ADDED.

    rows: with `location`. answers: of a model to them. vectors: `(rows, size)`, of unit length. columns: those of the
    rows to be shown beside their texts. Raises RecipeError where answers have no probabilities of labels.
    """
    doubts = [_doubt(answer) for answer in answers]
    if "words" in answers[0]:
        gradients = np.asarray([[_mean_entropy(answer)] for answer in answers])
    else:
        probabilities = np.asarray([list(answer["scores"].values()) for answer in answers])
        gradients = errors(probabilities, exclusive="labels" not in answers[0])
    chosen = diverse(gradients, vectors, count)
    return Part(
        name="next",
        title="Rows to label next",
        summary=f"{part_of(len(chosen), len(rows), 'row')} to be labelled next, from {file}.",
        rows=[{**rows[index], **dict(zip(ADDED[1:], doubts[index], strict=True))} for index in chosen],
        columns=(*columns, *ADDED[1:]),
        notes=(NOTE,),
    )


def head_answers(rows: Sequence[Row], vectors: Vectors, new: Vectors) -> list[Answer]:
    """Answers to rows with the vectors `new`, of a linear model that is fitted to labelled rows and their vectors."""
    if "labels" not in rows[0]:
        model = head(vectors, [row["label"] for row in rows])
        table = model.predict_proba(new).tolist()
        return [{"scores": dict(zip(model.classes_.tolist(), row, strict=True))} for row in table]
    names = sorted({name for row in rows for name in row["labels"]})
    columns = []
    for name in names:
        has = np.asarray([name in row["labels"] for row in rows])
        columns.append(np.ones(len(new)) if has.all() else head(vectors, has).predict_proba(new)[:, 1])
    return [
        {
            "labels": [name for name, p in zip(names, row, strict=True) if p >= 0.5],
            "scores": dict(zip(names, row, strict=True)),
        }
        for row in np.stack(columns, axis=1).tolist()
    ]


def head(vectors: Vectors, labels: Sequence[str] | np.ndarray[Any, Any]) -> Any:
    """A logistic regression on vectors `(rows, size)` of unit length; labels: `(rows,)`."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000).fit(vectors, labels)


def errors(probabilities: Floats, *, exclusive: bool) -> Floats:
    """`(rows, labels)`: the probabilities minus the answer that they give, which is 0 or 1 for each label.

    exclusive: one label is right, rather than any number.
    """
    if exclusive:
        return np.asarray(probabilities - np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)])
    return np.asarray(probabilities - probabilities.round())


def diverse(errors: Floats, vectors: Vectors, count: int, seed: int = 0) -> Ints:
    """k-means++ seeds among the gradients of a linear head, as row indices in the order drawn (BADGE, Ash et al. 2020).

    errors: `(rows, labels)`. vectors: `(rows, size)`. A row's gradient, for the answer that the head gives, is the
    outer product of both: long where the head is unsure. It is not computed, because distances follow from the
    products of the factors. The row of the longest gradient is first.
    """
    squares = (errors**2).sum(axis=1) * (vectors.astype(np.float64) ** 2).sum(axis=1)
    rng, chosen, distances = np.random.default_rng(seed), list[int](), squares.copy()
    while len(chosen) < min(count, len(errors)) and distances.any():
        index = int(rng.choice(len(errors), p=distances / distances.sum())) if chosen else int(squares.argmax())
        products = (errors @ errors[index]) * (vectors @ vectors[index])
        distances = np.minimum(distances, np.maximum(squares + squares[index] - 2 * products, 0))
        chosen.append(index)
        distances[chosen] = 0
    # the rest, if any, repeats rows that are chosen, or is answered without doubt
    rest = np.setdiff1d(np.argsort(-squares, kind="stable"), chosen, assume_unique=True)[: count - len(chosen)]
    return np.asarray([*chosen, *rest], dtype=np.int64)


def _doubt(answer: Answer) -> tuple[str, float, str]:
    """The answer in words, its probability (of several decisions the least), and what it is unsure of."""
    if "words" in answer:
        if not answer["words"]:
            return "", 1.0, "no words"
        word = min(answer["words"], key=lambda each: max(each["scores"].values()))
        kind, probability = max(word["scores"].items(), key=lambda pair: pair[1])
        found = [f"{each['text']} ({each['label']})" for each in answer.get("entities", ())]
        return ", ".join(found), round(probability, 4), f"“{word['word']}”: {kind} {probability:.0%}"
    if "labels" in answer:
        name, probability = min(answer["scores"].items(), key=lambda pair: abs(pair[1] - 0.5))
        return ", ".join(answer["labels"]), round(max(probability, 1 - probability), 4), f"{name} {probability:.0%}"
    best = sorted(answer["scores"].items(), key=lambda pair: -pair[1])[:2]
    return best[0][0], round(best[0][1], 4), " or ".join(f"{name} {p:.0%}" for name, p in best)


def _mean_entropy(answer: Answer) -> float:
    """The mean entropy of the words' types, in nats."""
    from scipy.special import entr

    return float(np.mean([entr(list(word["scores"].values())).sum() for word in answer["words"]] or [0.0]))
