"""Micro-batches that do not fit into memory are split; the steps stay the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache

from bertkit.engine.attachment import Attachment, Draft, Steps
from bertkit.engine.batching import UNIT
from bertkit.engine.trainer import out_of_memory
from bertkit.files import read_json
from bertkit.tasks.base import Batch
from bertkit.text import Record

logger = logging.getLogger(__name__)

DIVISION = "division.json"  # in a checkpoint: into how many parts micro-batches are split


@final
class MicroBatchSplit(Attachment):
    """Splits the micro-batches of one task, whose loss must not compare the rows of a batch."""

    def __init__(self) -> None:
        self.count = 1  # parts of each micro-batch

    def join(self, draft: Draft) -> bool:
        return bool(draft.recipe.training.get("auto_find_batch_size"))

    def prepare(self, trainer: Steps, model: Any, loader: Any, checkpoint: Path | None) -> None:
        division = checkpoint / DIVISION if checkpoint else None
        parts = read_json(division)["parts"] if division and division.is_file() else 1
        self.count = split_factor(trainer, model, loader, parts)

    def split_batch(self, batch: Batch) -> Iterator[Batch]:
        return split_batch(batch, self.count)

    def save_files(self) -> Record:
        return {DIVISION: {"parts": self.count}}


def split_factor(trainer: Steps, model: Any, loader: Any, parts: int) -> int:
    """Into how many parts each micro-batch must be split to fit into memory: `parts` times a power of two.

    Found with the heaviest micro-batch; gradients and random states are restored. Raises
    torch.OutOfMemoryError where a single unit does not fit.
    """
    batch = loader.dataset.__getitems__(loader.batch_sampler.heaviest())
    units = len(batch[UNIT].unique())
    counted = trainer.terms([batch])
    # the second runs with the first one's gradients
    times = 2 if trainer.args.gradient_accumulation_steps > 1 else 1
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = trainer.optimizer
    moment_count = 2 if "adam" in trainer.args.optim and not optimizer.state else 0

    def fits(parts: int) -> bool:
        moments: list[torch.Tensor] = []
        try:
            moments.extend(torch.empty_like(p) for p in trained for _ in range(moment_count))
            for part in (list(split_batch(batch, parts)) * times)[:2]:
                # without DDP, whose processes would wait for each other where one fails
                trainer.part_step(trainer.model, part, counted)
        except RuntimeError as error:
            if not out_of_memory(error) or parts >= units:
                raise
            return False
        finally:
            moments.clear()
            model.zero_grad()
        return True

    device = trainer.args.device
    devices = [] if device.type == "cpu" else [device]
    kept = torch.random.fork_rng(devices, device_type=device.type)
    with kept, trainer.accelerator.no_sync(model):
        while not fits(parts):
            parts *= 2
            clear_device_cache(garbage_collection=True)  # here, where no error holds the attempt's tensors
    factor = int(trainer.accelerator.gather(torch.tensor([parts], device=device)).max())
    if factor > 1:
        what = (
            "%d rows at a time do not fit into memory: micro-batches are split into %d, with the same steps"
        )
        logger.warning(what, units, factor)
    return factor


def split_batch(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in `parts` parts of nearly as many units each, in order; in fewer where it has fewer
    units.
    """
    if parts == 1:
        yield batch
        return
    units = batch[UNIT]
    starts = np.flatnonzero(np.diff(units.cpu().numpy(), prepend=-1))
    bounds = [int(starts[len(starts) * part // parts]) for part in range(parts)]
    for first, end in zip(bounds, [*bounds[1:], len(units)], strict=True):
        if first < end:
            yield {name: values[first:end] for name, values in batch.items()}
