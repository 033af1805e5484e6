"""The search space: a YAML file of recipe keys, each with a range or a list of choices, checked against the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bertkit.errors import RecipeError
from bertkit.recipe.errors import Report
from bertkit.recipe.recipe import Recipe
from bertkit.sections import Section
from bertkit.text import KeyPath, dotted, escape_controls, short_repr
from bertkit.validation import KeyProblem, describe, validate

if TYPE_CHECKING:
    from optuna.trial import Trial

_KEY = re.compile(r"[^\s=~.]+(\.[^\s=~.]+)*")

# keys that no trial may change -> why
FIXED: Mapping[str, str] = {
    "seeds": "every trial has the recipe's first seed; --confirm sets the number of fresh seeds for the winner",
    "data": "scores on other rows cannot be compared",
    "task.name": "scores of other tasks cannot be compared",
    "training.metric_for_best_model": "scores by other metrics cannot be compared",
    "hub": "a trial is not pushed",
    **dict.fromkeys(("folds", "verify", "explain", "checkpoints", "expected"), "it changes no score on validation"),
}


class Range(Section):
    """Numbers from low to high, both included: integers where low, high and step are."""

    low: int | float
    high: int | float
    log: bool = False  # sample uniformly on a logarithmic scale
    step: int | float | None = None

    @property
    def is_integer(self) -> bool:
        """True where integers are sampled."""
        return float not in map(type, (self.low, self.high, self.step))

    def checked_values(self) -> dict[str | int, str]:
        """The ends, which are checked against the recipe beforehand: key in the file -> value as YAML."""
        return {"low": json.dumps(self.low), "high": json.dumps(self.high)}

    def contains(self, value: Any) -> bool:
        """True if this value could be sampled."""
        if type(value) not in ((int,) if self.is_integer else (int, float)):
            return False
        steps = (value - self.low) / (self.step or 1)
        return self.low <= value <= self.high and (self.step is None or abs(steps - round(steps)) < 1e-9)

    def suggest(self, trial: Trial, key: str) -> None:
        """Sample the trial's value."""
        if self.is_integer:
            trial.suggest_int(key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        else:
            trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True)
class Choices:
    """Unordered values. texts: each as JSON, which is how optuna stores them: it has no lists and mappings."""

    texts: tuple[str, ...]

    def checked_values(self) -> dict[str | int, str]:
        """Every choice, which is checked against the recipe beforehand: index in the file -> value as YAML."""
        return dict(enumerate(self.texts))

    def contains(self, value: Any) -> bool:
        """True if this value could be sampled."""
        return json.dumps(value) in self.texts

    def suggest(self, trial: Trial, key: str) -> None:
        """Sample the trial's value."""
        trial.suggest_categorical(key, self.texts)


Space: TypeAlias = dict[str, Range | Choices]


def decoded(stored: Any) -> Any:
    """The value that optuna stores as a number of a range, or as the JSON of a choice."""
    return json.loads(stored) if isinstance(stored, str) else stored


def brief(value: Any) -> str:
    """A value for people; floats with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def read_space(file: Path, recipe: Recipe) -> tuple[Space, Report, dict[KeyPath, Recipe]]:
    """The space, a report for further problems, and the recipe with each value alone, by the value's path in the file.

    Raises RecipeError with all problems of the file, its keys and values.
    """
    report = Report(escape_controls(str(file)))
    space: Space = {}
    fix = "write keys of the recipe: training.learning_rate: {low: 1e-5, high: 1e-4}"
    settings = report.read_file(file, "space", fix)
    if not settings:
        report.add(KeyProblem((), "the space is empty", fix))
    for key, given in settings.items():
        dimension, wrong = _dimension(given)
        problems = [*_key_problems(key, space), *wrong]
        report.add(*(KeyProblem((key, *path), what, fix) for path, what, fix in problems))
        if dimension and not problems:
            space[key] = dimension
    variants: dict[KeyPath, Recipe] = {}
    for key, dimension in space.items():
        values = dimension.checked_values()
        refused: dict[tuple[str, str], list[str | int]] = {}  # problem -> the values that have it
        for name, text in values.items():
            try:
                variants[key, name] = recipe.with_(f"{key}={text}")
            except RecipeError as error:
                for problem in error.problems:
                    refused.setdefault((problem.what.removeprefix(f"{key}: "), problem.fix), []).append(name)
        for (what, fix), names in refused.items():
            paths: list[KeyPath] = [(key, name) for name in names] if len(names) < len(values) else [(key,)]
            report.add(*(KeyProblem(path, what, fix) for path in paths))
    report.raise_if_any()
    return space, report, variants


def _key_problems(key: str, others: Mapping[str, Any]) -> Iterator[KeyProblem]:
    if not _KEY.fullmatch(key):
        yield KeyProblem((), "not a key of a recipe", "write it with dots: training.learning_rate")
        return
    for fixed, why in FIXED.items():
        if _within(key, fixed) or _within(fixed, key):
            yield KeyProblem((), "cannot be swept", why)
    for other in others:
        if _within(key, other) or _within(other, key):
            what = f"contradicts {dotted((other,))}, which is the same setting or a part of it"
            yield KeyProblem((), what, "keep one")


def _within(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.")


def _dimension(given: Any) -> tuple[Range | Choices | None, list[KeyProblem]]:
    """The dimension of a key, and its problems, by paths below the key."""
    if isinstance(given, list):
        texts = tuple(map(json.dumps, given))
        problems = [
            KeyProblem((number,), f"{short_repr(value)} is listed twice", "keep one")
            for number, value in enumerate(given)
            if texts[number] in texts[:number]
        ]
        if len(given) < 2:
            problems.append(KeyProblem((), "needs at least two choices", "write a list of them"))
        return Choices(texts), problems
    if not isinstance(given, dict):
        what = f"expected a range or a list of choices, found {describe(given)}"
        return None, [KeyProblem((), what, "write {low: 1e-5, high: 1e-4, log: true}, or [16, 32]")]
    if problems := validate(Range, given):
        return None, problems
    dimension = Range.model_validate(given)
    return dimension, list(_contradictions(dimension))


def _contradictions(given: Range) -> Iterator[KeyProblem]:
    low, high, step = given.low, given.high, given.step
    if low >= high:
        yield KeyProblem(("high",), f"must be more than low, {low}; found {high}")
    if given.log and low <= 0:
        yield KeyProblem(("low",), f"must be more than 0 with log: true; found {low}")
    if given.log and step is not None:
        yield KeyProblem(("step",), "cannot be combined with log: true", "remove one of the two")
    elif step is not None and step <= 0:
        yield KeyProblem(("step",), f"must be more than 0; found {step}")
    elif step is not None:
        try:  # in decimals, where 0.3 is three times 0.1
            if (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step)):
                yield KeyProblem(("high",), f"is not low plus a multiple of step, {step}", "change high or step")
        except InvalidOperation:  # more steps than 28 digits can count
            yield KeyProblem(("step",), f"is too small for a range from {low} to {high}; found {step}")
