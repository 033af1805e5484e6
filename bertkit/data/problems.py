"""Problems with rows, gathered while a file is read, and reported together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

from bertkit.data.origin import MAX_LOCATIONS
from bertkit.data.schema import Finding
from bertkit.errors import DataError, Problem
from bertkit.text import listed, short_repr

T = TypeVar("T")
MAX_PROBLEMS = 20
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
        first, earlier = self._first.setdefault(key, (location, value))
        if earlier != value:
            return False, first
        if first == location:
            return True, None
        self.repeats += 1
        return False, None

    @property
    def locations(self) -> dict[Any, Any]:
        """Key -> the location where it was first seen."""
        return {key: location for key, (location, _) in self._first.items()}


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
