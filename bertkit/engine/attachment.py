"""What the engine calls of the extras of a training, which it does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from datasets import Dataset

from bertkit.engine.arguments import Arguments
from bertkit.engine.training_data import Loss, TrainingData
from bertkit.evaluation.intervals import Scores
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.base import Batch, Task


@dataclass(frozen=True)
class Draft:
    """A training before anything is written."""

    recipe: Recipe
    args: Arguments
    task: Task
    model: Any
    features: Dataset  # of the training rows


class Steps(Protocol):
    """What an attachment sees of the trainer."""

    args: Arguments
    data: TrainingData
    model: Any
    optimizer: Any
    accelerator: Any

    def terms(self, batches: Sequence[Any]) -> torch.Tensor:
        """The count of these micro-batches' loss terms."""

    def part_step(self, model: Any, part: Batch, terms: Any) -> torch.Tensor:
        """Forward and backward of a part of a micro-batch; returns its share of the step's loss."""


class Attachment:
    """An extra of a training. Each hook does nothing here; those of several attachments run in their order.

    A trainer works on copies of its attachments, so what one keeps during a training ends with it.
    """

    @classmethod
    def of(cls, draft: Draft) -> Self | None:
        """The attachment of a training; None if it has no part in it. Raises UserError with what is not supported."""
        return cls()

    @classmethod
    def build(cls, recipe: Recipe, model: Any) -> Any:
        """The untrained model, from what it would be without this attachment."""
        return model

    def summary(self, features_by_task: Iterable[tuple[Task, Dataset]]) -> str | None:
        """A line for `bertkit check`."""
        return None

    def features(self, features: Dataset, args: Arguments) -> Dataset:
        """The training features, possibly with further columns."""
        return features

    def loss(self, loss: Loss) -> Loss:
        """What is minimised, from what would be without this attachment."""
        return loss

    def start(self, trainer: Steps, checkpoint: Path | None) -> None:
        """Before there is an optimizer. checkpoint: from which the training continues."""

    def optimizer(self, optimizer: Any, trainer: Steps) -> Any:
        """The optimizer, from what it would be without this attachment."""
        return optimizer

    def restore(self, optimizer: Any) -> None:
        """After the optimizer's state was loaded from a checkpoint."""

    def prepared(self, trainer: Steps, model: Any, loader: Any, checkpoint: Path | None) -> None:
        """Before the first step. model: as accelerate has wrapped it."""

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """A micro-batch in the parts that are read at once."""
        yield batch

    def files(self) -> Mapping[str, Any]:
        """Files of a checkpoint: name -> JSON, or of a .safetensors file, its tensors."""
        return {}

    def finish(self, model: Any) -> None:
        """After the last step, before the best checkpoint is loaded."""

    def references(self, rows: Dataset, metrics: Sequence[Any]) -> Mapping[str, Scores]:
        """Scores beside those of the baselines: name of a model -> its metrics on these rows. metrics: the user's."""
        return {}
