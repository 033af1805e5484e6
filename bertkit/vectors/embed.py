"""Vectors for files of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertkit.data.readers import TextRow, read_texts
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, translated
from bertkit.files import require_no_pipe, require_suffix, written_aside
from bertkit.inference.batch import VECTOR
from bertkit.inference.progress import progress
from bertkit.processes import Shard
from bertkit.recipe.recipe import parse_layout
from bertkit.sections import DataSpec
from bertkit.text import Json, Record
from bertkit.vectors.cache import CHUNK, Vectors

Parts = Iterable[tuple[list[Json], Vectors]]  # rows, and the vectors of their texts


def embed_file(
    encode: Callable[[list[str]], Vectors],
    file: str | Path,
    output: Path,
    *,
    column: str = "text",
    overrides: Sequence[str] = (),
    shard: Shard | None = None,
) -> int:
    """Write the vector of each row's text, in the rows' order and in constant memory; returns how many.

    encode: texts -> float32 `(texts, size)`. file: csv, tsv, json, jsonl, parquet, or txt with a text a line.
    overrides: how it is written, such as `data.delimiter=";"`. shard: the part of the rows to write; None:
    all.
    output: .parquet, the row's own columns and `vector`, a list of fixed size; or .npy, `(rows, size)`. The
    file is read twice: all problems are reported before the first text is encoded. Raises DataError and
    RecipeError, and then leaves no output.
    """
    require_suffix(output, ".parquet", ".npy")
    file = Path(file)
    require_no_pipe(file)
    parquet = output.suffix == ".parquet"
    chunks = partial(_chunks, file, parse_layout(overrides), column)
    schema, rows = _inspect(file, chunks(), parquet)
    count = 0
    part = shard.rows(file, rows, CHUNK) if shard else range(rows)

    def parts() -> Parts:
        nonlocal count
        wanted = islice(chunks(), part.start // CHUNK, -(-part.stop // CHUNK))
        for chunk in progress(wanted, "text", len(part), CHUNK):
            yield (
                [item.row for item in chunk],
                np.asarray(encode([replace_surrogates(item.text) for item in chunk]), dtype=np.float32),
            )
            count += len(chunk)

    with written_aside(output) as sink:
        if parquet:
            _write_parquet(sink.buffer, parts(), schema, file)
        else:
            _write_npy(sink.buffer, parts(), len(part))
        if count != len(part):
            raise DataError(file, "has changed while it was read", "Run the same command again.")
    return count


def _chunks(file: Path, layout: DataSpec, column: str) -> Iterator[list[TextRow]]:
    rows = read_texts(file, layout, column)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _inspect(file: Path, chunks: Iterable[list[TextRow]], parquet: bool) -> tuple[pa.Schema, int]:
    """The schema of the rows' own columns, which only parquet has, and the number of rows. Raises
    DataError.
    """
    schema = pa.schema([])
    count = 0
    for chunk in chunks:
        if parquet:
            if any(VECTOR in item.row for item in chunk):
                raise DataError(file, f"the rows have a column `{VECTOR}` already", "Rename it.")
            theirs = _table([item.row for item in chunk], None, file).schema
            with _arrow_errors(str(file)):
                schema = pa.unify_schemas([schema, theirs], promote_options="permissive")
        count += len(chunk)
    return schema, count


def _arrow_errors(where: str) -> AbstractContextManager[None]:
    what = "cannot be written as parquet"
    fix = "Use one type per column, or write .npy."
    return translated((pa.ArrowException, OverflowError), DataError, where, what, fix)


def _table(rows: Sequence[Record], schema: pa.Schema | None, file: Path) -> pa.Table:
    """The rows as columns, with the types of the schema, or inferred ones."""
    names = dict.fromkeys(name for row in rows for name in row) if schema is None else schema.names
    arrays = {}
    for name in names:
        with _arrow_errors(f"{file}, column `{name}`"):
            arrays[name] = pa.array([row.get(name) for row in rows], schema and schema.field(name).type)
    return pa.table(arrays)


def _write_parquet(sink: IO[bytes], parts: Parts, schema: pa.Schema, file: Path) -> None:
    """A row group per part."""
    writer = None
    with ExitStack() as stack:
        for rows, vectors in parts:
            values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
            table = _table(rows, schema, file).append_column(VECTOR, values)
            with _arrow_errors(str(file)):
                writer = writer or stack.enter_context(pq.ParquetWriter(sink, table.schema))
                writer.write_table(table, row_group_size=CHUNK)


def _write_npy(sink: IO[bytes], parts: Parts, total: int) -> None:
    """The header with the first part, then the numbers."""
    for number, (_, vectors) in enumerate(parts):
        if not number:
            header = {"descr": "<f4", "fortran_order": False, "shape": (total, vectors.shape[1])}
            np.lib.format.write_array_header_1_0(sink, header)
        sink.write(vectors.astype("<f4").tobytes())
