"""The trainer of one task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from datasets import Dataset
from transformers import TrainerCallback

from bertkit.attachments.distillation import Distiller
from bertkit.encoding.padding import Collator
from bertkit.engine.arguments import Arguments
from bertkit.engine.batching import UNIT, EpochLoader, Examples, batches_of
from bertkit.engine.callbacks import Profile
from bertkit.engine.clock import Clock
from bertkit.files import read_json
from bertkit.inference.runner import Runner
from bertkit.tasks.base import Batch, Task, evaluate
from bertkit.training.steps import StepTrainer

logger = logging.getLogger(__name__)

DIVISION = "division.json"  # in a checkpoint: into how many parts micro-batches are split


@final
class TaskTrainer(StepTrainer):
    """Trainer of one task: evaluation goes through it, and batches come from `LengthBatches` or `TokenBatches`."""

    def __init__(
        self,
        *,
        runner: Runner,
        args: Arguments,
        features: Dataset,
        validation: Dataset | None,
        metrics: Sequence[Any] = (),
        callbacks: Sequence[TrainerCallback],
        clock: Clock | None = None,
        distiller: Distiller | None = None,
        tokens: int | None = None,
        divide: bool = False,
        profile: Profile | None = None,
        locate: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        """runner: the task, the model to train, and how it is evaluated. distiller: adds the teacher's losses.

        metrics: a user's own, in addition to the task's. clock: the time that the training may take. tokens: slots of a
        micro-batch, in place of its rows.
        divide: whether micro-batches that do not fit into memory are split; not where the loss compares the rows of a
        batch. profile: measures the parts of a step. locate: training row -> its location, for messages.
        """
        super().__init__(
            learner=runner.task,
            model=runner.model,
            args=args,
            features=features,
            validation=validation,
            callbacks=callbacks,
            clock=clock,
            objective=distiller,
            profile=profile,
        )
        self.task, self.runner, self.features = runner.task, runner, features
        self.tokens, self.divide, self.parts = tokens, divide, 1
        self.metrics, self.locate = metrics, locate

    def get_train_dataloader(self) -> EpochLoader:
        units, division = self.task.units(self.features), self.division()
        self.batches = batches_of(self.task, self.features, self._train_batch_size, self.tokens, **division)
        return self.loader(
            Examples(self.task, self.features, self.batches, units if self.divide else None),
            Collator.of(self.task.tokenizer, self.task.padding),
        )

    def features_by_task(self) -> Sequence[tuple[Task, Dataset]]:
        return [(self.task, self.features)]

    def located(self, indices: Sequence[int]) -> Sequence[str]:
        columns = self.features[indices]
        rows = chain(*columns["rows"]) if "rows" in columns else columns["row"]  # several in each, where packed
        return [self.locate(row) for row in sorted(set(rows))]

    def divided(self, batch: Batch) -> Iterator[Batch]:
        return split_batch(batch, self.parts)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(  # type: ignore[no-untyped-call]
            max_steps, train_dataloader, resume_from_checkpoint
        )
        if self.divide:
            known = Path(resume_from_checkpoint or "") / DIVISION
            parts = read_json(known)["parts"] if resume_from_checkpoint and known.is_file() else 1
            self.parts = self._split_factor(prepared[0], train_dataloader, parts)
        return prepared

    def _split_factor(self, model: Any, loader: Any, parts: int) -> int:
        """Into how many parts each micro-batch must be split to fit into memory: `parts` times a power of two.

        Found with the heaviest micro-batch; gradients and random states are restored. Raises torch.OutOfMemoryError
        where a single unit does not fit.
        """
        batch = loader.collate_fn(loader.dataset.__getitems__(loader.batch_sampler.heaviest()))
        units, counted = len(batch[UNIT].unique()), self.terms([batch])
        times = 2 if self.args.gradient_accumulation_steps > 1 else 1  # the second runs with the first one's gradients
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer: Any = self.optimizer
        moment_count = 2 if "adam" in self.args.optim and not optimizer.state else 0

        def fits(parts: int) -> bool:
            moments: list[torch.Tensor] = []
            try:
                moments.extend(torch.empty_like(p) for p in trained for _ in range(moment_count))
                for part in (list(split_batch(batch, parts)) * times)[:2]:
                    self._part(model, part, counted)
            except RuntimeError as error:
                if not out_of_memory(error) or parts >= units:
                    raise
                return False
            finally:
                moments.clear()
                model.zero_grad()
            return True

        devices = [] if self.args.device.type == "cpu" else [self.args.device]
        with torch.random.fork_rng(devices), self.accelerator.no_sync(model):
            while not fits(parts):
                parts *= 2
                clear_device_cache(garbage_collection=True)  # here, where no error holds the attempt's tensors
        factor = int(self.accelerator.gather(torch.tensor([parts], device=self.args.device)).max())
        if factor > 1:
            what = "%d rows at a time do not fit into memory: micro-batches are split into %d, steps stay the same"
            logger.warning(what, units, factor)
        return factor

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The overall metrics, the user's own too, on the validation rows or on `eval_dataset`, a Dataset of rows.

        Thresholds, and where labels have one the temperature, are fitted on these rows; see `Graded.after_fit`.
        """
        self.profile.switch("evaluation")
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        scores = evaluate(self.task, rows, replace(self.runner, model=self.model), fitted=True, metrics=self.metrics)
        best = self.args.metric_for_best_model
        return self.tell({name: scores[name] for name in scores if "/" not in name or name == best}, metric_key_prefix)

    def checkpoint_files(self) -> dict[str, Any]:
        return super().checkpoint_files() | ({DIVISION: {"parts": self.parts}} if self.divide else {})


def out_of_memory(error: Exception) -> bool:
    """Whether the device, or the CPU's allocator, had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)


def split_batch(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in `parts` parts of nearly as many units each, in order; in fewer where it has fewer units."""
    if parts == 1:
        yield batch
        return
    units = batch[UNIT]
    starts = np.flatnonzero(np.diff(units.cpu().numpy(), prepend=-1))
    bounds = [int(starts[len(starts) * part // parts]) for part in range(parts)]
    for first, end in zip(bounds, [*bounds[1:], len(units)], strict=True):
        if first < end:
            yield {name: values[first:end] for name, values in batch.items()}
