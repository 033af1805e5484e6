"""A micro-batch that does not fit into memory is divided: the same rows in a step, the same sum of losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from bertkit.training.batching import UNIT

if TYPE_CHECKING:
    from bertkit.tasks.base import Batch


def out_of_memory(error: Exception) -> bool:
    """Did the device, or the CPU's allocator, have no room?"""
    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)


def divided(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in so many parts of nearly as many units, in order; fewer where it has fewer units."""
    if parts == 1:
        yield batch
        return
    units = batch[UNIT]
    starts = np.flatnonzero(np.diff(units.cpu().numpy(), prepend=-1))
    bounds = [int(starts[len(starts) * part // parts]) for part in range(parts)]
    for first, end in zip(bounds, [*bounds[1:], len(units)], strict=True):
        if first < end:
            yield {name: values[first:end] for name, values in batch.items()}


def parts_that_fit(attempt: Any, units: int, parts: int = 1) -> int:
    """The least power of two, times `parts`, in which a batch can be divided so that `attempt(parts)` has room.

    Raises torch.OutOfMemoryError where one unit at a time is too much.
    """
    while True:
        try:
            attempt(parts)
        except RuntimeError as error:
            if not out_of_memory(error) or parts >= units:
                raise
        else:
            return parts
        parts *= 2
        clear_device_cache(garbage_collection=True)  # here, where the error no longer holds the attempt's tensors
