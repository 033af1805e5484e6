"""LanceDB: a connection, column types, and its errors as messages for users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import GenericAlias
from typing import Any

import pyarrow as pa

from bertkit.errors import Problem, StoreError, extras_required

_SCALARS: dict[type | GenericAlias, pa.DataType] = {
    bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()
}  # fmt: skip
ARROW_TYPES = _SCALARS | {GenericAlias(list, (kind,)): pa.list_(arrow) for kind, arrow in _SCALARS.items()}
_CONSISTENCY = timedelta(seconds=5)  # after which an open table checks for updates by other processes
_DISK_FULL = ("os error 27)", "os error 28)", "os error 122)")  # file too large, disk full, quota exceeded


def resolve_uri(uri: str | Path) -> tuple[str, Path | None]:
    """The URI, and its folder unless it is of an object store."""
    if "://" in str(uri):
        return str(uri), None
    path = Path(uri).expanduser()
    return str(path), path


def connect(uri: str) -> Any:
    """LanceDB's connection to a folder or an object store. Raises UserError where lancedb is not installed."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings are for developers
    with extras_required():
        import lancedb
    return lancedb.connect(uri, read_consistency_interval=_CONSISTENCY)


@contextmanager
def database_errors(uri: str) -> Iterator[None]:
    """Turns LanceDB's errors into a StoreError."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).partition(", /")[0].replace("lance error: ", "")[:300]
        if any(code in str(error) for code in _DISK_FULL):
            what = f"the disk is full ({reason})"
            fix = "The documents indexed so far are safe. Free some space and run the same command to continue."
        elif "already exists" in reason:  # two processes created it at once
            what, fix = "another process is creating a store here", "Wait for it, then run the same command again."
        else:
            what = f"the store cannot be read or written: {reason}"
            fix = "If it is a copy, copy it again; else index the documents into a new folder."
        raise StoreError(Problem(uri, what, fix)) from error
