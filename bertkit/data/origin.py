"""The location of each row of a split."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.text import listed

MAX_LOCATIONS = 5  # of rows that a message names


@dataclass(frozen=True)
class Origin:
    """The location of each row of a split, in ten bytes; `origin[i]` is text: "train.csv:12, id 4711"."""

    files: Sequence[str]  # "train.csv:", "train.json, row "
    file: array[int] = field(default_factory=lambda: array("H"))
    number: array[int] = field(default_factory=lambda: array("q"))
    # equal in rows of one `data.group_by`; or empty
    groups: array[int] = field(default_factory=lambda: array("q"))
    ids: Sequence[str | None] = ()  # what the column `id` holds

    def __getitem__(self, index: int) -> str:
        name = self.ids[index] if self.ids else None
        return f"{self.files[self.file[index]]}{self.number[index]}" + (f", id {name:.80}" if name else "")

    def public(self, index: int) -> str:
        """The location without the file's folder, such as "train.csv:12"."""
        return f"{PurePath(self.files[self.file[index]]).name}{self.number[index]}"

    def __len__(self) -> int:
        return len(self.number)

    def add(self, file: int, number: int) -> None:
        """The location of one more row: an index into `files`, and its number there."""
        self.file.append(file)
        self.number.append(number)

    def select(self, indices: Sequence[int]) -> Origin:
        """The locations of these rows, in this order."""
        file = array("H", [self.file[i] for i in indices])
        number = array("q", [self.number[i] for i in indices])
        groups = array("q", [self.groups[i] for i in indices] if self.groups else [])
        return Origin(self.files, file, number, groups, select_values(self.ids, indices) if self.ids else ())


def select_values(values: Sequence[Any], indices: Sequence[int]) -> Sequence[Any]:
    """The values at these indices, in their order."""
    return values.select(indices) if isinstance(values, DiskList) else [values[i] for i in indices]


def locations(origin: Origin, indices: Sequence[int]) -> str:
    """The locations of rows, for a message: the first few, then how many more."""
    return listed([origin[index] for index in indices[:MAX_LOCATIONS]], total=len(indices))
