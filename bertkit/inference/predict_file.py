"""Answers for files of any length: rows are read, answered and written in chunks, in their order."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice, tee
from os import fspath
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bertkit.data.checks import log_findings
from bertkit.data.delimited import readable_cell, write_csv
from bertkit.data.excel import write_sheet
from bertkit.data.problems import Problems
from bertkit.data.readers import by_suffix, one_text_per_line, read_rows, read_stream, suffix_of, written_like
from bertkit.data.schema import Answer
from bertkit.data.values import without_nan
from bertkit.errors import DataError, UserError
from bertkit.files import require_no_pipe, require_suffix, written_aside
from bertkit.inference.multitask_predictor import MultiTaskPredictor, load_any
from bertkit.inference.output_formats import ENTITY, Pairs, entity_cells, write_jsonl, writer_of
from bertkit.inference.predictor import Predictor
from bertkit.inference.progress import progress
from bertkit.processes import Shard
from bertkit.recipe.recipe import LAYOUT, Recipe, parse_layout, read
from bertkit.sections import DataSpec
from bertkit.text import Json, json_line, part_of

logger = logging.getLogger(__name__)

# A cell that begins like a formula, with + or -, and is none: it gets no apostrophe.
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?")

AnyPredictor = TypeVar("AnyPredictor", Predictor, MultiTaskPredictor)


@dataclass
class CheckedRows:
    """Numbered rows of a file, counted and checked as they are read: a row must have these columns, and must
    not have those of answers.

    table: whether answers are written as columns of their own; None: beside none of the row's columns. Raises
    DataError.
    """

    numbered: Iterable[tuple[int, Json]]
    file: str
    columns: Collection[str]
    table: bool | None
    count: int = 0

    def __iter__(self) -> Iterator[Json]:
        taken = () if self.table is None else ("answer",)
        for number, row in self.numbered:
            for name in row:
                if name in taken or (self.table and str(name).startswith("answer.")):
                    raise DataError(self.file, f"the rows have a column `{name}` already", "Rename it.")
            absent = [name for name in self.columns if name not in row]
            if absent:
                raise DataError(
                    f"{self.file}, row {number}",
                    f"no column {', '.join(map(repr, absent))}; found {', '.join(map(str, row))}",
                    "Add the column to this row, or leave the row out.",
                )
            self.count += 1
            yield without_nan(row)


def predict(
    source: str | Path,
    input: str | Path,
    output: str | Path | None,
    *,
    columns: Mapping[str, str] = {},
    overrides: Sequence[str] = (),
    format: str | None = None,
    raw_cells: bool = False,
    shard: str | None = None,
    task: str | None = None,
    revision: str | None = None,
    threshold: float | None = None,
    coverage: float | None = None,
    top_k: int | None = None,
) -> int:
    """Answer every row of a file, in constant memory; returns the number of rows. For texts:
    `bertkit.load(…)(texts)`.

    source, task, revision: as for `load`, or a run of several tasks. Each task then predicts if it reads the
    columns of the first row.
    input: csv, tsv, xlsx, json, jsonl, parquet, conll, or txt with a text per line. "-": lines of stdin, each
    a JSON object or a text.
    output: .jsonl, with the row's own columns and its `answer`; .csv or .xlsx, with columns such as
    `answer.label`, empty if an answer lacks them. None: jsonl to stdout, where each line of stdin is answered
    before the next is read. A csv output has the delimiter and encoding of the csv input. Cells that a
    spreadsheet would evaluate as a formula are prefixed with an apostrophe.
    columns: column that the model reads -> its name in the file. overrides: how the file is written, such as
    `data.delimiter=";"`; by default like the data of the run.
    format: `entities`, a row for each entity; `masked`, texts without them; `conll`, or `label-studio`.
    raw_cells: write csv cells unchanged, without apostrophes.
    shard: `i/n`, the i-th of n parts of the rows; the concatenated parts of jsonl are the whole.
    threshold, coverage, top_k: as for `Predictor.with_decisions`.
    Raises UserError, ModelError, RecipeError or DataError, and then leaves no output.

    >>> bertkit.predict("runs/quickstart", "reviews.csv", "answers.csv")
    2
    """
    file = str(input)
    target = Path(output).expanduser() if output else None
    part = Shard.parse(shard)
    suffix = target.suffix if target else ".jsonl"
    if raw_cells and suffix != ".csv":
        raise UserError("raw_cells", "only csv output has cells", "Leave it out, or write .csv.")
    if file == "-" and part:
        raise UserError(
            "input -", "a shard needs a file, because it reads the input twice", "Use a file of rows."
        )
    if part and (format not in (None, "entities", "masked") or suffix != ".jsonl"):
        raise UserError(
            "shard",
            "parts of an output must be files that can be concatenated",
            "Write .jsonl; the formats entities and masked are possible too.",
        )
    decisions = {"threshold": threshold, "coverage": coverage, "top_k": top_k}
    predictor: Any = load_any(source, task, revision, decisions, format=format, shard=shard)
    writer = writer_of(format, target, predictor, columns) if format else None
    if target and writer is None:
        require_suffix(target, ".jsonl", ".csv", ".xlsx")
    by_entity = format == "entities"
    table = writer is None and suffix != ".jsonl"
    alone = isinstance(predictor, Predictor)  # several tasks have no decisions, formats and shards
    corpus = alone and predictor.task.schema.corpus
    problems = Problems(file)
    spec = layout_of(fspath(source), file, overrides)
    predictor = with_columns(predictor, columns)
    chosen = range(sys.maxsize)
    if part:
        if predictor.task.schema.together:
            raise UserError(
                "shard",
                "the documents of all rows are ranked together",
                "Leave it out; `bertkit embed` takes shards.",
            )
        require_no_pipe(Path(file))
        total = sum(1 for _ in _rows(file, spec, corpus, Problems(file)))
        chosen = part.rows(file, total, predictor.task.chunk_size)
    start = chosen.start
    numbered = islice(_rows(file, spec, corpus, problems), start, chosen.stop)
    checked = CheckedRows(numbered, file, columns.values(), None if format else table)
    others = iter(checked)
    first = list(islice(others, 1))
    answered = list[str]()
    if first and not alone:
        predictor = predictor.reading(first[0])
    elif first and table and not by_entity:
        answered = [f"answer.{name}" for name in predictor.answer_columns(first[0])]
    live = file == "-" and target is None and not (alone and predictor.task.schema.together)
    pairs = _answered(predictor, chain(first, others), start, live)
    delimiter, encoding = (
        written_like(Path(file), spec) if suffix == ".csv" and file != "-" else (",", "utf-8")
    )
    if by_entity:
        cells = entity_cells(pairs, start, predictor.columns)
    else:
        cells = _flat_rows(pairs, answered, predictor.cells)
    with written_aside(target, encoding) if target else nullcontext(sys.stdout) as out:
        if writer is not None:
            writer(out, pairs)
        elif suffix == ".csv":
            _write_csv(out, cells, str(target), delimiter, raw_cells)
        elif suffix == ".xlsx":
            write_sheet(out.buffer, cells)
        elif by_entity:
            next(cells)  # the header
            out.writelines(json_line(dict(zip(ENTITY, row, strict=True))) + "\n" for row in cells)
        else:
            write_jsonl(out, pairs)
    log_findings(finding for finding in problems.findings if finding.level == "warn")
    return checked.count


def _answered(predictor: Any, rows: Iterator[Json], start: int, live: bool) -> Pairs:
    """The answers and their rows. live: each is answered and written before the next one is read."""
    rows, inputs = tee(rows if live else progress(rows, "row"))
    stream = predictor.stream(inputs, start)
    if live:
        stream = chain.from_iterable(predictor.stream([row], number) for number, row in enumerate(inputs))
    answers = _unread_counted(stream, isinstance(predictor, MultiTaskPredictor))
    for pair in zip(answers, rows, strict=True):
        yield pair
        if live:
            sys.stdout.flush()  # the line of this pair is written when the next pair is requested


def _unread_counted(answers: Iterable[Answer], several: bool) -> Iterator[Answer]:
    """The answers, unchanged; after the last one, warnings of how many are to texts that the model could not
    read.

    several: whether an answer has those of several tasks.
    """
    flags = {
        "empty": "a text has no token",
        "unreadable": "a text has only tokens that are unknown to the model",
    }
    rows = 0
    counts = Counter[str]()
    for answer in answers:
        rows += 1
        parts = answer.values() if several else [answer]
        counts.update({flag for part in parts for flag in flags if part.get(flag)})
        yield answer
    for flag, reason in flags.items():
        if counts[flag]:
            what = f"{flag}: {reason}, so nothing of it is read; `{flag}` is true in the answer"
            logger.warning("%s %s", part_of(counts[flag], rows, "row"), what)


def with_columns(predictor: AnyPredictor, columns: Mapping[str, str]) -> AnyPredictor:
    """The predictor, for rows with columns of other names. columns: canonical column -> theirs. Raises
    DataError.
    """
    parts = predictor.tasks if isinstance(predictor, MultiTaskPredictor) else {"": predictor}
    readable = set[str]().union(*(part.task.reads for part in parts.values()))
    if unknown := [name for name in columns if name not in readable]:
        raise DataError(
            "column",
            f"the model does not read {', '.join(map(repr, unknown))}",
            f"It reads {', '.join(sorted(readable))}.",
        )
    changed = {name: replace(part, columns={**part.columns, **columns}) for name, part in parts.items()}
    return replace(predictor, tasks=changed) if isinstance(predictor, MultiTaskPredictor) else changed[""]


def layout_of(source: str, file: str, overrides: Sequence[str]) -> DataSpec:
    """How a file is written: as the data of the run, if they are of the same kind, and as these overrides
    say.
    """
    path = Path(source).expanduser() / "recipe.yaml"
    recipe = read(path, check_files=False) if path.is_file() else None
    return like_data(recipe.data if isinstance(recipe, Recipe) else DataSpec(source=file), file, overrides)


def like_data(spec: DataSpec, file: str, overrides: Sequence[str] = ()) -> DataSpec:
    """How a file is written, where the data section of a recipe is given; see `layout_of`."""
    layout = parse_layout(overrides)
    kind = "".join(reader.name for reader in by_suffix(suffix_of(file))[:1])
    tables = ("csv", "tsv")
    of_run = str(spec.source)
    texts = kind == "txt" and not (".txt" in of_run or os.path.isdir(of_run))  # one per line
    different = kind and spec.format and (texts or (kind in tables) != (spec.format in tables))
    changes: Json = {}
    if file == "-" or kind in ("jsonl", "json", "xlsx", "parquet") or different:
        reset = {*LAYOUT} - {"sheet"}  # the sheet stays that of the run
        changes = {name: DataSpec.model_fields[name].default for name in reset}
    changes["missing_fields"] = "error"  # every row gets an answer
    changes |= {name: getattr(layout, name) for name in layout.model_fields_set - {"source"}}
    return spec.model_copy(update=changes)


def _rows(file: str, spec: DataSpec, documents: bool, problems: Problems) -> Iterator[tuple[int, Json]]:
    if file == "-":
        if sys.stdin is None:
            raise DataError("", "stdin is closed", "Write lines to it, or use a file.")
        return read_stream(sys.stdin.buffer, "stdin", spec)
    return read_rows(Path(file), spec if documents else one_text_per_line(Path(file), spec), problems)


def _write_csv(
    file: TextIO, rows: Iterable[Sequence[Any]], name: str, delimiter: str, raw_cells: bool
) -> None:
    def written(value: Any) -> Any:
        return (
            value
            if raw_cells or (isinstance(value, str) and _NUMBER.fullmatch(value))
            else readable_cell(value)
        )

    try:
        write_csv(file, rows, name, delimiter, written)
    except UnicodeEncodeError as error:
        raise DataError(
            "csv output",
            f"{error.object[error.start]!r} cannot be written in {file.encoding}, the encoding of the input",
            "Write .jsonl, or save the input as UTF-8.",
        ) from error


def _flat_rows(
    pairs: Pairs, answered: Sequence[str], cells_of: Callable[[Answer, str], Iterable[tuple[str, Any]]]
) -> Iterator[list[Any]]:
    """The names of the columns, which are those of the first row, then the values of each row.

    answered: columns that answers have in any case. cells_of: `Predictor.cells`.
    """
    names: list[str] = []
    for answer, row in pairs:
        cells = {k: json_line(v) if isinstance(v, list | dict) else v for k, v in row.items()}
        answers = dict(cells_of(answer, "answer."))
        if not names:
            names = [*cells, *dict.fromkeys([*answered, *answers])]
            yield names
        cells |= answers
        if unknown := set(cells).difference(names):
            raise DataError(
                "table output",
                f"a row has columns that the first row does not have: {', '.join(sorted(unknown))}",
                "Write .jsonl, where rows may differ.",
            )
        yield [cells.get(name) for name in names]
