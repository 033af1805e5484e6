"""Answers in the formats of others: entities as jsonl, CoNLL or for Label Studio; masked texts; GLUE submissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

from bertkit.data.schema import Answer
from bertkit.data.values import given_cell
from bertkit.errors import DataError, Problem
from bertkit.files import require_suffix
from bertkit.inference.predictor import Predictor
from bertkit.tasks.class_labels import names_of
from bertkit.text import json_line

Pairs: TypeAlias = Iterable[tuple[Answer, Mapping[str, Any]]]  # answers and their rows
Writer: TypeAlias = Callable[[IO[str], Pairs], None]

_NUMBERS = {"0": "0", "1": "1"}  # labels as most of GLUE's files have them
_NLI = {name: name for name in ("entailment", "neutral", "contradiction")}
_TWO = {name: name for name in ("entailment", "not_entailment")}
# File of a submission, without .tsv -> {label: prediction}; None: a score from 0 to 5. https://gluebenchmark.com/faq
GLUE: Mapping[str, Mapping[str, str] | None] = {
    "CoLA": {"unacceptable": "0", "acceptable": "1"} | _NUMBERS,
    "SST-2": {"negative": "0", "positive": "1"} | _NUMBERS,
    "MRPC": {"not_equivalent": "0", "equivalent": "1"} | _NUMBERS,
    "STS-B": None,
    "QQP": {"not_duplicate": "0", "duplicate": "1"} | _NUMBERS,
    **dict.fromkeys(("MNLI-m", "MNLI-mm", "AX"), _NLI),
    **dict.fromkeys(("QNLI", "RTE"), _TWO),
    "WNLI": {"not_entailment": "0", "entailment": "1"} | _NUMBERS,
}


def writer_of(name: str, output: Path | None, predictor: Predictor, columns: Mapping[str, str]) -> Writer:
    """What writes the answers of this predictor. name: glue, or one of OUTPUT_FORMATS; output: None for stdout.
    columns: canonical column -> column of the rows, in addition to the predictor's.

    Raises DataError where the model gives other answers, or the file has another name.
    """
    if name == "glue":
        return _glue_writer(output, predictor)
    suffixes, write = OUTPUT_FORMATS[name]
    if not predictor.task.always_has("entities"):
        raise DataError(Problem(f"format {name}", "is for models that find entities", "Leave it out."))
    if output:
        require_suffix(output, *suffixes)
    return partial(write, {**predictor.columns, **columns})


def write_jsonl(file: IO[str], pairs: Pairs) -> None:
    """`{…the row's own columns, "answer": {…}}`, a line each."""
    for answer, row in pairs:
        file.write(json_line({**row, "answer": answer}) + "\n")


def _write_entities(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """Write jsonl without the words."""
    write_jsonl(file, (({"entities": answer["entities"]}, row) for answer, row in pairs))


def _text_of(row: Mapping[str, Any], columns: Mapping[str, Any]) -> str:
    """The text of a row, or its tokens joined by spaces: what `start` and `end` of its entities refer to."""
    tokens, text = (given_cell(row, name, columns) for name in ("tokens", "text"))
    return " ".join(tokens or ()) if text is None else str(text)


def _write_masked(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """jsonl of texts with `[TYPE]` for each entity, and nothing else of the rows: other columns may hold it too."""
    for answer, row in pairs:
        text = _text_of(row, columns)
        for entity in reversed(answer["entities"]):
            text = f"{text[: entity['start']]}[{entity['label']}]{text[entity['end'] :]}"
        file.write(json_line({"text": text}) + "\n")


def _write_conll(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """A line per word: the word, a tab, its tag; a blank line after each row."""
    for number, (answer, _) in enumerate(pairs, 1):
        for word in answer["words"]:
            if len(word["word"].split()) != 1:
                what = f"the word {word['word']!r} is empty or contains a space, which CoNLL cannot hold"
                raise DataError(Problem(f"row {number}", what, "Write the format `entities`."))
            file.write(f"{word['word']}\t{word['tag']}\n")
        file.write("\n")


def _write_label_studio(columns: Mapping[str, Any], file: IO[str], pairs: Pairs) -> None:
    """Tasks with predictions, for a project with `<Labels name="label" toName="text">` and `value="$text"`."""
    for number, (answer, row) in enumerate(pairs):
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
            "data": {**row, "text": _text_of(row, columns)},
            "predictions": [{"model_version": "bertkit", "result": result}],
        }
        file.write(("[\n" if number == 0 else ",\n") + json_line(task))
    file.write("\n]\n")


def _glue_writer(output: Path | None, predictor: Predictor) -> Writer:
    """What writes the submission that the file's name stands for."""
    if output is None or output.suffix != ".tsv" or output.stem not in GLUE:
        what = "GLUE names the file of a submission after its task"
        raise DataError(Problem("format glue", what, f"Name the output one of {', '.join(f'{n}.tsv' for n in GLUE)}."))
    labels, task = GLUE[output.stem], predictor.task
    kind = "single-label" if labels else "regression"
    fits = task.decision.kind == kind and task.always_has("score")  # pairs in one pass, not by their vectors
    if not fits or (labels and {labels.get(name) for name in names_of(task.options.labels)} != set(labels.values())):
        takes = f"the labels {', '.join(labels)}" if labels else "a regression"
        raise DataError(Problem(output.name, f"takes {takes}, but the model is for {task.name}: {task.describe()}"))
    return partial(_write_glue, labels)


def _write_glue(labels: Mapping[str, str] | None, file: IO[str], pairs: Pairs) -> None:
    """`index` and `prediction`. index: the row's own `index` or `idx`, else its place, from 0."""
    file.write("index\tprediction\n")
    for place, (answer, row) in enumerate(pairs):
        index = row.get("index", row.get("idx", place))
        if labels is None:
            prediction = f"{min(max(0.0, answer['score']), 5.0):.3f}"
        else:  # each row needs a label, also where the model is not sure
            prediction = labels[answer["label"] or max(answer["scores"], key=answer["scores"].__getitem__)]
        file.write(f"{index}\t{prediction}\n")


OUTPUT_FORMATS: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any], IO[str], Pairs], None]]] = {
    "entities": ((".jsonl",), _write_entities),
    "masked": ((".jsonl",), _write_masked),
    "conll": ((".conll", ".bio", ".iob2"), _write_conll),
    "label-studio": ((".json",), _write_label_studio),
}
