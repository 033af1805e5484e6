"""A user's own loss in the place of a task's: `compute_loss_func`, as transformers' Trainer calls it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from bertkit.engine.attachment import Attachment, Draft, Steps, name_of
from bertkit.engine.batching import Examples, batches_of
from bertkit.engine.training_data import Loss
from bertkit.errors import Problem, RecipeError, translated
from bertkit.tasks.base import Batch, Task
from bertkit.text import short_repr

logger = logging.getLogger(__name__)

LossFunction: TypeAlias = Callable[..., Tensor]
"""Outputs, labels, the number of items in the step -> the loss `()`, divided by that number."""

WHERE = "compute_loss_func"
ROWS = 8  # at most, of the micro-batch on which it is tried
TOLERANCE = 1e-3  # relative


@final
class UserLoss(Attachment):
    """Replaces the loss. Where it divides by the count that it gets, steps do not depend on how they are
    divided.
    """

    task: Task
    divides: bool  # whether it divides by the count that it gets

    def __init__(self, function: LossFunction) -> None:
        self.function = function

    def identify(self) -> str:
        return f"{WHERE}={name_of(self.function)}"

    def join(self, draft: Draft) -> bool:
        """Try it on a micro-batch, with the count of its terms and twice that. Raises RecipeError."""
        self.task = draft.task
        args = draft.args
        unused = {
            "distillation": draft.recipe.distillation,
            "task.class_weights": self.task.options.model_dump().get("class_weights"),
            "training.label_smoothing_factor": args.label_smoothing_factor,
        }
        fix = f"Remove it, or do the same in {name_of(self.function)}."
        if problems := [
            Problem(key, f"has no effect with {WHERE}", fix) for key, value in unused.items() if value
        ]:
            raise RecipeError(problems)
        batches = batches_of(self.task, draft.features, min(ROWS, args.per_device_train_batch_size), None)
        examples = Examples(self.task, draft.features, batches)
        collated = self.task.scheduled(examples.__getitems__(next(iter(batches))), 0.0)
        batch = {name: values.to(args.device) for name, values in collated.items()}
        outputs = self.task.forward(draft.model.to(args.device).train(), batch)
        count = torch.tensor(self.task.count(batch), device=args.device).clamp(min=1)
        once, twice = (self._tried(outputs, batch, times * count) for times in (1, 2))
        self.divides = bool(torch.isclose(once, 2 * twice, rtol=TOLERANCE))
        return True

    def _tried(self, outputs: Any, batch: Batch, count: Tensor) -> Tensor:
        """Its value, with the same random numbers each time. Raises RecipeError where there is nothing to
        minimise.
        """
        inputs = self._inputs(outputs, batch)
        name = name_of(self.function)
        torch.manual_seed(0)
        with translated(
            Exception, RecipeError, WHERE, f"{name} failed on a first micro-batch", "Correct the function."
        ):
            value = self.function(*inputs, num_items_in_batch=count)
        if not (isinstance(value, Tensor) and value.ndim == 0 and value.isfinite() and value.requires_grad):
            raise RecipeError(
                WHERE,
                f"{name} returned {short_repr(value)}",
                "Return a tensor of one finite number that is computed from the outputs.",
            )
        return value

    def _inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor]:
        if (inputs := self.task.loss_inputs(outputs, batch)) is None:
            raise RecipeError(
                WHERE,
                f"{self.task.name} ({self.task.describe()}) has no labels to compare outputs with one by one",
                "Change the task's own loss in `wrap_loss` of a bertkit.Attachment.",
            )
        return inputs

    def wrap_loss(self, loss: Loss) -> Loss:
        def replaced(outputs: Any, batch: Batch, terms: Tensor) -> Tensor:
            count = terms if self.divides else terms.new_tensor(self.task.count(batch))
            return self.function(*self._inputs(outputs, batch), num_items_in_batch=count) * count

        return replaced

    def start(self, trainer: Steps, checkpoint: Path | None) -> None:
        if not self.divides:
            logger.warning(
                "%s does not divide by num_items_in_batch, so it is treated as the mean of a micro-batch. "
                "Divide the sum of the losses by num_items_in_batch: then accumulation and several "
                "processes are exact.",
                name_of(self.function),
            )
