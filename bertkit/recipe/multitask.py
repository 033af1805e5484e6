"""The recipe of multi-task learning: several tasks, each with data of its own, over one encoder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from bertkit import sections
from bertkit.data.python_rows import Rows, store_rows
from bertkit.errors import Problem, RecipeError
from bertkit.recipe import shipped_recipes
from bertkit.recipe.key_problems import Report
from bertkit.recipe.overrides import fill_sections, plain_sections
from bertkit.recipe.recipe import (
    AnyTask,
    Recipe,
    Sections,
    adapted,
    check_sections,
    find_rows,
    load_recipe,
    read_recipe,
)
from bertkit.recipe.training_arguments import training_schema
from bertkit.sections import DataSpec, ModelSpec, Section, Seed, Text
from bertkit.tasks import TASKS as ALL_TASKS
from bertkit.text import KeyPath, short_repr
from bertkit.validation import KeyProblem, did_you_mean, validate

MEAN = "mean"  # of the tasks' selection metrics: the `metric_for_best_model` of a recipe that names none
TASKS = ("text-classification", "token-classification", "question-answering", "sentence-similarity")
Mixing = Literal["proportional", "sqrt", "uniform"]
Positive = Annotated[float, Field(gt=0)]
# Folders of a run, which are not tasks; and `mean`.
RESERVED = frozenset({MEAN, "adapter", "checkpoints", "data", "logs", "model", "predictions"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SINGLE = {  # sections of a recipe of one task -> what to do without them
    **dict.fromkeys(("task", "data"), "each task has its own: tasks: {NAME: {task: …, data: …}}"),
    "folds": "remove it, or cross-validate one task by itself",
    "distillation": "remove it, or distil one task by itself",
    "hub": "remove it; afterwards: bertkit push RUN/NAME OWNER/MODEL",
    "expected": "each task has its own: tasks: {NAME: {expected: …}}",
}
# of `training`; checkpointing by both of its names in transformers 5
_REFUSED = ("auto_find_batch_size", "activation_checkpointing", "gradient_checkpointing", "torch_compile")


class TaskPart(Section):
    """One of the tasks: what is different from the others."""

    task: AnyTask
    data: DataSpec
    weight: Positive = Field(1.0, description="Factor on this task's loss.")
    max_length: Annotated[int, Field(ge=8)] | None = Field(None, description="null: model.max_length.")
    metric_for_best_model: Text | None = Field(None, description="null: the task's selection metric.")
    expected: dict[str, Any] | None = Field(None, description="Measured scores: {metric: [low, high], ...}.")


class MultiTaskRecipe(Section):
    """The complete settings of a run of several tasks. Immutable; every default is filled in."""

    tasks: Annotated[dict[str, TaskPart], Field(min_length=1)] = Field(description="Name -> task and data.")
    mixing: Mixing | Annotated[dict[str, Positive], Field(min_length=1)] = Field(
        "proportional",
        description="How often a task is drawn: in proportion to its batches per epoch, to their square root, equally "
        "often, or by {NAME: weight}.",
    )
    model: ModelSpec
    batching: sections.Batching | None
    training: dict[str, Any]
    seeds: list[Seed]
    early_stopping: sections.EarlyStopping | None
    peft: sections.Lora | None
    freeze: sections.Freeze | None
    verify: bool
    explain: bool
    checkpoints: sections.Checkpoints

    @property
    def parts(self) -> dict[str, Recipe]:
        """Name -> the recipe that would train this task by itself."""
        shared = {name: getattr(self, name) for name in Sections.model_fields.keys() & MultiTaskRecipe.model_fields}
        recipes = {}
        for name, part in self.tasks.items():
            length, metric = part.max_length or self.model.max_length, part.metric_for_best_model
            training = {key: value for key, value in self.training.items() if key != "metric_for_best_model"}
            training |= {"metric_for_best_model": metric} if metric else {}
            own: dict[str, Any] = {"model": self.model.model_copy(update={"max_length": length}), "training": training}
            own |= {"task": part.task, "data": part.data, "expected": part.expected}
            recipes[name] = Recipe.model_construct(**{**shared, **own})
        return recipes


AnyRecipe: TypeAlias = Recipe | MultiTaskRecipe


def load_any(
    source: str | Path, overrides: Sequence[str] = (), *, check_files: bool = True, own_metrics: bool = True
) -> AnyRecipe:
    """`load_recipe`, also for a recipe of several tasks. Raises RecipeError with everything that is wrong."""
    data, report = _read(source, overrides)
    if "tasks" in data:
        return _checked(data, {}, report, check_files)
    return load_recipe(source, overrides, check_files=check_files, own_metrics=own_metrics)


def tasks_of_recipe(file: Path) -> list[str]:
    """The names of the tasks that a recipe file has, in their order; of a recipe of one task, none."""
    return [*_mapping(_read(file)[0].get("tasks"))]


def _read(source: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Report]:
    """`read_recipe`, also of a run whose rows were given from Python, which are in RUN/NAME/data."""
    data, report = read_recipe(source, overrides)
    for name, part in _mapping(data.get("tasks")).items():
        find_rows(_mapping(part).get("data"), Path(source).expanduser().absolute().with_name(name) / "data")
    return data, report


def settled(source: Any, data: Any, values: Mapping[str, Any]) -> AnyRecipe:
    """The recipe that `bertkit.train` is called with, of one task or of several; see `adapted`.

    Raises RecipeError, and DataError on rows that cannot be read.
    """
    if isinstance(source, MultiTaskRecipe) and not values and data is None:
        return source
    sections, report = dict(source) if isinstance(source, Mapping) else {}, Report("")
    if isinstance(source, str | Path) and (str(source) in shipped_recipes() or Path(source).expanduser().is_file()):
        sections, report = _read(source)
    if "tasks" not in sections:
        return adapted(source, data, values)
    if data is not None:
        what = "a recipe of several tasks has the data in `tasks`"
        raise RecipeError(Problem("", what, 'tasks: {NAME: {"task": …, "data": …}}'))
    report.add(*fill_sections(sections, values, MultiTaskRecipe.model_fields, {}))
    parts, rows = sections["tasks"], dict[str, Mapping[str, Rows]]()
    if isinstance(parts, Mapping):
        split = {name: plain_sections(part) for name, part in parts.items() if isinstance(part, Mapping)}
        sections["tasks"] = {**parts, **{name: plain for name, (plain, _) in split.items()}}
        rows = {name: given for name, (_, given) in split.items()}
    return _checked(plain_sections(sections)[0], rows, report, check_files=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a recipe: of several tasks where it has `tasks`, of one where it does not.

    With the training fields of the installed transformers.
    """
    one, several = Recipe.model_json_schema(), MultiTaskRecipe.model_json_schema()
    definitions = {**one.pop("$defs"), **several.pop("$defs")}
    one["properties"]["training"] = {**training_schema(), "description": one["properties"]["training"]["description"]}
    several["properties"] |= {name: one["properties"][name] for name in _SHARED}
    several["required"] = ["tasks", "model"]
    choice = definitions["TaskPart"]["properties"]["task"]
    references = choice.pop("discriminator")["mapping"]
    choice["oneOf"] = [{"$ref": references[name]} for name in TASKS]
    version = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": version, "if": {"required": ["tasks"]}, "then": several, "else": one, "$defs": definitions}


class _Outer(Section):
    """What a recipe of one task does not have. What it has, `check_sections` checks."""

    class TaskSection(Section):
        task: Any = None
        data: Any = None
        weight: Positive = 1.0
        max_length: Any = None
        metric_for_best_model: Any = None
        expected: Any = None

    tasks: Annotated[dict[str, TaskSection], Field(min_length=1)]
    mixing: Mixing | Annotated[dict[str, Positive], Field(min_length=1)] = "proportional"


def _place(name: str, part: Mapping[str, Any], path: KeyPath) -> KeyPath:
    """Where a key of the recipe that would train this task by itself is in that of all: in the task, or shared."""
    if path[:1] in (("task",), ("data",), ("expected",)):
        return ("tasks", name, *path)
    return ("tasks", name, *path[1:]) if len(path) > 1 and path[1] in _INNER and path[1] in part else path


def _checked(
    data: Mapping[str, Any], rows: Mapping[str, Mapping[str, Rows]], report: Report, check_files: bool
) -> MultiTaskRecipe:
    """The recipe of plain data. rows: task -> rows that were given from Python. Raises RecipeError, DataError."""
    shared = {name: data[name] for name in data.keys() & _SHARED}
    outer = {name: value for name, value in data.items() if name not in {*shared, *_SINGLE}}
    for name in data.keys() & _SINGLE.keys():
        report.add(KeyProblem((name,), "has no place in a recipe of several tasks", _SINGLE[name]))
    report.add(*validate(_Outer, outer), *_contradictions(outer, shared))
    parts = {name: part for name, part in _mapping(outer["tasks"]).items() if isinstance(part, dict)}
    clean, problems = dict[str, dict[str, Any]](), dict[KeyProblem, None]()  # what all tasks share is reported once

    def folder(name: str, path: KeyPath) -> Path:
        return report.folder(_place(name, parts[name], path))

    for name, part in parts.items():
        clean[name], wrong = check_sections(_of_one(shared, part), partial(folder, name), check_files, False)
        problems |= dict.fromkeys(each._replace(path=_place(name, part, each.path)) for each in wrong)
    report.add(*problems)
    report.raise_if_any()
    for name, stored in rows.items():
        clean[name]["data"] |= store_rows(stored) if stored else {}
    valid = {name: Sections.model_validate(each) for name, each in clean.items()}
    first = next(iter(valid.values()))
    entries = dict[str, TaskPart]()
    for name, own in valid.items():
        best = own.training.get("metric_for_best_model")
        entries[name] = TaskPart(**{**parts[name], "task": own.task, "data": own.data, "metric_for_best_model": best})
    defaults = {name: _mapping(shared.get(name)) for name in ("model", "training")}
    length = defaults["model"].get("max_length", ModelSpec.model_fields["max_length"].default)
    best = defaults["training"].get("metric_for_best_model", MEAN)
    settled = {name: getattr(first, name) for name in _SHARED} | outer
    settled |= {"tasks": entries, "model": first.model.model_copy(update={"max_length": length})}
    return MultiTaskRecipe(**{**settled, "training": {**first.training, "metric_for_best_model": best}})


def _of_one(shared: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data of the recipe that would train this task by itself."""
    own = {name: part[name] for name in ("task", "data", "expected") if name in part}
    for section, name in ((section, name) for name, section in _INNER.items()):
        defaults = shared.get(section, {})
        if isinstance(defaults, dict):
            inherited = {key: value for key, value in defaults.items() if key != name or name == "max_length"}
            own[section] = {**inherited, **({name: part[name]} if part.get(name) is not None else {})}
    return {**shared, **own}


def _contradictions(outer: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[KeyProblem]:
    parts, training, mixing = _mapping(outer["tasks"]), _mapping(shared.get("training")), outer.get("mixing")
    for name, part in parts.items():
        task = _mapping(_mapping(part).get("task"))
        if not _NAME.fullmatch(name) or name.lower() in RESERVED:
            what = "is not a name of a task, which is a folder of the run"
            fix = f"letters, digits, - and _, at most 64, and not one of {', '.join(sorted(RESERVED))}"
            yield KeyProblem(("tasks", name), what, fix)
        if task.get("name") in {each.name for each in ALL_TASKS}.difference(TASKS):
            what = f"{task['name']} is trained by itself"
            yield KeyProblem(("tasks", name, "task", "name"), what, f"known here: {', '.join(TASKS)}")
        if task.get("method") is not None:
            what = "several tasks are trained in one way, by fine-tuning everything"
            yield KeyProblem(("tasks", name, "task", "method"), what, "remove it")
    for name in sorted(_mapping(mixing).keys() ^ parts.keys()) if isinstance(mixing, dict) else ():
        what = f"no task of this name{did_you_mean(name, parts)}" if name in _mapping(mixing) else "missing"
        yield KeyProblem(("mixing", name), what, f"a weight for each of the tasks: {', '.join(parts)}")
    for name in _REFUSED:
        if training.get(name):
            yield KeyProblem(("training", name), "is not available for several tasks", "remove it")
    best = training.get("metric_for_best_model", MEAN)
    if best != MEAN and best not in parts:
        what = f"expected {MEAN!r}, or a task, found {short_repr(best)}"
        yield KeyProblem(("training", "metric_for_best_model"), what, f"tasks: {', '.join(parts)}")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_INNER = {"max_length": "model", "metric_for_best_model": "training"}  # key of a task -> its section elsewhere
_SHARED = Sections.model_fields.keys() & MultiTaskRecipe.model_fields.keys()
