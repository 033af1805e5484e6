"""Where the time of a training goes, and how much of its batches is padding."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback

PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "saving", "other")


class Profile(TrainerCallback):
    """A stopwatch that is always in one of `PARTS`, from the begin to the end of each training.

    TaskTrainer and Trainer's callbacks turn it. On an accelerator each turn waits until all work that was
    given to it is done, so that seconds belong to the part that asked for it.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = self.slots = self.pieces = 0
        self.part, self.since = "", 0.0  # no part: outside of a training

    def turn(self, part: str) -> None:
        """From now on, time is this part's; outside of a training nothing is measured."""
        if not self.part:
            return
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = time.perf_counter()
        self.seconds[self.part] += now - self.since
        self.part, self.since = part, now

    def saw(self, batches: list[Any]) -> None:
        """Count the slots of these batches, `(features, pieces)` each, and the word pieces in them."""
        for batch in batches:
            self.slots += batch["attention_mask"].numel()
            self.pieces += int(batch["attention_mask"].sum())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.part, self.since = "other", time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1
        self.turn("other")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.turn("")

    def facts(self) -> dict[str, Any]:
        """For profile.json: seconds in all, milliseconds per step and share of each part; the share of padding."""
        total = sum(self.seconds.values())
        parts = {
            part: {
                "seconds": seconds,
                "ms_per_step": 1000 * seconds / max(self.steps, 1),
                "share": seconds / total if total else 0.0,
            }
            for part, seconds in self.seconds.items()
        }
        padding = 1 - self.pieces / self.slots if self.slots else 0.0
        return {"steps": self.steps, "seconds": total, "parts": parts, "slots": self.slots, "padding": padding}


def profile_lines(facts: dict[str, Any]) -> str:
    """The facts of a profile as a table for people."""
    lines = [f"{facts['steps']:,} steps in {facts['seconds']:.1f} s; {facts['padding']:.1%} of the slots are padding"]
    for part, told in facts["parts"].items():
        lines.append(f"{part:10}  {told['ms_per_step']:9.2f} ms a step  {told['share']:6.1%}")
    return "\n".join(lines)
