"""Answers for files of any length: rows are read, answered and written in chunks, in their order."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
from bertkit.errors import DataError, UserError
from bertkit.files import require_no_pipe, require_suffix, written_aside
from bertkit.inference.display import flat
from bertkit.inference.multitask_predictor import MultiTaskPredictor, load_any
from bertkit.inference.output_formats import ENTITY, Pairs, entity_cells, write_jsonl, writer_of
from bertkit.inference.predictor import Predictor
from bertkit.inference.progress import progress
from bertkit.processes import Shard
from bertkit.recipe.recipe import LAYOUT, Recipe, parse_layout, read
from bertkit.sections import DataSpec
from bertkit.text import Json, json_line, part_of

logger = logging.getLogger(__name__)

_NUMBER = re.compile(
    r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?"
)  # in columns of the input, which no spreadsheet runs

AnyPredictor = TypeVar("AnyPredictor", Predictor, MultiTaskPredictor)


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

    source, task, revision: as for `load`, or a run of several tasks. input: csv, tsv, xlsx, json, jsonl,
    parquet, conll, or txt with a text a line; "-": lines of stdin, each a JSON object or a text. Of several
    tasks, those answer that read the columns of the first row. output: .jsonl, the row's own columns and its
    `answer`; .csv or .xlsx, with columns such as `answer.label`, empty where an answer lacks them; None:
    jsonl to stdout, where lines of stdin are answered one by one. csv has the delimiter and encoding of a csv
    file that was read, and an apostrophe before what a spreadsheet would run as a formula.
    columns: column that the model reads -> its name in the file. overrides: how the file is written, such as
    `data.delimiter=";"`; by default as the data of the run.
    format: `entities`, a row for each; `masked`, texts without them; `conll`, or `label-studio`.
    raw_cells: leave cells of csv as they are, also those that a spreadsheet would run as a formula.
    shard: `i/n`, the i-th of n parts of the rows; the parts of jsonl, one after the other, are the whole.
    threshold, coverage, top_k: as for `Predictor.with_decisions`.
    Raises UserError, ModelError, RecipeError or DataError, and then leaves no output.

    >>> bertkit.predict("runs/quickstart", "reviews.csv", "answers.csv")
    2
    """
    file = str(input)
    target = Path(output) if output else None
    part = Shard.parse(shard)
    if raw_cells and (target is None or target.suffix != ".csv"):
        raise UserError("raw_cells", "only csv output has cells")
    if file == "-" and part:
        raise UserError("input -", "stdin cannot be read twice, as for a shard", "Name a file of rows.")
    if part and (format not in (None, "entities", "masked") or (target and target.suffix != ".jsonl")):
        raise UserError(
            "shard",
            "only parts that can be concatenated are written",
            "Write .jsonl, also in the formats entities and masked.",
        )
    decisions = {"threshold": threshold, "coverage": coverage, "top_k": top_k}
    predictor: Any = load_any(source, task, revision, decisions, format=format, shard=shard)
    writer = writer_of(format, target, predictor, columns) if format else None
    if target and writer is None:
        require_suffix(target, ".jsonl", ".csv", ".xlsx")
    by_entity = format == "entities"
    table = bool(target and writer is None and target.suffix != ".jsonl")
    alone = isinstance(predictor, Predictor)  # several tasks have no decisions, formats and shards
    corpus = alone and predictor.task.schema.corpus
    count = 0
    problems = Problems(file)
    spec = layout_of(fspath(source), file, overrides)
    predictor = with_columns(predictor, columns)
    start = 0
    stop = sys.maxsize
    if part:
        require_no_pipe(Path(file))
        chosen = part.rows(
            file, sum(1 for _ in _rows(file, spec, corpus, Problems(file))), predictor.task.chunk_size
        )
        start = chosen.start
        stop = chosen.stop

    def checked() -> Iterator[Json]:
        nonlocal count
        for number, row in islice(_rows(file, spec, corpus, problems), start, stop):
            taken = [name for name in row if name == "answer" or (table and str(name).startswith("answer."))]
            if taken:
                raise DataError(file, f"the rows have a column `{taken[0]}` already", "Rename it.")
            absent = [name for name in columns.values() if name not in row]
            if absent:
                raise DataError(
                    f"{file}, row {number}",
                    f"no column {', '.join(map(repr, absent))}; found {', '.join(map(str, row))}",
                )
            count += 1
            yield row

    given: Iterator[Json] = checked()
    first = list(islice(given, 1))
    if first and not alone:
        predictor = predictor.reading(first[0])
    answered = list[str]()
    if table and not by_entity and first and alone:
        answered = [f"answer.{name}" for name in predictor.answer_columns(first[0])]
    live = file == "-" and target is None and not (alone and predictor.task.schema.together)
    given = chain(first, given)
    rows, read = tee(given if live else progress(given, "row"))
    stream = predictor.stream(read, start)
    if live:
        stream = chain.from_iterable(predictor.stream([row], number) for number, row in enumerate(read))
    answers = _unread_counted(stream, several=not alone)
    suffix = target.suffix if target else ".jsonl"
    answered_rows = zip(answers, rows, strict=True)
    pairs = _flushed(answered_rows) if live else answered_rows
    delimiter, encoding = (
        written_like(Path(file), spec) if suffix == ".csv" and file != "-" else (",", "utf-8")
    )
    cells = entity_cells(pairs, start) if by_entity else _flat_rows(pairs, answered)
    with written_aside(target, encoding) if target else nullcontext(sys.stdout) as out:
        if writer is not None:
            writer(out, pairs)
        elif suffix == ".csv":
            _write_csv(out, cells, str(target), delimiter, raw_cells)
        elif suffix == ".xlsx":
            write_sheet(out.buffer, cells)
        elif by_entity:
            next(cells)
            out.writelines(json_line(dict(zip(ENTITY, row, strict=True))) + "\n" for row in cells)
        else:
            write_jsonl(out, pairs)
    log_findings(each for each in problems.findings if each.level == "warn")
    return count


def _flushed(pairs: Pairs) -> Pairs:
    for pair in pairs:
        yield pair
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
    counts = dict.fromkeys(flags, 0)
    for answer in answers:
        rows += 1
        own = list(answer.values()) if several else [answer]
        counts = {flag: count + any(each.get(flag) for each in own) for flag, count in counts.items()}
        yield answer
    for flag, count in counts.items():
        if count:
            what = f"{flag}: {flags[flag]}, so nothing of it is read; `{flag}` is true in the answer"
            logger.warning("%s %s", part_of(count, rows, "row"), what)


def with_columns(predictor: AnyPredictor, columns: Mapping[str, str]) -> AnyPredictor:
    """The predictor, for rows with columns of other names. columns: canonical column -> theirs. Raises
    DataError.
    """
    several = predictor.tasks if isinstance(predictor, MultiTaskPredictor) else {"": predictor}
    known = {name for each in several.values() for name in chain(each.task.schema.context, *each.task.inputs)}
    if unknown := [name for name in columns if name not in known]:
        raise DataError(
            "column",
            f"this model reads no column {', '.join(map(repr, unknown))}",
            f"It reads {', '.join(sorted(known))}.",
        )
    changed = {name: replace(each, columns={**each.columns, **columns}) for name, each in several.items()}
    return replace(predictor, tasks=changed) if isinstance(predictor, MultiTaskPredictor) else changed[""]


def layout_of(source: str, file: str, overrides: Sequence[str]) -> DataSpec:
    """How a file is written: as the data of the run, if they are of the same kind, and as these overrides
    say.
    """
    recipe = Path(source).expanduser() / "recipe.yaml"
    made = read(recipe, check_files=False) if recipe.is_file() else None
    return like_data(made.data if isinstance(made, Recipe) else DataSpec(source=file), file, overrides)


def like_data(spec: DataSpec, file: str, overrides: Sequence[str] = ()) -> DataSpec:
    """How a file is written, where the data section of a recipe is given; see `layout_of`."""
    layout = parse_layout(overrides)
    kind = "".join(reader.name for reader in by_suffix(suffix_of(file))[:1])
    tables = ("csv", "tsv")
    different = kind and spec.format and (kind in tables) != (spec.format in tables)
    if (
        file == "-" or kind in ("jsonl", "json", "xlsx", "parquet") or different
    ):  # the run's layout does not apply
        spec = spec.model_copy(update={name: DataSpec.model_fields[name].default for name in LAYOUT})
    spec = spec.model_copy(update={"missing_fields": "error"})  # every row gets an answer
    return spec.model_copy(
        update={name: getattr(layout, name) for name in layout.model_fields_set - {"source"}}
    )


def _rows(file: str, spec: DataSpec, documents: bool, problems: Problems) -> Iterator[tuple[int, Json]]:
    if file == "-":
        if sys.stdin is None:
            raise DataError("", "stdin is closed", "Write lines to it, or name a file.")
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


def _flat_rows(pairs: Pairs, answered: Sequence[str]) -> Iterator[list[Any]]:
    """The names of the columns, which are those of the first row, then the values of each row.

    answered: columns that answers have in any case.
    """
    names: list[str] = []
    for answer, row in pairs:
        cells = {
            k: json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict) else v for k, v in row.items()
        }
        answers = dict(flat(answer, "answer."))
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
