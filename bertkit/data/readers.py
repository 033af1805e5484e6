"""Rows from files, one at a time: csv, tsv, xlsx, json, jsonl, parquet, conll, conllu, txt; also as .gz or .xz.

Values in csv and tsv stay text, including "NA", "null" and "1.0". Memory is constant, except for json (one document),
the texts of xlsx, and compressed files that are read from their end (parquet). Problems with rows
are gathered: one DataError names up to 20. A json document in the layout of SQuAD is read as one row per question; see
`squad_rows`; one that Label Studio exported as rows with text, spans and labels; see `task_rows`. In txt, blank lines
separate documents, and each line is a paragraph; in `lines`, each line is a text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertkit.data.arrow import MAX_WHOLE, parquet_rows, read_all
from bertkit.data.conll import Lines, conll_rows, conllu_rows
from bertkit.data.decoding import text_lines
from bertkit.data.delimited import delimited_rows, named_records
from bertkit.data.excel import sheet_records
from bertkit.data.label_studio import is_export, task_rows
from bertkit.data.squad import is_squad, squad_rows
from bertkit.data.table import NumberedRow, Problems, WrongType, setting
from bertkit.errors import DataError, Problem, translated
from bertkit.sections import DataSpec

FORMATS = {  # suffix of a file name -> format
    **{name: name for name in ("csv", "tsv", "xlsx", "json", "jsonl", "parquet", "conll", "conllu", "txt")},
    **dict.fromkeys(("bio", "iob", "iob2", "bioes"), "conll"),
}
COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
MAX_DOCUMENT = 100_000_000  # characters of txt without a blank line
_SURROGATE = re.compile(r"\\u[dD]")


def suffix_of(file: str | Path) -> str:
    """What a file name ends with, without the dot and without a compression: csv of `a.csv.gz`."""
    path = Path(file)
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.removeprefix(".")


def format_of(path: Path, spec: DataSpec) -> str:
    """The format of a file: the recipe's, or by its name. Raises DataError for an unknown suffix."""
    suffix = suffix_of(path)
    if spec.format is None and suffix in ("xls", "xlsb", "xlsm", "ods", "arrow"):
        raise DataError(Problem(str(path), f"a .{suffix} file is not read", "save it as .xlsx, .csv or .parquet"))
    if spec.format is None and suffix not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        what = f"unknown file format; known: {known}, each also with .gz or .xz"
        fix = f"Rename it, or {setting('format', 'csv')}"
        raise DataError(Problem(str(path), what, fix))
    return spec.format or FORMATS[suffix]


def one_text_per_line(path: Path, spec: DataSpec) -> DataSpec:
    """The data section for reading texts, not documents: each line of .txt is a row."""
    return spec.model_copy(update={"format": "lines"}) if format_of(path, spec) == "txt" else spec


def row_prefix(name: str, file_format: str) -> str:
    """The prefix of row numbers in messages: `train.csv:` for lines, `x.json, row ` for rows."""
    return f"{name}, row " if file_format in ("json", "xlsx", "parquet") else f"{name}:"


def read_rows(path: Path, spec: DataSpec, problems: Problems | None = None) -> Iterator[NumberedRow]:
    """Stream the rows of a file as (number, {column: value}).

    problems: gets findings while they are read, and before the first row class names.
    The number is the line on which the row begins; in json, xlsx and parquet, the number of the row; both from 1.
    Nothing is yielded after the first bad row, but reading continues to gather more of them.
    Raises DataError: no such file, a folder, an unknown format, a broken archive, bad rows, no rows.
    """
    file_format = format_of(path, spec)
    with opened(path) as stream:
        problems = Problems(str(path)) if problems is None else problems
        yield from _rows(stream, problems, spec, file_format)


def rows_or_problems(path: Path, spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    """The rows of one of several files: why it cannot be read goes to `problems`, beside those of the others."""
    try:
        yield from read_rows(path, spec)
    except DataError as error:
        problems.take(error)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, and for the block DataErrors in place of the errors of reading it."""
    where, fix = str(path), "copy or download the file again"
    damage = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
    with (
        translated(OSError, DataError, where, "cannot be read"),
        translated(damage, DataError, where, "the archive is damaged or incomplete", fix),
        COMPRESSIONS.get(path.suffix, open)(path, "rb") as stream,
    ):
        yield stream


class TextRow(NamedTuple):
    """A row, its text, and where it is, such as `train.csv:7`."""

    where: str
    text: str
    row: dict[str, Any]


def read_texts(file: Path, spec: DataSpec, column: str = "text", *, skip_missing: bool = False) -> Iterator[TextRow]:
    """Stream the rows of a file, each with the text in `column`; each line of .txt is a text.

    skip_missing: leave out rows in which it is None. Raises DataError: what `read_rows` refuses, and, after the last
    row, rows without this column or with another value in it.
    """
    spec = one_text_per_line(file, spec)
    column = "text" if spec.format == "lines" else column
    where, problems = row_prefix(str(file), format_of(file, spec)), Problems()
    for number, row in read_rows(file, spec):
        value = row.get(column)
        if column not in row:
            cells = ", ".join(map(str, row)) or "nothing"
            what, fix = f"no column {column!r}; found {cells}", "Name the column."
            problems.add(f"{where}{number}", what, fix, kind="no column")
        elif isinstance(value, str):
            yield TextRow(f"{where}{number}", value, row)
        elif value is not None or not skip_missing:
            problems.add_error(f"{where}{number}", WrongType(value, "text"), f"{column!r} ")
    problems.raise_if_any()


def read_stream(stream: IO[bytes], name: str, spec: DataSpec) -> Iterator[NumberedRow]:
    """The rows of a stream as they come: a line is a JSON object, or the text of a row.

    name: for messages. Raises DataError at the first line that cannot be read: the rows before it may have answers.
    """
    problems = Problems(name)
    for number, row in _jsonl(_objects(stream, spec, problems), spec, problems):
        problems.raise_if_any()
        yield number, row
    problems.raise_if_any()


def _objects(stream: IO[bytes], spec: DataSpec, problems: Problems) -> Lines:
    for number, line in text_lines(stream, spec.encoding, problems):
        is_text = line.strip() and not line.lstrip().startswith("{")
        yield number, json.dumps({"text": line.rstrip("\r\n")}) if is_text else line


def _rows(stream: IO[bytes], problems: Problems, spec: DataSpec, file_format: str) -> Iterator[NumberedRow]:
    if file_format == "parquet":
        rows = parquet_rows(stream, problems)
    elif file_format == "json":
        rows = _json(stream, spec, problems)
    elif file_format == "xlsx":
        width = len(spec.header) if isinstance(spec.header, list) else 0
        records = sheet_records(stream, problems, sheet=spec.sheet, width=width)
        rows = named_records(records, spec, problems, row_prefix(problems.name, file_format))
    else:
        rows = _LINE_FORMATS[file_format](text_lines(stream, spec.encoding, problems), spec, problems)
    number = 0
    for number, row in rows:
        if not problems:
            yield number, row
    problems.raise_if_any()
    if not number:
        raise DataError(Problem(problems.name, "holds no rows"))


def written_like(path: Path, spec: DataSpec) -> tuple[str, str]:
    """Delimiter and encoding of a csv file, for another that opens in the same program; otherwise a comma and UTF-8."""
    if format_of(path, spec) != "csv":
        return ",", "utf-8"
    with opened(path) as stream:
        marked = stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return spec.delimiter or ",", "utf-8-sig" if marked else spec.encoding


def _texts(lines: Lines, spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    return ((number, {"text": line.rstrip("\r\n")}) for number, line in lines)


def _documents(lines: Lines, spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    start, size, paragraphs = 0, 0, list[str]()
    for number, line in chain(lines, [(0, "")]):
        paragraph = line.strip()
        if paragraph:
            start = start or number
            size += len(paragraph)
            paragraphs.append(paragraph)
        elif paragraphs:
            yield start, {"text": "\n".join(paragraphs)}
            start, size, paragraphs = 0, 0, []
        if size > MAX_DOCUMENT:
            fix = "put a blank line between documents"
            problems.add(start, f"no blank line within {MAX_DOCUMENT:,} characters", fix)
            return


def _not_json(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at column {error.colno}"
    return f"not JSON that can be read: {error}"


def _jsonl(lines: Lines, spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line.rstrip())
        except (ValueError, RecursionError) as error:
            problems.add(number, _not_json(error))
            row = {}
        _check_object(row, line, number, problems)
        yield number, row


def _check_object(row: Any, text: str, where: str | int, problems: Problems) -> None:
    if not isinstance(row, dict):
        kind = "a list" if isinstance(row, list) else json.dumps(row)[:20]
        problems.add(where, f'{kind}, where an object such as {{"text": "…"}} is expected')
    elif _SURROGATE.search(text):
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            problems.add(where, r"half of a surrogate pair (an escape such as \ud83d alone) is not text")


def _json(stream: IO[bytes], spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    name = problems.name
    data = read_all(stream, name, "Write it as jsonl, one object per line, which is streamed.")
    text = "".join(line for _, line in text_lines(io.BytesIO(data), spec.encoding, problems, MAX_WHOLE))
    problems.raise_if_any()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = _not_json(error) if text.strip() else "the file is empty"
        fix = f"if every line is an object, {setting('format', 'jsonl')}" if "Extra data" in what else ""
        where = f"{name}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else name
        raise DataError(Problem(where, what, fix)) from error
    lists = {k: v for k, v in content.items() if isinstance(v, list)} if isinstance(content, dict) else {}
    rows = content if isinstance(content, list) else lists.get("data")
    if rows is None and len(lists) == 1:
        (rows,) = lists.values()
    if rows is None:
        what = 'expected a list of objects, or an object with one such list, e.g. {"data": […]}'
        fix = 'With pandas: frame.to_json("FILE.jsonl", orient="records", lines=True).'
        raise DataError(Problem(name, what, fix))
    escapes, where = text if _SURROGATE.search(text) else "", row_prefix(name, "json")
    numbered: Iterator[NumberedRow] = enumerate(rows, 1)
    if is_squad(content):
        numbered = squad_rows(content, problems)
    elif is_export(rows):
        numbered = task_rows(rows, where, spec, problems)
    for number, row in numbered:
        _check_object(row, escapes, f"{where}{number}", problems)
        yield number, row


_LINE_FORMATS: dict[str, Callable[[Lines, DataSpec, Problems], Iterator[NumberedRow]]] = {
    "csv": partial(delimited_rows, ",", True),
    "tsv": partial(delimited_rows, "\t", False),
    "jsonl": _jsonl,
    "conll": conll_rows,
    "conllu": conllu_rows,
    "txt": _documents,
    "lines": _texts,
}
