"""Trainings by a clock that steps and evaluations move on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import CASES
from safetensors.torch import save_file
from steps import arguments, made
from transformers import TrainerCallback

from bertkit.engine.arguments import ENDLESS
from bertkit.engine.clock import Clock

CASE = next(case for case in CASES if case.id == "class-weights")


class Time(TrainerCallback):
    """Moves on by so many seconds, which may depend on the step."""

    def __init__(self, step: Callable[[int], float] = lambda _: 5.0, evaluation: float = 0.0) -> None:
        self.seconds, self.step, self.evaluation = 1000.0, step, evaluation

    def __call__(self) -> float:
        return self.seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds += self.step(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds += self.evaluation


def trained(encoder: Path, out: Path, batch: int, seconds: float) -> None:
    """Train for 30 seconds with steps that take so many; OUT/PROCESS-STEPS.safetensors has the weights."""
    time = Time(lambda _: seconds)
    args = arguments(out, batch, 2, max_steps=ENDLESS, learning_rate=0.1, optim="sgd")
    trainer = made(CASE, encoder, args, clock=Clock(30, now=time), callbacks=[time])
    trainer.train()
    save_file(trainer.model.state_dict(), out / f"{args.process_index}-{trainer.state.global_step}.safetensors")
