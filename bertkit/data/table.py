"""What the modules of this folder share: problems with rows, and the rows of a split with their places."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertkit.errors import DataError, Problem

MAX_PROBLEMS = 20


class Problems:
    """Gathers what is wrong with rows; raises a DataError when there are MAX_PROBLEMS, or at the end."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, where: str, what: str, fix: str = "") -> None:
        """Note one problem. The same fix is shown once. Raises DataError when there are enough."""
        self._found.append(Problem(where, what, "" if any(p.fix == fix for p in self._found) else fix))
        if len(self._found) == MAX_PROBLEMS:
            raise DataError([*self._found, Problem("", f"… and perhaps more: {MAX_PROBLEMS} are shown")])

    def finish(self) -> None:
        """Raise a DataError if anything was noted."""
        if self._found:
            raise DataError(self._found)


@dataclass(frozen=True)
class Origin:
    """Where each row of a split stood: ten bytes per row. `origin[i]` is text such as "train.csv:12"."""

    files: list[str] = field(default_factory=list)  # "train.csv:", "train.json, row "
    file: array[int] = field(default_factory=lambda: array("H"))
    number: array[int] = field(default_factory=lambda: array("q"))

    def __getitem__(self, index: int) -> str:
        return f"{self.files[self.file[index]]}{self.number[index]}"

    def __len__(self) -> int:
        return len(self.number)

    def select(self, indices: Sequence[int]) -> Origin:
        """The places of these rows, in this order."""
        file, number = (array(a.typecode, [a[i] for i in indices]) for a in (self.file, self.number))
        return Origin(self.files, file, number)


@dataclass(frozen=True)
class Table:
    """The rows of one split while they are put together: canonical column -> its values."""

    values: dict[str, list[Any]]
    origin: Origin

    def __len__(self) -> int:
        return len(self.origin)

    def select(self, indices: Sequence[int]) -> Table:
        """These rows, in this order."""
        values = {name: [column[i] for i in indices] for name, column in self.values.items()}
        return Table(values, self.origin.select(indices))


def rows_named(origin: Origin, indices: Sequence[int], most: int = 5) -> str:
    """The places of rows, for a message: the first few, then how many more."""
    more = f" and {len(indices) - most:,} more" if len(indices) > most else ""
    return ", ".join(origin[i] for i in indices[:most]) + more


def shown(value: object, most: int = 60) -> str:
    """A value as Python writes it, cut short, for a message."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"
