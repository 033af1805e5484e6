"""Progress of a training: a bar on a terminal, plain lines elsewhere, and metrics.jsonl."""

from __future__ import annotations

import json
import logging
import sys
import time
from math import isfinite
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class Progress(TrainerCallback):
    """A bar with ETA and the current loss on a terminal, or a line per log event."""

    def __init__(self, title: str, headline: str) -> None:
        self.title, self.headline = title, headline
        self.bar: Any = None
        self.started, self.first_step = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started, self.first_step = time.monotonic(), state.global_step
        if state.is_world_process_zero and sys.stderr.isatty():
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.title, unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        logs = logs or {}
        if not state.is_world_process_zero:
            return
        values = {name.removeprefix("eval_"): logs[name] for name in ("loss", f"eval_{self.headline}") if name in logs}
        if not values:
            return
        text = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        if self.bar is not None and "loss" in values:
            self.bar.set_postfix_str(text)
            return
        line = f"{self.title}  step {state.global_step}/{state.max_steps}  epoch {state.epoch:.2f}  {text}"
        if self.bar is None and state.global_step > self.first_step:
            passed = time.monotonic() - self.started
            left = passed / (state.global_step - self.first_step) * (state.max_steps - state.global_step)
            line += f"  {left:.0f} s left"
        if self.bar is None:
            logger.info("%s", line)
        else:
            self.bar.write(line, file=sys.stderr)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


class MetricsLog(TrainerCallback):
    """Every log event as one line of metrics.jsonl, with its seed and step."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Events logged after the checkpoint of a resume will be logged again.
        if state.is_world_process_zero and self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            earlier = [x for x in lines if (e := json.loads(x))["seed"] != self.seed or e["step"] <= state.global_step]
            self.path.write_text("".join(earlier), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if state.is_world_process_zero:
            numbers = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in (logs or {}).items()}
            event = {"seed": self.seed, "step": state.global_step, **numbers}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")
