"""The progress of training, by its steps or its time budget, and the learning rates that follow from it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerState, TrainingArguments, get_scheduler
from transformers.trainer_callback import DefaultFlowCallback

from bertkit.recipe.cross_checks import DECAY, STEP_KWARGS

TICKS = 10**6  # steps of the learning-rate schedule in a budget of any length


class Clock(TrainerCallback):
    """The seconds that a training has taken, and its end where they are limited.

    They are counted from the beginning of the training, with evaluations and checkpoints; a resumed training
    continues from those of its checkpoint.
    """

    def __init__(self, budget: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """budget: the seconds that the training may take; None: `max_steps` ends it. now: a clock, in
        seconds.
        """
        self.budget = budget
        self.now = now
        self.start()

    def start(self, elapsed: float = 0.0) -> None:
        """Count from now on. elapsed: the seconds that were taken before."""
        self.begun = self.now() - elapsed

    @property
    def elapsed(self) -> float:
        """The seconds so far."""
        return self.now() - self.begun

    def progress(self, args: TrainingArguments, state: TrainerState) -> float:
        """The share of the steps, or of the budget by the clock of the first process; all processes must call
        it.
        """
        if self.budget is None:
            return min(state.global_step / max(state.max_steps, 1), 1.0)
        elapsed = self.elapsed
        if args.world_size > 1:
            shared = torch.tensor(elapsed, dtype=torch.float64, device=args.device)
            torch.distributed.broadcast(shared, 0)
            elapsed = float(shared)
        return min(elapsed / self.budget, 1.0)

    def over(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Whether the last step has been made; there is at least one. All processes must call it."""
        return state.global_step > 0 and self.progress(args, state) == 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.budget is not None and self.over(args, state):
            last = copy.copy(state)  # as the last step by number, it is evaluated and saved
            last.max_steps = state.global_step
            DefaultFlowCallback().on_step_end(args, last, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.budget is not None and not control.should_training_stop and self.over(args, state):
            control.should_training_stop = True
            control.should_save |= args.save_strategy != "no"


def schedule(args: TrainingArguments, optimizer: Any, steps: int) -> Any:
    """transformers' learning-rate schedule for so many steps.

    That of warmup_stable_decay takes shares of the steps too, and decays in the last fifth by default. Raises
    ValueError where warm-up and decay are longer than all steps, TypeError for `lr_scheduler_kwargs` it does
    not have.
    """
    kwargs: Any = args.lr_scheduler_kwargs or {}
    if args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):  # which follow the selection metric
        kwargs = {"mode": "max", **kwargs}
    warmup = args.get_warmup_steps(steps)
    if args.lr_scheduler_type == "warmup_stable_decay":
        kwargs = {**DECAY, **kwargs}
        kwargs |= {name: int(kwargs[name] * steps) for name in STEP_KWARGS if 0 < kwargs.get(name, 0) < 1}
        if warmup + kwargs["num_decay_steps"] > steps:
            raise ValueError(
                f"warm-up ({warmup}) and decay ({kwargs['num_decay_steps']}) exceed all {steps} steps"
            )
    return get_scheduler(args.lr_scheduler_type, optimizer, warmup, steps, kwargs)


def follow(scheduler: Any, progress: float) -> None:
    """Set the learning rates of a schedule of `TICKS` steps to those at this progress."""
    if isinstance(scheduler, LambdaLR):  # the others depend on scores
        scheduler.last_epoch = round(progress * TICKS) - 1
        scheduler.step()
