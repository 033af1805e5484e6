"""Answers for files of any length: rows are read, answered and written in chunks, in their order."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, tee
from pathlib import Path
from typing import IO, Any, TypeAlias

from bertkit.data.readers import COMPRESSIONS, FORMATS, TABLES, read_rows, read_stream, text_a_row
from bertkit.data.schema import Answer
from bertkit.errors import DataError, Problem
from bertkit.files import require_suffix, written_aside
from bertkit.inference.display import flat
from bertkit.inference.predictor import Predictor
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import DataSpec

Pairs: TypeAlias = Iterable[tuple[Answer, Mapping[str, Any]]]  # answers and their rows


def predict_file(predictor: Predictor, source: str, file: str, output: Path | None, columns: Mapping[str, str]) -> int:
    """Write `{…the row's own columns, "answer": {…}}` for each row of `file`; returns the number of rows.

    source: the run, whose data layout `file` has. file: a path, or - for jsonl from stdin.
    output: .jsonl, or .csv with columns such as `answer.label`; None: jsonl to stdout.
    columns: canonical column -> column of the file. Raises DataError, and then leaves no output.
    """
    if output:
        require_suffix(output, ".jsonl", ".csv")
    as_csv, schema, count = bool(output and output.suffix == ".csv"), predictor.task.schema, 0
    known = {*chain.from_iterable(predictor.task.inputs), *schema.context}
    unknown = [name for name in columns if name not in known]
    if unknown:
        what = f"this model reads no column {', '.join(map(repr, unknown))}"
        raise DataError(Problem("--column", what, f"It reads {', '.join(sorted(known))}."))

    def checked() -> Iterator[dict[str, Any]]:
        nonlocal count
        for number, row in _rows(source, file, schema.corpus):
            taken = [name for name in row if name == "answer" or (as_csv and str(name).startswith("answer."))]
            if taken:
                raise DataError(Problem(file, f"the rows have a column `{taken[0]}` already", "Rename it."))
            absent = [name for name in columns.values() if name not in row]
            if absent:
                what = f"no column {', '.join(map(repr, absent))}; found {', '.join(map(str, row))}"
                raise DataError(Problem(f"{file}, row {number}", what))
            count += 1
            yield row

    rows, read = tee(checked())
    answers = replace(predictor, columns={**predictor.columns, **columns}).stream(read)
    with written_aside(output) if output else nullcontext(sys.stdout) as out:
        (_write_csv if as_csv else _write_jsonl)(out, zip(answers, rows, strict=True))
    return count


def _rows(source: str, file: str, documents: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    recipe = Path(source).expanduser() / "recipe.yaml"
    spec = load_recipe(recipe, check_files=False).data if recipe.is_file() else DataSpec(source=file)
    if file == "-":
        if sys.stdin is None:
            raise DataError(Problem("--input -", "stdin is closed", "Write rows to it, or name a file."))
        return read_stream(sys.stdin.buffer, "stdin", spec.model_copy(update={"format": "jsonl"}))
    suffix = next((s[1:] for s in reversed(Path(file).suffixes) if s not in COMPRESSIONS), "")
    kind, delimited = FORMATS.get(suffix), ("csv", "tsv")
    other = kind and spec.format and (kind in delimited) != (spec.format in delimited)
    if kind in ("jsonl", "json", *TABLES) or other:  # the layout of the run's data does not apply to this file
        spec = spec.model_copy(update={"format": None, "header": True, "delimiter": None})
    return read_rows(Path(file), spec if documents else text_a_row(Path(file), spec))


def _write_jsonl(file: IO[str], pairs: Pairs) -> None:
    for answer, row in pairs:
        file.write(json.dumps({**row, "answer": answer}, ensure_ascii=False, default=str) + "\n")


def _write_csv(file: IO[str], pairs: Pairs) -> None:
    """The first row decides the columns."""
    writer: csv.DictWriter[str] | None = None
    for answer, row in pairs:
        cells = {k: json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict) else v for k, v in row.items()}
        cells |= dict(flat(answer, "answer."))
        if writer is None:
            writer = csv.DictWriter(file, list(cells))
            writer.writeheader()
        unknown = set(cells) - set(writer.fieldnames)
        if unknown:
            what = f"a row has columns that the first row does not have: {', '.join(sorted(unknown))}"
            raise DataError(Problem("csv output", what, "Write .jsonl, where rows may differ."))
        writer.writerow(cells)
