"""Rows from files, one at a time: csv, tsv, xlsx, json, jsonl, parquet, conll, conllu, txt; also as .gz or
.xz.

Values in csv and tsv stay text, including "NA", "null" and "1.0". Memory is constant, except for json (one
document), the texts of xlsx, and compressed files that are read from their end (parquet). Problems with rows
are gathered: one DataError names up to 20. A json document in the layout of SQuAD is read as one row per
question; see `squad_rows`; one that Label Studio exported as rows with text, spans and labels; see
`task_rows`. In txt, blank lines separate documents, and each line is a paragraph; in `lines`, each line is a
text.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertkit.data import plugins
from bertkit.data.arrow import MAX_WHOLE, PARQUET, read_all
from bertkit.data.conll import CONLL, CONLLU
from bertkit.data.decoding import Lines, text_lines
from bertkit.data.delimited import CSV, TSV
from bertkit.data.excel import XLSX
from bertkit.data.label_studio import is_export, task_rows
from bertkit.data.problems import Problems, WrongType, setting
from bertkit.data.reader import GROUP, OpenFile, Reader, by_lines, opened, uncompressed
from bertkit.data.squad import is_squad, squad_rows
from bertkit.data.table import NumberedRows, Row
from bertkit.errors import DataError
from bertkit.files import is_special
from bertkit.sections import DataSpec
from bertkit.text import repeated
from bertkit.validation import describe, did_you_mean

MAX_DOCUMENT = 100_000_000  # characters of txt without a blank line
_SURROGATE = re.compile(r"\\u[dD]")


def suffix_of(file: str | Path) -> str:
    """What a file name ends with, without the dot and without a compression: csv of `a.csv.gz`."""
    return uncompressed(Path(file)).suffix.removeprefix(".")


def by_suffix(suffix: str) -> list[Reader]:
    """The readers of files with this suffix: bertkit's, else those of other packages; none for an unknown
    one.
    """
    ours = [reader for reader in READERS if suffix in reader.suffixes]
    return ours or [reader for reader in formats() if suffix and suffix in reader.suffixes]


def by_name(name: str) -> Reader:
    """The reader of a format. Raises DataError where there is none, or that of another package cannot be
    used.
    """
    ours = [reader for reader in READERS if reader.name == name]
    if readers := ours or [reader for reader in formats() if reader.name == name]:
        return readers[0]
    names = [reader.name for reader in formats()]
    what = _others().get(name, f"no format {name!r}{did_you_mean(name, names)}")
    plugins.forget()  # one may be installed now
    raise DataError("data.format", str(what), f"Known: {', '.join(names)}.")


def formats() -> list[Reader]:
    """The readers of bertkit, and those of other packages that can be used."""
    return [*READERS, *(reader for reader in _others().values() if isinstance(reader, Reader))]


def _others() -> dict[str, Reader | str]:
    """Format -> its reader in another package, or why it cannot be used."""
    names = sorted(plugins.announced(GROUP).keys() - {reader.name for reader in READERS})
    loaded = {name: plugins.load(GROUP, name, _fault) for name in names}
    return {
        name: reader if isinstance(reader, str) else reader._replace(name=name)
        for name, reader in loaded.items()
    }


def _fault(reader: object, name: str) -> str:
    """Why this cannot be the reader of a format; empty if it can."""
    if not isinstance(reader, Reader):
        return f"{describe(reader)} is not a bertkit.data.Reader"
    taken = [f".{suffix}" for ours in READERS for suffix in ours.suffixes if suffix in reader.suffixes]
    return f"bertkit reads {', '.join(taken)} itself" if taken else ""


def reader_of(path: Path, spec: DataSpec) -> Reader:
    """What reads a file: by the recipe's format, or by its name. Raises DataError for an unknown format or
    suffix.
    """
    if spec.format is not None:
        return by_name(spec.format)
    suffix = suffix_of(path)
    readers = by_suffix(suffix)
    if not readers and suffix in ("xls", "xlsb", "xlsm", "ods", "arrow", "zip"):
        raise DataError(path, f".{suffix} is not supported", "Save or unpack it as .xlsx, .csv or .parquet.")
    if len(readers) > 1:
        raise DataError(
            path,
            f"several formats have this suffix: {', '.join(reader.name for reader in readers)}",
            setting("format", readers[0].name),
        )
    if not readers:
        suffixes = ", ".join(f".{suffix}" for reader in formats() for suffix in reader.suffixes)
        broken = "".join(f"; {what}" for what in _others().values() if isinstance(what, str))
        plugins.forget()
        raise DataError(
            path,
            f"unknown file format; known: {suffixes}, each also with .gz or .xz{broken}",
            f"Rename it, or {setting('format', 'csv')}",
        )
    return readers[0]


def one_text_per_line(path: Path, spec: DataSpec) -> DataSpec:
    """The data section for reading texts, not documents: each line of .txt is a row."""
    return spec.model_copy(update={"format": "lines"}) if reader_of(path, spec) is TXT else spec


def read_rows(path: Path, spec: DataSpec, problems: Problems | None = None) -> NumberedRows:
    """Stream the rows of a file as (number, {column: value}).

    problems: gets findings while they are read, and before the first row class names. The number is the line
    on which the row begins; in json, xlsx and parquet, the number of the row; both from 1. Nothing is yielded
    after the first bad row, but reading continues to gather more of them.
    Raises DataError: no such file, a folder, an unknown format, a broken archive, bad rows, no rows, or a
    `header` that names a column twice.
    """
    reader = reader_of(path, spec)
    if twice := sorted(filter(None, repeated(spec.header if isinstance(spec.header, list) else ()))):
        what = f"names a column twice: {', '.join(twice)}"
        raise DataError("data.header", what, "Give columns different names.")
    number = 0
    with opened(path) as stream:
        problems = Problems(str(path)) if problems is None else problems
        for number, row in reader.rows(OpenFile(path, stream, spec, problems)):
            if not problems:
                yield number, row
        problems.raise_if_any()
        if not number:
            what = "is empty: no rows" + " after the header" * (reader in (CSV, TSV, XLSX))
            raise DataError(problems.name, what, "Is it the right file?")


def rows_or_problems(path: Path, spec: DataSpec, problems: Problems) -> NumberedRows:
    """The rows of one of several files: why it cannot be read goes to `problems`, beside those of the
    others.
    """
    try:
        yield from read_rows(path, spec)
    except DataError as error:
        problems.take(error)


class TextRow(NamedTuple):
    """A row, its text, and where it is, such as `train.csv:7`."""

    where: str
    text: str
    row: Row


def read_texts(file: Path, spec: DataSpec, column: str, *, skip_missing: bool = False) -> Iterator[TextRow]:
    """Stream the rows of a file, each with the text in `column`; each line of .txt is a text.

    skip_missing: leave out rows in which it is None. Raises DataError: what `read_rows` refuses, and, after
    the last row, rows without this column or with another value in it.
    """
    spec = one_text_per_line(file, spec)
    column = "text" if spec.format == "lines" else column
    where = reader_of(file, spec).prefix(str(file))
    problems = Problems()
    for number, row in read_rows(file, spec):
        value = row.get(column)
        if column not in row:
            cells = ", ".join(map(str, row)) or "nothing"
            what = f"no column {column!r}; found {cells}"
            fix = "Name the column."
            problems.add(f"{where}{number}", what, fix, kind="no column")
        elif isinstance(value, str):
            yield TextRow(f"{where}{number}", value, row)
        elif value is not None or not skip_missing:
            problems.add_error(f"{where}{number}", WrongType(value, "text"), f"{column!r} ")
    problems.raise_if_any()


def read_stream(stream: IO[bytes], name: str, spec: DataSpec) -> NumberedRows:
    """The rows of a stream as they come: a line is a JSON object, or the text of a row.

    name: for messages. Raises DataError without rows, and at the first line that cannot be read: the rows
    before it may have answers.
    """
    problems = Problems(name)
    number = 0
    for number, row in _jsonl(_objects(stream, spec, problems), spec, problems):
        problems.raise_if_any()
        yield number, row
    problems.raise_if_any()
    if not number:
        raise DataError(name, "is empty: no rows", "Is it the right input?")


def _objects(stream: IO[bytes], spec: DataSpec, problems: Problems) -> Lines:
    is_text = False
    for number, line in text_lines(stream, spec.encoding, problems):
        if line.strip():  # a blank line is an empty text after a text, nothing after an object
            is_text = not line.lstrip().startswith("{")
        yield number, json.dumps({"text": line.rstrip("\r\n")}) if is_text else line


def written_like(path: Path, spec: DataSpec) -> tuple[str, str]:
    """Delimiter and encoding of a csv file, for another that opens in the same program; otherwise a comma and
    UTF-8.
    """
    if reader_of(path, spec) is not CSV:
        return ",", "utf-8"
    marked = False
    if not is_special(path):  # the rows would lack what is read of a pipe here
        with opened(path) as stream:
            marked = stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return spec.delimiter or ",", "utf-8-sig" if marked else spec.encoding


def _texts(lines: Lines, spec: DataSpec, problems: Problems) -> NumberedRows:
    return ((number, {"text": line.rstrip("\r\n")}) for number, line in lines)


def _documents(lines: Lines, spec: DataSpec, problems: Problems) -> NumberedRows:
    start = 0
    size = 0
    paragraphs = list[str]()
    for number, line in chain(lines, [(0, "")]):
        paragraph = line.strip()
        if paragraph:
            start = start or number
            size += len(paragraph)
            paragraphs.append(paragraph)
        elif paragraphs:
            yield start, {"text": "\n".join(paragraphs)}
            start = 0
            size = 0
            paragraphs = []
        if size > MAX_DOCUMENT:
            fix = "put a blank line between documents"
            problems.add(start, f"no blank line within {MAX_DOCUMENT:,} characters", fix)
            return


def _not_json(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at column {error.colno}"
    return f"not JSON that can be read: {error}"


def _jsonl(lines: Lines, spec: DataSpec, problems: Problems) -> NumberedRows:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line.rstrip())
        except (ValueError, RecursionError) as error:
            problems.add(number, _not_json(error), "Write one JSON object per line.")
            row = {}
        _check_object(row, line, number, problems)
        yield number, row


def _check_object(row: Any, text: str, where: str | int, problems: Problems) -> None:
    if not isinstance(row, dict):
        kind = "a list" if isinstance(row, list) else json.dumps(row)[:20]
        problems.add(where, f"expected an object, found {kind}", 'Write {"text": "…"}.')
    elif _SURROGATE.search(text):
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            what = r"half of a surrogate pair (an escape such as \ud83d alone) is not text"
            problems.add(where, what, "Remove it, or write the whole character.")


def _json(file: OpenFile) -> NumberedRows:
    spec = file.spec
    problems = file.problems
    name = problems.name
    data = read_all(file.stream, name, "Write it as jsonl, one object per line, which is streamed.")
    text = "".join(line for _, line in text_lines(io.BytesIO(data), spec.encoding, problems, MAX_WHOLE))
    problems.raise_if_any()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = _not_json(error) if text.strip() else "the file is empty"
        raise DataError(
            f"{name}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else name,
            what,
            f"if every line is an object, {setting('format', 'jsonl')}" if "Extra data" in what else "",
        ) from error
    values = content if isinstance(content, dict) else {"data": content}
    lists = {key: value for key, value in values.items() if isinstance(value, list)}
    rows = lists.get("data")
    if rows is None and len(lists) == 1:
        (rows,) = lists.values()
    if rows is None:
        raise DataError(
            name,
            'expected a list of objects, or an object with one such list, e.g. {"data": […]}',
            'With pandas: frame.to_json("FILE.jsonl", orient="records", lines=True).',
        )
    escapes = text if _SURROGATE.search(text) else ""
    where = JSON.prefix(name)
    numbered: NumberedRows = enumerate(rows, 1)
    if is_squad(content):
        numbered = squad_rows(content, problems)
    elif is_export(rows):
        numbered = task_rows(rows, where, spec, problems)
    for number, row in numbered:
        _check_object(row, escapes, f"{where}{number}", problems)
        yield number, row


TXT = Reader("txt", by_lines(_documents), ("txt",), columns="fixed")
LINES = Reader("lines", by_lines(_texts), columns="fixed")
JSONL = Reader("jsonl", by_lines(_jsonl), ("jsonl",))
JSON = Reader("json", _json, ("json",), "row")
READERS = (CSV, TSV, XLSX, JSON, JSONL, PARQUET, CONLL, CONLLU, TXT, LINES)
