"""Rows from parquet files and from `datasets`, with ClassLabel numbers replaced by their names."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from bertkit.data.disk_list import AT_A_TIME
from bertkit.data.table import Problems, each_row
from bertkit.errors import DataError, Problem

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Features

MAX_WHOLE = 500_000_000  # bytes of a file that must be held in memory


def parquet_rows(stream: IO[bytes], problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Stream a file as (row counted from 1, {column: value}); DataError where it cannot be read.

    problems: gets class names that `datasets` wrote.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = problems.name
    try:
        with pq.ParquetFile(seekable(stream, name)) as file:
            rows = (row for batch in file.iter_batches(AT_A_TIME) for row in batch.to_pylist())
            problems.class_names = _schema_names(name, file.schema_arrow)
            yield from named_rows(rows, problems.class_names, f"{name}, row ")
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(Problem(name, f"cannot be read as parquet: {error}")) from error


def class_names(features: Features) -> dict[str, list[str]]:
    """Column -> the names of its class numbers (ClassLabel, or a list of it), in order."""
    from datasets import ClassLabel, LargeList, List

    inner = {c: f.feature if isinstance(f, List | LargeList) else f for c, f in features.items()}
    return {column: list(f.names) for column, f in inner.items() if isinstance(f, ClassLabel) and f.names}


def named_rows(
    rows: Iterable[dict[str, Any]], names: Mapping[str, Sequence[str]], prefix: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number rows from 1 and replace ClassLabel numbers by names; -1 (unlabelled) becomes None.

    Raises DataError for numbers without a name, located at `prefix` + number.
    """

    def named(row: dict[str, Any]) -> dict[str, Any]:
        faults = list[str]()
        for column, known in names.items():
            value = row[column]
            ids = value if isinstance(value, list) else [value]
            if any(i is not None and not -1 <= i < len(known) for i in ids):
                faults.append(f"`{column}` holds {value}, but has only {len(known)} names")
                continue
            values = [None if i is None or i == -1 else known[i] for i in ids]
            row[column] = values if isinstance(value, list) else values[0]
        if faults:
            raise ValueError(*faults)
        return row

    return enumerate(each_row(named, lambda index: f"{prefix}{index + 1}", rows) if names else rows, 1)


def _schema_names(name: str, schema: pa.Schema) -> dict[str, list[str]]:
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features

    try:
        return class_names(Features.from_arrow_schema(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(Problem(name, f"its Hugging Face features cannot be read: {error}")) from error


def seekable(stream: IO[bytes], name: str) -> IO[bytes]:
    """The stream, or a copy of it in memory where it cannot be read from its end."""
    if isinstance(stream, io.BufferedReader) and stream.seekable():
        return stream
    return io.BytesIO(read_all(stream, name, "Give the file without further compression: it is streamed."))


def read_all(stream: IO[bytes], name: str, instead: str) -> bytes:
    """All bytes of a stream. Raises DataError where they would fill the memory; instead: the fix."""
    data = stream.read(MAX_WHOLE + 1)
    if len(data) > MAX_WHOLE:
        raise DataError(Problem(name, f"holds more than {MAX_WHOLE:,} bytes, and must be read into memory", instead))
    return data
