"""What bertkit says when something is wrong that the user can put right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

TORCH = ("accelerate", "captum", "evaluate", "peft", "torch")  # the extra `torch`: training, and models as trained


class Problem(NamedTuple):
    """One thing that is wrong: where it stands, what it is, and what to do about it."""

    where: str  # "my.yaml:7", "train.csv:12", "override task.name=x", or "" where no place is known
    what: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n    {self.fix}" if self.fix else head


class UserError(Exception):
    """Something the user can put right. The command line prints it without a traceback and exits with 2."""

    def __init__(self, problems: Problem | str | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        elif isinstance(problems, Problem):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def not_installed(error: ModuleNotFoundError) -> UserError:
    """What to install where a library is missing. Raises the error again where it is a module of bertkit's own."""
    while error.name is None and isinstance(error.__cause__, ModuleNotFoundError):
        error = error.__cause__  # transformers says only its own class
    package = str(error.name).partition(".")[0]
    if package == "bertkit":
        raise error
    fix = 'pip install "bertkit[torch]"' if package in TORCH else "pip install bertkit"
    return UserError(Problem("", f"this needs {package}, which is not installed", fix))


class RecipeError(UserError):
    """A recipe, an override or a combination of settings that can not be run."""


class DataError(UserError):
    """Rows that can not be read, or that do not hold what the task needs."""


class RowsError(DataError):
    """Rows that a model can not read. found: (row counted from 0, what is wrong, what to do) of each."""

    def __init__(
        self, found: Iterable[tuple[int, str, str]], place: Callable[[int], str] = lambda row: f"row {row + 1}"
    ) -> None:
        self.found = tuple(found)
        super().__init__(Problem(place(row), what, fix) for row, what, fix in self.found)

    def renumbered(self, number: Callable[[int], int]) -> RowsError:
        """The same, where these rows are some of others: row -> which of those it is."""
        return RowsError((number(row), what, fix) for row, what, fix in self.found)


class ModelError(UserError):
    """A model folder, checkpoint or run that can not be loaded, or not be trusted."""


def require_finite(finite: Iterable[Any], unit: str = "rows") -> None:
    """finite: for each row, whether the model's outputs are finite. Raises ModelError where some are not."""
    flags = list(finite)
    bad = sum(not each for each in flags)
    if bad:
        what = f"its outputs are not finite for {bad} of {len(flags)} {unit}"
        raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
