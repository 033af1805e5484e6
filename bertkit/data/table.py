"""The rows of a split, while they are loaded and after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bertkit.data.origin import Origin, select_values
from bertkit.data.problems import each_row
from bertkit.data.schema import Column, Finding
from bertkit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """The rows of one split while they are loaded: canonical column -> its values."""

    values: dict[str, Sequence[Any]]
    origin: Origin

    def __len__(self) -> int:
        return len(self.origin)

    def __iter__(self) -> Iterator[Row]:
        """The rows, each as column -> value."""
        return (dict(zip(self.values, row, strict=True)) for row in zip(*self.values.values(), strict=True))

    def select(self, indices: Sequence[int]) -> Table:
        """These rows, in this order."""
        values = {name: select_values(column, indices) for name, column in self.values.items()}
        return Table(values, self.origin.select(indices))

    def dropped(self, indices: Collection[int]) -> Table:
        """All rows but these."""
        return self.select([row for row in range(len(self)) if row not in indices])

    def with_(self, **columns: Sequence[Any]) -> Table:
        """The rows with these columns, added or in the place of others of their names."""
        return replace(self, values={**self.values, **columns})

    def without(self, *names: str) -> Table:
        """The rows without these columns."""
        values = {name: column for name, column in self.values.items() if name not in names}
        return replace(self, values=values)

    def each_row(self, read: Callable[..., T], *columns: Iterable[Any]) -> Iterator[T]:
        """What `read` makes of each row, or of its values in these columns; see `problems.each_row`."""
        return each_row(read, self.origin.__getitem__, *(columns or [self]))


Checked = tuple[Table, list[Finding]]  # rows that were checked or changed, and what was found


class RowRules(NamedTuple):
    """How a task reads rows. decide: options, tables by split -> options. validate: options, rows of a split,
    split.
    """

    options: Any
    decide: Callable[[Any, Mapping[str, Table]], tuple[Any, list[Finding]]]
    validate: Callable[[Any, Table, str], Checked]


AS_READ = RowRules(None, lambda options, _: (options, []), lambda _, table, __: (table, []))


class Loaded(NamedTuple):
    """The rows of one split."""

    rows: Dataset
    origin: Origin
    fingerprint: str  # sha256 of column names, values and their order


@dataclass(frozen=True)
class Data:
    """Rows by split, in canonical columns: text and label are str, labels a list of str, numbers float."""

    rows: dict[str, Dataset]  # in the order train, validation, test
    columns: dict[str, Column]  # the canonical columns that at least one split has
    target: str | None  # the one of them that is to be predicted
    # the data set's own names and order of the target (ClassLabel); empty if it has none
    class_names: list[str]
    fingerprints: dict[str, str]  # split -> sha256 of its column names, values and their order
    findings: list[Finding]  # what loading left out or noticed
    options: Any  # of the task, with what the rows decide as they are read
    origins: dict[str, Origin]  # origins["train"][0] is the location of the first row, such as "train.csv:2"
    corpus: bool = False  # rows are documents, not in memory; `findings` is complete


# line (csv, tsv, jsonl, conll, txt) or row (json, xlsx, parquet), from 1
NumberedRows = Iterator[tuple[int, Row]]


def required(rows: Dataset, *names: str) -> str:
    """The first of these columns that the rows have. Raises DataError where they have none of them."""
    present = next((name for name in names if name in rows.column_names), None)
    if present is None:
        raise DataError(
            f"column{'s' * (len(names) > 1)} {' and '.join(f'`{name}`' for name in names)}",
            f"not in the rows, which have {', '.join(rows.column_names)}",
            f"Map it, e.g.  data: {{columns: {{{names[0]}: …}}}}",
        )
    return present
