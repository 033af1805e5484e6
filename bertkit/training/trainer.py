"""Hugging Face's Trainer with the task's metrics, the loss of the whole step, and length batches."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from datasets import Dataset
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from bertkit.data.table import numbers
from bertkit.encoding.padding import Collator
from bertkit.errors import Problem, UserError
from bertkit.files import read_json
from bertkit.inference.runner import Runner
from bertkit.models.cpu_kernels import faster, memory_kept
from bertkit.tasks.base import Batch, Task, evaluate
from bertkit.training.batching import UNIT, Batches, EpochLoader, Examples, LengthBatches, TokenBatches
from bertkit.training.callbacks import Profile
from bertkit.training.checkpoint import CheckpointTrainer
from bertkit.training.distillation import Distiller

logger = logging.getLogger(__name__)

MAX_ROWS_SHOWN = 64  # rows of a step that a message names
DIVISION = "division.json"  # in a checkpoint: into how many parts micro-batches are split


@final
class TaskTrainer(CheckpointTrainer):
    """Trainer with three differences.

    Evaluation goes through the task. The loss is a sum divided by the count of the whole step, over accumulation and
    processes: stock Trainer takes gradients of BERT's heads `accumulation` times and `processes` times too large.
    Batches come from `LengthBatches` or `TokenBatches`.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *,
        runner: Runner,
        args: TrainingArguments,
        features: Dataset,
        validation: Dataset | None,
        metrics: Sequence[Any] = (),
        callbacks: Sequence[TrainerCallback],
        distiller: Distiller | None = None,
        tokens: int | None = None,
        divide: bool = False,
        profile: Profile | None = None,
        locate: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        """runner: the task, the model to train, and how it is evaluated. distiller: adds the teacher's losses.

        metrics: a user's own, in addition to the task's. tokens: slots of a micro-batch, in place of its rows.
        divide: whether micro-batches that do not fit into memory are split; not where the loss compares the rows of a
        batch. profile: measures the parts of a step. locate: training row -> its location, for messages.
        """
        super().__init__(
            model=runner.model, args=args, train_dataset=features, eval_dataset=validation, callbacks=list(callbacks)
        )
        self.remove_callback(PrinterCallback)  # Progress reports instead
        self.task, self.runner, self.features = runner.task, runner, features
        self.objective: Task | Distiller = distiller or runner.task
        self.tokens, self.divide, self.parts = tokens, divide, 1
        self.metrics = metrics
        self.locate, self.profile = locate, profile or Profile()
        if profile:  # a profile that is no callback measures nothing
            self.add_callback(profile)

    def get_train_dataloader(self) -> EpochLoader:
        lengths, units = numbers(self.features, "length"), self.task.units(self.features)
        if "target_length" in self.features.column_names:  # both texts are padded
            lengths = np.maximum(lengths, numbers(self.features, "target_length"))
        division = {
            "accumulation": self.args.gradient_accumulation_steps,
            "world": self.args.world_size,
            "rank": self.args.process_index,
            "seed": self.args.seed,
        }
        if self.tokens is None:
            self.batches: Batches = LengthBatches(lengths, units, batch_size=self._train_batch_size, **division)
        else:
            self.batches = TokenBatches(lengths, units, tokens=self.tokens, **division)
        return EpochLoader(
            Examples(self.task, self.features, self.batches, units if self.divide else None),
            batch_sampler=self.batches,
            collate_fn=Collator.of(self.task.tokenizer, self.task.padding),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's optimizer; parameters with a factor of the task get their own learning rate and no decay."""
        if self.optimizer is not None:
            return self.optimizer
        optimizer: Any = super().create_optimizer(model)
        trained: Any = self.model
        for part, factor in self.task.learning_rate_factors.items():
            fast = {parameter for name, parameter in trained.named_parameters() if part in name.split(".")}
            for group in list(optimizer.param_groups):
                if chosen := [p for p in group["params"] if p in fast]:
                    group["params"] = [p for p in group["params"] if p not in fast]
                    own = {"params": chosen, "lr": group["lr"] * factor, "weight_decay": 0.0}
                    optimizer.add_param_group({**group, **own})
        return optimizer

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Any:
        gc.freeze()  # accelerate collects garbage first, and would scan everything imported
        try:
            with memory_kept():
                return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            gc.unfreeze()

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one step, and the count of loss terms over all processes."""
        self.profile.switch("data")
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        counted = self.accelerator.reduce(self._counted(batches), "sum")
        self.profile.count(batches)
        self.profile.switch("other")
        return batches, counted

    def _counted(self, batches: list[Any]) -> torch.Tensor:
        counts = torch.tensor([self.objective.count(batch) for batch in batches], dtype=torch.float64)
        return counts.sum(0).to(self.args.device, torch.float32)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = self.task.forward(model, inputs)
        total = self.objective.loss(outputs, inputs, self.args.label_smoothing_factor)
        # DDP averages gradients over processes; the count is already over all of them.
        # The count may be 0: a batch of texts without words.
        loss = (total / num_items_in_batch.clamp(min=1e-12)).sum() * self.args.world_size
        self.profile.switch("backward")
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        parts = list(split_batch(inputs, self.parts))
        losses = []
        for part in parts:
            with contextlib.nullcontext() if part is parts[-1] else self.accelerator.no_sync(model):
                losses.append(self._part(model, part, num_items_in_batch))
        loss = torch.stack(losses).sum()
        self.profile.switch("optimizer")
        if not torch.isfinite(loss):
            what = f"the loss is {loss.item()} at step {self.state.global_step + 1}, over {self._rows_of_step()}"
            fix = "Lower training.learning_rate, or check the rows with `bertkit check`."
            raise UserError(Problem("training", what, fix + " Earlier checkpoints are intact."))
        return loss

    def _rows_of_step(self) -> str:
        """The locations of the current step's rows, for messages."""
        micro = self.args.gradient_accumulation_steps
        start = self.state.global_step % -(-len(self.batches) // micro) * micro
        features = self.features[[i for batch in islice(self.batches, start, start + micro) for i in batch]]
        rows = sorted(set(features["row"]))
        more = f" and {len(rows) - MAX_ROWS_SHOWN:,} more" if len(rows) > MAX_ROWS_SHOWN else ""
        return ", ".join(map(self.locate, rows[:MAX_ROWS_SHOWN])) + more

    def _part(self, model: Any, part: Batch, counted: Any) -> torch.Tensor:
        self.profile.switch("forward")
        plain = not (self.args.torch_compile or self.args.activation_checkpointing)
        with faster(self.args.device) if plain else contextlib.nullcontext():
            return super().training_step(model, part, counted)

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
        units, counted = len(batch[UNIT].unique()), self._counted([batch])
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
        overall = {  # NaN is never better than anything, which is how an undefined metric must compare
            f"{metric_key_prefix}_{name}": math.nan if value is None else value
            for name, value in scores.items()
            if "/" not in name or name == self.args.metric_for_best_model
        }
        self.profile.switch("other")
        self.log(dict(overall))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, overall)
        return overall

    def checkpoint_files(self) -> dict[str, Any]:
        return {DIVISION: {"parts": self.parts}} if self.divide else {}

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.profile.switch("saving")
        super()._save_checkpoint(model, trial)
        self.profile.switch("other")


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
