"""Vectors for files of any length, and what there is to see and to clear of those that are kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
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

VECTOR = "vector"  # the column that is added


def embed_file(encode: Encode, file: str | Path, output: Path, *, column: str = "text") -> int:
    """Write the vector of each row's text, in the rows' order and in constant memory; returns how many.

    encode: texts -> float32 `(texts, size)`. file: csv, tsv, json, jsonl, parquet, or txt with a text a line.
    output: .parquet, the row's own columns and `vector`, a list of fixed size; or .npy, `(rows, size)`. The file is
    read twice: what is wrong with it is said before the first text is encoded. Raises DataError, and then leaves no
    output.
    """
    if output.suffix not in (".parquet", ".npy"):
        kind = output.suffix or "without a suffix"
        raise DataError(Problem(str(output), f"can not write {kind}", "Name a .parquet or .npy."))
    file, count = Path(file), 0
    schema, total = _inspect(file, column, own_columns=output.suffix == ".parquet")
    with written_aside(output) as text_file:
        sink = cast(TextIO, text_file).buffer
        with closing(_Parquet(sink, schema, file) if schema else _Npy(sink, total)) as write:
            for chunk in _chunks(file):
                rows = [row for _, row in chunk]
                write(rows, np.asarray(encode([replace_surrogates(row[column]) for row in rows]), dtype=np.float32))
                count += len(rows)
        if count != total:
            raise DataError(Problem(str(file), "has changed while it was read", "Run the same again."))
    return count


def embed_features(features: Features, file: str | Path, output: Path, *, column: str = "text") -> int:
    """`embed_file` with a frozen encoder. Texts that were cut are counted over the whole file, in one warning.

    Raises ModelError on parameters of `features` that can not be, and DataError.
    """
    from bertkit.inference.features import cut_texts

    cut = pieces = 0

    def encode(texts: list[str]) -> Vectors:
        nonlocal cut, pieces
        vectors, lost = features.vectors(texts)
        cut, pieces = cut + int(np.count_nonzero(lost)), pieces + int(lost.sum())
        return vectors

    features.fit([])
    count = embed_file(encode, file, output, column=column)
    if cut:
        warnings.warn(cut_texts(cut, count, pieces, features.reader_.max_length), stacklevel=2)
    return count


def _chunks(file: Path) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    rows = read_rows(file, text_a_row(file, DataSpec(source=str(file))))
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _inspect(file: Path, column: str, *, own_columns: bool) -> tuple[pa.Schema | None, int]:
    """The schema of the rows' own columns where it is wanted, and how many rows there are. Raises DataError."""
    import pyarrow as pa

    problems, schema, count = Problems(), pa.schema([]), 0
    where = row_prefix(str(file), format_of(file, DataSpec(source=str(file))))
    for chunk in _chunks(file):
        for number, row in chunk:
            if column not in row:
                found = ", ".join(map(str, row)) or "nothing"
                problems.add(f"{where}{number}", f"no column {column!r}; found {found}", "Name it: --column NAME.")
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
        what = f"can not be written as parquet: {str(error).splitlines()[0]}"
        raise DataError(Problem(where, what, "Let a column hold values of one kind, or write .npy.")) from error


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, file: Path) -> pa.Table:
    """The rows as columns, of the types that the schema says, or of those that they have."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row) if schema is None else schema.names
    types = {} if schema is None else {name: schema.field(name).type for name in names}
    made = {}
    for name in names:
        with _arrow_errors(f"{file}, column `{name}`"):
            made[name] = pa.array([row.get(name) for row in rows], types.get(name))
    return pa.table(made)


class _Parquet:
    """A row group per call."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema, file: Path) -> None:
        self.sink, self.schema, self.file = sink, schema, file
        self.writer: Any = None

    def __call__(self, rows: Sequence[Mapping[str, Any]], vectors: Vectors) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        table = _table(rows, self.schema, self.file).append_column(VECTOR, values)
        with _arrow_errors(str(self.file)):
            if self.writer is None:
                self.writer = pq.ParquetWriter(self.sink, table.schema)
            self.writer.write_table(table, row_group_size=CHUNK)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class _Npy:
    """The header with the first call, then the numbers."""

    def __init__(self, sink: IO[bytes], total: int) -> None:
        self.sink, self.total, self.begun = sink, total, False

    def __call__(self, rows: Sequence[Mapping[str, Any]], vectors: Vectors) -> None:
        if not self.begun:
            shape = (self.total, vectors.shape[1])
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self.sink, header)
            self.begun = True
        self.sink.write(vectors.astype("<f4").tobytes())

    def close(self) -> None:
        """Nothing is left to be written."""


def cache_table() -> str:
    """What `bertkit cache` prints: a line for each store, last used first, and what they hold together."""
    found = stores()
    if not found:
        return f"no vectors are kept in {cache_root()}"
    rows = [["model", "layers", "combine", "pool", "max_length", "precision", "texts", "MB", "last used (UTC)"]]
    for store in found:
        options = [str(store.key.get(name, "–")) for name in rows[0][1:6]]
        used = store.used.strftime("%Y-%m-%d %H:%M")
        rows.append([store.name, *options, f"{store.texts:,}", f"{store.bytes / 1e6:,.1f}", used])
    whole = f"{sum(s.texts for s in found):,} vectors, {sum(s.bytes for s in found) / 1e6:,.1f} MB in {cache_root()}"
    return f"{columns(rows)}\n\n{whole}"


def clear_cache(days: float | None = None) -> str:
    """What `bertkit cache clear` does and prints; days: only stores that were last used longer ago.

    Raises UserError on days that can not be counted.
    """
    if days is not None and not 0 <= days <= timedelta.max.days:
        raise UserError(Problem("--days", f"{days:g}, where a number from 0 on is expected"))
    count = clear(None if days is None else timedelta(days=days))
    return f"{count} store{'' if count == 1 else 's'} removed from {cache_root()}"
