"""Batches of features of similar length; a step has the same rows however it is split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Sampler

from bertkit.data.on_disk import numbers
from bertkit.encoding.padding import Collator
from bertkit.tasks.base import Batch, Task

UNIT = "unit"  # of a batch: the number of each feature's unit; features of a unit stay together
SIMILAR = 1.01  # lengths whose ratio is below it count as equal to a token budget
MAX_PADDING = 0.02  # share of a micro-batch by tokens; a micro-batch with more ends early
POOL = 128  # steps sorted by length together: padding stays near 1 %, order stays random


class Division(TypedDict, total=False):
    """How a step is divided: arguments of `Batches`."""

    accumulation: int
    world: int
    rank: int
    seed: int
    whole_steps: bool


class EpochSampler(Sampler[list[int]]):
    """A batch sampler whose order depends on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        self.epoch = epoch


class Batches(EpochSampler, ABC):
    """Batch sampler: this process's micro-batches of feature indices, in the order of training.

    An epoch is drawn from (seed, epoch) alone. No unit (row, or feature) is split, dropped or repeated, and
    all processes have the same number of micro-batches, which is the same in each epoch.
    """

    sizes: list[int]  # units of each micro-batch, of all processes in turn

    def __init__(
        self,
        lengths: ArrayLike,
        units: ArrayLike,
        *,
        accumulation: int = 1,
        world: int = 1,
        rank: int = 0,
        seed: int = 0,
        whole_steps: bool = False,
    ) -> None:
        """lengths, units: for each feature its number of tokens and the unit that it belongs to.

        whole_steps: each step has `accumulation` micro-batches of every process, the last one too. Raises
        ValueError where there are too few units.
        """
        self.starts, self.counts = np.unique(np.asarray(units), return_index=True, return_counts=True)[1:]
        self.lengths = np.maximum.reduceat(np.asarray(lengths), self.starts)
        self.world = world
        self.rank = rank
        self.accumulation = accumulation
        self.whole_steps = whole_steps
        self.seed = seed

    def __len__(self) -> int:
        """Micro-batches of this process per epoch."""
        return len(self.sizes) // self.world

    def __iter__(self) -> Iterator[list[int]]:
        return self.in_epoch(self.epoch)

    def in_epoch(self, epoch: int) -> Iterator[list[int]]:
        """This process's micro-batches in this epoch, whichever is the current one."""
        for units in self._epoch(np.random.default_rng((self.seed, epoch)))[self.rank :: self.world]:
            yield self._features(units)

    @abstractmethod
    def _epoch(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The units of every micro-batch of an epoch, of all processes in turn."""

    @abstractmethod
    def heaviest(self) -> list[int]:
        """The features of the micro-batch that takes the most memory."""

    def _divided(self, units: np.ndarray) -> list[np.ndarray]:
        return np.split(units, np.cumsum(self.sizes)[:-1])

    def _features(self, units: np.ndarray) -> list[int]:
        firsts = self.starts[units].tolist()
        counts = self.counts[units].tolist()
        return [f for first, count in zip(firsts, counts, strict=True) for f in range(first, first + count)]


class LengthBatches(Batches):
    """`batch_size` units of similar length in each micro-batch.

    Whole steps of `batch_size * accumulation * world` units are cut from the epoch's permutation and only
    then divided into micro-batches, so that 8 x 1, 2 x 4 and two processes of 4 take the same steps. The last
    step may be smaller.
    """

    def __init__(
        self, lengths: ArrayLike, units: ArrayLike, *, batch_size: int, **division: Unpack[Division]
    ) -> None:
        super().__init__(lengths, units, **division)
        self.step = batch_size * self.accumulation * self.world
        self.sizes = _micro_sizes(
            len(self.starts), batch_size, self.accumulation, self.world, self.whole_steps
        )

    def _epoch(self, rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(len(self.starts))
        pools = np.split(order, range(POOL * self.step, len(order), POOL * self.step))
        order = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        # A short step stays last: its units are the longest of the last pool.
        full = len(order) // self.step
        steps = order[: full * self.step].reshape(full, self.step)[rng.permutation(full)]
        return self._divided(np.append(steps, order[full * self.step :]))

    def heaviest(self) -> list[int]:
        weight = self.lengths * self.counts
        return self._features(np.argsort(-weight, kind="stable")[: max(self.sizes)])


class TokenBatches(Batches):
    """Micro-batches of at most `tokens` slots: features x the longest of them. A larger unit is alone.

    Where lengths differ much, a micro-batch ends before it is full, so that little of it is padding.

    All units are cut into micro-batches once, in the order of their lengths. An epoch draws which units of
    equal length (to 1 %) come together, and the order of the micro-batches. Every step has `accumulation *
    world` of them, whatever their rows: two processes take the same steps as accumulation over two.
    """

    def __init__(
        self, lengths: ArrayLike, units: ArrayLike, *, tokens: int, **division: Unpack[Division]
    ) -> None:
        super().__init__(lengths, units, **division)
        similar = np.floor(np.log(np.maximum(self.lengths, 1)) / np.log(SIMILAR)).astype(np.int64)
        longest = np.ones(similar.max() + 1, dtype=np.int64)
        np.maximum.at(longest, similar, self.lengths)
        # Longest first. Units of one kind may be exchanged: no micro-batch grows by it.
        self.kinds = self.counts - similar * (self.counts.max() + 1)
        self.order = np.argsort(self.kinds, kind="stable")
        sizes = _cut(longest[similar[self.order]], self.counts[self.order], tokens)
        self.sizes = _evened(sizes, self.accumulation, self.world, self.whole_steps)

    def _epoch(self, rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(len(self.starts))
        batches = self._divided(order[np.argsort(self.kinds[order], kind="stable")])
        return [batches[number] for number in rng.permutation(len(batches))]

    def heaviest(self) -> list[int]:
        heaviest = max(  # attention grows with the square of the length
            self._divided(self.order),
            key=lambda units: self.counts[units].sum() * self.lengths[units].max() ** 2,
        )
        return self._features(heaviest)


def batches_of(
    task: Task, features: Dataset, batch_size: int, tokens: int | None, **division: Unpack[Division]
) -> Batches:
    """The batches of a task's features: of so many units, or of at most `tokens` slots. Raises ValueError."""
    lengths = numbers(features, "length")
    units = task.units(features)
    if "target_length" in features.column_names:  # both texts are padded
        lengths = np.maximum(lengths, numbers(features, "target_length"))
    if tokens is None:
        return LengthBatches(lengths, units, batch_size=batch_size, **division)
    return TokenBatches(lengths, units, tokens=tokens, **division)


def _cut(lengths: np.ndarray, counts: np.ndarray, tokens: int) -> list[int]:
    """The number of units of each micro-batch; units are given longest first."""
    features = np.concatenate([[0], np.cumsum(counts)])
    real = np.concatenate([[0], np.cumsum(counts * lengths)])
    start = 0
    sizes = []

    def too_large(end: int) -> bool:
        slots = (features[end] - features[start]) * lengths[start]
        return bool(slots > tokens or real[end] - real[start] < (1 - MAX_PADDING) * slots)

    while start < len(lengths):
        ends = range(start + 2, len(lengths) + 1)  # of two units, three, …; one is never too large
        size = 1 + bisect_left(ends, True, key=too_large)
        sizes.append(size)
        start += size
    return sizes


def _evened(sizes: list[int], accumulation: int, world: int, whole_steps: bool) -> list[int]:
    """Halve the largest micro-batches until there are whole steps, or at least as many for every process."""
    for multiple in (accumulation * world, *(() if whole_steps else (world,))):
        wanted = -(-len(sizes) // multiple) * multiple
        if wanted <= sum(sizes):
            while len(sizes) < wanted:
                at = int(np.argmax(sizes))
                sizes[at : at + 1] = [sizes[at] - sizes[at] // 2, sizes[at] // 2]
            return sizes
    raise ValueError(f"{sum(sizes)} rows are too few for {world} processes")


def _micro_sizes(units: int, batch_size: int, accumulation: int, world: int, whole_steps: bool) -> list[int]:
    """The number of units of each micro-batch: whole steps, then the rest; as many for each process, none
    empty.
    """
    steps, rest = divmod(units, batch_size * accumulation * world)
    # too few for the last step: they join the one before
    if 0 < rest < (world * accumulation if whole_steps else world):
        if not steps:
            raise ValueError(f"{units} rows are too few for {world} processes")
        steps -= 1
        rest += batch_size * accumulation * world
    # Never more than `accumulation`, which Trainer would take for two steps.
    fewest = min(-(-rest // (world * batch_size)), rest // world, accumulation)
    micro = world * (accumulation if whole_steps and rest else fewest)
    last = [rest // micro + (index < rest % micro) for index in range(micro)]
    return [batch_size] * (steps * accumulation * world) + last


class Examples(torch.utils.data.Dataset[Any]):
    """Features that a DataLoader fetches as a batch, of the columns that the task returns for this epoch."""

    def __init__(self, task: Task, features: Dataset, batches: Batches) -> None:
        self.task = task
        self.features = features
        self.batches = batches  # a resumed Trainer sets the epoch of the batch sampler only
        self.collate = Collator.of(task.tokenizer, task.padding)

    def __len__(self) -> int:
        return len(self.features)

    def __getitems__(self, indices: list[int]) -> Batch:
        columns = self.task.examples(self.features, indices, (self.batches.seed, self.batches.epoch))
        units = np.searchsorted(self.batches.starts, indices, side="right")
        return self.collate({**columns, UNIT: units.tolist()})


def unchanged(batch: Any) -> Any:
    """The `collate_fn` of a DataLoader whose dataset returns collated batches."""
    return batch


class EpochLoader(DataLoader[Any]):
    """A DataLoader that passes the epoch on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)
