"""How a file is written that nobody has described: its encoding and its delimiter, by its beginning."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from bertkit.data.decoding import MARKS, likely_encodings
from bertkit.data.delimited import DELIMITERS
from bertkit.data.reader import opened
from bertkit.data.readers import reader_of
from bertkit.sections import DataSpec
from bertkit.text import Json

BEGINNING = 4_000_000  # bytes
LINES = 200  # whose fields are counted


def layout_of(path: Path, spec: DataSpec) -> Json:
    """The keys of `data:` that a file needs and the spec leaves out: `encoding`, `delimiter`, and `header` if
    its first row has a value twice. Raises DataError.
    """
    reader = reader_of(path, spec).name
    if reader in ("xlsx", "parquet"):
        return {}
    with opened(path) as stream:
        content = b"".join(stream.readlines(BEGINNING))
    mark = next(filter(content.startswith, MARKS), b"")
    encoding = MARKS.get(mark) or [*likely_encodings(content), "cp1252"][0]
    layout = Json(encoding=encoding)
    usual = {"csv": ",", "tsv": "\t"}.get(reader)
    if usual:
        lines = content.decode(encoding, "ignore").splitlines(keepends=True)[:LINES]
        delimiter = max(usual + DELIMITERS, key=partial(_regularity, lines))
        layout["delimiter"] = delimiter
        with suppress(csv.Error, StopIteration):
            first = next(csv.reader(lines, delimiter=spec.delimiter or delimiter))
            if len({*first}) < len(first):
                layout["header"] = names_of(first)
    stated = spec.model_fields_set
    return {key: layout[key] for key in layout if key not in stated and layout[key] not in ("utf-8", usual)}


def names_of(columns: Iterable[str]) -> list[str]:
    """Names for the columns of a file that has none."""
    return [f"column{number}" for number, _ in enumerate(columns, 1)]


def _regularity(lines: Sequence[str], delimiter: str) -> float:
    """The share of records with as many fields as the first; 0 where it has one."""
    with suppress(csv.Error, IndexError):
        widths = [len(fields) for fields in csv.reader(lines, delimiter=delimiter)]
        return (widths[0] > 1) * widths.count(widths[0]) / len(widths)
    return 0
