"""What the house needs of LanceDB: a connection, column types, and its errors in words for users."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import DataError, Problem, UserError

if TYPE_CHECKING:
    import pyarrow as pa

_FRESH = timedelta(seconds=5)  # after which an open table looks for what others wrote
_FULL = ("os error 27)", "os error 28)", "os error 122)")  # a file too large, a full disk, a spent quota


def place(uri: str | Path) -> tuple[str, Path | None]:
    """The URI, and the folder that it is, unless it is an object store's."""
    if "://" in str(uri):
        return str(uri), None
    path = Path(uri).expanduser()
    return str(path), path


def connect(uri: str) -> Any:
    """LanceDB's connection to a folder or an object store. Raises UserError where lancedb is not installed."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings are for its own developers
    try:
        import lancedb
    except ImportError as error:
        raise UserError(Problem("lancedb", "a store needs lancedb", 'pip install "bertkit[retrieval]"')) from error
    return lancedb.connect(uri, read_consistency_interval=_FRESH)


def schema(columns: Mapping[str, type]) -> pa.Schema:
    """Column -> bool, int, float or str, as arrow's schema."""
    import pyarrow as pa

    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return pa.schema([pa.field(name, types[kind]) for name, kind in columns.items()])


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """What the database can not do, as a DataError."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).partition(", /")[0].replace("lance error: ", "")[:300]
        if any(code in str(error) for code in _FULL):
            what = f"there is no room to write ({reason})"
            fix = "What was indexed before is safe. Make room and run the same again: it goes on where it stopped."
        elif "already exists" in reason:  # two processes made it at once
            what, fix = "another process is making a store here", "Wait for it, then run the same again."
        else:
            what = f"the store can not be read or written: {reason}"
            fix = "If it was copied, copy it again; else index the documents into a new folder."
        raise DataError(Problem(uri, what, fix)) from error
