"""Answers for files of any length: rows are read, answered and written a chunk at a time, in their order."""

from __future__ import annotations

import csv
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertkit.data.readers import COMPRESSIONS, FORMATS, read_rows, read_stream, text_a_row
from bertkit.errors import DataError, Problem
from bertkit.files import written_aside
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import DataSpec

if TYPE_CHECKING:
    from bertkit.data.schema import Answer
    from bertkit.inference.predictor import Predictor


def predict_file(predictor: Predictor, source: str, file: str, output: Path | None, columns: Mapping[str, str]) -> int:
    """Write `{…the row's own columns, "answer": {…}}` for each row of `file`; returns how many.

    source: the run, whose data's layout `file` has. file: a path, or - for jsonl from stdin.
    output: .jsonl, or .csv with columns such as `answer.label`; None: jsonl to stdout.
    columns: canonical column -> column of the file. Raises DataError, and then leaves no output.
    """
    suffix = output.suffix if output else ".jsonl"
    if suffix not in (".jsonl", ".csv"):
        raise DataError(Problem(str(output), f"can not write {suffix or 'without a suffix'}", "Name a .jsonl or .csv."))
    known = [*(name for names in predictor.task.inputs for name in names), *predictor.task.schema.context]
    unknown = [name for name in columns if name not in known]
    if unknown:
        what = f"this model reads no column {', '.join(map(repr, unknown))}"
        raise DataError(Problem("--column", what, f"It reads {', '.join(sorted(known))}."))
    predictor = replace(predictor, columns={**predictor.columns, **columns})
    pending: deque[dict[str, Any]] = deque()

    def feed() -> Iterator[dict[str, Any]]:
        for number, row in _rows(source, file, predictor.task.schema.corpus):
            taken = [n for n in row if n == "answer" or (suffix == ".csv" and str(n).startswith("answer."))]
            if taken:
                raise DataError(Problem(file, f"the rows have a column `{taken[0]}` already", "Rename it."))
            absent = [name for name in columns.values() if name not in row]
            if absent:
                what = f"no column {', '.join(map(repr, absent))}; found {', '.join(map(str, row))}"
                raise DataError(Problem(f"{file}, row {number}", what))
            pending.append(row)
            yield row

    count = 0
    with written_aside(output) if output else nullcontext(sys.stdout) as out:
        write = _Csv(out) if suffix == ".csv" else _Jsonl(out)
        for answer in predictor.stream(feed()):
            write(pending.popleft(), answer)
            count += 1
    return count


def _rows(source: str, file: str, documents: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    kept = Path(source).expanduser() / "recipe.yaml"
    spec = load_recipe(kept, check_files=False).data if kept.is_file() else DataSpec(source=file)
    if file == "-":
        return read_stream(sys.stdin.buffer, "stdin", spec.model_copy(update={"format": "jsonl"}))
    suffix = next((s[1:] for s in reversed(Path(file).suffixes) if s not in COMPRESSIONS), "")
    theirs, tables = FORMATS.get(suffix), ("csv", "tsv")
    other = theirs and spec.format and (theirs in tables) != (spec.format in tables)
    if theirs in ("jsonl", "json", "parquet") or other:  # the layout of the run's data says nothing of this file
        spec = spec.model_copy(update={"format": None, "header": True, "delimiter": None})
    return read_rows(Path(file), spec if documents else text_a_row(Path(file), spec))


class _Jsonl:
    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def __call__(self, row: Mapping[str, Any], answer: Answer) -> None:
        self.file.write(json.dumps({**row, "answer": answer}, ensure_ascii=False, default=str) + "\n")


class _Csv:
    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.writer: csv.DictWriter[str] | None = None

    def __call__(self, row: Mapping[str, Any], answer: Answer) -> None:
        own = {k: json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict) else v for k, v in row.items()}
        flat = {**own, **dict(_flat("answer", answer))}
        if self.writer is None:
            self.writer = csv.DictWriter(self.file, list(flat))
            self.writer.writeheader()
        unknown = set(flat) - set(self.writer.fieldnames)
        if unknown:
            what = f"a row has columns that the first row has not: {', '.join(sorted(unknown))}"
            raise DataError(Problem("csv output", what, "Write .jsonl, where rows may differ."))
        self.writer.writerow(flat)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Nested answers as flat columns: answer.label, answer.scores.positive."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        nested = name.rpartition(".")[2] in ("words", "entities", "n_best", "vector")
        plain = isinstance(value, list) and not nested and all(isinstance(each, str) for each in value)
        several = "|".join(value) if plain else json.dumps(value, ensure_ascii=False)
        yield name, several if isinstance(value, list) else value
