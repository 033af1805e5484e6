"""The search space: a YAML file of recipe keys, each with a range or a list of choices, held against the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertkit.errors import Problem, RecipeError
from bertkit.recipe.errors import Report
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.recipe.yaml import MAX_BYTES, parse
from bertkit.text import KeyPath, dotted, escape_controls, short_repr
from bertkit.validation import KeyProblem, describe, explain

if TYPE_CHECKING:
    from optuna.trial import Trial

_KEY = re.compile(r"[^\s=~.]+(\.[^\s=~.]+)*")

# keys that no trial may change -> why
FIXED: Mapping[str, str] = {
    "seeds": "every trial has the recipe's first seed; --confirm says how many fresh ones the winner gets",
    "data": "scores on other rows can not be compared",
    "task.name": "scores of other tasks can not be compared",
    "training.metric_for_best_model": "scores by other metrics can not be compared",
    "hub": "a trial is not pushed",
    "verify": "it changes no score",
    "explain": "it changes no score",
    "expected": "it changes no score",
}


class Range(BaseModel):
    """Numbers from low to high, both included: whole ones where low, high and step are."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    low: int | float
    high: int | float
    log: bool = Field(False, description="Are small numbers as likely as large ones, by powers of ten?")
    step: int | float | None = None

    @property
    def whole(self) -> bool:
        """Are whole numbers drawn?"""
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)

    def tried(self) -> dict[str | int, str]:
        """The ends, by their place in the file, as YAML: what is held against the recipe beforehand."""
        return {"low": json.dumps(self.low), "high": json.dumps(self.high)}

    def holds(self, value: Any) -> bool:
        """Could this value be drawn?"""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        between = self.low <= value <= self.high
        steps = (value - self.low) / (self.step or 1)
        return between and (self.step is None or abs(steps - round(steps)) < 1e-9)

    def draw(self, trial: Trial, key: str) -> None:
        """Settle the trial's value."""
        if self.whole:
            trial.suggest_int(key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        else:
            trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)

    def as_drawn(self, value: Any) -> Any:
        """The value as optuna keeps it."""
        return value

    def as_meant(self, drawn: Any) -> Any:
        """What optuna keeps, as the recipe has it."""
        return drawn


@dataclass(frozen=True)
class Choices:
    """Any values, in no order. texts: each as YAML, which is how optuna keeps and draws them."""

    texts: tuple[str, ...]

    def tried(self) -> dict[str | int, str]:
        """Every choice, by its place in the file."""
        return dict(enumerate(self.texts))

    def holds(self, value: Any) -> bool:
        """Is this value one of them?"""
        return json.dumps(value) in self.texts

    def draw(self, trial: Trial, key: str) -> None:
        """Settle the trial's value."""
        trial.suggest_categorical(key, self.texts)

    def as_drawn(self, value: Any) -> Any:
        """The value as optuna keeps it."""
        return json.dumps(value)

    def as_meant(self, drawn: Any) -> Any:
        """What optuna keeps, as the recipe has it."""
        return json.loads(drawn)


Space: TypeAlias = dict[str, Range | Choices]


def brief(value: Any) -> str:
    """A value for people: four digits of a number that has more."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def read_space(file: Path, recipe: Path) -> tuple[Space, Report, dict[KeyPath, Recipe]]:
    """The space, and the recipe with each of its values alone, by the value's place in the file.

    recipe: a file that load_recipe takes. The report can say more about a value, with its line.
    Raises RecipeError with everything that is wrong with file, keys and values.
    """
    report = Report(escape_controls(str(file)))
    space: Space = {}
    for key, given in _read(file, report).items():
        dimension, wrong = _dimension(given)
        found = [*_misplaced(key, space), *wrong]
        for each in found:
            report.add(KeyProblem((key, *each.path), each.what, each.fix))
        if dimension and not found:
            space[key] = dimension
    changed: dict[KeyPath, Recipe] = {}
    for key, dimension in space.items():
        refused: dict[tuple[str, str], list[str | int]] = {}
        for place, text in dimension.tried().items():
            try:
                changed[key, place] = load_recipe(recipe, [f"{key}={text}"])
            except RecipeError as error:
                for problem in error.problems:
                    refused.setdefault((problem.what.removeprefix(f"{key}: "), problem.fix), []).append(place)
        for (what, fix), places in refused.items():
            everywhere = len(places) == len(dimension.tried())  # then it is the key that is wrong
            for path in [(key,)] if everywhere else [(key, place) for place in places]:
                report.add(KeyProblem(path, what, fix))
    report.raise_if_any()
    return space, report, changed


def _read(file: Path, report: Report) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            document = parse(stream.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise RecipeError(Problem(escape_controls(str(file)), f"can not be read: {what}")) from None
    report.read(document)
    if not document.faults and not (isinstance(document.data, dict) and document.data):
        what = "the space is empty" if not document.data else f"expected a mapping, found {describe(document.data)}"
        report.add(KeyProblem((), what, "write keys of the recipe: training.learning_rate: {low: 1e-5, high: 1e-4}"))
    report.raise_if_any()
    data: dict[str, Any] = document.data
    return data


def _misplaced(key: str, others: Mapping[str, Any]) -> Iterator[KeyProblem]:
    if not _KEY.fullmatch(key):
        yield KeyProblem((), "no key of a recipe", "write it with dots: training.learning_rate")
        return
    for fixed, why in FIXED.items():
        if _within(key, fixed) or _within(fixed, key):
            yield KeyProblem((), "can not be swept", why)
    for other in others:
        if _within(key, other) or _within(other, key):
            yield KeyProblem(
                (), f"contradicts {dotted((other,))}, which is the same setting or a part of it", "keep one"
            )


def _within(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.")


def _dimension(given: Any) -> tuple[Range | Choices | None, list[KeyProblem]]:
    """The dimension that is written there, and what is wrong with it, by paths below its key."""
    if isinstance(given, list):
        texts = [json.dumps(value) for value in given]
        twice = [KeyProblem((n,), f"{short_repr(given[n])} is there twice", "keep one") for n in _again(texts)]
        few = [KeyProblem((), "needs two choices or more", "write a list of them")] if len(texts) < 2 else []
        return Choices(tuple(texts)), twice + few
    if not isinstance(given, dict):
        what = f"expected a range or a list of choices, found {describe(given)}"
        return None, [KeyProblem((), what, "write {low: 1e-5, high: 1e-4, log: true}, or [16, 32]")]
    try:
        dimension = Range.model_validate(given)
    except ValidationError as error:
        return None, explain(error, given, {"": Range}, {})
    return dimension, list(_contradictions(dimension))


def _again(texts: Sequence[str]) -> list[int]:
    return [number for number, text in enumerate(texts) if text in texts[:number]]


def _contradictions(given: Range) -> Iterator[KeyProblem]:
    if given.low >= given.high:
        yield KeyProblem(("high",), f"must be more than low, {given.low}; found {given.high}")
    if given.log and given.low <= 0:
        yield KeyProblem(("low",), f"must be more than 0 where log is true; found {given.low}")
    if given.step is None:
        return
    if given.log:
        yield KeyProblem(("step",), "has no meaning where log is true", "remove one of the two")
        return
    if given.step <= 0:
        yield KeyProblem(("step",), f"must be more than 0; found {given.step}")
        return
    try:
        over = (Decimal(str(given.high)) - Decimal(str(given.low))) % Decimal(str(given.step))  # 0.3 is three times 0.1
    except InvalidOperation:  # more steps than 28 digits can count
        yield KeyProblem(("step",), f"is too small for a range from {given.low} to {given.high}; found {given.step}")
        return
    if over:
        yield KeyProblem(("high",), f"is not low and some steps of {given.step}", "change high or step")
