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
    columns = sorted(mapped_columns(spec))
    files = {f"{column}{suffix}": column for column in columns for suffix in (*reversed(COMPRESSIONS), "")}
    sides = {column: file for suffix, column in files.items() if (file := Path(f"{stem}.{suffix}")).is_file()}
    if missing := sides and [f"{stem}.{column}" for column in columns if column not in sides]:
        what = f"no {' and no '.join(missing)}, plain or as {' or '.join(COMPRESSIONS)}, to go with it"
        raise DataError(Problem(str(next(iter(sides.values()))), what, "Correct data.columns, or add the file."))
    return sides


def parallel_rows(files: Mapping[str, Path], spec: DataSpec) -> Iterator[NumberedRow]:
    """Each line of all files as (number, {column: text}).

    Raises DataError with what `read_rows` finds wrong in any of the files, or where one has fewer lines than another.
    """
    lines, last = spec.model_copy(update={"format": "lines"}), dict.fromkeys(files, 0)
    problems = list[Problem]()

    def read(file: Path) -> Iterator[NumberedRow]:
        try:
            yield from read_rows(file, lines)
        except DataError as error:
            problems.extend(error.problems)

    for rows in zip_longest(*map(read, files.values())):
        cells = {column: row for column, row in zip(files, rows, strict=True) if row}
        last.update({column: number for column, (number, _) in cells.items()})
        if len(cells) == len(files):
            yield max(last.values()), {column: row["text"] for column, (_, row) in cells.items()}
    if problems:
        raise DataError(problems)
    longest = max(last.values())
    short = [column for column in files if last[column] < longest]
    if short:
        what = f"the file ends here, but another one has {longest:,} lines"
        fix = "A line and its translation must have the same number."
        raise DataError(Problem(f"{files[column]}:{last[column]}", what, fix) for column in short)
