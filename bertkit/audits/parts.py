"""What the parts of an audit read and return: rows as they are listed, and their vectors before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertkit.audits.confident import ErrorEstimate
from bertkit.data import Data, load
from bertkit.data.schema import Schema
from bertkit.errors import ModelError
from bertkit.evaluation.similarity import unit
from bertkit.models.encoder import resolve_encoder
from bertkit.recipe.recipe import Recipe
from bertkit.report.mistakes import NONE
from bertkit.sections import ModelSpec
from bertkit.tasks import get_task
from bertkit.text import Json, part_of, unique
from bertkit.vectors.cache import Encode, Vectors
from bertkit.vectors.features import Features

Row = Mapping[str, Any]
"""A row: canonical columns, `location`, and the `answer` of a model that was not trained on it.

One of train may have its `fold`, one of another split has its `split`.
"""


def named(row: Row, schema: Schema) -> Row:
    """The row, with the names of labels in place of the values that stand for them."""
    new = dict(row)
    for name, column in schema.columns.items():
        value = row.get(name)
        if column.names and isinstance(value, str):
            new[name] = column.names.get(value, value)
        elif column.names and value:
            new[name] = unique(column.names.get(label, label) for label in value)
    return new


METHOD = (
    "Each row is predicted by a model that was not trained on it. A {0} is likely wrong if another one is "
    "more probable, and at least one other reaches its threshold: its mean probability over the rows "
    "labelled with it (confident learning, Northcutt et al. 2021)."
)
ESTIMATE = (
    "The estimated share includes confident mistakes of the models, which predict {0:.1%} as given. The "
    "first rows of the list show how reliable it is. Its interval is a bootstrap over rows, with the same "
    "models."
)


@dataclass(frozen=True)
class Section:
    """A section of the page, whose rows are also written as NAME.jsonl and NAME.csv, if there are any.

    rows: the first to look at first; each has `location`, the input columns of the training row, its `id` if
    it has one, and what was found. The page shows location and texts, followed by `columns`.
    """

    name: str  # of the files
    title: str
    summary: str  # one sentence, also printed by the command
    rows: Sequence[Row] = ()
    columns: Sequence[str] = ()  # keys of the rows
    # title -> number in words, at the top of the page
    figures: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()  # sentences on how to read it, and its limits


def corrected(row: Row, target: str, value: Any, old: str, new: str, **numbers: float) -> Row:
    """A row as `data.relabel` reads it, with this value of the target; and the old and the new one in words,
    and numbers about them.
    """
    first = {name: row[name] for name in ("location", "id") if row.get(name) is not None}
    rest = {name: row[name] for name in row if name not in ("location", "id", "answer", "fold")}
    rounded = {name: round(float(number), 4) for name, number in numbers.items()}
    return {**first, **rest, target: value, "given": old or NONE, "suggested": new or NONE, **rounded}


def to_check(
    listed: Sequence[Row],
    rows: Sequence[Row],
    target: str,
    notes: Sequence[str],
    wrong: ErrorEstimate | None = None,
    of: str = "labels",
) -> Section:
    """The part of these rows, the first to look at first.

    rows: the audited ones. target: what a row has, such as a label. wrong: the estimated share of wrong
    `of`.
    """
    figures = {"rows": f"{len(rows):,}", "rows to check": f"{len(listed):,}"}
    if wrong:
        figures[f"{of} predicted as given"] = f"{wrong.agreed:.1%}"
        bounds = f" ({wrong.interval[0]:.1%} to {wrong.interval[1]:.1%})" if wrong.interval else ""
        figures[f"wrong {of}, estimated"] = f"{wrong.value:.1%}{bounds}"
        notes = [*notes, ESTIMATE.format(wrong.agreed)]
    columns = [
        name
        for name in ("split", "given", "suggested", "probability", "deviations")
        if listed and name in listed[0]
    ]
    summary = f"{part_of(len(listed), len(rows), 'row')} likely to have a wrong {target}."
    return Section("labels", f"{target.capitalize()}s to check", summary, listed, columns, figures, notes)


def unit_vectors(spec: ModelSpec) -> Encode:
    """Texts -> vectors of unit length, `(texts, size)` float32, cached on disk; the encoder's own pooling.

    Raises ModelError.
    """
    from bertkit.models.heads.vector_head import read_layout

    if spec.name is None:
        raise ModelError(
            "model.config",
            "a new encoder has no useful vectors to compare rows by",
            "Audit with a pretrained encoder: model.name=NAME.",
        )
    pooling = read_layout(resolve_encoder(spec).folder)[0].pooling
    features = Features(str(spec.name), pool=pooling, max_length=spec.max_length, revision=spec.revision).fit(
        []
    )

    return lambda texts: np.asarray(unit(features.vectors(texts)[0]))


def rows_of(recipe: Recipe) -> Data:
    """The rows of every split. Raises DataError."""
    kind = get_task(recipe.task.name)
    return load(recipe.data, kind.schema_of(recipe.task), kind.rules(recipe.task))


def identified(row: Row, schema: Schema) -> Json:
    """Where a row is, its id and split if it has them, and its texts."""
    return {
        name: row[name] for name in ("location", "split", "id") if row.get(name) is not None
    } | schema.shown(row)


def by_column(rows: Sequence[Row], schema: Schema, encode: Encode) -> list[Vectors]:
    """The vectors of each column of texts, `(rows, size)`, such as those of questions and of contexts."""
    texts = (schema.shown(row).values() for row in rows)
    return [encode(column) for column in zip(*texts, strict=True)]


def centred(vectors: Vectors) -> Vectors:
    """The vectors minus their mean, of unit length.

    All texts have a high cosine by the vectors of many encoders that were not trained for similarity, because
    these have a large mean (Mu and Viswanath 2018).
    """
    return np.asarray(unit(vectors - vectors.mean(axis=0)))


def joined(columns: Sequence[Vectors]) -> Vectors:
    """A vector per row, `(rows, columns * size)`: the cosine of two is the mean of their columns' cosines."""
    return np.concatenate(columns, axis=1) / np.float32(np.sqrt(len(columns)))
