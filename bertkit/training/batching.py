"""Batches of features of nearly one length, the same rows per step however a step is divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from bertkit.tasks.base import Task

SOFT = "soft"  # the column of what a teacher says of a feature, (numbers,)
POOL = 128  # batches that are sorted by length together: padding stays near 1 %, order stays random


class LengthBatches(Sampler[list[int]]):
    """Batch sampler: this process's micro-batches of feature indices, in the order of training.

    An epoch is a permutation of units (rows, or features) drawn from (seed, epoch) alone. Whole steps of
    `batch_size * accumulation * world` units are cut from it and only then divided into micro-batches, so
    that 8 x 1, 2 x 4 and two processes of 4 take the same steps. No unit is dropped or repeated; the last
    step may be smaller.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        units: Sequence[int],
        *,
        batch_size: int,
        accumulation: int = 1,
        world: int = 1,
        rank: int = 0,
        seed: int = 0,
    ) -> None:
        _, self.starts, self.counts = np.unique(np.asarray(units), return_index=True, return_counts=True)
        self.lengths = np.maximum.reduceat(np.asarray(lengths), self.starts)
        self.batch_size, self.accumulation, self.world, self.rank = batch_size, accumulation, world, rank
        self.seed, self.epoch = seed, 0
        self.sizes = _micro_sizes(len(self.starts), batch_size, accumulation, world)

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Micro-batches of this process per epoch."""
        return sum(len(step) for step in self.sizes) // self.world

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(len(self.starts))
        step = self.batch_size * self.accumulation * self.world
        pools = [order[start : start + POOL * step] for start in range(0, len(order), POOL * step)]
        order = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        whole = len(order) // step
        # The short step, if there is one, stays last: its units are the longest of the last pool.
        steps = [order[i * step : (i + 1) * step] for i in rng.permutation(whole)]
        steps += [order[whole * step :]] if len(order) % step else []
        if len(self.sizes) < len(steps):
            steps[-2:] = [np.concatenate(steps[-2:])]
        for units, sizes in zip(steps, self.sizes, strict=True):
            bounds = np.concatenate([[0], np.cumsum(sizes)])
            for micro in range(self.rank, len(sizes), self.world):
                chosen = units[bounds[micro] : bounds[micro + 1]]
                firsts, counts = self.starts[chosen].tolist(), self.counts[chosen].tolist()
                yield [f for first, count in zip(firsts, counts, strict=True) for f in range(first, first + count)]


def _micro_sizes(units: int, batch_size: int, accumulation: int, world: int) -> list[list[int]]:
    """For each step the sizes of its micro-batches; their number is a multiple of `world`, none is empty."""
    step = batch_size * accumulation * world
    sizes = [[batch_size] * (accumulation * world)] * (units // step)
    rest = units % step
    if not rest:
        return sizes
    if rest < world:  # too few for every process to have one: they join the step before
        if not sizes:
            raise ValueError(f"{units} rows are too few for {world} processes")
        sizes, rest = sizes[:-1], rest + step
    # Never more than `accumulation`, which Trainer would take for two steps, and never an empty one.
    micro = world * min(-(-rest // (world * batch_size)), rest // world, accumulation)
    return [*sizes, [rest // micro + (index < rest % micro) for index in range(micro)]]


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[np.ndarray]:
    """Feature indices in batches of nearly one length, longest first, for prediction."""
    if batch_size < 1:
        raise ValueError(f"a batch of {batch_size} rows")
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


class Examples(torch.utils.data.Dataset[Any]):
    """Features that a DataLoader fetches by the batch, as the columns that the task makes of them in this epoch."""

    def __init__(self, task: Task, features: Dataset, batches: LengthBatches) -> None:
        self.task, self.features = task, features
        self.batches = batches  # a resumed Trainer tells nobody but the batch sampler the epoch

    def __len__(self) -> int:
        return len(self.features)

    def __getitems__(self, indices: list[int]) -> dict[str, list[Any]]:
        return self.task.examples(self.features, indices, (self.batches.seed, self.batches.epoch))


class EpochLoader(DataLoader[Any]):
    """A DataLoader that tells its batch sampler the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        if isinstance(self.batch_sampler, LengthBatches):
            self.batch_sampler.set_epoch(epoch)


@dataclass(frozen=True)
class Collator:
    """Columns of features -> a batch of tensors. It pads, and does nothing else."""

    padding: Mapping[str, int]  # column -> what fills it up to the longest of the batch

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, extra: Mapping[str, int]) -> Collator:
        """The collator of a tokenizer's own inputs and a task's token-level columns."""
        return cls({"input_ids": int(tokenizer.pad_token_id or 0), "token_type_ids": 0, SOFT: 0, **extra})

    def __call__(self, columns: Any) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and other padded columns: (features, pieces); the rest: (features, …)."""
        batch = {name: self._padded(values, name) for name, values in columns.items()}
        sizes = torch.tensor([len(ids) for ids in columns["input_ids"]])
        batch["attention_mask"] = (torch.arange(int(sizes.max())) < sizes[:, None]).long()
        return batch

    def _padded(self, values: Sequence[Any], name: str) -> Tensor:
        if name not in self.padding or not isinstance(values[0], list):
            return torch.tensor(values)
        width = max(map(len, values))
        filled = [[*row, *[self.padding[name]] * (width - len(row))] for row in values]
        # Rows may all be empty, which torch takes for floats.
        return torch.tensor(filled, dtype=torch.float32 if name == SOFT else torch.long)
