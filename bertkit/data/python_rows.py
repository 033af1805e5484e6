"""Rows given from Python: frames, data sets, lists of rows and dicts of columns, and the parquet files that
keep them.

pandas and polars are optional: a value is one of theirs only where they are imported already.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import methodcaller
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from bertkit.cache import file_digest, sha256_of_json
from bertkit.data.arrow import JSON, plain_rows
from bertkit.data.disk_list import AT_A_TIME, disk_full_as_error
from bertkit.data.problems import Problems
from bertkit.data.table import Row
from bertkit.data.values import is_missing
from bertkit.errors import DataError, translated
from bertkit.sections import MEMORY, DataSpec
from bertkit.text import Record, first_line, listed, repeated, short_repr

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Any  # a DataFrame of pandas or polars, Dataset, pyarrow.Table, list of dicts, or dict of columns


def is_frame(value: Any) -> bool:
    """Whether this is a DataFrame, Dataset or pyarrow.Table."""
    return is_a(value, "pandas.DataFrame", "polars.DataFrame", "pyarrow.Table", "datasets.Dataset")


def frame_rows(frame: Any, names: Collection[str]) -> Iterator[Row]:
    """The rows of a frame or a dict of columns, one at a time, with those of these columns that it has, or
    with all.

    Missing values are None. Raises DataError where a column holds values of several types.
    """
    columns = column_names(frame)
    for table in _tables(frame, "data", names if {*names} & {*columns} else None):
        for batch in table.to_batches(AT_A_TIME):
            yield from plain_rows(batch)


def column_names(frame: Any) -> list[str]:
    """The names of the columns of a frame, or of a dict of columns."""
    if isinstance(frame, Mapping):
        return list(frame)
    return list(frame.column_names if is_a(frame, "datasets.Dataset", "pyarrow.Table") else frame.columns)


def with_added(data: Any, columns: Record) -> Any:
    """A dict of columns, DataFrame or pyarrow.Table with further columns: Arrow's arrays, or arrays `(rows,
    size)`.

    A type is the same whether values are missing or not: whole numbers are Int64 in pandas, and objects in
    NumPy.
    """
    import numpy as np
    import pyarrow as pa

    if isinstance(data, Mapping):
        arrays = any(isinstance(values, np.ndarray) for values in data.values())
        return {**data, **{name: _plain(values, arrays=arrays) for name, values in columns.items()}}
    added = pa.table(
        {
            name: pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
            if isinstance(values, np.ndarray)
            else values
            for name, values in columns.items()
        }
    )
    if is_a(data, "pyarrow.Table"):
        for name in added.column_names:
            data = data.append_column(name, added[name])
        return data
    if is_a(data, "polars.DataFrame"):
        return data.hstack(sys.modules["polars"].from_arrow(added))
    whole = {pa.int64(): sys.modules["pandas"].Int64Dtype()}
    return data.assign(
        **{name: column.array for name, column in added.to_pandas(types_mapper=whole.get).items()}
    )


def _plain(values: Any, *, arrays: bool) -> Any:
    """The values of an Arrow array as a list, or as an array of NumPy."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        return values
    if not arrays:
        return values.to_pylist()
    if pa.types.is_integer(values.type):
        return np.array(values.to_pylist(), dtype=object)
    return values.to_numpy(zero_copy_only=False)


def frame_like(frame: Any, rows: Iterable[Record], names: Iterable[str] = ()) -> Any:
    """The rows as a frame of the library that `frame` is of, with its index; of pandas for a list.

    names: of columns that it has in any case.
    """
    columns = _by_column(list(rows), names)
    if is_a(frame, "polars.DataFrame", "polars.Series"):
        return sys.modules["polars"].DataFrame(columns, strict=False)
    if is_a(frame, "pyarrow.Table"):
        return sys.modules["pyarrow"].table(columns)
    if is_a(frame, "datasets.Dataset"):
        return sys.modules["datasets"].Dataset.from_dict(columns)
    import pandas

    return pandas.DataFrame(
        columns, index=frame.index if is_a(frame, "pandas.DataFrame", "pandas.Series") else None
    )


def _by_column(rows: Sequence[Record], names: Iterable[Any] = ()) -> dict[Any, list[Any]]:
    """The values of these columns, and of all that a row has; None where a row lacks one."""
    columns = {}
    for name in dict.fromkeys(chain(names, *rows)):
        columns[name] = [row.get(name) for row in rows]
    return columns


def write_rows(rows: Mapping[str, Rows], folder: Path) -> str:
    """Write SPLIT.parquet for each split; returns their fingerprint. Raises DataError on rows that cannot be
    written.

    Class names of a data set are kept; of pandas' index, only levels that have a name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split, data in rows.items():
        writer = None
        with translated(pa.ArrowException, DataError, split, "cannot be stored", "Leave that column out."):
            for table in _tables(data, split):
                writer = writer or pq.ParquetWriter(folder / f"{split}.parquet", table.schema)
                writer.write_table(table)
        if writer is None:
            raise DataError(split, "is empty: it has no rows", "Give at least one row.")
        writer.close()
    return _fingerprint(folder)


class RowsFolder(str):
    """The path of a temporary folder, which goes with the last recipe that names it, at the latest with the
    process.
    """


def store_rows(rows: Mapping[str, Rows]) -> dict[str, str]:
    """Write the rows into a temporary folder; returns the keys of the `data:` section that name it. Raises
    DataError.

    A run, a sweep and an audit copy them into their own folder; see `keep_rows`.
    """
    with disk_full_as_error():
        folder = RowsFolder(mkdtemp(prefix="bertkit-"))
        finalize(folder, shutil.rmtree, str(folder), ignore_errors=True)
        return {"source": MEMORY, "fingerprint": write_rows(rows, Path(folder)), "folder": folder}


def stored_files(spec: DataSpec) -> dict[str, Path]:
    """Split -> the file of its rows, which were given from Python.

    They are in the folder that the recipe knows, such as RUN/data. Raises DataError where they are not, or
    differ from those that the recipe was written for.
    """
    if spec.folder and _fingerprint(folder := Path(spec.folder)) == spec.fingerprint:
        return {file.stem: file for file in sorted(folder.glob("*.parquet"))}
    what = "the recipe's rows were given from Python, and its `data` folder is not beside it, or was changed"
    fix = (
        "The run that was trained on them keeps them: name its folder, data.folder=RUN/data, or give "
        "them again: "
    )
    raise DataError("data.source: memory", what, f"{fix}bertkit.train(recipe, output_dir, data=…).")


def keep_rows(spec: DataSpec, folder: Path) -> dict[str, str]:
    """Keep rows that were given from Python in this folder of a run, too; returns file -> sha256."""
    if spec.source != MEMORY:
        return {}
    files = stored_files(spec)
    folder.mkdir(exist_ok=True)
    for file in files.values():
        target = folder / file.name
        if target.exists() and target.samefile(file):
            continue
        aside = target.with_suffix(".writing")
        shutil.copyfile(file, aside)
        aside.replace(target)
    for other in {*folder.glob("*.parquet")} - {folder / file.name for file in files.values()}:
        other.unlink()
    return {f"{folder.name}/{file.name}": file_digest(file) for file in files.values()}


def _fingerprint(folder: Path) -> str:
    """sha256 over the splits and the sha256 of their files."""
    return sha256_of_json({file.stem: file_digest(file) for file in sorted(folder.glob("*.parquet"))})


def is_a(value: Any, *names: str) -> bool:
    """Whether the value is of one of these classes, each as `module.Class`, without importing a module."""
    parts = (name.split(".") for name in names)
    return any(
        module in sys.modules and isinstance(value, getattr(sys.modules[module], kind))
        for module, kind in parts
    )


def _tables(data: Rows, split: str, names: Collection[str] | None = None) -> Iterator[pa.Table]:
    """The rows as tables of one schema: a data set in parts, all else as one. Raises DataError.

    names: of the columns that are read; None: all.
    """
    import pyarrow as pa

    if is_a(data, "datasets.Dataset"):
        if names is not None:
            data = data.select_columns([name for name in data.column_names if name in names])
        schema = data.features.arrow_schema
        yield from (part.cast(schema) for part in data.with_format("arrow").iter(10 * AT_A_TIME))
        return
    problems = Problems()
    arrays = {}
    fields = []
    columns = _columns(data, split)
    if twice := repeated(name for name, _ in columns):
        raise DataError(split, f"several columns are called {listed(twice)}", "Give each its own name.")
    for name, values in columns:
        if names is not None and name not in names:
            continue
        try:
            array, about = _array(values)
            # what pandas and polars call categories
            arrays[name] = array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array
            fields.append(pa.field(name, arrays[name].type, metadata=about))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            fix = (
                "Give it values of one type: text in UTF-8 (such as JSON), numbers, or lists; or leave "
                "it out."
            )
            problems.add(
                split, f"`{name}` cannot be stored, with {_examples(values)}: {first_line(error)}", fix
            )
    problems.raise_if_any()
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"`{name}` {len(array):,}" for name, array in arrays.items())
        raise DataError(split, f"columns of different lengths: {lengths}", "Give each row a value in each.")
    table = pa.table(arrays, pa.schema(fields))
    if len(table):
        yield table


def _array(values: Iterable[Any]) -> tuple[pa.Array, dict[str, str] | None]:
    """The values in Arrow's types; lists that hold several, such as [start, end, label], as JSON, with the
    metadata that say so.
    """
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values, None
    try:
        return pa.array(values, from_pandas=True), None
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        cells = [None if is_missing(value) else value for value in values]
        if not all(cell is None or isinstance(cell, list | tuple) for cell in cells):
            raise
        encode = json.JSONEncoder(default=methodcaller("item")).encode  # of a number of NumPy
        with suppress(AttributeError, ValueError):
            texts = [None if cell is None else encode(cell) for cell in cells]
            return pa.array(texts, pa.string()), {"ARROW:extension:name": JSON}
        raise


def _columns(data: Rows, split: str) -> list[tuple[str, Any]]:
    """Names, and values that pyarrow takes; of pandas' index, the levels that have a name."""
    if is_a(data, "pandas.DataFrame"):
        named = [name for name in data.index.names if name is not None and name not in data.columns]
        data = data.reset_index(named) if named else data
        return [(str(name), data[name]) for name in data.columns]
    if is_a(data, "polars.DataFrame"):  # Arrow gets the addresses of objects
        objects = sys.modules["polars"].Object
        return [
            (column.name, column.to_list() if column.dtype == objects else column.to_arrow())
            for column in data
        ]
    if is_a(data, "pyarrow.Table"):
        return list(zip(data.column_names, data.columns, strict=True))
    if not isinstance(data, Mapping):
        problems = Problems()
        for number, row in enumerate(data, 1):
            if not isinstance(row, Mapping):
                what = f"expected a dict of columns, found {short_repr(row)}"
                problems.add(f"{split}, row {number}", what, "Write {'text': …, 'label': …}.")
        problems.raise_if_any()
        data = _by_column(data)
    return [(str(name), values) for name, values in data.items()]


def _examples(values: Iterable[Any]) -> str:
    """The first value of each type, with its row."""
    first = dict[type, str]()
    for row, value in enumerate(values, 1):
        if not is_missing(value):
            first.setdefault(type(value), f"{short_repr(value)} in row {row}")
    return listed([*first.values()])
