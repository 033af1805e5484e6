"""A micro-batch that does not fit into memory is split: the step keeps its rows and its sum of losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from bertkit.tasks.base import Batch
from bertkit.training.batching import UNIT


def out_of_memory(error: Exception) -> bool:
    """Whether the device, or the CPU's allocator, had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)


def split_batch(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in `parts` parts of nearly as many units each, in order; in fewer where it has fewer units."""
    if parts == 1:
        yield batch
        return
    units = batch[UNIT]
    starts = np.flatnonzero(np.diff(units.cpu().numpy(), prepend=-1))
    bounds = [int(starts[len(starts) * part // parts]) for part in range(parts)]
    for first, end in zip(bounds, [*bounds[1:], len(units)], strict=True):
        if first < end:
            yield {name: values[first:end] for name, values in batch.items()}


def find_split_factor(attempt: Callable[[int], None], units: int, parts: int = 1) -> int:
    """The least power of two, times `parts`, for which `attempt(parts)` does not run out of memory.

    Raises torch.OutOfMemoryError where even single units do not fit.
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
