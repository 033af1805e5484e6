"""Vectors for files of any length; listing and clearing the vectors that are cached."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import numpy as np

from bertkit.cache import cache_root
from bertkit.data.readers import format_of, read_rows, row_prefix, text_a_row
from bertkit.data.table import Problems
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, Problem, UserError
from bertkit.files import written_aside
from bertkit.inference.vector_cache import CHUNK, clear, stores
from bertkit.sections import DataSpec
from bertkit.text import columns, short_repr

if TYPE_CHECKING:
    import pyarrow as pa

    from bertkit.inference.features import Features

    Vectors = np.ndarray[Any, np.dtype[np.float32]]
    Encode = Callable[[list[str]], Vectors]
    Parts = Iterable[tuple[list[dict[str, Any]], Vectors]]

VECTOR = "vector"  # the added column


def embed_file(encode: Encode, file: str | Path, output: Path, *, column: str = "text") -> int:
    """Write the vector of each row's text, in the rows' order and in constant memory; returns how many.

    encode: texts -> float32 `(texts, size)`. file: csv, tsv, json, jsonl, parquet, or txt with a text a line.
    output: .parquet, the row's own columns and `vector`, a list of fixed size; or .npy, `(rows, size)`. The file is
    read twice: all problems are reported before the first text is encoded. Raises DataError, and then leaves no output.
    """
    if output.suffix not in (".parquet", ".npy"):
        kind = output.suffix or "a file without a suffix"
        raise DataError(Problem(str(output), f"cannot write {kind}", "Name a .parquet or .npy."))
    file = Path(file)
    schema, total = _inspect(file, column, own_columns=output.suffix == ".parquet")

    def parts() -> Iterator[tuple[list[dict[str, Any]], Vectors]]:
        for chunk in _chunks(file):
            texts = [replace_surrogates(row[column]) for _, row in chunk]
            yield [row for _, row in chunk], np.asarray(encode(texts), dtype=np.float32)

    with written_aside(output) as text_file:
        sink = cast(TextIO, text_file).buffer
        count = _write_parquet(sink, parts(), schema, file) if schema else _write_npy(sink, parts(), total)
        if count != total:
            raise DataError(Problem(str(file), "has changed while it was read", "Run the same command again."))
    return count


def embed_features(features: Features, file: str | Path, output: Path, *, column: str = "text") -> int:
    """`embed_file` with a frozen encoder; one warning counts the texts that were cut, over the whole file.

    Raises ModelError on invalid parameters of `features`, and DataError.
    """
    from bertkit.inference.features import cut_texts

    cut = dropped = 0

    def encode(texts: list[str]) -> Vectors:
        nonlocal cut, dropped
        vectors, lost = features.vectors(texts)
        cut, dropped = cut + int(np.count_nonzero(lost)), dropped + int(lost.sum())
        return vectors

    features.fit([])
    count = embed_file(encode, file, output, column=column)
    if cut:
        warnings.warn(cut_texts(cut, count, dropped, features.reader_.max_length), stacklevel=2)
    return count


def _chunks(file: Path) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    rows = read_rows(file, text_a_row(file, DataSpec(source=str(file))))
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _inspect(file: Path, column: str, *, own_columns: bool) -> tuple[pa.Schema | None, int]:
    """The schema of the rows' own columns, on request, and the number of rows. Raises DataError."""
    import pyarrow as pa

    problems, schema, count = Problems(), pa.schema([]), 0
    where = row_prefix(str(file), format_of(file, DataSpec(source=str(file))))
    for chunk in _chunks(file):
        for number, row in chunk:
            if column not in row:
                names = ", ".join(map(str, row)) or "nothing"
                problems.add(f"{where}{number}", f"no column {column!r}; found {names}", "Name it: --column NAME.")
            elif not isinstance(row[column], str):
                problems.add(f"{where}{number}", f"{column!r} holds {short_repr(row[column])}, where text is expected")
            if own_columns and VECTOR in row:
                raise DataError(Problem(str(file), f"the rows have a column `{VECTOR}` already", "Rename it."))
        if own_columns:
            theirs = _table([row for _, row in chunk], None, file).schema
            with _arrow_errors(str(file)):
                schema = pa.unify_schemas([schema, theirs], promote_options="permissive")
        count += len(chunk)
    problems.raise_if_any()
    return (schema if own_columns else None), count


@contextmanager
def _arrow_errors(where: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OverflowError) as error:
        what = f"cannot be written as parquet: {str(error).splitlines()[0]}"
        raise DataError(Problem(where, what, "Let a column hold values of one kind, or write .npy.")) from error


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, file: Path) -> pa.Table:
    """The rows as columns, with the types of the schema, or inferred ones."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row) if schema is None else schema.names
    types = {} if schema is None else {name: schema.field(name).type for name in names}
    arrays = {}
    for name in names:
        with _arrow_errors(f"{file}, column `{name}`"):
            arrays[name] = pa.array([row.get(name) for row in rows], types.get(name))
    return pa.table(arrays)


def _write_parquet(sink: IO[bytes], parts: Parts, schema: pa.Schema, file: Path) -> int:
    """A row group per part; returns the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer, count = None, 0
    with ExitStack() as stack:
        for rows, vectors in parts:
            values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
            table = _table(rows, schema, file).append_column(VECTOR, values)
            with _arrow_errors(str(file)):
                writer = writer or stack.enter_context(pq.ParquetWriter(sink, table.schema))
                writer.write_table(table, row_group_size=CHUNK)
            count += len(rows)
    return count


def _write_npy(sink: IO[bytes], parts: Parts, total: int) -> int:
    """The header with the first part, then the numbers; returns the number of rows."""
    count = 0
    for rows, vectors in parts:
        if not count:
            header = {"descr": "<f4", "fortran_order": False, "shape": (total, vectors.shape[1])}
            np.lib.format.write_array_header_1_0(sink, header)
        sink.write(vectors.astype("<f4").tobytes())
        count += len(rows)
    return count


def cache_table() -> str:
    """The output of `bertkit cache`: a line for each store, last used first, and the totals."""
    listed = stores()
    if not listed:
        return f"no vectors are stored in {cache_root()}"
    rows = [["model", "layers", "combine", "pool", "max_length", "precision", "texts", "MB", "last used (UTC)"]]
    for store in listed:
        options = [str(store.key.get(name, "–")) for name in rows[0][1:6]]
        used = store.used.strftime("%Y-%m-%d %H:%M")
        rows.append([store.name, *options, f"{store.texts:,}", f"{store.bytes / 1e6:,.1f}", used])
    texts, size = sum(store.texts for store in listed), sum(store.bytes for store in listed)
    return f"{columns(rows)}\n\n{texts:,} vectors, {size / 1e6:,.1f} MB in {cache_root()}"


def clear_cache(days: float | None = None) -> str:
    """Clear the cache, or only stores last used longer ago than `days`; returns the output of `bertkit cache clear`.

    Raises UserError on an invalid number of days.
    """
    if days is not None and not 0 <= days <= timedelta.max.days:
        raise UserError(Problem("--days", f"{days:g}, where a number from 0 on is expected"))
    count = clear(None if days is None else timedelta(days=days))
    return f"{count} store{'' if count == 1 else 's'} removed from {cache_root()}"
