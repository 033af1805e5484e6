"""The recipe: what to train, on what, and how. Types, loading, overriding, resolving and writing."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from bertkit import sections
from bertkit.errors import Problem, RecipeError
from bertkit.recipe.checks import ROWS, check_settings, resolve_paths, without
from bertkit.recipe.errors import Report
from bertkit.recipe.overrides import apply_overrides
from bertkit.recipe.shipped import shipped_recipes
from bertkit.recipe.training_arguments import check_training, training_fields, training_schema
from bertkit.recipe.yaml import MAX_BYTES, parse, plain
from bertkit.sections import DataSpec, ModelSpec, Section, Seed
from bertkit.tasks import TASKS
from bertkit.tasks.base import TaskOptions
from bertkit.text import escape_controls, short_repr
from bertkit.validation import KeyProblem, describe, did_you_mean, validate

TASK_OPTIONS: tuple[type[TaskOptions], ...] = tuple(task.Options for task in TASKS)
if TYPE_CHECKING:
    _AnyTask = TaskOptions
else:
    _AnyTask = Annotated[reduce(or_, TASK_OPTIONS), Field(discriminator="name")]

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


class Recipe(Section):
    """The complete settings of one run: task, encoder, data, training. Immutable; every default is filled in."""

    task: _AnyTask
    model: ModelSpec
    data: DataSpec
    batching: sections.Batching | None = Field(None, description="null: training.per_device_train_batch_size rows.")
    training: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="TrainingArguments fields of transformers."
    )
    seeds: list[Seed] = Field([42], min_length=1, description="One training each; the best on validation is kept.")
    early_stopping: sections.EarlyStopping | None = None
    peft: sections.Lora | None = None
    freeze: sections.Freeze | None = None
    distillation: sections.Distillation | None = None
    hub: sections.Hub | None = None
    verify: bool = Field(True, description="Reload the saved model in a new process and compare its predictions.")
    explain: bool = Field(True, description="Explain a few predictions, for the report.")
    expected: dict[str, Any] | None = Field(None, description="Measured scores: {metric: [low, high], ...}.")

    @field_validator("expected")
    @classmethod
    def _bounded(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        for name, bounds in (given or {}).items():
            if isinstance(bounds, list):
                numbers = all(isinstance(b, int | float) and not isinstance(b, bool) for b in bounds)
                if len(bounds) != 2 or not numbers or bounds[0] > bounds[1]:
                    raise ValueError(f"{name}: expected [low, high], found {bounds}")
        return given

    @field_validator("training")
    @classmethod
    def _complete(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """bertkit's defaults; checkpoints are written at every evaluation, which they are selected by."""
        by_tokens = info.data.get("batching") is not None
        defaults = {name: value for name, value in TRAINING_DEFAULTS.items() if not by_tokens or name not in ROWS}
        strategy = given.get("eval_strategy", given.get("save_strategy", "epoch"))
        steps = {"save_steps": given["eval_steps"]} if "eval_steps" in given and strategy == "steps" else {}
        saves = "epoch" if strategy == "no" else strategy
        return {**defaults, "eval_strategy": strategy, "save_strategy": saves, **steps, **given}


def load_recipe(source: str | Path, overrides: Sequence[str] = (), *, check_files: bool = True) -> Recipe:
    """Read, override, check and complete a recipe.

    source: a file, or the name of a shipped recipe. overrides: `key.sub=value` (YAML values) and `~key.sub`.
    Paths in a recipe file are relative to its folder, those in overrides and shipped recipes to the working
    directory; in the result all are absolute. check_files: whether data files and model folders must exist.

    Raises RecipeError with everything that is wrong.
    """
    shipped = shipped_recipes()
    file = shipped.get(str(source)) or Path(os.path.expanduser(source))
    home = Path() if file in shipped.values() else file.absolute().parent
    report = Report(escape_controls(str(file)), home)
    fix = "start with `task:`, `model:` and `data:`, or with a copy: bertkit copy sst2 my.yaml"
    try:
        data = read_mapping(file, report, "recipe", fix)
    except RecipeError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        near = [path.name for path in file.absolute().parent.glob("*.y*ml")]
        what = f"no such recipe{did_you_mean(file.name, [*shipped, *near])}"
        raise RecipeError(Problem(report.name, what, f"shipped recipes: {', '.join(shipped) or 'none'}")) from None
    apply_overrides(data, overrides, report)
    clean = _check(data, report)
    report.add(*resolve_paths(clean, report.folder, must_exist=check_files))
    report.raise_if_any()
    return Recipe.model_validate(clean)


def parse_data_spec(data: Mapping[str, Any], overrides: Sequence[str] = ()) -> DataSpec:
    """A `data:` section from plain data and `data.key=value` overrides. Raises RecipeError like load_recipe."""
    section = {"data": dict(data)}
    report = Report("")
    apply_overrides(section, overrides, report)
    problems = validate(_DataOnly, section, {"data": DataSpec})
    clean = without(section, {each.path for each in problems})
    report.add(*problems, *resolve_paths(clean, report.folder))
    report.raise_if_any()
    return _DataOnly.model_validate(clean).data


def to_yaml(recipe: Recipe) -> str:
    """The recipe as YAML text with every default written: load_recipe of it gives an equal recipe."""
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Plain
    writer.default_flow_style = False
    writer.representer.sort_base_mapping_type_on_output = False
    writer.width = 2**31
    text = io.StringIO()
    writer.dump(recipe.model_dump(), text)
    return text.getvalue()


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a recipe, with the training fields of the installed transformers."""
    schema = Recipe.model_json_schema()
    about = schema["properties"]["training"]["description"]
    schema["properties"]["training"] = {**training_schema(), "description": about}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# name -> type of the sections, in the order in which a misplaced key is looked up
_SECTIONS: Mapping[str, type[BaseModel]] = {
    "distillation": sections.Distillation, "task": TaskOptions, "model": ModelSpec, "data": DataSpec,
    "early_stopping": sections.EarlyStopping, "peft": sections.Lora, "freeze": sections.Freeze, "hub": sections.Hub,
    "batching": sections.Batching,
}  # fmt: skip
_RENAMED = {  # arguments of transformers' scripts -> their names here
    "max_seq_length": "model.max_length", "model_name_or_path": "model.name", "model_revision": "model.revision",
    "dataset_name": "data.source", "dataset_config_name": "data.subset", "train_file": "data.source.train",
    "validation_file": "data.source.validation", "test_file": "data.source.test",
    **dict.fromkeys(("text_column", "text_column_name", "label_column", "label_column_name"), "data.columns"),
    "max_train_samples": "data.limit.train", "max_eval_samples": "data.limit.validation",
    "task_name": "task.name", "doc_stride": "task.stride", "epochs": "training.num_train_epochs",
    "batch_size": "training.per_device_train_batch_size", "lr": "training.learning_rate",
}  # fmt: skip
_AMBIGUOUS = {"name", "revision", "seed"}  # keys of several sections


class _DataOnly(Section):
    data: DataSpec


class _Plain(SafeRepresenter):
    """Quotes text that would not be read as text, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> ScalarNode:
        style = None if data.isprintable() and isinstance(plain(data), str) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Plain.add_representer(str, _Plain.represent_str)


def read_mapping(file: Path, report: Report, kind: str, fix: str) -> dict[str, Any]:
    """The keys of a YAML file. kind: of the file, for messages; fix: for an empty one. Raises RecipeError."""
    try:
        with open(file, "rb") as stream:
            document = parse(stream.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        what = str(error.strerror) if isinstance(error, OSError) else "not a valid file name"
        raise RecipeError(Problem(report.name, f"cannot be read: {what}")) from error
    report.read(document)
    data: Any = document.data
    if isinstance(data, dict):
        return data
    if not document.faults:
        what = f"the {kind} is empty" if data is None else f"expected a mapping, found {describe(data)}"
        report.add(KeyProblem((), what, fix))
    report.raise_if_any()
    return {}


def _check(data: dict[str, Any], report: Report) -> dict[str, Any]:
    """Report everything that is wrong with the values; returns the values that are right."""
    options, problems = _options(data)
    kinds = {**_SECTIONS, "task": options or TaskOptions}
    own = {key: name for name, kind in kinds.items() for key in kind.model_fields.keys() - _AMBIGUOUS}
    homes = {**_RENAMED, **own}
    invalid = validate(Recipe, data, kinds, {**dict.fromkeys(training_fields(), "training"), **homes})
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
    contradictions = check_settings(settings, options)
    report.add(*problems, *(each for each in contradictions if not {each.path, each.path[:1]} & bad))
    if best := clean.get("training", {}).get("metric_for_best_model"):
        clean["training"]["metric_for_best_model"] = best.removeprefix("eval_")
    return clean


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
