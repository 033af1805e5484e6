"""The fields of a recipe, of one task and of several, with their defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, SerializeAsAny, ValidationInfo, field_validator

from bertkit import sections
from bertkit.recipe.cross_checks import ROWS, STILL_READ
from bertkit.sections import DataSpec, Length, ModelSpec, Positive, Section, Seed, Text
from bertkit.tasks import find_task
from bertkit.tasks.base import TaskOptions
from bertkit.text import Json


def _options(value: Any) -> TaskOptions:
    """The options of the task that is named. Raises ValueError where there is none of this name."""
    if isinstance(value, TaskOptions) or not isinstance(value, dict):
        return TaskOptions.model_validate(value)
    if (task := find_task(value.get("name"))) is None:
        raise ValueError("no task of this name")
    return task.Options.model_validate(value)


AnyTask = Annotated[SerializeAsAny[TaskOptions], PlainValidator(_options)]
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


MEAN = "mean"  # of the tasks' selection metrics: the `metric_for_best_model` of a recipe that names none


class Training(Json):
    """The values of `training:`. stated: the names of those that the recipe states; the others are
    defaults.
    """

    def __init__(self, values: Json, stated: Iterable[str]) -> None:
        super().__init__(values)
        self.stated = frozenset(stated)


class Sections(Section):
    """The fields of a recipe."""

    task: AnyTask
    model: ModelSpec
    data: DataSpec
    batching: sections.Batching | None = None
    """null: training.per_device_train_batch_size rows."""
    training: Json = Field(default_factory=dict, validate_default=True)
    """Fields of transformers' TrainingArguments, and bertkit's."""
    seeds: list[Seed] = Field([42], min_length=1)
    """One training each; the best on validation is kept."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Cross-validation: the number of parts of train, each answered by a model of the others."""
    early_stopping: sections.EarlyStopping | None = None
    peft: sections.Lora | None = None
    freeze: sections.Freeze | None = None
    distillation: sections.Distillation | None = None
    hub: sections.Hub | None = None
    verify: bool = True
    """Reload the saved model in a new process and compare its predictions."""
    explain: bool = True
    """Explain a few predictions, for the report."""
    checkpoints: sections.Checkpoints = "keep"
    """What a finished run keeps: all, the best, none."""
    expected: Json | None = None
    """Measured scores: {metric: [low, high], ...}."""

    @field_validator("expected")
    @classmethod
    def _bounded(cls, value: Json | None) -> Json | None:
        for name, bounds in (value or {}).items():
            if isinstance(bounds, list):
                numbers = all(isinstance(b, int | float) and not isinstance(b, bool) for b in bounds)
                if len(bounds) != 2 or not numbers or bounds[0] > bounds[1]:
                    raise ValueError(f"{name}: expected [low, high], found {bounds}")
        return value

    @field_validator("training")
    @classmethod
    def _fill_defaults(cls, stated: Json, info: ValidationInfo) -> Json:
        """The values that are not stated."""
        by_tokens = info.data.get("batching") is not None
        defaults = _training_defaults(info.data.get("task"))
        for name in (*(ROWS if by_tokens else ()), *(["num_train_epochs"] if stated.get("budget") else [])):
            defaults.pop(name, None)
        return Training({**defaults, **_saving(stated), **stated}, stated)


def _training_defaults(task: TaskOptions | None) -> Json:
    """TRAINING_DEFAULTS, as the task's method changes them."""
    method = getattr(task, "method", None)
    if task and method in task.untrained:
        return {name: value for name, value in TRAINING_DEFAULTS.items() if name in STILL_READ}
    return {**TRAINING_DEFAULTS, **(FEW_ROWS if method else {})}


def _saving(training: Json) -> Json:
    """Checkpoints are written at every evaluation, which they are selected by."""
    step = training.get("eval_steps", training.get("save_steps"))
    default = "epoch" if step is None else "steps"
    strategy = training.get("eval_strategy", training.get("save_strategy", default))
    strategy = default if strategy == "best" else strategy  # which says when to save, not when to evaluate
    saved = default if strategy == "no" else strategy
    steps = {"eval_steps": step, "save_steps": step} if step is not None and saved == "steps" else {}
    return {"eval_strategy": strategy, "save_strategy": saved, **steps}


class TaskPart(Section):
    """One of the tasks: what is different from the others."""

    task: AnyTask
    data: DataSpec
    weight: Positive = 1.0
    """Factor on this task's loss."""
    max_length: Length | None = None
    """null: model.max_length."""
    metric_for_best_model: Text | None = None
    """null: the task's selection metric."""
    expected: Json | None = None
    """Measured scores: {metric: [low, high], ...}."""


class Several(Section):
    """The fields that only a recipe of several tasks has."""

    tasks: Annotated[dict[str, TaskPart], Field(min_length=1)]
    """Name -> task and data."""
    mixing: (
        Literal["proportional", "sqrt", "uniform"] | Annotated[dict[str, Positive], Field(min_length=1)]
    ) = "proportional"
    """How often a task is drawn: in proportion to its batches per epoch, to their square root, equally
    often, or by {NAME: weight}."""
