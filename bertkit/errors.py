"""Errors that the user can fix, as problems with a location and a suggested fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copyreg import __newobj__  # type: ignore[attr-defined]
from os import PathLike, fspath
from typing import Any, NamedTuple

from bertkit.text import first_line, printable

EXTRAS = {  # library -> the extra that brings it
    library: extra
    for extra, libraries in {
        "torch": "accelerate captum peft torch",  # training, and models as trained
        "retrieval": "ir_measures lancedb",
        "onnx": "onnx onnxscript",
        "sweep": "optuna",
        "onnx-runtime": "onnxruntime",
        "excel": "openpyxl",
        "completion": "shtab",
        "translation": "sacrebleu",
        "serve": "fastapi prometheus_client starlette uvicorn",
    }.items()
    for library in libraries.split()
}


class Problem(NamedTuple):
    """One thing that is wrong: where it is, what it is, and what to do about it."""

    where: str  # "my.yaml:7", "train.csv:12", "override task.name=x", or "" where no location is known
    what: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return printable(f"{head}\n    {self.fix}" if self.fix else head)


class UserError(Exception):
    """An error that the user can fix. The command line prints it without a traceback and exits with 2.

    >>> try:
    ...     bertkit.load_recipe("quickstart", ["training.epochs=1"])
    ... except bertkit.UserError as error:
    ...     print(error.problems[0].where)
    override training.epochs=1
    """

    def __init__(
        self, problems: Problem | str | PathLike[str] | Iterable[Problem], what: str = "", fix: str = ""
    ) -> None:
        """problems: one or several; or where one is, with what it is and how to fix it; or a text that says
        it all.
        """
        if isinstance(problems, str | PathLike):
            where = fspath(problems)
            problems = Problem(where, what, fix) if what else Problem("", where)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it with its attributes: from the message, which is all that Exception passes on, a subclass
        cannot be made.
        """
        return __newobj__, (type(self), *self.args), vars(self)


def not_installed(error: ModuleNotFoundError) -> UserError:
    """What to install for a missing library. Raises the error again if the missing module is one of
    bertkit.
    """
    while error.name is None and isinstance(error.__cause__, ModuleNotFoundError):
        error = error.__cause__  # transformers names only its own class
    package = str(error.name).partition(".")[0]
    if package == "bertkit":
        raise error
    fix = f'pip install "bertkit[{EXTRAS[package]}]"' if package in EXTRAS else "pip install bertkit"
    return UserError("", f"{package} is not installed", fix)


@contextmanager
def extras_required() -> Iterator[None]:
    """Guard imports of libraries that an extra brings. Raises UserError with the extra where one is
    missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise not_installed(error) from error


@contextmanager
def translated(
    exceptions: type[BaseException] | tuple[type[BaseException], ...],
    kind: type[UserError],
    where: str | PathLike[str],
    what: str,
    fix: str = "",
) -> Iterator[None]:
    """Within the block, these exceptions, and panics of libraries in Rust, become a UserError of this kind.

    what: what failed; why is added, in one line. UserErrors stay as they are.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, exceptions) and type(error).__module__ != "pyo3_runtime":
            raise
        reason = first_line((isinstance(error, OSError) and error.strerror) or error)
        raise kind(where, f"{what}: {reason}", fix) from error


class RecipeError(UserError):
    """A recipe, an override or a combination of settings that cannot be run."""


class DataError(UserError):
    """Rows that cannot be read, or that lack what the task needs."""


class StoreError(DataError):
    """A store cannot be searched or written, whatever the request."""


class RowsError(DataError):
    """Rows that a model cannot read. by_row: (row counted from 0, what is wrong, what to do) of each."""

    def __init__(
        self,
        by_row: Iterable[tuple[int, str, str]],
        place: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        self.by_row = tuple(by_row)
        super().__init__(Problem(place(row), what, fix) for row, what, fix in self.by_row)

    def renumbered(self, number: Callable[[int], int]) -> RowsError:
        """These problems, located in a larger table. number: row here -> row there."""
        return RowsError((number(row), what, fix) for row, what, fix in self.by_row)


class ModelError(UserError):
    """A model folder, checkpoint or run that cannot be loaded or trusted."""


def require_finite(finite: Iterable[Any], unit: str = "rows") -> None:
    """finite: for each row, whether the model's outputs are finite. Raises ModelError where some are not."""
    flags = list(finite)
    bad = sum(not flag for flag in flags)
    if bad:
        what = f"its outputs are NaN or infinite for {bad} of {len(flags)} {unit}"
        fix = "Its weights are damaged, or training diverged: train again with a lower learning rate."
        raise ModelError("the model", what, fix)
