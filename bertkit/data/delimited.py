"""Rows of csv and tsv files, and of other tables of texts whose first row is the header."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, dropwhile
from typing import Any, TextIO

from bertkit.data.decoding import MAX_LINE, Lines
from bertkit.data.origin import MAX_LOCATIONS
from bertkit.data.problems import Problems, setting
from bertkit.data.reader import Reader, by_lines
from bertkit.data.schema import Finding, note
from bertkit.data.table import NumberedRows
from bertkit.errors import DataError
from bertkit.sections import DataSpec
from bertkit.text import counted, listed, printable, repeated

Records = Iterator[tuple[int, list[str]]]  # their numbers and fields
logger = logging.getLogger(__name__)

# What a spreadsheet would run (CWE-1236; OWASP, "CSV Injection"), whatever number of apostrophes is before
# it.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
DELIMITERS = ";\t|,"  # those that are recognised where another one is set
# characters of a value, and values of a column, that are remembered
SHORT = 50
MAX_VALUES = 1000
MANY_LINES = 10  # that all look like rows are hardly those of one text
_QUOTES = (
    ("unexpected end of data", "a quote that opens in this row is never closed"),
    ("field larger", f"a quote that opens in this row is not closed within {MAX_LINE:,} characters"),
    ("new-line character", "a carriage return outside quotes"),
    ("", "text follows a closing quote in this row"),
)


def delimited_rows(
    delimiter: str, quoting: bool, lines: Lines, spec: DataSpec, problems: Problems
) -> NumberedRows:
    """Rows as (line, {column: text}), from numbered lines. delimiter: where the recipe has none.

    quoting: whether quotes group fields.
    """
    delimiter = spec.delimiter or delimiter
    if spec.header is True:  # blank lines may come before it, and Excel's sep=;
        lines = dropwhile(lambda line: not line[1].strip() or re.match("sep=.\r?$", line[1]), lines)
    number, first = next(lines, (0, ""))
    other = max(DELIMITERS, key=lambda delimiter: fields_of(first, delimiter))
    several = spec.delimiter is None and (isinstance(spec.header, bool) or len(spec.header) > 1)
    if several and fields_of(first, delimiter) == 1 < (more := fields_of(first, other)):
        what = f"the first line has 1 column; with {other!r} as delimiter it would have {more}: "
        what += first.strip()[:60]
        problems.add(number, what, setting("delimiter", json.dumps(other)))
        deque(lines, maxlen=0)  # what else is wrong with its bytes
        problems.raise_if_any()
    records = _records(chain([(number, first)] if number else (), lines), delimiter, quoting, problems)
    yield from named_records(records, spec, problems, f"{problems.name}:")


def named_records(records: Records, spec: DataSpec, problems: Problems, prefix: str) -> NumberedRows:
    """Rows as (number, {column: text}), from numbered records; the first has the names, if `spec.header` has
    not.

    problems: gets records with too few or too many fields; its findings name those that are left out. prefix:
    of their numbers in messages.
    """
    names = spec.header if isinstance(spec.header, list) else _header(records, spec, problems, prefix)
    short = list[int]()
    for number, fields in records:
        if fields == [""] and len(names) > 1:  # a blank line; with one column it is a row
            continue
        few = len(fields) < len(names)
        if few and spec.missing_fields == "ignore":
            short.append(number)
            continue
        if few or (len(fields) > len(names) and spec.extra_fields == "error"):
            title = "remove a title above the header, " * (spec.header is True)
            fix = f"{title}quote fields that contain the delimiter, or {setting('extra_fields', 'ignore')}"
            if few:
                fix = f"complete these rows; to train without them, {setting('missing_fields', 'ignore')}"
            if few and any('"' in field[:1] + field[-1:] for field in fields):
                fix = f"if quotes group fields, {setting('format', 'csv')}, with the file's delimiter"
            what = f"expected {counted(len(names), 'field')}, found {len(fields)}"
            problems.add(f"{prefix}{number}", what, fix)
        elif fields == names and number == 1:
            what = "the first row repeats the names of `header:`"
            problems.add(f"{prefix}1", what, "remove `header:`: the file has one")
        yield number, dict(zip(names, fields, strict=False))
    if short:
        what = f"{problems.name}: {counted(len(short), 'row')} with too few fields left out"
        problems.findings.append(
            note(f"{what}: {listed([f'{prefix}{number}' for number in short], MAX_LOCATIONS)}")
        )


def guarded(cell: Any) -> Any:
    """A cell of a csv for spreadsheets: texts that these would run as a formula begin with an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def readable_cell(cell: Any) -> Any:
    """A cell of a csv for people: `guarded`, and control characters are escaped, other than tabs and ends of
    lines.
    """
    return guarded(printable(cell, "\r")) if isinstance(cell, str) else cell


def unguarded(cell: Any) -> Any:
    """The cell that `guarded` was given."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == "'" and _FORMULA.match(cell) else cell


def write_csv(
    file: TextIO,
    rows: Iterable[Iterable[Any]],
    name: str,
    delimiter: str = ",",
    written: Callable[[Any], Any] = readable_cell,
) -> None:
    """Write rows as csv, each cell as `written` has it; the log says how many begin with an apostrophe for
    that.

    name: of the file, in the log.
    """
    writer = csv.writer(file, delimiter=delimiter)
    count = 0
    for row in rows:
        pairs = [(cell, written(cell)) for cell in row]
        writer.writerow([cell for _, cell in pairs])
        count += sum(cell != before and unguarded(cell) != cell for before, cell in pairs)
    if count:
        what = "an apostrophe now, so that spreadsheets show them and do not run them as formulas"
        logger.info("%s: %s with %s", name, counted(count, "cell", "begin"), what)


def fields_of(line: str, delimiter: str) -> int:
    """How many fields this delimiter makes of a line."""
    return len(next(csv.reader([re.split("[\r\n]", line[:10_000])[0]], delimiter=delimiter), ()))


def _header(records: Records, spec: DataSpec, problems: Problems, prefix: str) -> list[str]:
    if not spec.header:
        raise DataError(
            problems.name,
            "a file without a header needs the names of its columns",
            f"name the columns, e.g. {setting('header', '[label, text]')}",
        )
    number, fields = next(records, (0, []))
    problems.raise_if_any()
    if not number:
        raise DataError(problems.name, "the file is empty", "Write a header and rows.")
    names = [field.strip().removeprefix("\ufeff").strip() for field in fields]
    if twice := sorted(filter(None, repeated(names))):
        what = f"duplicate columns in the header: {listed(twice)}"
        problems.add(f"{prefix}{number}", what, "Give columns different names.")
        problems.raise_if_any()
    return names


class _Quotes:
    """Watches for quotes that open in one row and close in another, so that one field has all rows
    between.
    """

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        self.seen: list[set[str]] = []  # short values of each column, by which rows are recognised
        # line, number of lines, and by column the short values of these lines: each would be a row if quotes
        # were text
        self.suspects: list[tuple[int, int, dict[int, set[str]]]] = []

    def add(self, number: int, lines: Sequence[str], fields: Sequence[str]) -> None:
        """A record: its line, its lines, and its fields."""
        self.seen = self.seen or [set() for _ in fields]
        if len(lines) > 1 and len(fields) > 1:
            rows = [line.rstrip("\r\n").split(self.delimiter) for line in lines]
            if {len(row) for row in rows} == {len(fields), len(self.seen)}:
                cells = {index: {*column} for index, column in enumerate(zip(*rows, strict=True))}
                short = {index: values for index, values in cells.items() if all(map(_is_short, values))}
                if short or len(lines) >= MANY_LINES:
                    self.suspects.append((number, len(lines), short))
            return
        for values, field in zip(self.seen, fields, strict=False):
            if _is_short(field) and len(values) < MAX_VALUES:
                values.add(field)

    def report(self, problems: Problems) -> None:
        """Each record whose lines have values of other rows in one column; others of many lines are a
        finding.
        """
        for number, lines, cells in self.suspects:
            later = counted(lines - 1, "line")
            what = f"a quote that opens in this row closes {later} later, and each line looks like a row"
            if any(values <= self.seen[index] for index, values in cells.items()):
                problems.add(number, what, _plain(self.delimiter))
            elif lines >= MANY_LINES:
                where = f"{problems.name}:{number}"
                problems.findings.append(Finding("severe", f"{where}: {what}", _plain(self.delimiter)))


def _is_short(field: str) -> bool:
    return 0 < len(field) <= SHORT


def _plain(delimiter: str) -> str:
    plain = f"data: {{format: tsv, delimiter: {json.dumps(delimiter)}}}"
    return f'write a quote inside a quoted field twice (""); if quotes are text, write  {plain}'


def _kept(lines: Lines, read: list[str]) -> Iterator[str]:
    for _, line in lines:
        read.append(line)
        yield line


def _records(lines: Lines, delimiter: str, quoting: bool, problems: Problems) -> Records:
    quotes = _Quotes(delimiter)
    for number, line in lines:
        text = line.rstrip("\r\n")
        if not quoting or ('"' not in text and "\r" not in text):
            fields = text.split(delimiter)
            quotes.add(number, [line], fields)
            yield number, fields
            continue
        read = [line]
        record = csv.reader(chain([line], _kept(lines, read)), delimiter=delimiter, strict=True)
        limit = csv.field_size_limit(MAX_LINE)  # global to the process: changed for one record only
        try:
            fields = next(record)
        except csv.Error as error:
            what = next(text for start, text in _QUOTES if str(error).startswith(start))
            ends = "save the file with Unix or Windows line endings, or quote texts that have one"
            problems.add(number, what, ends if "carriage" in what else _plain(delimiter))
            continue
        finally:
            csv.field_size_limit(limit)
        quotes.add(number, read, fields)
        yield number, fields
    quotes.report(problems)


CSV = Reader("csv", by_lines(partial(delimited_rows, ",", True)), ("csv",), columns="header")
TSV = Reader("tsv", by_lines(partial(delimited_rows, "\t", False)), ("tsv",), columns="header")
