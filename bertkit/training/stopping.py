"""A training that is told to stop ends with a checkpoint: SIGTERM from a scheduler, Ctrl-C from a person."""

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


class Stop(TrainerCallback):
    """Inside it, the first SIGINT or SIGTERM ends training after the step under way, and a second one ends it at once.

    Of several processes one needs to be told, and all end after the same step, when there is a checkpoint of it.
    """

    def __init__(self) -> None:
        self.heard = self.told = 0  # the signal's number, here and as all processes know it
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # no other may listen
            # What a shell told its background jobs to ignore stays ignored.
            heeded = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
            self.before = {number: signal.signal(number, self._hear) for number in heeded}

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def _hear(self, number: int, frame: object) -> None:
        self.heard = number
        self.__exit__()
        if processes.first():
            logger.warning("told to stop: this step is finished and kept first; once more stops at once")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.told = self.heard
        if args.world_size > 1:
            told = torch.tensor(self.heard, device=args.device)
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
            self.told = int(told)
        if self.told and not float(state.epoch).is_integer():  # what ends an epoch comes before its checkpoint
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save |= self.told > 0

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.told:
            self.obey(state)

    def obey(self, state: Any) -> None:
        """End as the signal asks for. Raises KeyboardInterrupt or SystemExit."""
        if processes.first():
            logger.warning("stopped after step %d of %d; --resume goes on there", state.global_step, state.max_steps)
        if signal.SIGINT in (self.told, self.heard):
            raise KeyboardInterrupt
        sys.exit(128 + signal.SIGTERM)
