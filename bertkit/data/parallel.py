"""Parallel texts as Moses and fairseq have them: NAME.en and NAME.de, whose lines with one number are a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from bertkit.data.readers import COMPRESSIONS, FORMATS, read_rows, suffix_of
from bertkit.data.schema import mapped_columns
from bertkit.data.table import NumberedRow
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec


def stem_of(file: Path, spec: DataSpec) -> Path | None:
    """NAME of NAME.en or NAME.en.gz, where `data.columns` maps `en`; None for any other file."""
    suffix = suffix_of(file)
    if suffix in FORMATS or suffix not in mapped_columns(spec):
        return None
    return (file.with_suffix("") if file.suffix in COMPRESSIONS else file).with_suffix("")


def parallel_files(stem: Path, spec: DataSpec) -> dict[str, Path]:
    """Column, such as en -> NAME.en or NAME.en.gz: the files of the columns that `data.columns` maps; or empty.

    Raises DataError where only some of them exist.
    """
    names = [stem.with_name(f"{stem.name}.{column}") for column in sorted(mapped_columns(spec))]
    files = (Path(f"{name}{suffix}") for name in names for suffix in ("", *COMPRESSIONS))
    found = {suffix_of(file): file for file in files if file.is_file() and stem_of(file, spec) == stem}
    if missing := found and [str(name) for name in names if name.suffix[1:] not in found]:
        what = f"no {' and no '.join(missing)}, plain or as {' or '.join(COMPRESSIONS)}, to go with it"
        raise DataError(Problem(str(next(iter(found.values()))), what, "Correct data.columns, or add the file."))
    return found


def parallel_rows(files: Mapping[str, Path], spec: DataSpec) -> Iterator[NumberedRow]:
    """Each line of all files as (number, {column: text}).

    Raises DataError as `read_rows` does, and where one file has fewer lines than another.
    """
    lines, last = spec.model_copy(update={"format": "lines"}), dict.fromkeys(files, 0)
    for rows in zip_longest(*(read_rows(file, lines) for file in files.values())):
        given = {column: row for column, row in zip(files, rows, strict=True) if row}
        last.update({column: number for column, (number, _) in given.items()})
        if len(given) == len(files):
            yield max(last.values()), {column: row["text"] for column, (_, row) in given.items()}
    longest = max(last.values())
    short = [column for column in files if last[column] < longest]
    if short:
        what, fix = (
            f"the last line, where other files go on to {longest:,}",
            "Give each text the same line in all files.",
        )
        raise DataError(Problem(f"{files[column]}:{last[column]}", what, fix) for column in short)
