"""The data of training and of its evaluation: the features of one task, or of several over one
encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, Unpack, final

import torch
from datasets import Dataset

from bertkit.engine.batching import Batches, Division, Examples, batches_of
from bertkit.engine.multitask import MixedBatches, MixedExamples, MultiTask, SharedEncoder
from bertkit.errors import DataError, Problem
from bertkit.evaluation.intervals import Scores, mean
from bertkit.inference.runner import Runner
from bertkit.recipe.fields import MEAN
from bertkit.tasks.base import Batch, Task, evaluate
from bertkit.text import Json

Loss: TypeAlias = Callable[[Any, Batch, torch.Tensor], torch.Tensor]
"""Outputs, batch, count of the whole step's terms -> the sum of the batch's losses, as `Task.loss`.

Of several tasks count and sum are `(tasks,)`. The trainer divides the sum by the count.
"""


def location(row: int) -> str:
    """The location of a row whose file is not known."""
    return f"row {row + 1}"


@final
@dataclass(frozen=True)
class TaskData:
    """One task. runner: the task, the model to train, and how it is evaluated."""

    runner: Runner
    features: Dataset
    validation: Dataset | None = None
    metrics: Sequence[Any] = ()  # the user's own, in addition to the task's
    tokens: int | None = None  # slots of a micro-batch, in place of its rows
    locate: Callable[[int], str] = location  # training row -> its location

    @property
    def learner(self) -> Task:
        """What the model is trained for."""
        return self.runner.task

    @property
    def model(self) -> Any:
        """The model to train."""
        return self.runner.model

    @property
    def features_by_task(self) -> Sequence[tuple[Task, Dataset]]:
        """Each task, and its training features."""
        return [(self.learner, self.features)]

    def batches(self, size: int, **division: Unpack[Division]) -> Batches:
        """The batch sampler. size: rows of a micro-batch."""
        return batches_of(self.learner, self.features, size, self.tokens, **division)

    def examples(self, batches: Batches) -> Examples:
        """What a data loader reads for these batches."""
        return Examples(self.learner, self.features, batches)

    def row_locations(self, batches: Any, indices: Sequence[int]) -> Sequence[str]:
        """The locations of the rows of these features, for messages."""
        return [self.locate(row) for row in sorted(set(self.features[indices]["row"]))]

    def evaluate(self, model: Any, metric: str | None, rows: Dataset | None = None) -> Scores:
        """The overall metrics, the user's own too.

        Thresholds, and where labels have one the temperature, are fitted on these rows; see
        `Graded.after_fit`.
        """
        rows = self.validation if rows is None else rows
        scores = evaluate(
            self.learner, rows, replace(self.runner, model=model), fitted=True, metrics=self.metrics
        )
        return {name: scores[name] for name in scores if "/" not in name or name == metric}

    def models(self, model: Any) -> Json:
        """The trained model of each task; of one task, whose name is empty, the model itself."""
        return {"": model}


@final
@dataclass(frozen=True)
class MixedData:
    """Several tasks over one encoder: each batch is of one task, and all are evaluated."""

    parts: Mapping[str, TaskData]  # each with its own model; they become those of `model`
    weights: Mapping[str, float]
    headlines: Mapping[str, str]  # the metric of each task that the choice of the checkpoint depends on
    mixing: str | Mapping[str, float]
    lora: bool = False

    @property
    def tasks(self) -> dict[str, Task]:
        """Name -> task."""
        return {name: part.learner for name, part in self.parts.items()}

    @cached_property
    def learner(self) -> MultiTask:
        """What the model is trained for."""
        return MultiTask(self.tasks, self.weights)

    @cached_property
    def model(self) -> SharedEncoder:
        """The model to train."""
        return SharedEncoder(
            self.tasks, {name: part.model for name, part in self.parts.items()}, lora=self.lora
        )

    @property
    def validation(self) -> dict[str, Dataset]:
        """Validation rows of each task; empty without any."""
        return {name: part.validation for name, part in self.parts.items() if part.validation is not None}

    @property
    def features_by_task(self) -> Sequence[tuple[Task, Dataset]]:
        """Each task, and its training features."""
        return [(part.learner, part.features) for part in self.parts.values()]

    def batches(self, size: int, **division: int) -> MixedBatches:
        """The batch sampler. size: rows of a micro-batch."""
        tokens = next(iter(self.parts.values())).tokens
        return mixed_batches(
            dict(zip(self.parts, self.features_by_task, strict=True)), self.mixing, size, tokens, **division
        )

    def examples(self, batches: MixedBatches) -> MixedExamples:
        """What a data loader reads for these batches."""
        return MixedExamples(self.tasks, {name: part.features for name, part in self.parts.items()}, batches)

    def row_locations(self, batches: MixedBatches, indices: Sequence[int]) -> Sequence[str]:
        """The locations of the rows of these features, for messages."""
        features = self.examples(batches).split(indices)
        return [
            place
            for name, part_indices in features.items()
            for place in self.parts[name].row_locations(batches, part_indices)
        ]

    def evaluate(self, model: Any, metric: str | None, rows: Any = None) -> Scores:
        """`NAME/METRIC` of each task on its validation rows, the selection metric also as `NAME`, and their
        `mean`.
        """
        scores = Scores()
        headlines = Scores()
        for name in self.validation:
            headline = self.headlines[name]
            of_task = self.parts[name].evaluate(model.of(name), headline)
            scores |= {f"{name}/{key}": score for key, score in of_task.items()}
            headlines[name] = of_task[headline]
        return {**scores, **headlines, MEAN: mean(headlines.values())}

    def models(self, model: Any) -> Json:
        """The trained model of each task; of one task, whose name is empty, the model itself."""
        models = {name: model.of(name) for name in self.parts}
        if self.lora:  # adapters are merged into the encoder, once for each
            return {name: copy.deepcopy(part) for name, part in models.items()}
        return models


TrainingData: TypeAlias = TaskData | MixedData


def mixed_batches(
    parts: Mapping[str, tuple[Task, Dataset]],
    mixing: str | Mapping[str, float],
    size: int,
    tokens: int | None,
    *,
    accumulation: int,
    **division: int,
) -> MixedBatches:
    """The batches of one process. size: rows of a micro-batch. Raises DataError where a task has too few
    rows.
    """
    batches = list[Batches]()
    problems = list[Problem]()
    for name, (task, features) in parts.items():
        try:
            batches.append(
                batches_of(
                    task, features, size, tokens, accumulation=accumulation, whole_steps=True, **division
                )
            )
        except ValueError:
            what = f"too few training rows for a step of {accumulation} micro-batches in each process"
            problems.append(
                Problem(f"tasks.{name}.data", what, "Lower gradient_accumulation_steps, or add rows.")
            )
    if problems:
        raise DataError(problems)
    weights = mixing if isinstance(mixing, str) else [mixing[name] for name in parts]
    return MixedBatches(
        batches,
        [len(features) for _, features in parts.values()],
        weights,
        run=accumulation,
        seed=division["seed"],
    )
