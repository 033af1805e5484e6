"""The rank of this process among those that torchrun or accelerate started; its signals; the part of a file
that a job reads.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import DataError, UserError
from bertkit.text import counted


def world() -> int:
    """The number of processes. Raises UserError."""
    count = _number("WORLD_SIZE", 1)
    rank = _number("RANK", 0)
    local_rank()
    if count > 1 and not 0 <= rank < count:  # it would wait for the others forever
        fix = "Start several processes with torchrun, or unset RANK and WORLD_SIZE."
        raise UserError("RANK", f"{rank}, but WORLD_SIZE {count} has processes 0 to {count - 1}", fix)
    return count


def local_rank() -> int:
    """The number of this process among those of its machine, which is that of its device. Raises
    UserError.
    """
    return _number("LOCAL_RANK", 0)


def first() -> bool:
    """Whether this process writes the files: rank 0, or the only one whatever its rank. Raises UserError."""
    return world() == 1 or _number("RANK", 0) == 0


def _number(name: str, alone: int) -> int:
    """What the launcher set, or the value without a launcher."""
    try:
        return int(os.environ.get(name) or alone)
    except ValueError as error:
        fix = f"Start several processes with torchrun, or unset {name}."
        raise UserError(name, f"{os.environ[name]!r} is not a whole number", fix) from error


@contextmanager
def signals_handled(numbers: Iterable[int], handle: Callable[[int, object], None]) -> Iterator[None]:
    """Within the block, these signals call a function. Only in the main thread, where handlers can be set."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in numbers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Shard:
    """One of `count` contiguous parts of the rows of a file, by its number from 1: what a job of an array
    reads.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """The shard that a text such as 1/4 names; None without it. Raises UserError."""
        if text is None:
            return None
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        shard = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.count:
            what = "not a part: i/n is expected, with i from 1 to n"
            raise UserError(f"shard {text}", what, "For example, 1/4 to 4/4.")
        return shard

    def rows(self, file: str | Path, rows: int, chunk: int = 1) -> range:
        """The rows of this part of a file, from 0: whole chunks, about as many in each part.

        rows: how many the file has. chunk: rows answered together. Raises DataError for more parts than
        chunks.
        """
        chunks = -(-rows // chunk)
        if chunks < self.count:
            what = f"{file} has {counted(rows, 'row')}"
            what += f" in {counted(chunks, 'chunk')} of up to {chunk:,}, which are not divided"
            fix = f"Use at most {counted(chunks, 'shard')}."
            raise DataError(f"shard {self.number}/{self.count}", what, fix)
        start, end = (chunks * part // self.count * chunk for part in (self.number - 1, self.number))
        return range(start, min(end, rows))
