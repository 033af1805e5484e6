"""Rows of csv and tsv files, and of other tables of texts whose first row is the header."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain
from typing import Any

from bertkit.data.conll import Lines
from bertkit.data.decoding import MAX_LINE
from bertkit.data.schema import note
from bertkit.data.table import MAX_LOCATIONS, NumberedRow, Problems, setting
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import counted, listed, printable

# What a spreadsheet would run (CWE-1236; OWASP, "CSV Injection"), whatever number of apostrophes is before it.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_DELIMITERS = ";\t|,"  # those that are recognised where another one is set
_QUOTES = (
    ("unexpected end of data", "a quote that opens in this row is never closed"),
    ("field larger", f"a quote that opens in this row is not closed within {MAX_LINE:,} characters"),
    ("new-line character", "a carriage return outside quotes"),
    ("", "text follows a closing quote in this row"),
)


def delimited_rows(
    delimiter: str, quoting: bool, lines: Lines, spec: DataSpec, problems: Problems
) -> Iterator[NumberedRow]:
    """Rows as (line, {column: text}), from numbered lines. delimiter: where the recipe has none.

    quoting: whether quotes group fields.
    """
    delimiter = spec.delimiter or delimiter
    number, first = next(lines, (0, ""))
    other = max(_DELIMITERS, key=lambda each: fields_of(first, each))
    several = spec.delimiter is None and (isinstance(spec.header, bool) or len(spec.header) > 1)
    if several and fields_of(first, delimiter) == 1 < (more := fields_of(first, other)):
        what = f"the first line has 1 field, but {more} where {other!r} separates them: {first.strip()[:60]}"
        problems.add(number, what, setting("delimiter", json.dumps(other)))
        deque(lines, maxlen=0)  # what else is wrong with its bytes
        problems.raise_if_any()
    records = _records(chain([(number, first)] if number else (), lines), delimiter, quoting, problems)
    yield from named_records(records, spec, problems, f"{problems.name}:")


def named_records(
    records: Iterator[tuple[int, list[str]]], spec: DataSpec, problems: Problems, prefix: str
) -> Iterator[NumberedRow]:
    """Rows as (number, {column: text}), from numbered records; the first has the names, if `spec.header` has not.

    problems: gets records with too few or too many fields; its findings name those that are left out. prefix: of
    their numbers in messages.
    """
    names = spec.header if isinstance(spec.header, list) else _header(records, spec, problems, prefix)
    short = list[int]()
    for number, fields in records:
        if fields == [""] and len(names) > 1:  # a blank line; with one column it is a row
            continue
        if len(fields) < len(names) or (len(fields) > len(names) and spec.extra_fields == "error"):
            few = len(fields) < len(names)
            if few and spec.missing_fields == "ignore":
                short.append(number)
                continue
            advice = (
                "complete these rows; to train without them," if few else "quote fields that contain the delimiter, or"
            )
            fix = f"{advice} {setting('missing_fields' if few else 'extra_fields', 'ignore')}"
            problems.add(f"{prefix}{number}", f"{counted(len(fields), 'field')} where {len(names)} are expected", fix)
        elif fields == names and number == 1:
            what = "the first row repeats the names of `header:`"
            problems.add(f"{prefix}1", what, "remove `header:`: the file has one")
        yield number, dict(zip(names, fields, strict=False))
    if short:
        what = f"{problems.name}: {counted(len(short), 'row')} with too few fields left out"
        problems.findings.append(note(f"{what}: {listed([f'{prefix}{number}' for number in short], MAX_LOCATIONS)}"))


def guarded(cell: Any) -> Any:
    """A cell of a csv for spreadsheets: texts that these would run as a formula begin with an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def readable_cell(cell: Any) -> Any:
    """A cell of a csv for people: `guarded`, and control characters are escaped, other than tabs and ends of lines."""
    return guarded(printable(cell, "\r")) if isinstance(cell, str) else cell


def unguarded(cell: Any) -> Any:
    """The cell that `guarded` was given."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == "'" and _FORMULA.match(cell) else cell


def fields_of(line: str, delimiter: str) -> int:
    """How many fields this delimiter makes of a line."""
    return len(next(csv.reader([re.split("[\r\n]", line[:10_000])[0]], delimiter=delimiter), ()))


def _header(records: Iterator[tuple[int, list[str]]], spec: DataSpec, problems: Problems, prefix: str) -> list[str]:
    if not spec.header:
        fix = f"name the columns, e.g. {setting('header', '[label, text]')}"
        raise DataError(Problem(problems.name, "a file without a header needs the names of its columns", fix))
    number, fields = next(records, (0, []))
    problems.raise_if_any()
    if not number:
        raise DataError(Problem(problems.name, "the file is empty"))
    names = [field.strip().removeprefix("\ufeff").strip() for field in fields]
    if twice := sorted(name for name, count in Counter(names).items() if name and count > 1):
        problems.add(f"{prefix}{number}", f"duplicate columns in the header: {listed(twice)}")
        problems.raise_if_any()
    return names


def _records(lines: Lines, delimiter: str, quoting: bool, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        text = line.rstrip("\r\n")
        if not quoting or ('"' not in text and "\r" not in text):
            yield number, text.split(delimiter)
            continue
        record = csv.reader(chain([line], (more for _, more in lines)), delimiter=delimiter, strict=True)
        limit = csv.field_size_limit(MAX_LINE)  # global to the process: changed for one record only
        try:
            fields = next(record)
        except csv.Error as error:
            what = next(text for start, text in _QUOTES if str(error).startswith(start))
            plain = f"data: {{format: tsv, delimiter: {json.dumps(delimiter)}}}"
            fix = f'write a quote inside a quoted field twice (""); if quotes are text, write  {plain}'
            problems.add(number, what, fix)
            continue
        finally:
            csv.field_size_limit(limit)
        yield number, fields
