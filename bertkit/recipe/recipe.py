"""The recipe: what to train, on what, and how. Types, loading, overriding, resolving and writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from bertkit import sections
from bertkit.data.python_rows import store_rows
from bertkit.errors import Problem, RecipeError
from bertkit.recipe import shipped_recipes
from bertkit.recipe.cross_checks import ROWS, STILL_READ, WITHOUT_TRAINER, check_settings, resolve_paths, without
from bertkit.recipe.key_problems import Report
from bertkit.recipe.overrides import RENAMED, SECTIONS, apply_overrides, fill_sections, plain_sections
from bertkit.recipe.training_arguments import check_training, training_fields
from bertkit.recipe.yaml import written
from bertkit.sections import MEMORY, DataSpec, ModelSpec, Section, Seed
from bertkit.tasks import TASKS
from bertkit.tasks.base import TaskOptions
from bertkit.text import KeyPath, escape_controls, short_repr
from bertkit.validation import KeyProblem, describe, did_you_mean, validate

TASK_OPTIONS: tuple[type[TaskOptions], ...] = tuple(task.Options for task in TASKS)
if TYPE_CHECKING:
    AnyTask = TaskOptions
else:
    AnyTask = Annotated[reduce(or_, TASK_OPTIONS), Field(discriminator="name")]

TRAINING_DEFAULTS = {
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 32,
    "warmup_steps": 0.1,  # a fraction, being below 1
    "weight_decay": 0.01,
    "logging_steps": 50,
    "save_total_limit": 2,  # the best and the newest
}
FEW_ROWS = {"learning_rate": 2e-4, "num_train_epochs": 20}  # of `method: full`


class Sections(Section):
    """The fields of a recipe."""

    task: AnyTask
    model: ModelSpec
    data: DataSpec
    batching: sections.Batching | None = Field(None, description="null: training.per_device_train_batch_size rows.")
    training: dict[str, Any] = Field(
        default_factory=dict,
        validate_default=True,
        description="Fields of transformers' TrainingArguments, and bertkit's.",
    )
    seeds: list[Seed] = Field([42], min_length=1, description="One training each; the best on validation is kept.")
    folds: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Cross-validation: the number of parts of train, each answered by a model of the others."
    )
    early_stopping: sections.EarlyStopping | None = None
    peft: sections.Lora | None = None
    freeze: sections.Freeze | None = None
    distillation: sections.Distillation | None = None
    hub: sections.Hub | None = None
    verify: bool = Field(True, description="Reload the saved model in a new process and compare its predictions.")
    explain: bool = Field(True, description="Explain a few predictions, for the report.")
    checkpoints: sections.Checkpoints = Field("keep", description="What a finished run keeps: all, the best, none.")
    expected: dict[str, Any] | None = Field(None, description="Measured scores: {metric: [low, high], ...}.")

    @field_validator("expected")
    @classmethod
    def _bounded(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name, bounds in (value or {}).items():
            if isinstance(bounds, list):
                numbers = all(isinstance(b, int | float) and not isinstance(b, bool) for b in bounds)
                if len(bounds) != 2 or not numbers or bounds[0] > bounds[1]:
                    raise ValueError(f"{name}: expected [low, high], found {bounds}")
        return value

    @field_validator("training")
    @classmethod
    def _fill_defaults(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """The values that are not given."""
        by_tokens = info.data.get("batching") is not None
        known = _training_defaults(info.data.get("task"))
        without = {*(ROWS if by_tokens else ()), *(["num_train_epochs"] if given.get("budget") else [])}
        defaults = {name: value for name, value in known.items() if name not in without}
        return {**defaults, **_saving(given), **given}


class Recipe(Sections):
    """The complete settings of one run: task, encoder, data, training. Immutable; every default is filled in.

    `Recipe(task="text-classification", model="bert-base-uncased", data=frame)`: sections are dicts, as in YAML; task
    and model may be a name, and data what `bertkit.train` takes. Raises RecipeError with everything that is wrong, and
    DataError on rows that cannot be read.

    >>> recipe = bertkit.Recipe(task="text-classification", model="bert-base-uncased", data="sample:sentiment")
    >>> recipe.with_(learning_rate=1e-4).training["learning_rate"]
    0.0001
    """

    def __init__(self, **sections: Any) -> None:
        super().__init__(**_checked(sections))

    def with_(self, *overrides: str, **values: Any) -> Recipe:
        """A recipe with changes, checked again: `key.sub=value` as on the command line, or as `bertkit.train` has them.

        Such as `recipe.with_("training.learning_rate=1e-4", "~early_stopping")` and `recipe.with_(epochs=2)`.
        Raises RecipeError, and DataError on rows that cannot be read.
        """
        return _valid(_checked(self._given(), overrides, values))

    @property
    def parts(self) -> Mapping[str, Recipe]:
        """The recipe of each task: of one task, which has no name."""
        return {"": self}

    def _given(self) -> dict[str, Any]:
        """The sections, without those values of `training` that follow from others."""
        sections = self.model_dump()
        training = sections["training"]
        follows = {**_training_defaults(self.task), **_saving(training), "eval_strategy": None}
        sections["training"] = {key: value for key, value in training.items() if follows.get(key) != value}
        return sections


def adapted(base: Any, data: Any, values: Mapping[str, Any]) -> Recipe:
    """The recipe that `bertkit.train` is called with. Raises RecipeError, and DataError on rows that cannot be read.

    base: a recipe, a shipped recipe's name or a file, or a task's name. data: replaces its `data:`, if not None.
    values: sections, and keys of sections by their own names.
    """
    if isinstance(base, Recipe) and data is None and not values:
        return base
    tasks = [task.name for task in TASKS]
    sections: Mapping[str, Any]
    if isinstance(base, Recipe | Mapping):
        sections = base._given() if isinstance(base, Recipe) else base
    elif not isinstance(base, str | Path):
        what = f"expected a task, a recipe or its name first, found {describe(base)}"
        raise RecipeError(Problem("", what, 'bertkit.train("text-classification", "runs/x", data=…, model=…)'))
    elif str(base) in tasks:
        sections = {"task": str(base)}
    else:
        if str(base) not in shipped_recipes() and not Path(base).expanduser().exists():
            what = f"no such task or recipe{did_you_mean(str(base), [*tasks, *shipped_recipes()])}"
            raise RecipeError(Problem(escape_controls(str(base)), what, f"tasks: {', '.join(tasks)}"))
        sections = load_recipe(base, check_files=data is None)._given()
    return _valid(_checked(sections, (), values if data is None else {"data": data, **values}))


def load_recipe(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    check_files: bool = True,
    own_metrics: bool = True,
) -> Recipe:
    """Read, override, check and complete a recipe.

    source: a file, the name of a shipped recipe, or a dict of what `Recipe` takes.
    overrides: `key.sub=value` (YAML values) and `~key.sub`.
    Paths in a recipe file are relative to its folder, those in overrides and shipped recipes to the working
    directory; in the result all are absolute. check_files: whether data files and model folders must exist.
    own_metrics: whether `metric_for_best_model` may be unknown, as one of your own metrics that `train` takes.

    Raises RecipeError with everything that is wrong.

    >>> bertkit.load_recipe("quickstart", ["seeds=[1, 2]"]).seeds
    [1, 2]
    """
    if isinstance(source, Mapping):
        return _valid(_checked(source, overrides, check_files=check_files))
    data, report = read_recipe(source, overrides)
    return _valid(_check_and_fill(data, report, check_files, own_metrics))


def read_recipe(source: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Report]:
    """A recipe file or shipped recipe as plain data with the overrides, and what is wrong so far.

    Raises RecipeError where it cannot be read.
    """
    shipped = shipped_recipes()
    file = shipped.get(str(source)) or Path(os.path.expanduser(source))
    home = Path() if file in shipped.values() else file.absolute().parent
    report = Report(escape_controls(str(file)), home)
    fix = "start with `task:`, `model:` and `data:`, or with a copy: bertkit copy sst2 my.yaml"
    try:
        data = report.read_file(file, "recipe", fix)
    except RecipeError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        near = [path.name for path in file.absolute().parent.glob("*.y*ml")]
        what = f"no such recipe{did_you_mean(file.name, [*shipped, *near])}"
        raise RecipeError(Problem(report.name, what, f"shipped recipes: {', '.join(shipped) or 'none'}")) from None
    apply_overrides(data, overrides, report)
    find_rows(data.get("data"), file.absolute().with_name("data"))
    return data, report


def find_rows(section: Any, folder: Path) -> None:
    """Let a `data:` section of rows that were given from Python name this folder, in place, if there is one."""
    if isinstance(section, dict) and section.get("source") == MEMORY and folder.is_dir():
        section.setdefault("folder", str(folder))


def parse_data_spec(data: Mapping[str, Any], overrides: Sequence[str] = ()) -> DataSpec:
    """A `data:` section from plain data and `data.key=value` overrides. Raises RecipeError like load_recipe."""
    section = {"data": dict(data)}
    report = Report("")
    apply_overrides(section, overrides, report)
    problems = validate(_DataOnly, section)
    clean = without(section, {each.path for each in problems})
    report.add(*problems, *resolve_paths(clean, report.folder))
    report.raise_if_any()
    return _DataOnly.model_validate(clean).data


def parse_layout(overrides: Sequence[str]) -> DataSpec:
    """How one file is written, from overrides such as `data.delimiter=";"`; `source` has no meaning.

    Raises RecipeError, also where another key of `data:` is given.
    """
    spec = parse_data_spec({"source": "-"}, overrides)
    if other := spec.model_fields_set.difference(LAYOUT, ["source"]):
        what = f"only the layout of the file can be given here: {', '.join(f'data.{name}' for name in LAYOUT)}"
        raise RecipeError(Problem(f"override data.{min(other)}", what, "Columns are named by --column."))
    return spec


def to_yaml(recipe: sections.Section) -> str:
    """A recipe of one task or of several as YAML text with every default written: read again, it is an equal recipe.

    The folder of rows given from Python is left out: a run has them in data/, wherever it is moved.
    """
    return written(recipe.model_dump(exclude={"data": {"folder"}, "tasks": {"__all__": {"data": {"folder"}}}}))


LAYOUT = ("format", "sheet", "header", "delimiter", "extra_fields", "encoding")  # of `data:`, for a file
_AMBIGUOUS = {"name", "revision", "seed"}  # keys of several sections


class _DataOnly(Section):
    data: DataSpec


def _checked(
    sections: Mapping[str, Any], overrides: Sequence[str] = (), values: Mapping[str, Any] = {}, check_files: bool = True
) -> dict[str, Any]:
    """The sections of a recipe from Python values, checked; rows among them are stored in the cache."""
    sections, report = dict(sections), Report("")
    problems = fill_sections(sections, values, Sections.model_fields, {task.name: task.Options for task in TASKS})
    data, rows = plain_sections(sections)
    apply_overrides(data, overrides, report)
    report.add(*problems)
    clean = _check_and_fill(data, report, check_files)
    if rows:
        clean["data"] |= store_rows(rows)
    return clean


def _check_and_fill(
    data: dict[str, Any], report: Report, check_files: bool, own_metrics: bool = True
) -> dict[str, Any]:
    """Plain data with absolute paths. Raises RecipeError with everything that is wrong."""
    if "tasks" in data:
        fix = "a run of several tasks has a folder for each, which is given in its place: RUN/NAME"
        report.add(KeyProblem(("tasks",), "several tasks, where a recipe of one task is expected", fix))
        report.raise_if_any()
    clean, problems = check_sections(data, report.folder, check_files, own_metrics)
    report.add(*problems)
    report.raise_if_any()
    return clean


def _valid(clean: Mapping[str, Any]) -> Recipe:
    """The recipe of data that are checked already."""
    return Recipe.model_construct(**dict(Sections.model_validate(clean)))


def _training_defaults(task: TaskOptions | None) -> dict[str, Any]:
    """TRAINING_DEFAULTS, as the task's method changes them."""
    method = dict(task or ()).get("method")
    if method in WITHOUT_TRAINER:
        return {name: value for name, value in TRAINING_DEFAULTS.items() if name in STILL_READ}
    return {**TRAINING_DEFAULTS, **(FEW_ROWS if method else {})}


def _saving(training: Mapping[str, Any]) -> dict[str, Any]:
    """Checkpoints are written at every evaluation, which they are selected by."""
    strategy = training.get("eval_strategy", training.get("save_strategy", "epoch"))
    strategy = "epoch" if strategy == "best" else strategy  # which says when to save, not when to evaluate
    steps = {"save_steps": training["eval_steps"]} if "eval_steps" in training and strategy == "steps" else {}
    return {"eval_strategy": strategy, "save_strategy": "epoch" if strategy == "no" else strategy, **steps}


def check_sections(
    data: dict[str, Any], folder: Callable[[KeyPath], Path], check_files: bool, own_metrics: bool
) -> tuple[dict[str, Any], list[KeyProblem]]:
    """The values that are right, paths as absolute ones, and everything that is wrong. folder: as `resolve_paths`."""
    options, problems = _options(data)
    kinds = {**SECTIONS, "task": options or TaskOptions}
    own = {key: name for name, kind in kinds.items() for key in kind.model_fields.keys() - _AMBIGUOUS}
    homes = {**RENAMED, **own}
    invalid = validate(Sections, data, kinds, {**dict.fromkeys(training_fields(), "training"), **homes})
    # without a task its options cannot be checked
    problems += [each for each in invalid if not problems or each.path[:1] != ("task",)]
    if isinstance(data.get("training"), dict):
        problems += check_training(data["training"], homes)
    bad = {each.path for each in problems} | ({("task",)} if options is None else set())
    clean: dict[str, Any] = without(data, bad)
    settings = {
        **clean,
        "model": vars(ModelSpec.model_construct(**clean.get("model", {}))),
        "task": vars((options or TaskOptions).model_construct(**clean.get("task", {}))),
    }
    contradictions = check_settings(settings, options, own_metrics)
    problems += [each for each in contradictions if not {each.path, each.path[:1]} & bad]
    if best := clean.get("training", {}).get("metric_for_best_model"):
        clean["training"]["metric_for_best_model"] = best.removeprefix("eval_")
    return clean, [*problems, *resolve_paths(clean, folder, must_exist=check_files)]


def _options(data: Mapping[str, Any]) -> tuple[type[TaskOptions] | None, list[KeyProblem]]:
    """The options type that `task.name` names, or what is wrong with the name."""
    task = data.get("task")
    if not isinstance(task, dict):
        return None, []
    by_name = {each.name: each.Options for each in TASKS}
    name = task.get("name")
    if isinstance(name, str) and name in by_name:
        return by_name[name], []
    what = "missing" if "name" not in task else f"expected text, found {describe(name)}"
    if isinstance(name, str):
        what = f"no task {short_repr(name)}{did_you_mean(name, by_name)}"
    return None, [KeyProblem(("task", "name"), what, f"known: {', '.join(by_name)}")]
