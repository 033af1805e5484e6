"""The hooks that the engine calls, and that attachments override."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from datasets import Dataset

from bertkit.engine.arguments import Arguments
from bertkit.engine.training_data import Loss, TrainingData
from bertkit.evaluation.intervals import Scores
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.base import Batch, Task
from bertkit.text import Record


@dataclass(frozen=True)
class Draft:
    """A training before anything is written; of several tasks, one of them."""

    recipe: Recipe
    args: Arguments  # transformers' arguments, with those of bertkit
    task: Task
    model: Any  # untrained, on the CPU
    features: Dataset  # of the training rows


class Steps(Protocol):
    """What an attachment sees of the trainer."""

    args: Arguments
    data: TrainingData  # `data.learner` is the task, `data.features_by_task` what is learned
    model: Any  # not wrapped by accelerate
    optimizer: Any  # None before there is one
    accelerator: Any

    def terms(self, batches: Sequence[Any]) -> torch.Tensor:
        """The count of these micro-batches' loss terms."""

    def part_step(self, model: Any, part: Batch, terms: Any) -> torch.Tensor:
        """Forward and backward of a part of a micro-batch; returns its share of the step's loss."""


class Attachment:
    """Your own code in a training run: a subclass overrides the hooks it needs; here they do nothing.

    `train(…, attachments=[…])` takes instances. Their hooks run in this order, after bertkit's own. Each
    training run works on shallow copies, so attributes set on an instance end with the run. An exception in a
    hook ends the run.

    >>> from torch.nn.utils import clip_grad_value_
    >>> class ClippedValues(bertkit.Attachment):
    ...     def wrap_optimizer(self, optimizer, trainer):
    ...         optimizer.register_step_pre_hook(lambda *_: clip_grad_value_(trainer.model.parameters(), 0.1))
    ...         return optimizer
    >>> run = bertkit.train("quickstart", "runs/clipped", attachments=[ClippedValues()])
    """

    def identify(self) -> str:
        """The name by which a run records it. A run is resumed with attachments of the same names."""
        return name_of(self)

    # --- before anything is written

    def build_model(self, recipe: Recipe, model: Any) -> Any:
        """The untrained model, from what it would be without this attachment. Called first, without
        `join`.
        """
        return model

    def join(self, draft: Draft) -> bool | None:
        """False: it does not take part in this training. Raises UserError with what is not supported."""
        return True

    def summarize(self, features_by_task: Iterable[tuple[Task, Dataset]]) -> str | None:
        """A line for `bertkit check`."""
        return None

    # --- the training of a seed or a fold

    def extend_features(self, features: Dataset, args: Arguments) -> Dataset:
        """The training features, possibly with further columns, which batches have too."""
        return features

    def wrap_loss(self, loss: Loss) -> Loss:
        """What is minimised, from what would be without this attachment.

        A loss takes outputs, batch and the count of the whole step, and returns the SUM of the batch's
        losses, which the trainer divides by that count.
        """
        return loss

    def start(self, trainer: Steps, checkpoint: Path | None) -> None:
        """Before there is an optimizer. checkpoint: from which the training continues, with the files of
        `save_files`.

        The model has its initial weights; those of the checkpoint are loaded later.
        """

    def wrap_optimizer(self, optimizer: Any, trainer: Steps) -> Any:
        """The optimizer, from what it would be without this attachment."""
        return optimizer

    def restore_optimizer(self, optimizer: Any) -> None:
        """After the optimizer's state was loaded from a checkpoint."""

    def prepare(self, trainer: Steps, model: Any, loader: Any, checkpoint: Path | None) -> None:
        """Before the first step. model: as accelerate has wrapped it."""

    def split_batch(self, batch: Batch) -> Iterator[Batch]:
        """A micro-batch in the parts that are read at once."""
        yield batch

    def save_files(self) -> Record:
        """Files of a checkpoint: name -> JSON, or of a .safetensors file, its tensors."""
        return {}

    def finish(self, model: Any) -> None:
        """After the last step, before the best checkpoint is loaded."""

    # --- after it

    def score_references(self, rows: Dataset, metrics: Sequence[Any]) -> Mapping[str, Scores]:
        """Scores beside those of the baselines: name of a model -> its metrics on these rows. metrics: the
        user's.
        """
        return {}


def name_of(value: Any) -> str:
    """Module and name of a function; of another object, those of its class."""
    while isinstance(value, partial):
        value = value.func
    named = value if isinstance(value, FunctionType | MethodType) else type(value)
    return f"{named.__module__}.{named.__qualname__}"
