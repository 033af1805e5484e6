"""Answers in other formats: a row per entity, CoNLL, Label Studio's tasks, masked texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from bertkit.data.schema import Answer
from bertkit.data.units import text_of
from bertkit.data.values import given_cell, has_columns
from bertkit.errors import DataError
from bertkit.files import require_suffix
from bertkit.inference.predictor import Predictor
from bertkit.text import Record, json_line

Pairs = Iterable[tuple[Answer, Record]]  # answers and their rows
Writer = Callable[[IO[str], Pairs], None]

ENTITY = "row id start end label text score".split()  # the columns of the format `entities`


def writer_of(
    name: str, output: Path | None, predictor: Predictor, columns: Mapping[str, str]
) -> Writer | None:
    """What writes the answers of this predictor; None for `entities`, a table that `predict` writes.

    name: `entities`, or one of OUTPUT_FORMATS. output: None for stdout. columns: canonical column -> column
    of the rows, in addition to the predictor's.
    Raises DataError where the model gives other answers, or the file has another name.
    """
    if not predictor.task.always_has("entities"):
        raise DataError(f"format {name}", "is only for models that find entities", "Leave it out.")
    if name == "entities":
        return None
    if name not in OUTPUT_FORMATS:
        raise DataError("format", f"no format {name!r}", f"Choose entities, {', '.join(OUTPUT_FORMATS)}.")
    suffixes, write = OUTPUT_FORMATS[name]
    if output:
        require_suffix(output, *suffixes)
    return partial(write, {**predictor.columns, **columns})


def write_jsonl(file: IO[str], pairs: Pairs) -> None:
    """`{…the row's own columns, "answer": {…}}`, a line each."""
    for answer, row in pairs:
        file.write(json_line({**row, "answer": answer}) + "\n")


def entity_cells(pairs: Pairs, start: int, columns: Record) -> Iterator[Sequence[Any]]:
    """The names of the columns, then a row per entity. start: how many rows are before the first. columns: as
    for `given_cell`.
    """
    yield ENTITY
    for number, (answer, row) in enumerate(pairs, start + 1):
        for entity in answer["entities"]:
            values = {"row": number, "id": given_cell(row, "id", columns), **entity}
            yield [values[name] for name in ENTITY]


def _text_of(row: Record, columns: Record) -> str:
    """The text of a row, or of its tokens: what `start` and `end` of its entities refer to."""
    names = ["tokens", "text"]
    if columns.keys() & names == {"tokens"} and has_columns(row, ["tokens"], columns):
        names.pop()
    return text_of({name: given_cell(row, name, columns) for name in names})


def _write_masked(columns: Record, file: IO[str], pairs: Pairs) -> None:
    """jsonl of texts with `[TYPE]` for each entity, and nothing else of the rows: other columns may hold it
    too.
    """
    for answer, row in pairs:
        text = _text_of(row, columns)
        for entity in reversed(answer["entities"]):
            text = f"{text[: entity['start']]}[{entity['label']}]{text[entity['end'] :]}"
        file.write(json_line({"text": text}) + "\n")


def _write_conll(columns: Record, file: IO[str], pairs: Pairs) -> None:
    """A line per word: the word, a tab, its tag; a blank line after each row."""
    for number, (answer, _) in enumerate(pairs, 1):
        for word in answer["words"]:
            if len(word["word"].split()) != 1:
                raise DataError(
                    f"row {number}",
                    f"the word {word['word']!r} is empty or contains a space, which CoNLL cannot hold",
                    "Use the format `entities`.",
                )
            file.write(f"{word['word']}\t{word['tag']}\n")
        file.write("\n")


def _write_label_studio(columns: Record, file: IO[str], pairs: Pairs) -> None:
    """Tasks with predictions, for a project with `<Labels name="label" toName="text">` and
    `value="$text"`.
    """
    for number, (answer, row) in enumerate(pairs):
        result = [
            {
                "id": f"entity-{place}",
                "from_name": "label",
                "to_name": "text",
                "type": "labels",
                "score": entity["score"],
                "value": {
                    "start": entity["start"],
                    "end": entity["end"],
                    "text": entity["text"],
                    "labels": [entity["label"]],
                },
            }
            for place, entity in enumerate(answer["entities"], 1)
        ]
        task = {
            "data": {**row, "text": _text_of(row, columns)},
            "predictions": [{"model_version": "bertkit", "result": result}],
        }
        file.write(("[\n" if number == 0 else ",\n") + json_line(task))
    file.write("\n]\n")


OUTPUT_FORMATS: dict[str, tuple[tuple[str, ...], Callable[[Record, IO[str], Pairs], None]]] = {
    "masked": ((".jsonl",), _write_masked),
    "conll": ((".conll", ".bio", ".iob2"), _write_conll),
    "label-studio": ((".json",), _write_label_studio),
}
