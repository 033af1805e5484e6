"""Hugging Face's Trainer, with the task's metrics, the whole step's loss, and length batches."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from transformers import Trainer
from transformers.trainer_callback import ExportableState, PrinterCallback

from bertkit.data.table import numbers
from bertkit.encoding.padding import Collator
from bertkit.errors import ModelError, Problem, UserError
from bertkit.files import read_json, write_json
from bertkit.inference.runner import Runner
from bertkit.models.cpu_kernels import faster, memory_kept
from bertkit.tasks.base import evaluate
from bertkit.training import checkpoint
from bertkit.training.batching import UNIT, Batches, EpochLoader, Examples, LengthBatches, TokenBatches
from bertkit.training.memory import divided, parts_that_fit

if TYPE_CHECKING:
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from transformers import TrainerCallback, TrainingArguments

    from bertkit.tasks.base import Batch, Task
    from bertkit.training.distillation import Distiller
    from bertkit.training.profile import Profile


logger = logging.getLogger(__name__)

NAMED = 64  # rows of a step that a message names
DIVISION = "division.json"  # in a checkpoint: how micro-batches are divided


@final
class TaskTrainer(Trainer):
    """Trainer, changed in three things, and in how it writes checkpoints.

    Evaluation goes through the task. The loss is a sum divided by what was really counted in the whole
    accumulated, all-process step: stock Trainer takes gradients of BERT's heads `accumulation` times and `processes`
    times too large. Batches come from `LengthBatches` or `TokenBatches`. Checkpoints hold no pickle and take
    their name only when they are complete.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *,
        runner: Runner,
        args: TrainingArguments,
        features: Dataset,
        validation: Dataset | None,
        callbacks: Sequence[TrainerCallback],
        distiller: Distiller | None = None,
        tokens: int | None = None,
        divide: bool = False,
        profile: Profile | None = None,
        place: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        """runner: the task, the model to train, and how it is evaluated. distiller: adds the teacher's losses.

        tokens: slots of a micro-batch, in place of its rows. divide: may micro-batches that are too large for the
        memory be divided? Not where the loss compares the rows of a batch. profile: is told where the time goes.
        place: training row -> what a message calls it.
        """
        super().__init__(
            model=runner.model, args=args, train_dataset=features, eval_dataset=validation, callbacks=list(callbacks)
        )
        self.remove_callback(PrinterCallback)  # ours say what happens
        self.task, self.runner, self.features = runner.task, runner, features
        self.objective: Task | Distiller = distiller or runner.task
        self.tokens, self.divide, self.parts = tokens, divide, 1
        self.profile, self.place = profile, place
        if profile:
            self.add_callback(profile)

    def get_train_dataloader(self) -> EpochLoader:
        units = self.task.units(self.features)
        batches = self.batches = self._batches(numbers(self.features, "length"), units)
        return EpochLoader(
            Examples(self.task, self.features, batches, units if self.divide else None),
            batch_sampler=batches,
            collate_fn=Collator.of(self.task.tokenizer, self.task.padding),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def _batches(self, lengths: ArrayLike, units: ArrayLike) -> Batches:
        accumulation, seed = self.args.gradient_accumulation_steps, self.args.seed
        world, rank = self.args.world_size, self.args.process_index
        if self.tokens is None:
            rows = self._train_batch_size
            return LengthBatches(
                lengths, units, batch_size=rows, accumulation=accumulation, world=world, rank=rank, seed=seed
            )
        return TokenBatches(
            lengths, units, tokens=self.tokens, accumulation=accumulation, world=world, rank=rank, seed=seed
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's own, in which the parameters that the task names learn faster, and do not decay."""
        if self.optimizer is not None:
            return self.optimizer
        optimizer: Any = super().create_optimizer(model)
        trained: Any = self.model
        for part, times in self.task.learning_rate_factors.items():
            fast = {id(parameter) for name, parameter in trained.named_parameters() if part in name.split(".")}
            for group in list(optimizer.param_groups):
                chosen = [p for p in group["params"] if id(p) in fast]
                if chosen:
                    group["params"] = [p for p in group["params"] if id(p) not in fast]
                    own = {**group, "params": chosen, "lr": group["lr"] * times, "weight_decay": 0.0}
                    optimizer.add_param_group(own)
        return optimizer

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Any:
        gc.freeze()  # accelerate collects garbage first, and would look at all that was imported
        try:
            with memory_kept():
                return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            gc.unfreeze()

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one step, and what their losses will sum over in all processes."""
        self._turn("data")
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        counted = self.accelerator.reduce(self._counted(batches), "sum")
        if self.profile:
            self.profile.saw(batches)
        self._turn("other")
        return batches, counted

    def _counted(self, batches: list[Any]) -> torch.Tensor:
        counts = torch.tensor([self.objective.count(batch) for batch in batches], dtype=torch.float64)
        return counts.sum(0).to(self.args.device, torch.float32)

    def _turn(self, part: str) -> None:
        if self.profile:
            self.profile.turn(part)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = self.task.forward(model, inputs)
        total = self.objective.loss(outputs, inputs, self.args.label_smoothing_factor)
        # DDP averages gradients over processes; the count is already over all of them.
        # Nothing may be counted: a batch of texts without words.
        loss = (total / num_items_in_batch.clamp(min=1e-12)).sum() * self.args.world_size
        self._turn("backward")
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        pieces = list(divided(inputs, self.parts))
        losses = []
        for piece in pieces:
            last = piece is pieces[-1]
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                losses.append(self._piece(model, piece, num_items_in_batch))
        loss = torch.stack(losses).sum()
        self._turn("optimizer")
        if not torch.isfinite(loss):
            what = f"the loss is {loss.item()} at step {self.state.global_step + 1}, over {self._rows_of_step()}"
            fix = "Lower training.learning_rate, or look at the rows with `bertkit check`."
            raise UserError(Problem("training", what, fix + " Checkpoints written before are intact."))
        return loss

    def _rows_of_step(self) -> str:
        """The rows that the step under way learns from, as they are named to the user."""
        micro = self.args.gradient_accumulation_steps
        start = self.state.global_step % -(-len(self.batches) // micro) * micro
        features = self.features[[i for batch in islice(self.batches, start, start + micro) for i in batch]]
        rows = sorted(set(features["row"]))
        more = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
        return ", ".join(map(self.place, rows[:NAMED])) + more

    def _piece(self, model: Any, piece: Batch, counted: Any) -> torch.Tensor:
        self._turn("forward")
        plain = not (self.args.torch_compile or self.args.activation_checkpointing)
        with faster(self.args.device) if plain else contextlib.nullcontext():
            return super().training_step(model, piece, counted)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(  # type: ignore[no-untyped-call]
            max_steps, train_dataloader, resume_from_checkpoint
        )
        if self.divide:
            known = Path(resume_from_checkpoint or "") / DIVISION
            parts = read_json(known)["parts"] if resume_from_checkpoint and known.is_file() else 1
            self.parts = self._parts_that_fit(prepared[0], train_dataloader, parts)
        return prepared

    def _parts_that_fit(self, model: Any, loader: Any, parts: int) -> int:
        """Into how many parts micro-batches must be divided, by trying the heaviest; nothing else is changed by it."""
        batch = loader.collate_fn(loader.dataset.__getitems__(loader.batch_sampler.heaviest()))
        units, counted = len(batch[UNIT].unique()), self._counted([batch])
        times = 2 if self.args.gradient_accumulation_steps > 1 else 1  # the second has the first one's gradients beside
        learned = [p for p in model.parameters() if p.requires_grad]
        optimizer: Any = self.optimizer
        adam = 2 if "adam" in self.args.optim and not optimizer.state else 0

        def attempt(parts: int) -> None:
            moments = [torch.empty_like(p) for p in learned for _ in range(adam)]
            pieces = list(divided(batch, parts))
            try:
                for piece in (pieces * times)[:2]:
                    self._piece(model, piece, counted)
            finally:
                moments.clear()
                model.zero_grad()

        devices = [] if self.args.device.type == "cpu" else [self.args.device]
        with torch.random.fork_rng(devices), self.accelerator.no_sync(model):
            found = parts_that_fit(attempt, units, parts)
        found = int(self.accelerator.gather(torch.tensor([found], device=self.args.device)).max())
        if found > 1:
            told = "%d rows do not fit into memory at a time: micro-batches are divided by %d, steps stay the same"
            logger.warning(told, units, found)
        return found

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Overall metrics of the task on the validation rows, or on `eval_dataset`, a Dataset of rows."""
        self._turn("evaluation")
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        scores = evaluate(self.task, rows, replace(self.runner, model=self.model))
        # NaN is never better than anything, which is how an undefined headline metric must compare.
        shown = {
            k: math.nan if v is None else v
            for k, v in scores.items()
            if "/" not in k or k == self.args.metric_for_best_model
        }
        overall = {f"{metric_key_prefix}_{k}": v for k, v in shown.items()}
        self._turn("other")
        self.log(dict(overall))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, overall)
        return overall

    # --- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # sharded states have formats of their own
            super()._save_checkpoint(model, trial)
            return
        self._turn("saving")
        self.store_flos()
        parent = Path(str(self.args.output_dir))
        folder = parent / f"checkpoint-{self.state.global_step}"
        aside = parent / f".writing-{self.state.global_step}"
        if self.args.should_save:  # what a killed process left here is no part of this checkpoint
            shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        aside.mkdir(parents=True, exist_ok=True)
        if self.state.best_global_step:
            self.state.best_model_checkpoint = str(parent / f"checkpoint-{self.state.best_global_step}")
        checkpoint.save_random(aside, self.args.process_index)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.save_model(str(aside), _internal_call=True)
            checkpoint.save_optimizer(aside, self.optimizer, self.lr_scheduler, self.accelerator.scaler)
            stateful = [c for c in [*self.callback_handler.callbacks, self.control] if isinstance(c, ExportableState)]
            self.state.stateful_callbacks = {type(c).__name__: c.state() for c in stateful}  # type: ignore[assignment]
            self.state.save_to_json(str(aside / "trainer_state.json"))
            if self.divide:
                write_json(aside / DIVISION, {"parts": self.parts})
            checkpoint.publish(aside, folder)
            self._forget_old(parent)
        self._turn("other")

    def _forget_old(self, parent: Path) -> None:
        found = checkpoint.checkpoints(parent)
        best = self.state.best_model_checkpoint
        spare = [p for p in found[:-1] if str(p) != best]
        excess = len(found) - (self.args.save_total_limit or len(found))
        for old in spare[: max(excess, 0)]:
            shutil.rmtree(old)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled or checkpoint.whole(best)):
            what, fix = "the best checkpoint is damaged, or gone", "Bring it back and --resume, or start a new run."
            raise ModelError(Problem(str(best), what, fix))
        super()._load_best_model()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """The model alone: Trainer's own would pickle the arguments."""
        if self.args.should_save:
            model: Any = self.model
            model.save_pretrained(output_dir or self.args.output_dir, state_dict=state_dict)

    def whole(self, fresh: Callable[[], Any]) -> Any:
        """The trained model. All processes must call it; only the one that saves may use what it returns.

        Under FSDP each process has a share of the weights: they are put together in the model that `fresh` makes.
        """
        if not self.is_fsdp_enabled:
            return self.model
        weights = self.accelerator.get_state_dict(self.model)
        if not self.args.should_save:
            return self.model
        model = fresh()
        model.load_state_dict(weights)
        return model.to(self.args.device)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint_folder)
        elif checkpoint_folder is not None:
            checkpoint.load_optimizer(
                Path(checkpoint_folder), self.optimizer, self.lr_scheduler, self.accelerator.scaler
            )

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_rng_state(checkpoint_folder)
        elif checkpoint_folder is not None:
            checkpoint.load_random(Path(checkpoint_folder), self.args.process_index)
