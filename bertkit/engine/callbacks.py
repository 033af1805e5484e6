"""Callbacks of training: progress, metrics.jsonl and a graceful shutdown."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback

from bertkit import processes
from bertkit.engine.arguments import ENDLESS
from bertkit.engine.clock import Clock
from bertkit.files import errors_naming, lines_of, write_lines

logger = logging.getLogger(__name__)


class Progress(TrainerCallback):
    """A bar with ETA, loss and metric on a terminal or in a notebook; elsewhere a line per log event."""

    def __init__(self, title: str, headline: str, clock: Clock | None = None) -> None:
        self.title = title
        self.headline = headline
        self.clock = clock or Clock()
        self.bar: Any = None
        self.latest = dict[str, str]()
        self.started = 0.0
        self.first = 0

    def _done(self, state: Any) -> tuple[int, int]:
        """How much is done, and of how much: steps, or seconds of the budget."""
        budget = self.clock.budget
        if budget is None:
            return state.global_step, state.max_steps
        return round(self.clock.elapsed), round(budget)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.monotonic()
        self.first, total = self._done(state)
        if state.is_world_process_zero and (sys.stderr.isatty() or _in_notebook()):
            form = None if self.clock.budget is None else "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
            self.bar = tqdm(total=total, initial=self.first, desc=self.title, unit="step", bar_format=form)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.update(min(self._done(state)[0], self.bar.total) - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] = {}, **_: Any) -> None:
        names = [name for name in ("loss", f"eval_{self.headline}") if name in logs]
        if not names or not state.is_world_process_zero:
            return
        numbers = {name.removeprefix("eval_"): f"{logs[name]:.4f}" for name in names}
        text = "  ".join(f"{name} {number}" for name, number in numbers.items())
        steps = "" if self.clock.budget else f"/{state.max_steps}"
        line = f"{self.title}  step {state.global_step}{steps}  epoch {state.epoch:.2f}  {text}"
        done, total = self._done(state)
        if self.bar is None:
            left = (time.monotonic() - self.started) / max(done - self.first, 1) * max(total - done, 0)
            logger.info("%s", line + (f"  {left:.0f} s left" if done > self.first else ""))
            return
        self.latest |= numbers
        self.bar.set_postfix(self.latest)
        if "loss" not in names and sys.stderr.isatty():
            self.bar.write(line, file=sys.stderr)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def _in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config


class MetricsLog(TrainerCallback):
    """Every log event as one line of metrics.jsonl, with its seed and step."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.seed = seed

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Events logged after the checkpoint of a resume will be logged again.
        if state.is_world_process_zero and self.path.is_file():
            events = lines_of(self.path, appended=True)
            earlier = (
                e for e in events if e.get("seed") != self.seed or e.get("step", 0) <= state.global_step
            )
            write_lines(self.path, earlier)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] = {}, **_: Any) -> None:
        if state.is_world_process_zero:
            numbers = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in logs.items()}
            event = {"seed": self.seed, "step": state.global_step, **numbers}
            with errors_naming(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")


class MetadataWriter(TrainerCallback):
    """Writes what a run is trained with, once: when its first training begins, if not before."""

    def __init__(self, write: Callable[[], None]) -> None:
        """write: called in the process that writes the files."""
        self.once = cache(write)

    def write(self) -> None:
        """Write it now, unless it is written already."""
        if processes.first():
            self.once()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.write()


class Shutdown(TrainerCallback):
    """Inside its `with` block, the first SIGINT or SIGTERM ends training after the current step, a second at
    once.

    Where several processes train, a signal to one of them ends all after the same step, with a checkpoint.
    """

    def __init__(self) -> None:
        self.signal = self.agreed_signal = 0  # number of the signal: of this process, and agreed among all
        self.handlers = ExitStack()

    def __enter__(self) -> None:
        # A signal that a shell made its background jobs ignore stays ignored.
        stops = (signal.SIGINT, signal.SIGTERM)
        heeded = [number for number in stops if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        self.handlers.enter_context(processes.signals_handled(heeded, self._receive))

    def __exit__(self, *error: object) -> None:
        self.handlers.close()

    def _receive(self, number: int, frame: object) -> None:
        self.signal = number
        self.__exit__()
        if processes.first():
            logger.warning(
                "interrupted: finishing this step and saving a checkpoint; press Ctrl-C again to exit "
                "immediately"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.agreed_signal = self.signal
        if args.world_size > 1:
            largest = torch.tensor(self.signal, device=args.device)
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
            self.agreed_signal = int(largest)
        # An epoch's evaluation precedes its checkpoint, and so does that of a training that ends within an
        # epoch.
        if self.agreed_signal and not (float(state.epoch).is_integer() or control.should_training_stop):
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save |= self.agreed_signal > 0

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.agreed_signal:
            self.exit(state)

    def exit(self, state: Any) -> None:
        """End as the signal demands. Raises KeyboardInterrupt or SystemExit."""
        if processes.first():
            steps = "" if state.max_steps == ENDLESS else f" of {state.max_steps}"
            what = "stopped after step %d%s; a resumed run continues from there"
            logger.warning(what, state.global_step, steps)
        if signal.SIGINT in (self.agreed_signal, self.signal):
            raise KeyboardInterrupt
        sys.exit(128 + signal.SIGTERM)
