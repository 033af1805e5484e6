"""Rows in memory, as columns: what tasks read of a Dataset. datasets, with pandas behind it, takes long to
import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.text import Json


@dataclass(frozen=True)
class Columns:
    """Columns of one length, by name. Every method is that of `datasets.Dataset`."""

    values: Mapping[str, Sequence[Any]]

    @property
    def column_names(self) -> list[str]:
        """The names, in order."""
        return list(self.values)

    def __len__(self) -> int:
        return len(next(iter(self.values.values()), ()))

    def __getitem__(self, key: str | int | slice | Sequence[int]) -> Any:
        """A column by its name; of one row its values, and of several rows their columns, by name."""
        if isinstance(key, str):
            return self.values[key]
        if isinstance(key, int | slice):
            return {name: column[key] for name, column in self.values.items()}
        return {name: list(map(column.__getitem__, key)) for name, column in self.values.items()}

    def __iter__(self) -> Iterator[Json]:
        return (self[index] for index in range(len(self)))

    def iter(self, batch_size: int) -> Iterator[Json]:
        """The columns of so many rows at a time."""
        return (self[start : start + batch_size] for start in range(0, len(self), batch_size))

    def select(self, indices: Sequence[int]) -> Columns:
        """These rows, in this order."""
        return Columns(self[indices])

    def select_columns(self, names: Sequence[str]) -> Columns:
        """These columns alone."""
        return Columns({name: self.values[name] for name in names})
