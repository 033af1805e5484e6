"""Entities in the formats of other tools: jsonl without the words, CoNLL, and predictions for Label Studio."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

from bertkit.data.schema import Answer
from bertkit.data.values import given_cell
from bertkit.errors import DataError, Problem
from bertkit.files import require_suffix
from bertkit.inference.predictor import Predictor

Pairs: TypeAlias = Iterable[tuple[Answer, Mapping[str, Any]]]  # answers and their rows
Writer: TypeAlias = Callable[[IO[str], Pairs], None]


def writer_of(name: str, output: Path | None, predictor: Predictor, columns: Mapping[str, str]) -> Writer:
    """What writes the answers of this predictor. name: one of OUTPUT_FORMATS; output: None for stdout.
    columns: canonical column -> column of the rows, in addition to the predictor's.

    Raises DataError where the model finds no entities, or the name of the file ends otherwise.
    """
    suffixes, write = OUTPUT_FORMATS[name]
    if predictor.task.name != "token-classification" or predictor.task.options.scheme == "none":
        raise DataError(Problem(f"--format {name}", "is for models that find entities", "Leave it out."))
    if output:
        require_suffix(output, *suffixes)
    return partial(write, {**predictor.columns, **columns})


def write_jsonl(file: IO[str], pairs: Pairs) -> None:
    """`{…the row's own columns, "answer": {…}}`, a line each."""
    for answer, row in pairs:
        file.write(json.dumps({**row, "answer": answer}, ensure_ascii=False, default=str) + "\n")


def _write_entities(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """As `write_jsonl`, without the words."""
    write_jsonl(file, (({"entities": answer["entities"]}, row) for answer, row in pairs))


def _write_conll(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """A line per word: the word, a tab, its tag; a blank line after each row."""
    for number, (answer, _) in enumerate(pairs, 1):
        for word in answer["words"]:
            if len(word["word"].split()) != 1:
                what = f"the word {word['word']!r} is empty or contains a space, which CoNLL cannot hold"
                raise DataError(Problem(f"row {number}", what, "Write --format entities."))
            file.write(f"{word['word']}\t{word['tag']}\n")
        file.write("\n")


def _write_label_studio(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """Tasks with predictions, for a project with `<Labels name="label" toName="text">` and `value="$text"`."""
    for number, (answer, row) in enumerate(pairs):
        tokens, text = (given_cell(row, name, columns) for name in ("tokens", "text"))
        result = [
            {
                "id": f"entity-{each}",
                "from_name": "label",
                "to_name": "text",
                "type": "labels",
                "score": entity["score"],
                "value": {**{key: entity[key] for key in ("start", "end", "text")}, "labels": [entity["label"]]},
            }
            for each, entity in enumerate(answer["entities"], 1)
        ]
        task = {
            "data": {**row, "text": " ".join(tokens or ()) if text is None else text},
            "predictions": [{"model_version": "bertkit", "result": result}],
        }
        file.write(("[\n" if number == 0 else ",\n") + json.dumps(task, ensure_ascii=False, default=str))
    file.write("\n]\n")


OUTPUT_FORMATS: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any], IO[str], Pairs], None]]] = {
    "entities": ((".jsonl",), _write_entities),
    "conll": ((".conll", ".bio", ".iob2"), _write_conll),
    "label-studio": ((".json",), _write_label_studio),
}
