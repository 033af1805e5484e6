"""Values on disk as JSON: memory does not grow with their size."""

from __future__ import annotations

import json
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from itertools import islice
from typing import IO, Any

from bertkit.errors import DataError, translated
from bertkit.text import plain

AT_A_TIME = 1000  # rows, or values of a column, that are Python objects at the same time


class DiskList(Sequence[Any]):
    """Values in a temporary file, each read when it is accessed: 8 bytes of memory per value.

    They are stored as JSON, which preserves numbers exactly; what JSON cannot represent becomes its `repr`.
    Raises DataError where the disk is full.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        with disk_full_as_error():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it has no name, and is closed with this object
        weakref.finalize(self, close, self._file)
        self._starts = array("q")  # of the lines, each of which is a value
        self._size = 0
        self._whole: DiskList | None = None  # what this was selected from, which closes the file
        self.extend(values)

    def extend(self, values: Iterable[Any]) -> None:
        """Add these values at the end."""
        encode = json.JSONEncoder(default=plain, ensure_ascii=False).encode
        rest = iter(values)
        while lines := [
            f"{encode(value)}\n".encode(errors="surrogatepass") for value in islice(rest, AT_A_TIME)
        ]:
            with disk_full_as_error():
                self._file.seek(self._size)
                self._file.writelines(lines)
                self._file.flush()
            for line in lines:
                self._starts.append(self._size)
                self._size += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Any]:
        return map(self._read, self._starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        return self._read(self._starts[index])

    def select(self, indices: Iterable[int]) -> DiskList:
        """These values, in this order, in the same file."""
        part = copy(self)
        part._starts = array("q", (self._starts[index] for index in indices))
        part._whole = self
        return part

    def _read(self, start: int) -> Any:
        self._file.seek(start)
        return json.loads(self._file.readline().decode(errors="surrogatepass"))


def disk_full_as_error() -> AbstractContextManager[None]:
    """For code that writes temporary files. Raises DataError where the disk is full."""
    what = "rows and answers cannot be written there"
    fix = "Make room, or name another folder in TMPDIR."
    return translated(OSError, DataError, tempfile.gettempdir(), what, fix)


def close(file: IO[bytes]) -> None:
    """Close a temporary file; a full disk was reported before."""
    with suppress(OSError):  # closing writes the rest again
        file.close()
