"""How the time of a training is spent, and how much of its batches is padding."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback

PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "saving", "other")


class Profile(TrainerCallback):
    """A stopwatch over `PARTS`; it runs from the beginning to the end of each training.

    TaskTrainer and Trainer's callbacks switch it. On an accelerator each switch waits for pending work, so that
    seconds are counted for the part that started the work.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = self.slots = self.tokens = 0
        self.part, self.since = "", 0.0  # "": no training is running

    def switch(self, part: str) -> None:
        """Count time for this part from now on; nothing is measured while no training runs."""
        if not self.part:
            return
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = time.perf_counter()
        self.seconds[self.part] += now - self.since
        self.part, self.since = part, now

    def count(self, batches: list[Any]) -> None:
        """Add the slots of these batches, `(features, longest)` each, and the tokens in them."""
        for batch in batches if self.part else ():
            self.slots += batch["attention_mask"].numel()
            self.tokens += int(batch["attention_mask"].sum())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.part, self.since = "other", time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1
        self.switch("other")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.switch("")

    def facts(self) -> dict[str, Any]:
        """For profile.json: seconds, milliseconds per step and share of each part; share of padding."""
        total, steps = sum(self.seconds.values()), max(self.steps, 1)
        parts = {
            part: {"seconds": each, "ms_per_step": 1000 * each / steps, "share": each / total if total else 0.0}
            for part, each in self.seconds.items()
        }
        padding = 1 - self.tokens / self.slots if self.slots else 0.0
        return {"steps": self.steps, "seconds": total, "parts": parts, "slots": self.slots, "padding": padding}


def profile_lines(facts: dict[str, Any]) -> str:
    """The facts of a profile as a table."""
    lines = [f"{facts['steps']:,} steps in {facts['seconds']:.1f} s; {facts['padding']:.1%} of the slots are padding"]
    for part, each in facts["parts"].items():
        lines.append(f"{part:10}  {each['ms_per_step']:9.2f} ms a step  {each['share']:6.1%}")
    return "\n".join(lines)
