"""Graceful shutdown: SIGINT and SIGTERM end training with a checkpoint."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import Any

import torch
from transformers import TrainerCallback

from bertkit import processes

logger = logging.getLogger(__name__)


class Shutdown(TrainerCallback):
    """Inside its `with` block, the first SIGINT or SIGTERM ends training after the current step, a second at once.

    Where several processes train, a signal to one of them ends all after the same step, with a checkpoint.
    """

    def __init__(self) -> None:
        self.signal = self.agreed_signal = 0  # number of the signal: of this process, and agreed among all
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # signal handlers can only be set there
            numbers = (signal.SIGINT, signal.SIGTERM)
            # A signal that a shell made its background jobs ignore stays ignored.
            handled = [each for each in numbers if signal.getsignal(each) not in (signal.SIG_IGN, None)]
            self.previous = {number: signal.signal(number, self._receive) for number in handled}

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}

    def _receive(self, number: int, frame: object) -> None:
        self.signal = number
        self.__exit__()
        if processes.first():
            what = "interrupted: finishing this step and saving a checkpoint; press Ctrl-C again to exit immediately"
            logger.warning(what)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.agreed_signal = self.signal
        if args.world_size > 1:
            largest = torch.tensor(self.signal, device=args.device)
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
            self.agreed_signal = int(largest)
        if self.agreed_signal and not float(state.epoch).is_integer():  # an epoch's evaluation precedes its checkpoint
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save |= self.agreed_signal > 0

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.agreed_signal:
            self.exit(state)

    def exit(self, state: Any) -> None:
        """End as the signal demands. Raises KeyboardInterrupt or SystemExit."""
        if processes.first():
            step, steps = state.global_step, state.max_steps
            logger.warning("stopped after step %d of %d; --resume continues from there", step, steps)
        if signal.SIGINT in (self.agreed_signal, self.signal):
            raise KeyboardInterrupt
        sys.exit(128 + signal.SIGTERM)
