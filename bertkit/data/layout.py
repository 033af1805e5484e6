"""How a file is written that nobody has described: its encoding and its delimiter, by its beginning."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from bertkit.data.decoding import MARKS, likely_encodings
from bertkit.data.delimited import DELIMITERS
from bertkit.data.reader import opened
from bertkit.data.readers import reader_of
from bertkit.sections import DataSpec
from bertkit.text import Json

BEGINNING = 4_000_000  # bytes
RECORDS = 100  # whose fields are counted


def layout_of(path: Path, spec: DataSpec) -> Json:
    """The keys of `data:` that a file needs and the spec leaves out: `encoding`, `delimiter`, and `header` if
    its first row has a value twice. Raises DataError.
    """
    reader = reader_of(path, spec).name
    if reader in ("xlsx", "parquet"):
        return {}
    with opened(path) as stream:
        content = b"".join(stream.readlines(BEGINNING))
    marked = [encoding for mark, encoding in MARKS.items() if content.startswith(mark)]
    encoding = [*marked, *likely_encodings(content), "cp1252"][0]
    layout: Json = {"encoding": encoding}
    usual = {"csv": ",", "tsv": "\t"}.get(reader, "")
    if usual:
        lines = content.decode(encoding, "ignore").splitlines(keepends=True)
        delimiter = max(usual + DELIMITERS, key=lambda mark: _regularity(lines, mark))
        layout["delimiter"] = delimiter
        first = next(csv.reader(lines, delimiter=spec.delimiter or delimiter), [])
        layout |= {"header": names_of(first)} if len({*first}) < len(first) else {}
    needed = layout.keys() - spec.model_fields_set
    return {key: value for key, value in layout.items() if key in needed and value not in ("utf-8", usual)}


def names_of(columns: Collection[str]) -> list[str]:
    """Names for the columns of a file that has none."""
    return [f"column{number}" for number in range(1, len(columns) + 1)]


def _regularity(lines: Sequence[str], delimiter: str) -> tuple[float, int]:
    """The share of records with as many fields as the first, and how many those are; 0 where it has one."""
    with suppress(csv.Error):
        widths = [len(fields) for fields in islice(csv.reader(lines, delimiter=delimiter), RECORDS) if fields]
        if widths and widths[0] > 1:
            return widths.count(widths[0]) / len(widths), widths[0]
    return 0, 0
