"""Rows over a memory-mapped temporary file, and their columns one value, or block, at a time."""

from __future__ import annotations

import hashlib
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from bertkit.data.disk_list import AT_A_TIME, close, disk_full_as_error
from bertkit.data.rows import Columns

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset, Features

T = TypeVar("T")


def in_blocks(values: Iterator[T]) -> Iterator[list[T]]:
    """Lists of AT_A_TIME of these values."""
    while block := list(islice(values, AT_A_TIME)):
        yield block


def features_of(holds: Mapping[str, str]) -> Features:
    """Name -> what its `Column` holds: the types of canonical columns after `convert` and
    `Task.validate_rows`.
    """
    from datasets import Features, List, Value

    text = Value("string")
    number = Value("float64")
    offset = Value("int64")
    types = {
        **dict.fromkeys(("text", "label", "name", "value"), text),
        "number": number,
        "numbers": List(number),
        "answers": {"text": List(text), "answer_start": List(offset)},
        "spans": List({"start": offset, "end": offset, "label": text}),
    }
    return Features({name: types.get(kind, List(text)) for name, kind in holds.items()})


def on_disk(blocks: Iterable[Mapping[str, Sequence[Any]]], features: Features, fingerprint: str) -> Dataset:
    """Rows, given in blocks of columns, as a data set over a memory-mapped temporary file.

    The system drops its pages from memory as needed, and `release` does. Raises DataError where the disk is
    full.
    """
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    schema = features.arrow_schema
    with disk_full_as_error():
        file = tempfile.TemporaryFile()  # noqa: SIM115  # in the folder TMPDIR; it has no name
    try:
        stream = pa.ipc.new_stream(file, schema)
        for block in blocks:  # it may read files, whose errors are not about this disk
            batch = pa.record_batch(dict(block), schema=schema)
            with disk_full_as_error():
                stream.write_batch(batch)
        with disk_full_as_error():
            stream.close()
            file.flush()
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    finally:
        close(file)
    rows = Dataset(
        InMemoryTable(pa.ipc.open_stream(pa.py_buffer(content)).read_all()), fingerprint=fingerprint
    )
    rows.pages = Pages(content)  # for `release`
    return rows


class Pages:
    """The mapped file of rows. Pickled rows hold their values themselves, so that a pickled `Pages` has no
    file.
    """

    def __init__(self, content: mmap.mmap | None = None) -> None:
        self._content = content

    def __reduce__(self) -> tuple[type[Pages], tuple[()]]:
        return Pages, ()

    def __deepcopy__(self, memo: object) -> Pages:
        return self

    def release(self) -> None:
        """Take them out of this process's memory."""
        if self._content:
            self._content.madvise(mmap.MADV_DONTNEED)


def release(rows: Dataset) -> None:
    """Take the pages of rows that `on_disk` made out of this process's memory; they are read again where
    needed.
    """
    if pages := vars(rows).get("pages"):
        pages.release()


def numbers(rows: Dataset, name: str) -> np.ndarray:
    """A column of numbers, `(rows,)`: eight bytes each, where `rows[name][:]` makes objects of them."""
    if isinstance(rows, Columns):
        import numpy as np

        return np.asarray(rows[name])
    # dtype=None: by default the format makes fp32 of fp64.
    values: np.ndarray = rows.with_format("numpy", dtype=None).select_columns([name])[:][name]
    return values


def first_features(features: Dataset) -> np.ndarray:
    """The first feature of each row, `(rows,)`."""
    import numpy as np

    return np.unique(numbers(features, "row"), return_index=True)[1]


def column_values(rows: Dataset, name: str) -> Iterator[Any]:
    """The values of one column in order: `rows[name]` reads them one by one, which is slow, and `[:]` takes
    memory.
    """
    for batch in rows.select_columns([name]).iter(AT_A_TIME):
        yield from batch[name]
        release(rows)


def fingerprint(values: Mapping[str, Sequence[Any]]) -> str:
    """sha256 (hex) of columns: their names, every value, and the order of both."""
    write = json.JSONEncoder(ensure_ascii=False).encode
    digest = hashlib.sha256(write(list(values)).encode())
    for row in zip(*values.values(), strict=True):
        digest.update(b"\n" + write(row).encode())
    return digest.hexdigest()
