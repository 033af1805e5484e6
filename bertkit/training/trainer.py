"""Hugging Face's Trainer, with the task's metrics, the whole step's loss, and length batches."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from transformers import Trainer
from transformers.trainer_callback import ExportableState, PrinterCallback

from bertkit.errors import Problem, UserError
from bertkit.training import checkpoint
from bertkit.training.batching import Collator, EpochLoader, Examples, LengthBatches
from bertkit.training.cpu import faster, memory_kept

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback, TrainingArguments

    from bertkit.tasks.base import Predict, Task
    from bertkit.training.distillation import Distiller


@final
class TaskTrainer(Trainer):
    """Trainer, changed in three things, and in how it writes checkpoints.

    Evaluation goes through the task. The loss is a sum divided by what was really counted in the whole
    accumulated, all-process step: stock Trainer takes gradients of BERT's heads `accumulation` times and
    `processes` times too large. Batches come from `LengthBatches`. Checkpoints hold no pickle and take
    their name only when they are complete.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *,
        task: Task,
        model: Any,
        args: TrainingArguments,
        features: Dataset,
        validation: Dataset | None,
        predict: Callable[[Any], Predict],
        callbacks: Sequence[TrainerCallback],
        distiller: Distiller | None = None,
    ) -> None:
        """predict: a model -> the function that `Task.evaluate` is given. distiller: adds the teacher's losses."""
        super().__init__(
            model=model, args=args, train_dataset=features, eval_dataset=validation, callbacks=list(callbacks)
        )
        self.remove_callback(PrinterCallback)  # ours say what happens
        self.task, self.predict_with, self.features = task, predict, features
        self.objective: Task | Distiller = distiller or task

    def get_train_dataloader(self) -> EpochLoader:
        batches = LengthBatches(
            self.features["length"][:],
            self.task.units(self.features),
            batch_size=self._train_batch_size,
            accumulation=self.args.gradient_accumulation_steps,
            world=self.args.world_size,
            rank=self.args.process_index,
            seed=self.args.seed,
        )
        return EpochLoader(
            Examples(self.task, self.features, batches),
            batch_sampler=batches,
            collate_fn=Collator.of(self.task.tokenizer, self.task.padding),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's own, in which the parameters that the task names learn faster, and do not decay."""
        if self.optimizer is not None:
            return self.optimizer
        optimizer: Any = super().create_optimizer(model)
        trained: Any = self.model
        for part, times in self.task.learning_rates.items():
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
        with memory_kept():
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one step, and what their losses will sum over in all processes."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = torch.tensor([self.objective.count(batch) for batch in batches], dtype=torch.float64)
        counted = counts.sum(0).to(device, torch.float32)
        return batches, self.accelerator.reduce(counted, "sum")

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = self.task.forward(model, inputs)
        total = self.objective.loss(outputs, inputs, self.args.label_smoothing_factor)
        # DDP averages gradients over processes; the count is already over all of them.
        # Nothing may be counted: a batch of texts without words.
        loss = (total / num_items_in_batch.clamp(min=1e-12)).sum() * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        plain = not (self.args.torch_compile or self.args.activation_checkpointing)
        with faster(self.args.device) if plain else contextlib.nullcontext():
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            what = f"the loss is {loss.item()} at step {self.state.global_step + 1}"
            fix = "Lower training.learning_rate, or look at the rows with `bertkit check`."
            raise UserError(Problem("training", what, fix + " Checkpoints written before are intact."))
        return loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Overall metrics of the task on the validation rows, or on `eval_dataset`, a Dataset of rows."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        scores = self.task.evaluate(rows, self.predict_with(self.model))
        # NaN is never better than anything, which is how an undefined headline metric must compare.
        shown = {
            k: math.nan if v is None else v
            for k, v in scores.items()
            if "/" not in k or k == self.args.metric_for_best_model
        }
        overall = {f"{metric_key_prefix}_{k}": v for k, v in shown.items()}
        self.log(dict(overall))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, overall)
        return overall

    # --- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # sharded states have formats of their own
            super()._save_checkpoint(model, trial)
            return
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
            checkpoint.save_optimizer(aside, self.optimizer, self.lr_scheduler)
            stateful = [c for c in [*self.callback_handler.callbacks, self.control] if isinstance(c, ExportableState)]
            self.state.stateful_callbacks = {type(c).__name__: c.state() for c in stateful}  # type: ignore[assignment]
            self.state.save_to_json(str(aside / "trainer_state.json"))
            checkpoint.publish(aside, folder)
            self._forget_old(parent)

    def _forget_old(self, parent: Path) -> None:
        found = checkpoint.checkpoints(parent)
        best = self.state.best_model_checkpoint
        spare = [p for p in found[:-1] if str(p) != best]
        excess = len(found) - (self.args.save_total_limit or len(found))
        for old in spare[: max(excess, 0)]:
            shutil.rmtree(old)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """The model alone: Trainer's own would pickle the arguments."""
        model: Any = self.model
        model.save_pretrained(output_dir or self.args.output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint_folder)
        elif checkpoint_folder is not None:
            checkpoint.load_optimizer(Path(checkpoint_folder), self.optimizer, self.lr_scheduler)

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_rng_state(checkpoint_folder)
        elif checkpoint_folder is not None:
            checkpoint.load_random(Path(checkpoint_folder), self.args.process_index)
