"""The search space: a YAML file of recipe keys, each with a range or a list of choices, checked against the
recipe.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from bertkit.errors import RecipeError
from bertkit.recipe.key_problems import Report
from bertkit.recipe.overrides import plain_value
from bertkit.recipe.recipe import Recipe
from bertkit.sections import Section
from bertkit.text import KeyPath, Record, dotted, escape_controls, first_line, unique
from bertkit.validation import KeyProblem, describe, validate

_KEY = re.compile(r"[^\s=~.]+(\.[^\s=~.]+)*")

# keys that no trial may change -> why
FIXED: Mapping[str, str] = {
    "seeds": "Remove it: trials have the recipe's first seed; `confirm` sets the number of seeds at the end.",
    "data": "Remove it: scores on other rows cannot be compared.",
    "task.name": "Remove it: scores of other tasks cannot be compared.",
    "training.metric_for_best_model": "Remove it: scores by other metrics cannot be compared.",
    **dict.fromkeys(
        [f"task.{name}" for name in ("mask_probability", "whole_word", "short_sequences", "nsp")],
        "Remove it: scores on other masks and pairs cannot be compared.",
    ),
    "hub": "Remove it: trials are not pushed.",
    **dict.fromkeys(
        ("folds", "verify", "explain", "checkpoints", "expected"),
        "Remove it: it changes no score on validation.",
    ),
}

_EXAMPLES = "Write {low: 1e-5, high: 1e-4, log: true}, or a list of choices: [16, 32]."


class Range(Section):
    """Numbers from low to high, both included: integers where low, high and step are."""

    low: int | float
    high: int | float
    log: bool = False  # sample uniformly on a logarithmic scale
    step: int | float | None = None

    def distribution(self) -> BaseDistribution:
        """Optuna's own. Raises ValueError, or a UserWarning, where the numbers contradict each other."""
        with warnings.catch_warnings(action="error"):
            if float in map(type, (self.low, self.high, self.step)):
                return FloatDistribution(self.low, self.high, self.log, self.step)
            return IntDistribution(
                int(self.low), int(self.high), self.log, 1 if self.step is None else int(self.step)
            )


Space = dict[str, BaseDistribution]


def contains(distribution: Any, value: Any) -> bool:
    """True if this value of a recipe could be sampled."""
    if isinstance(distribution, CategoricalDistribution):
        return json.dumps(value) in distribution.choices
    if type(value) not in ((int,) if isinstance(distribution, IntDistribution) else (int, float)):
        return False
    steps = (value - distribution.low) / (distribution.step or 1)
    return distribution.low <= value <= distribution.high and (
        not distribution.step or abs(steps - round(steps)) < 1e-9
    )


def suggest(trial: Trial, key: str, distribution: Any) -> None:
    """Sample the trial's value."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
        return
    number = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    number(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def decoded(stored: Any) -> Any:
    """The value that optuna stores as a number of a range, or as the JSON of a choice."""
    return json.loads(stored) if isinstance(stored, str) else stored


def brief(value: Any) -> str:
    """A value for people; floats with four significant digits."""
    if isinstance(value, str) and value.isprintable():
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


class Variants(NamedTuple):
    """A space; a report for further problems; and the recipe with each value alone, by the value's path in
    the file.
    """

    space: Space
    report: Report
    recipes: Mapping[KeyPath, Recipe]


def read_space(source: str | Path | Record, recipe: Recipe) -> Variants:
    """The space of a file or mapping, and the variants of this recipe.

    Raises RecipeError with all problems of the file, its keys and values.
    """
    report = Report("" if isinstance(source, Mapping) else escape_controls(str(source)))
    space: Space = {}
    fix = "Write keys of the recipe: training.learning_rate: {low: 1e-5, high: 1e-4}."
    settings = (
        plain_value(source) if isinstance(source, Mapping) else report.read_file(Path(source), "space", fix)
    )
    if not settings:
        report.add(KeyProblem((), "the space is empty", fix))
    for key, value in settings.items():
        distribution, wrong = _distribution(value)
        problems = [*_key_problems(key, space), *wrong]
        report.add(*(KeyProblem((key, *path), what, fix) for path, what, fix in problems))
        if distribution and not problems:
            space[key] = distribution
    variants: dict[KeyPath, Recipe] = {}
    for key, distribution in space.items():  # every choice, or both ends, by their place in the file
        if isinstance(distribution, CategoricalDistribution):
            values: dict[str | int, str] = dict(enumerate(map(str, distribution.choices)))
        else:
            values = {end: json.dumps(getattr(distribution, end)) for end in ("low", "high")}
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
    return Variants(space, report, variants)


def _key_problems(key: str, others: Record) -> Iterator[KeyProblem]:
    if not _KEY.fullmatch(key):
        yield KeyProblem((), "not a key of a recipe", "Write it with dots: training.learning_rate.")
        return
    for fixed, why in FIXED.items():
        if _within(key, fixed) or _within(fixed, key):
            yield KeyProblem((), f"cannot be swept: {why}", "Remove it.")
    for other in others:
        if _within(key, other) or _within(other, key):
            what = f"contradicts {dotted((other,))}, which is the same setting or a part of it"
            yield KeyProblem((), what, "Keep one.")


def _within(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.")


def _distribution(value: Any) -> tuple[BaseDistribution | None, list[KeyProblem]]:
    """The distribution of a key, and its problems, by paths below the key."""
    if isinstance(value, list):  # as JSON, since Optuna has no lists and mappings
        if not value:
            return None, [KeyProblem((), "has no choices", "Write a list of them.")]
        return CategoricalDistribution(unique(map(json.dumps, value))), []
    if not isinstance(value, dict):
        what = f"expected a range or a list of choices, found {describe(value)}"
        return None, [KeyProblem((), what, _EXAMPLES)]
    if problems := validate(Range, value):
        return None, problems
    try:
        return Range.model_validate(value).distribution(), []
    except (ValueError, ArithmeticError, UserWarning) as error:
        return None, [KeyProblem((), first_line(error), _EXAMPLES)]
