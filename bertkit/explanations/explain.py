"""Explanations of a model's answers: the attribution of each word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from os import fspath
from pathlib import Path
from typing import Any, TypedDict

from datasets import Dataset

from bertkit.data.python_rows import frame_like, is_a
from bertkit.data.readers import one_text_per_line, read_rows
from bertkit.data.schema import Answer
from bertkit.data.units import sentences
from bertkit.data.word_spans import words
from bertkit.encoding.padding import Collator
from bertkit.errors import DataError
from bertkit.explanations.gradients import MAX_STEPS, Integrated, integrated_gradients
from bertkit.explanations.targets import TARGETS, Read, Target, targets_of
from bertkit.explanations.word_shares import Text, WordShare, add_feature
from bertkit.inference.display import answer_line
from bertkit.inference.predict_file import CheckedRows, layout_of, with_columns
from bertkit.inference.predictor import Predictor, load, require_torch_model
from bertkit.tasks.base import Batch
from bertkit.text import Record


class Attributed(TypedDict):
    """One number behind an answer. The words' scores and `rest` add up to value - baseline, except for
    `error`.
    """

    what: str
    unit: str  # logit, value or cosine
    value: float
    baseline: float  # the same number for masked tokens
    error: float
    complete: bool  # whether the error is within the tolerance
    steps: int
    words: dict[str, list[WordShare]]  # column -> its words
    rest: float  # of tokens that belong to no word


class Explanation(TypedDict):
    """A row, its answer, and what the answer comes from."""

    texts: dict[str, str]  # column -> text, as the model read it
    answer: Answer
    said: str  # the answer on a line
    attributed: list[Attributed]


def explain(
    source: str | Path,
    rows: Any = (),
    *,
    input: str | Path | None = None,
    columns: Mapping[str, str] = {},
    overrides: Sequence[str] = (),
    task: str | None = None,
    revision: str | None = None,
) -> list[Explanation]:
    """Explain a model's answers: which words led to each, by integrated gradients.

    source, task, revision: as for `load`. rows: texts, rows or a frame, each explained by itself; for a task
    that reads pairs, two texts. input: a file of rows, instead of `rows`. columns, overrides: as for
    `predict`.
    Returns a dict for each row: `texts`, the `answer`, and `attributed`, the numbers behind it with
    `words`: column -> (start, end, attribution) of each word, None for one that was not read.
    Raises ModelError, RecipeError, and DataError: a task whose answers cannot be explained, a row without
    the task's columns, or an answer with nothing to explain.

    >>> (explanation,) = bertkit.explain("runs/quickstart", ["Not bad at all."])
    >>> words = explanation["attributed"][0]["words"]["text"]
    >>> [explanation["texts"]["text"][start:end] for start, end, _ in words]
    ['Not', 'bad', 'at', 'all', '.']
    """
    predictor = with_columns(require_torch_model(load(source, revision=revision, task=task), source), columns)
    if input is not None:
        layout = one_text_per_line(Path(input), layout_of(fspath(source), str(input), overrides))
        rows = list(CheckedRows(read_rows(Path(input), layout), str(input), columns.values(), None))
    elif isinstance(rows, list | tuple) and all(isinstance(row, str) for row in rows):
        rows = rows_of(predictor, rows)
    return explain_rows(predictor, rows)


def explain_row(
    predictor: Predictor,
    rows: Dataset,
    row: int = 0,
    *,
    max_targets: int | None = None,
    max_steps: int = MAX_STEPS,
) -> Explanation:
    """Explain the answer to row number `row` of `rows`.

    rows: input columns alone; more than one only if neighbours are context. max_targets: how many numbers are
    explained, such as entities; None: all. max_steps: of integrated gradients.
    """
    task = predictor.task
    answer = list(task.answer(rows, predictor.predict_features))[row]
    features = task.encode(rows)
    indices = [index for index, of in enumerate(features["row"][:]) if of == row]
    items = predictor.predict_features(features)
    read = Read(
        task, rows[row], [features[index] for index in indices], [items[index] for index in indices], answer
    )
    collate = Collator.of(task.tokenizer, task.padding)
    batches = [collate(task.examples(features, [index]), predictor.device) for index in indices]
    explained = targets_of(task)
    single = rows.select([row])
    targets = explained(read)[:max_targets] if explained else []
    return Explanation(
        texts={text.name: text.text for text in texts_of(task, single)},
        answer=answer,
        said=answer_line(answer, forms=task.answers),
        attributed=[
            _attributed(predictor, batches, texts_of(task, single), target, max_steps) for target in targets
        ],
    )


def texts_of(task: Any, row: Dataset) -> list[Text]:
    """The texts of this one row, in the order in which the model reads them, with their prefixes."""
    if "tokens" in row.column_names:
        (text,), (places,) = sentences(row, task.unit)
        return [Text(task.tokenizer, "tokens", text, places)]
    texts = {name: str(row[name][0]) for name in task.schema.texts if name in row.column_names}
    if task.gives("vector"):
        texts = {name: task.prefix(name) + text for name, text in texts.items()}
    return [Text(task.tokenizer, name, text, words(text, task.unit)) for name, text in texts.items()]


def _attributed(
    predictor: Predictor, batches: Sequence[Batch], texts: Sequence[Text], target: Target, max_steps: int
) -> Attributed:
    task = predictor.task
    size = predictor.batch_size
    copies = size if isinstance(size, int) else max(1, size.tokens // task.max_length)
    alone = task.gives("vector")  # each text of a row is a feature
    parts = list[Integrated]()
    rest = list[float]()
    for feature, score in target.parts.items():
        batch = batches[feature]
        parts.append(
            integrated_gradients(task, predictor.model, batch, score, batch_size=copies, max_steps=max_steps)
        )
        inputs = texts[feature : feature + 1] if alone else texts
        rest += add_feature(task.tokenizer, inputs, batch["input_ids"][0].tolist(), parts[-1].tokens.tolist())
    side = f", by the words of {texts[next(iter(target.parts))].name}" if alone else ""
    return Attributed(
        what=target.what + side,
        unit=target.unit,
        value=sum(part.value for part in parts),
        baseline=sum(part.baseline for part in parts),
        error=sum(part.error for part in parts),
        complete=all(part.complete for part in parts),
        steps=max(part.steps for part in parts),
        words={text.name: text.shares for text in texts if text.read},
        rest=sum(rest),
    )


def rows_of(predictor: Predictor, texts: Sequence[str]) -> Sequence[str | Record]:
    """One row of two texts if the task reads pairs, else a row for each text.

    Raises DataError if a task that reads pairs is given one text, or more than two.
    """
    task = predictor.task
    alternatives = (list(filter(names.__contains__, task.schema.texts)) for names in task.inputs)
    pair = next((names for names in alternatives if len(names) == 2), None)
    if pair is None or (frozenset({"text"}) in task.inputs and not task.gives("vector")):
        return list(texts)
    if len(texts) != 2:
        what = f"expected two texts, {' and '.join(pair)}, found {len(texts)}"
        raise DataError("", what, "Pass both texts, or rows with both.")
    return [dict(zip(pair, texts, strict=True))]


def explain_rows(predictor: Predictor, rows: Iterable[str | Record]) -> list[Explanation]:
    """Explain the answer to each text or row, in order; every row is read by itself.

    rows: as for `Predictor.stream`. Raises DataError for a task whose answers are not explained, a row
    without the task's columns, and an answer with nothing to explain.
    """
    if targets_of(predictor.task) is None:
        raise DataError(
            "the model",
            f"explanations do not support {predictor.task.name}",
            f"Supported: {', '.join(TARGETS)}.",
        )

    def explained(number: int, row: str | Record) -> Explanation:
        explanation = explain_row(predictor, predictor.canonical([row], number - 1))
        if not explanation["attributed"]:
            raise DataError(f"row {number}", predictor.task.no_words, "Leave the row out.")
        return explanation

    return [explained(number, row) for number, row in enumerate(predictor.rows_of(rows), 1)]


def explain_frame(predictor: Predictor, rows: Any) -> Any:
    """The explanations as a table of the library that `rows` is of, or of pandas for a list: a line per word.

    Columns: `row`, its index label in pandas, else its number from 1; `what` is explained; the `column` of
    the text; the `word` and its `attribution`, None for a word that the model did not read. Raises DataError
    as `explain_rows`.
    """
    explained = explain_rows(predictor, rows)
    pandas = is_a(rows, "pandas.DataFrame", "pandas.Series")
    lines = [
        {
            "row": row,
            "what": part["what"],
            "column": column,
            "word": explanation["texts"][column][start:end],
            "attribution": score,
        }
        for row, explanation in zip(rows.index if pandas else count(1), explained, strict=False)
        for part in explanation["attributed"]
        for column, words in part["words"].items()
        for start, end, score in words
    ]
    return frame_like(None if pandas else rows, lines)
