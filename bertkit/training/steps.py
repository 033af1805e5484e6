"""Steps of a training: the loss of the whole step, divided once, over accumulation and processes."""

from __future__ import annotations

import contextlib
import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

from bertkit.attachments.muon import MuonWith, layer_matrices
from bertkit.attachments.used_rows import USED, UsedRows, used_rows
from bertkit.engine.arguments import Arguments
from bertkit.engine.batching import EpochLoader
from bertkit.engine.callbacks import Profile
from bertkit.engine.checkpoint import CheckpointTrainer
from bertkit.engine.clock import TICKS, Clock, follow, schedule
from bertkit.errors import Problem, RecipeError, UserError
from bertkit.evaluation.intervals import Scores
from bertkit.files import read_json
from bertkit.models.cpu_kernels import faster
from bertkit.models.malloc import memory_kept
from bertkit.tasks.base import Batch, Task
from bertkit.text import listed

BOUNDED_EVERY = 50  # steps, after which kept memory is looked at
CLOCK = "clock.json"  # in a checkpoint: the seconds that the training has taken
MAX_ROWS_SHOWN = 64  # rows of a step that a message names


class Objective(Protocol):
    """What is minimised; see `Task`, whose methods these are."""

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> torch.Tensor:
        """The sum of this batch's losses, `()`, or of each of several tasks, `(tasks,)`."""

    def count(self, batch: Batch) -> float | tuple[float, ...]:
        """The number of their terms."""


class Learner(Objective, Protocol):
    """What a model is trained for: a task, or several."""

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Part of a parameter's name -> factor on the learning rate."""

    def scheduled(self, batch: Batch, progress: float) -> Batch:
        """A micro-batch as it is trained on at this progress of the training, from 0 to 1."""

    def forward(self, model: Any, batch: Batch) -> Any:
        """The model's outputs."""


class StepTrainer(CheckpointTrainer, ABC):
    """Trainer whose loss is a sum, divided by the count of the whole step, over accumulation and processes.

    Stock Trainer takes gradients of BERT's heads `accumulation` times and `processes` times too large.
    """

    loss_is_scaled_for_ga = True
    args: Arguments

    def __init__(
        self,
        *,
        learner: Learner,
        model: Any,
        args: Arguments,
        features: Dataset | None,
        validation: Any,
        callbacks: Sequence[TrainerCallback],
        clock: Clock | None = None,
        objective: Objective | None = None,
        profile: Profile | None = None,
    ) -> None:
        """clock: the time that the training may take. objective: in place of the learner's own loss.

        profile: measures the parts of a step.
        """
        super().__init__(
            model=model, args=args, train_dataset=features, eval_dataset=validation, callbacks=list(callbacks)
        )
        if self.is_deepspeed_enabled:
            what = "DeepSpeed is not supported: its checkpoints are pickles"
            raise RecipeError(Problem("training", what, "Use training.fsdp, or start it with torchrun alone."))
        if self.is_fsdp_enabled and args.muon:
            what = "muon does not support FSDP, which divides weights between processes"
            raise RecipeError(Problem("training.optim", what, "Start it with torchrun alone."))
        if self.is_fsdp_enabled and not self.accelerator.is_fsdp2:
            what = "version 1 of FSDP is not supported"
            raise RecipeError(Problem("training.fsdp_config.version", what, "Write 2, the default."))
        self.remove_callback(PrinterCallback)  # Progress reports instead
        self.learner = learner
        self.objective: Objective = objective or learner
        self.used: UsedRows | None = None  # while it trains, if not all rows of the word embedding are trained
        self.clock = clock or Clock()
        self.add_callback(self.clock)
        self.profile = profile or Profile()
        if profile:  # a profile that is no callback measures nothing
            self.add_callback(profile)

    batches: Any  # the batch sampler of the training, once there is one
    bound_memory: Callable[[], None]  # while it trains

    @abstractmethod
    def features_by_task(self) -> Sequence[tuple[Task, Dataset]]:
        """Each task, and its training features."""

    @abstractmethod
    def located(self, indices: Sequence[int]) -> Sequence[str]:
        """The locations of the rows of these features, for messages."""

    def divided(self, batch: Batch) -> Iterator[Batch]:
        """The parts of a micro-batch that fit into memory. Default: all of it."""
        yield batch

    def division(self) -> dict[str, int]:
        """How steps are divided into micro-batches, for `Batches`."""
        return {
            "accumulation": self.args.gradient_accumulation_steps,
            "world": self.args.world_size,
            "rank": self.args.process_index,
            "seed": self.args.seed,
        }

    def loader(self, examples: Any, collate: Any) -> EpochLoader:
        """A loader of `self.batches`."""
        return EpochLoader(
            examples,
            batch_sampler=self.batches,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's optimizer, or Muon with it; parameters with a factor of the task get their own learning rate and
        no decay.
        """
        if self.optimizer is not None:
            return self.optimizer
        optimizer: Any = super().create_optimizer(model)
        if self.args.muon:
            rate, momentum = self.args.muon_learning_rate or self.args.learning_rate, self.args.muon_momentum
            optimizer = self.optimizer = MuonWith(optimizer, layer_matrices(self.model), lr=rate, momentum=momentum)
        trained: Any = self.model
        for part, factor in self.learner.learning_rate_factors.items():
            words = set(part.split("."))
            fast = {parameter for name, parameter in trained.named_parameters() if words <= {*name.split(".")}}
            for group in list(optimizer.param_groups):
                if chosen := [p for p in group["params"] if p in fast]:
                    group["params"] = [p for p in group["params"] if p not in fast]
                    own = {"params": chosen, "lr": group["lr"] * factor, "weight_decay": 0.0}
                    optimizer.add_param_group({**group, **own})
        if self.used:
            optimizer.register_step_post_hook(self.used.shrink)
        return optimizer

    def _finalize_training(self, *given: Any, **named: Any) -> Any:
        # The best checkpoint, which has the whole embedding, may be loaded after this.
        if self.used:
            self.used.restore(self.model)
            self.used = None
        return super()._finalize_training(*given, **named)  # type: ignore[no-untyped-call]

    def checkpoint_files(self) -> dict[str, Any]:
        used = {USED: {"ids": self.used.ids, "decay": self.used.others.decay}} if self.used else {}
        return {CLOCK: {"seconds": self.clock.elapsed}, **used}

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint_folder)
        if checkpoint_folder and self.used:
            self.used.extend(self.optimizer)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule of the learning rate, over so many steps or over the budget."""
        if self.lr_scheduler is None:
            steps = num_training_steps if self.clock.budget is None else TICKS
            self.lr_scheduler = schedule(self.args, optimizer or self.optimizer, steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Any:
        self.used = used_rows(
            self.model, self.args, self.is_fsdp_enabled, self.features_by_task(), resume_from_checkpoint
        )
        before = Path(resume_from_checkpoint or "") / CLOCK
        self.clock.start(read_json(before)["seconds"] if resume_from_checkpoint and before.is_file() else 0.0)
        gc.freeze()  # accelerate collects garbage first, and would scan everything imported
        try:
            with memory_kept() as self.bound_memory:
                return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            gc.unfreeze()

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, *rest: Any
    ) -> tuple[int, int]:
        done = super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, *rest)
        # The last step may be one within an epoch, which Trainer would continue.
        return (num_train_epochs, 0) if self.clock.over(self.args, self.state) else done

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one step, and the count of its loss terms over all processes, `()` or `(tasks,)`."""
        self.profile.switch("data")
        if self.state.global_step % BOUNDED_EVERY == BOUNDED_EVERY - 1:
            self.bound_memory()
        progress = self.clock.progress(self.args, self.state)
        if self.clock.budget is not None and self.state.global_step:
            follow(self.lr_scheduler, progress)
        collated, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = [self.learner.scheduled(batch, progress) for batch in collated]
        terms = self.accelerator.reduce(self.terms(batches), "sum")
        self.profile.count(batches)
        self.profile.switch("other")
        return batches, terms

    def terms(self, batches: Sequence[Any]) -> torch.Tensor:
        """The count of these micro-batches' loss terms, `()` or `(tasks,)`."""
        counts = torch.tensor([self.objective.count(batch) for batch in batches], dtype=torch.float64)
        return counts.sum(0).to(self.args.device, torch.float32)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = self.learner.forward(model, inputs)
        total = self.objective.loss(outputs, inputs, self.args.label_smoothing_factor)
        # DDP averages gradients over processes; the count is already over all of them.
        # The count may be 0: a batch of texts without words.
        loss = (total / num_items_in_batch.clamp(min=1e-12)).sum() * self.args.world_size
        self.profile.switch("backward")
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        parts = list(self.divided(inputs))
        losses = []
        for part in parts:  # processes exchange gradients once
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
        rows = self.located([i for batch in islice(self.batches, start, start + micro) for i in batch])
        return listed(rows, MAX_ROWS_SHOWN)

    def _part(self, model: Any, part: Batch, counted: Any) -> torch.Tensor:
        self.profile.switch("forward")
        plain = not (self.args.torch_compile or self.args.gradient_checkpointing)  # its name in all of transformers 5
        with faster(self.args.device) if plain else contextlib.nullcontext():
            return super().training_step(model, part, counted)

    def tell(self, scores: Scores, prefix: str) -> dict[str, float]:
        """Log these scores of an evaluation, and let callbacks and the choice of the checkpoint see them."""
        told = {  # NaN is never better than anything, which is how an undefined metric must compare
            f"{prefix}_{name}": math.nan if value is None else value for name, value in scores.items()
        }
        self.profile.switch("other")
        self.log(dict(told))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, told)
        return told

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.profile.switch("saving")
        super()._save_checkpoint(model, trial)
        self.profile.switch("other")
