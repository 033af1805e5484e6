"""How a file is written that nobody has described: its encoding and its delimiter, by its beginning."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from bertkit.data.decoding import MARKS, likely_encodings
from bertkit.data.delimited import DELIMITERS
from bertkit.data.reader import opened
from bertkit.data.readers import reader_of
from bertkit.sections import DataSpec
from bertkit.text import Json, repeated

BEGINNING = 4_000_000  # bytes
LINES = 200  # whose fields are counted


def layout_of(path: Path, spec: DataSpec) -> Json:
    """The keys of `data:` that a file needs and the spec leaves out: `encoding`, `delimiter`, and `header` if
    its first row has a value twice that other rows have too. Raises DataError.
    """
    reader = reader_of(path, spec).name
    if reader in ("xlsx", "parquet"):
        return {}
    with opened(path) as stream:
        content = stream.read(BEGINNING) + stream.readline(BEGINNING)
    mark = next(filter(content.startswith, MARKS), b"")
    encoding = MARKS.get(mark) or _encoding(content)
    layout = Json(encoding=encoding)
    usual = {"csv": ",", "tsv": "\t"}.get(reader)
    if usual:
        lines = content.decode(encoding, "ignore").lstrip("\ufeff").splitlines(keepends=True)[:LINES]
        delimiter = max(usual + DELIMITERS, key=partial(_regularity, lines))
        layout["delimiter"] = delimiter
        with suppress(csv.Error, ValueError):
            first, *records = csv.reader(lines, delimiter=spec.delimiter or delimiter)
            twice = {*filter(None, repeated(first))}
            if twice.intersection(chain.from_iterable(records)):
                layout["header"] = names_of(first)
    stated = spec.model_fields_set
    return {key: layout[key] for key in layout if key not in stated and layout[key] not in ("utf-8", usual)}


def _encoding(content: bytes) -> str:
    """UTF-8, also with a few bytes that are not, which its reader locates; or what is most likely."""
    text = content.decode("utf-8", "replace")
    beyond = len(text) - len(text.encode("ascii", "ignore"))
    if 20 * text.count("\N{REPLACEMENT CHARACTER}") < beyond:
        return "utf-8"
    return [*likely_encodings(content), "cp1252"][0]


def names_of(columns: Iterable[str]) -> list[str]:
    """Names for the columns of a file that has none."""
    return [f"column{number}" for number, _ in enumerate(columns, 1)]


def _regularity(lines: Sequence[str], delimiter: str) -> float:
    """The share of records with as many fields as the first; 0 where it has one."""
    widths = list[int]()
    with suppress(csv.Error):  # a field that is too long
        widths.extend(len(fields) for fields in csv.reader(lines, delimiter=delimiter))
    return widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0
