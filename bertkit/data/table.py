"""Shared by the modules of this folder: problems with rows, and the rows of a split with their locations, on
disk.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import tempfile
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bertkit.data.disk_list import AT_A_TIME, DiskList, close, disk_full_as_error
from bertkit.data.rows import Columns
from bertkit.data.schema import Column, Finding
from bertkit.errors import DataError, Problem
from bertkit.text import listed, short_repr

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset, Features

T = TypeVar("T")
MAX_PROBLEMS = 20
MAX_LOCATIONS = 5  # of rows that a message names
MAX_ALIKE = 1000  # problems of one kind, after which no more are looked for


class Problems:
    """Gathers problems with rows; raises a DataError when there are MAX_PROBLEMS, or on request.

    name: of the file that is read, for problems with its lines.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        # kind, or a number where it has none -> the first problem, and the locations of the others
        self._found: dict[str | int, tuple[Problem, list[str]]] = {}
        self.findings: list[Finding] = []  # what was noticed in the file but is not a problem
        self.class_names: dict[str, list[str]] = {}  # column -> its ClassLabel names, in order

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, where: str | int, what: str, fix: str = "", kind: str = "") -> None:
        """where: a location, or a line. A repeated fix is reported once.

        kind: of problems of one kind the first is reported, with the locations of the others.
        Raises DataError at MAX_PROBLEMS, and at MAX_ALIKE of one kind.
        """
        where = f"{self.name}:{where}" if isinstance(where, int) else where
        if kind in self._found:
            others = self._found[kind][1]
            others.append(where)
            if len(others) == MAX_ALIKE:
                self.raise_if_any()
            return
        known_fixes = {problem.fix for problem, _ in self._found.values()}
        self._found[kind or len(self._found)] = (Problem(where, what, "" if fix in known_fixes else fix), [])
        if len(self._found) == MAX_PROBLEMS:
            raise DataError(
                [*self._problems(), Problem("", f"… and perhaps more: {MAX_PROBLEMS} are reported")]
            )

    def add_error(self, where: str, error: ValueError, prefix: str = "") -> None:
        """Add what a function that reads a value says of it. Those of a wrong type in one column are of one
        kind.
        """
        for what in error.args:
            self.add(
                where,
                f"{prefix}{what}",
                kind=f"{prefix}{error.expected}" if isinstance(error, WrongType) else "",
            )

    def take(self, error: DataError) -> None:
        """Add the problems of an error that was caught."""
        for problem in error.problems:
            self.add(*problem)

    def raise_if_any(self) -> None:
        """Raise a DataError if there is any problem."""
        if self._found:
            raise DataError(self._problems())

    def _problems(self) -> Iterator[Problem]:
        for problem, others in self._found.values():
            also = f"; also in {listed(others, MAX_LOCATIONS - 1)}" if others else ""
            so_far = " so far" if len(others) >= MAX_LOCATIONS else ""
            yield problem._replace(what=f"{problem.what}{also}{so_far}")


def setting(key: str, value: str) -> str:
    """The fix that sets a key of the section `data`: in the recipe, or on the command line."""
    return f"set  data: {{{key}: {value}}}  (on the command line: 'data.{key}={value}')"


class FirstSeen:
    """Keys that must stand for one value each: an id for one text, a pair for one grade."""

    def __init__(self) -> None:
        self._first: dict[Hashable, tuple[Any, Any]] = {}  # key -> (location, value)
        self.repeats: int = 0  # keys that were added again with the same value

    def add(self, key: Hashable, value: Any, location: Any) -> tuple[bool, Any]:
        """Whether the key is new; and where it was first seen with another value, None where it was not."""
        first, known = self._first.setdefault(key, (location, value))
        if known != value:
            return False, first
        if first == location:
            return True, None
        self.repeats += 1
        return False, None

    @property
    def locations(self) -> dict[Any, Any]:
        """Key -> the location where it was first seen."""
        return {key: location for key, (location, _) in self._first.items()}


@dataclass(frozen=True)
class Origin:
    """The location of each row of a split, in ten bytes: `origin[i]` is text such as "train.csv:12,
    id 4711".
    """

    files: Sequence[str]  # "train.csv:", "train.json, row "
    file: array[int] = field(default_factory=lambda: array("H"))
    number: array[int] = field(default_factory=lambda: array("q"))
    groups: array[int] = field(
        default_factory=lambda: array("q")
    )  # equal in rows of one `data.group_by`; or empty
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
        file, number = (array(a.typecode, [a[i] for i in indices]) for a in (self.file, self.number))
        groups = array("q", [self.groups[i] for i in indices] if self.groups else [])
        return Origin(self.files, file, number, groups, _select(self.ids, indices) if self.ids else ())


class WrongType(ValueError):
    """The value is not what its column holds."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"holds {short_repr(value)}, where {expected} is expected")
        self.expected = expected


class WrongColumn(ValueError):
    """The value shows that the whole column is not what it is taken for: one message, not one per row."""


def each_row(
    read: Callable[..., T], where: Callable[[int], str], *columns: Iterable[Any], prefix: str = ""
) -> Iterator[T]:
    """What `read` makes of the values of each row. where: the location of a row.

    Nothing is yielded after the first bad row. Raises DataError at the end, or at MAX_PROBLEMS, with the
    arguments of every ValueError of `read`, after `prefix`.
    """
    problems = Problems()
    for row, values in enumerate(zip(*columns, strict=True)):
        try:
            value = read(*values)
        except WrongColumn as error:
            raise DataError(where(row), f"{prefix}{error}") from None
        except ValueError as error:
            problems.add_error(where(row), error, prefix)
        if not problems:
            yield value
    problems.raise_if_any()


@dataclass(frozen=True)
class Table:
    """The rows of one split while they are loaded: canonical column -> its values."""

    values: dict[str, Sequence[Any]]
    origin: Origin

    def __len__(self) -> int:
        return len(self.origin)

    def select(self, indices: Sequence[int]) -> Table:
        """These rows, in this order."""
        values = {name: _select(column, indices) for name, column in self.values.items()}
        return Table(values, self.origin.select(indices))

    def with_(self, **columns: Sequence[Any]) -> Table:
        """The rows with these columns, added or in the place of others of their names."""
        return replace(self, values={**self.values, **columns})


Checked = tuple[Table, list[Finding]]  # rows that were checked or changed, and what was found


class RowRules(NamedTuple):
    """How a task reads rows. decide: options, tables by split -> options. validate: options, rows of a split,
    split.
    """

    options: Any
    decide: Callable[[Any, Mapping[str, Table]], tuple[Any, list[Finding]]]
    validate: Callable[[Any, Table, str], Checked]


AS_READ = RowRules(None, lambda options, _: (options, []), lambda _, table, __: (table, []))


def _select(values: Sequence[Any], indices: Sequence[int]) -> Sequence[Any]:
    return values.select(indices) if isinstance(values, DiskList) else [values[i] for i in indices]


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


def locations(origin: Origin, indices: Sequence[int]) -> str:
    """The locations of rows, for a message: the first few, then how many more."""
    return listed([origin[index] for index in indices[:MAX_LOCATIONS]], total=len(indices))


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
    class_names: list[
        str
    ]  # the data set's own names and order of the target (ClassLabel); empty if it has none
    fingerprints: dict[str, str]  # split -> sha256 of its column names, values and their order
    findings: list[Finding]  # what loading left out or noticed
    options: Any  # of the task, with what the rows decide as they are read
    origins: dict[str, Origin]  # origins["train"][0] is the location of the first row, such as "train.csv:2"
    corpus: bool = False  # rows are documents, not in memory; `findings` is complete


def fingerprint(values: Mapping[str, Sequence[Any]]) -> str:
    """sha256 (hex) of columns: their names, every value, and the order of both."""
    write = json.JSONEncoder(ensure_ascii=False).encode
    digest = hashlib.sha256(write(list(values)).encode())
    for row in zip(*values.values(), strict=True):
        digest.update(b"\n" + write(row).encode())
    return digest.hexdigest()


Row = dict[str, Any]
NumberedRows = Iterator[
    tuple[int, Row]
]  # line (csv, tsv, jsonl, conll, txt) or row (json, xlsx, parquet), from 1


def required(rows: Dataset, *names: str) -> str:
    """The first of these columns that the rows have. Raises DataError where they have none of them."""
    found = next((name for name in names if name in rows.column_names), None)
    if found is None:
        raise DataError(
            f"column{'s' * (len(names) > 1)} {' and '.join(f'`{name}`' for name in names)}",
            f"not in the rows, which have {', '.join(rows.column_names)}",
            f"Map it, e.g.  data: {{columns: {{{names[0]}: …}}}}",
        )
    return found
