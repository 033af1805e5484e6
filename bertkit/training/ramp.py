"""A batch that grows in the course of a training: at first, each step makes several updates of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from torch import Tensor


class MicroBatch(NamedTuple):
    """What a step does with one of its micro-batches."""

    counted: Tensor  # the loss terms of its update, over all processes
    updates: int  # of the step
    update_follows: bool  # within the step, whose last update is Trainer's own


def divided(batches: Sequence[Any], ramp: Mapping[str, float] | None, progress: float, accumulation: int) -> list[Any]:
    """The micro-batches of a step at this progress, by update.

    ramp: see `sections.BatchRamp`. accumulation: micro-batches of a whole step; the last of an epoch may have fewer.
    """
    if ramp is None:
        return [batches]
    share = ramp["start"] + (1 - ramp["start"]) * min(progress / ramp["until"], 1.0)
    whole = ceil(round(1 / share, 6))  # updates of a whole step
    updates = -(-whole * len(batches) // accumulation)
    bounds = [-(-update * len(batches) // updates) for update in range(updates + 1)]
    return [batches[start:end] for start, end in pairwise(bounds)]
