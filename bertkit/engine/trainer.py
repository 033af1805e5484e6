"""The trainer: the loss of the whole step, divided once, over accumulation and processes."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, final

import torch
from accelerate.utils.memory import should_reduce_batch_size
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from bertkit.engine.arguments import Arguments
from bertkit.engine.attachment import Attachment
from bertkit.engine.batching import EpochLoader, unchanged
from bertkit.engine.checkpoint import CheckpointTrainer, checkpoints, step_of
from bertkit.engine.clock import TICKS, Clock, follow, schedule
from bertkit.engine.training_data import Loss, TrainingData
from bertkit.errors import UserError
from bertkit.files import read_json
from bertkit.models.cpu_kernels import faster
from bertkit.models.device import attention_kernels
from bertkit.models.malloc import memory_kept
from bertkit.tasks.base import Batch
from bertkit.text import listed

BOUNDED_EVERY = 50  # steps, after which kept memory is looked at
CLOCK = "clock.json"  # in a checkpoint: the seconds that the training has taken
MAX_ROWS_SHOWN = 64  # rows of a step that a message names


@final
class Trainer(CheckpointTrainer):
    """Trainer whose loss is a sum, divided by the count of the whole step, over accumulation and processes.

    Stock Trainer takes gradients of BERT's heads `accumulation` times and `processes` times too large.
    """

    args: Arguments
    batches: Any  # the batch sampler, once there is one
    optimizer: Any
    trim_memory: Callable[[], None]  # while it trains

    def __init__(
        self,
        data: TrainingData,
        args: Arguments,
        *,
        callbacks: Sequence[TrainerCallback] = (),
        attachments: Sequence[Attachment] = (),
        clock: Clock | None = None,
    ) -> None:
        """clock: the time that the training may take."""
        super().__init__(model=data.model, args=args, eval_dataset=data.validation, callbacks=list(callbacks))
        # neither transformers nor accelerate divides a loss once more
        self.model_accepts_loss_kwargs = True
        self.accelerator.gradient_accumulation_steps = 1
        self.remove_callback(PrinterCallback)  # Progress reports instead
        self.data = data
        self.attachments = [*map(copy, attachments)]
        self.learner = data.learner
        self.loss: Loss = lambda outputs, batch, _: self.learner.loss(
            outputs, batch, args.label_smoothing_factor
        )
        for attachment in self.attachments:
            self.loss = attachment.wrap_loss(self.loss)
        self.clock = clock or Clock()
        self.add_callback(self.clock)

    def get_train_dataloader(self) -> EpochLoader:
        args = self.args
        self.batches = self.data.batches(
            self._train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            world=args.world_size,
            rank=args.process_index,
            seed=args.seed,
        )
        return EpochLoader(
            self.data.examples(self.batches),
            batch_sampler=self.batches,
            collate_fn=unchanged,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=leave_group,
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's optimizer; parameters with a factor of the task get their own learning rate and no
        decay.
        """
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(model)
        for attachment in self.attachments:
            optimizer = self.optimizer = attachment.wrap_optimizer(optimizer, self)
        trained: Any = self.model
        for part, factor in self.learner.learning_rate_factors.items():
            words = set(part.split("."))
            fast = {
                parameter for name, parameter in trained.named_parameters() if words <= {*name.split(".")}
            }
            for group in list(optimizer.param_groups):
                if chosen := [p for p in group["params"] if p in fast]:
                    group["params"] = [p for p in group["params"] if p not in fast]
                    changes = {"params": chosen, "lr": group["lr"] * factor, "weight_decay": 0.0}
                    optimizer.add_param_group({**group, **changes})
        return optimizer

    def _finalize_training(self, *args: Any, **named: Any) -> Any:
        for attachment in self.attachments:
            attachment.finish(self.model)
        self.optimizer.eval()  # without validation rows, `evaluate` has not
        if self.state.best_global_step:  # the folder may have another path than when it was written
            self.state.best_model_checkpoint = (
                f"{self.args.output_dir}/checkpoint-{self.state.best_global_step}"
            )
        return super()._finalize_training(*args, **named)  # type: ignore[no-untyped-call]

    def checkpoint_files(self) -> Iterator[tuple[str, Any]]:
        yield CLOCK, {"seconds": self.clock.elapsed}
        for attachment in self.attachments:
            yield from attachment.save_files().items()

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint_folder)
        for attachment in self.attachments if checkpoint_folder else ():
            attachment.restore_optimizer(self.optimizer)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> Any:
        prepared = super()._prepare_for_training(  # type: ignore[no-untyped-call]
            max_steps, train_dataloader, resume_from_checkpoint
        )
        for attachment in self.attachments:
            attachment.prepare(self, prepared[0], train_dataloader, _path(resume_from_checkpoint))
        return prepared

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule of the learning rate, over so many steps or over the budget."""
        if self.lr_scheduler is None:
            steps = num_training_steps if self.clock.budget is None else TICKS
            self.lr_scheduler = schedule(self.args, optimizer or self.optimizer, steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        checkpoint = _path(resume_from_checkpoint)
        for attachment in self.attachments:
            attachment.start(self, checkpoint)
        self.clock.start(read_json(checkpoint / CLOCK)["seconds"] if checkpoint else 0.0)
        self.args.eval_on_start &= checkpoint is None  # a resumed training is not at its start
        gc.freeze()  # accelerate collects garbage first, and would scan everything imported
        try:
            with memory_kept() as self.trim_memory, attention_kernels(self.args.device):
                return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            gc.unfreeze()

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, *rest: Any
    ) -> tuple[int, int]:
        stated = self._early_stopping()
        done = super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, *rest)
        # of the recipe, which may have changed
        self.state.compute_steps(self.args, max_steps)  # type: ignore[no-untyped-call]
        self._follow_metric()
        self.batches.set_epoch(done[0])  # transformers before 5.17 tells no sampler that skips batches
        restored = self._early_stopping()
        for ours, loaded in zip(stated, restored, strict=True):
            # of the recipe, which may have changed since the checkpoint
            loaded.early_stopping_patience = ours.early_stopping_patience
            loaded.early_stopping_threshold = ours.early_stopping_threshold
        # The last step may be one within an epoch, which Trainer would continue.
        over = self.clock.over(self.args, self.state) or any(
            callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in restored
            if self.state.global_step  # else its counter is of another training
        )
        return (num_train_epochs, 0) if over else done

    def _follow_metric(self) -> None:
        """Take the best kept checkpoint by the metric, where another metric selected the best."""
        state = self.state
        name = f"eval_{str(self.args.metric_for_best_model).removeprefix('eval_')}"
        scores = [event.get(name) for event in state.log_history if event["step"] == state.best_global_step]
        if state.best_global_step and state.best_metric not in scores:
            steps = {*map(step_of, checkpoints(Path(str(self.args.output_dir))))}
            kept = [(e[name], e["step"]) for e in state.log_history if name in e and e["step"] in steps]
            kept = [pair for pair in kept if not math.isnan(pair[0])]
            best: Any = max(kept, default=(None, None))
            state.best_metric, state.best_global_step = best
            for callback in self._early_stopping():
                callback.early_stopping_patience_counter = 0

    def _early_stopping(self) -> list[EarlyStoppingCallback]:
        return [c for c in self.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of one step, and the count of its loss terms over all processes, `()` or
        `(tasks,)`.
        """
        if self.state.global_step % BOUNDED_EVERY == BOUNDED_EVERY - 1:
            self.trim_memory()
        progress = self.clock.progress(self.args, self.state)
        if self.clock.budget is not None and self.state.global_step:
            follow(self.lr_scheduler, progress)
        collated, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = [self.learner.scheduled(batch, progress) for batch in collated]
        return batches, self.accelerator.reduce(self.terms(batches), "sum")

    def terms(self, batches: Sequence[Any]) -> torch.Tensor:
        """The count of these micro-batches' loss terms, `()` or `(tasks,)`."""
        counts = torch.tensor([self.learner.count(batch) for batch in batches], dtype=torch.float64)
        return counts.sum(0).to(self.args.device, torch.float32)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = self.learner.forward(model, inputs)
        terms = num_items_in_batch.clamp(min=1e-12)  # it may be 0: a batch of texts without words
        # DDP averages gradients over processes; the count is already over all of them.
        loss = (self.loss(outputs, inputs, terms) / terms).sum() * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        parts = [inputs]
        for attachment in self.attachments:
            parts = [smaller for part in parts for smaller in attachment.split_batch(part)]
        losses = []
        for part in parts:  # processes exchange gradients once
            with contextlib.nullcontext() if part is parts[-1] else self.accelerator.no_sync(model):
                losses.append(self.part_step(model, part, num_items_in_batch))
        loss = torch.stack(losses).sum()
        if not torch.isfinite(loss):
            micro = self.args.gradient_accumulation_steps
            steps = math.ceil(len(self.batches) / micro)  # of an epoch
            start = self.state.global_step % steps * micro
            indices = [index for batch in islice(self.batches, start, start + micro) for index in batch]
            rows = listed(self.data.row_locations(self.batches, indices), MAX_ROWS_SHOWN)
            what = f"the loss is {loss.item()} at step {self.state.global_step + 1}, over {rows}"
            fix = (
                "Lower training.learning_rate, or check the rows with `bertkit check`. On a GPU without "
                "bf16, train in fp32: training: {bf16: false}. Earlier checkpoints are intact."
            )
            raise UserError("training", what, fix)
        return loss

    def part_step(self, model: Any, part: Batch, terms: Any) -> torch.Tensor:
        """Forward and backward of a part of a micro-batch; returns its share of the step's loss."""
        # its name in all of transformers 5
        plain = not (self.args.torch_compile or self.args.gradient_checkpointing)
        with faster(self.args.device) if plain else contextlib.nullcontext():
            return super().training_step(model, part, terms)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The scores on the validation rows, or on `eval_dataset`; see `TaskData.evaluate`."""
        self.optimizer.eval()  # a schedule-free optimizer holds other weights while it trains
        scores = self.data.evaluate(self.model, self.args.metric_for_best_model, eval_dataset)
        logged = {  # NaN is never better than anything, which is how an undefined metric must compare
            f"{metric_key_prefix}_{name}": math.nan if value is None else value
            for name, value in scores.items()
        }
        self.log(dict(logged))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logged)
        return logged


def _path(checkpoint: Any) -> Path | None:
    return Path(checkpoint) if checkpoint else None


def out_of_memory(error: Exception) -> bool:
    """Whether the device, or the CPU's allocator, had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)


def leave_group(_: int) -> None:
    """Take a loader's worker out of our process group, whose signals would end it before the step."""
    if sys.platform != "win32":
        os.setpgrp()
