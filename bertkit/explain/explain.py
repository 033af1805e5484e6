"""Explanations of a model's answers: what each word added to them, and what attention looked at."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from bertkit.data import tagged
from bertkit.data.readers import read_rows, text_a_row
from bertkit.encoding.padding import Collator
from bertkit.errors import DataError, Problem
from bertkit.explain.attention import attentions
from bertkit.explain.gradients import MOST, Integrated, integrated_gradients
from bertkit.explain.targets import TARGETS, Read, Target
from bertkit.explain.words import Merger, Share, Text
from bertkit.sections import DataSpec
from bertkit.tasks.vectors import DOCUMENTS, QUERIES, VectorTask

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Answer
    from bertkit.inference.predictor import Predictor
    from bertkit.tasks.base import Batch

LARGEST = 500_000  # attention weights of a feature that are kept: 83 pieces of MiniLM, 58 of BERT base
PAIRS = (("question", "context"), ("query", "document"), ("text_a", "text_b"))
SIDES = ("text", "text_a", "text_b", "anchor", "positive", "negative", "query", "document")


class Attributed(TypedDict):
    """One number behind an answer. The words' scores and `rest` add up to value - baseline, but for `error`."""

    what: str
    unit: str  # logit, value or cosine
    value: float
    baseline: float  # the same number where the pieces say nothing
    error: float
    complete: bool  # is the error within the tolerance?
    steps: int
    words: dict[str, list[Share]]  # column -> its words
    rest: float  # of pieces that belong to no word


class Attention(TypedDict):
    """Weights of a row's first feature. levels: base64 of bytes, 255 times `(layers, heads, pieces, pieces)`."""

    pieces: list[str]
    shape: list[int]
    levels: str


class Explanation(TypedDict):
    """A row, its answer, and why."""

    texts: dict[str, str]  # column -> text, as the model read it
    answer: Answer
    attributed: list[Attributed]
    attention: Attention | None  # None where it is too large to be looked at


def explain(
    predictor: Predictor,
    rows: Dataset,
    answers: Sequence[Answer],
    row: int = 0,
    *,
    few: int | None = None,
    most: int = MOST,
) -> Explanation:
    """Why row number `row` of `rows` got its answer.

    rows: input columns alone; more than one only where neighbours are context. few: numbers that are explained at
    most, such as entities; None: all. most: steps of integrated gradients.
    """
    task, answer = predictor.task, answers[row]
    features = task.encode(rows)
    own = [index for index, of in enumerate(features["row"][:]) if of == row]
    kept = predictor.predict_features(features)
    read = Read(task, rows[row], [features[index] for index in own], [kept[index] for index in own], answer)
    batches = [_batch(predictor, features, index) for index in own]
    texts = texts_of(task, rows.select([row]))
    attributed = [_attributed(predictor, read, batches, texts, each, most) for each in TARGETS[task.name](read)[:few]]
    weights = attention(predictor, batches[0]) if batches else None
    return Explanation(
        texts={each.name: each.text for each in texts}, answer=answer, attributed=attributed, attention=weights
    )


def texts_of(task: Any, row: Dataset) -> list[Text]:
    """The texts of this one row, in the order in which the model reads them, prefixes included."""
    if "tokens" in row.column_names:
        (text,), (places,) = tagged.sentences(row)
        return [Text("tokens", text, places)]
    names = ("question", "context") if "question" in row.column_names else SIDES
    found = {name: str(row[name][0]) for name in names if name in row.column_names}
    if isinstance(task, VectorTask):
        options = task.options
        found = {
            name: options.query_prefix * (name in QUERIES) + options.document_prefix * (name in DOCUMENTS) + text
            for name, text in found.items()
        }
    return [Text.of(name, text) for name, text in found.items()]


def _batch(predictor: Predictor, features: Dataset, index: int) -> Batch:
    """One feature alone, as the model reads it."""
    task = predictor.task
    columns = task.examples(features, [index])
    return {
        name: values.to(predictor.device) for name, values in Collator.of(task.tokenizer, task.padding)(columns).items()
    }


def _attributed(
    predictor: Predictor, read: Read, batches: Sequence[Batch], texts: Sequence[Text], target: Target, most: int
) -> Attributed:
    task = predictor.task
    # GradCache, in parts, would not meet the vectors that stand in for a batch's pieces.
    size = predictor.batch_size
    together = size if isinstance(size, int) else max(1, size.tokens // task.max_length)
    if isinstance(task, VectorTask) and task.options.mini_batch:
        together = min(together, task.options.mini_batch)
    merger, done = Merger(task.tokenizer, texts), list[Integrated]()
    for part in target.parts:
        batch = batches[part.feature]
        done.append(integrated_gradients(task, predictor.model, batch, part.score, batch_size=together, most=most))
        which = [part.feature] if isinstance(task, VectorTask) else range(len(texts))
        merger.add(batch["input_ids"][0].tolist(), done[-1].pieces.tolist(), which)
    return Attributed(
        what=target.what
        + (f", by the words of {texts[target.parts[0].feature].name}" if isinstance(task, VectorTask) else ""),
        unit=target.unit,
        value=sum(each.value for each in done),
        baseline=sum(each.baseline for each in done),
        error=sum(each.error for each in done),
        complete=all(each.complete for each in done),
        steps=max(each.steps for each in done),
        words={name: shares for name, shares in merger.shares().items() if any(s.score is not None for s in shares)},
        rest=merger.rest,
    )


def attention(predictor: Predictor, batch: Batch) -> Attention | None:
    """The attention weights of a feature, as they are written; None where they are too many to be looked at."""
    config, pieces = predictor.model.config, batch["input_ids"].shape[1]
    if config.num_hidden_layers * config.num_attention_heads * pieces**2 > LARGEST:
        return None
    weights = attentions(predictor.task, predictor.model, batch)
    levels = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    names = predictor.task.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    return Attention(pieces=list(names), shape=list(weights.shape), levels=base64.b64encode(levels).decode())


def rows_of(predictor: Predictor, texts: Sequence[str], file: Path | None = None) -> Sequence[str | Mapping[str, Any]]:
    """The rows of a file; or one row of two texts where the task reads two, or a row for each text.

    Raises DataError on one text, or more than two, for a task that reads two.
    """
    if file:
        return [row for _, row in read_rows(file, text_a_row(file, DataSpec(source=str(file))))]
    task = predictor.task
    pair = next((names for names in PAIRS if frozenset(names) in task.inputs), None)
    alone = frozenset({"text"}) in task.inputs and not isinstance(task, VectorTask)
    if pair is None or alone:
        return list(texts)
    if len(texts) != 2:
        what = f"this model reads two texts together, {' and '.join(pair)}; {len(texts)} given"
        raise DataError(Problem("", what, "bertkit explain RUN TEXT TEXT; or rows of a file, with --input FILE"))
    return [dict(zip(pair, texts, strict=True))]


def explain_rows(predictor: Predictor, rows: Sequence[str | Mapping[str, Any]]) -> list[Explanation]:
    """Why each text or row gets its answer, in order; every row is read by itself.

    Raises DataError on a row without the task's columns, or where an answer holds nothing to explain.
    """
    made = []
    for number, given in enumerate(rows, 1):
        row = predictor.canonical([given], number - 1)
        found = explain(predictor, row, list(predictor.task.answer(row, predictor.predict_features)))
        if not found["attributed"]:
            raise DataError(Problem(f"row {number}", NOTHING.get(predictor.task.name, "there is nothing to explain")))
        made.append(found)
    return made


NOTHING: Mapping[str, str] = {
    "token-classification": "no entity was found in it, so there is nothing to explain",
    "sentence-similarity": "one text alone has a vector; give two, whose cosine is explained",
    "retrieval": "one text alone has a vector; give a query and a document, whose cosine is explained",
    "pretraining": "there is no [MASK] in it to be filled",
}
