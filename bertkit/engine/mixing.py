"""Batches of several tasks: which task is drawn when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Sampler

from bertkit.encoding.padding import Collator
from bertkit.engine.batching import Batches
from bertkit.tasks.base import Task

TASK = "task"  # of a batch: the name of its task


class MixedBatches(Sampler[list[int]]):
    """Batch sampler: this process's micro-batches of several tasks, each of one task, in the order of training.

    An index counts the features of the tasks, one task after the other. A task's micro-batches are those of its own
    `Batches`, one of its epochs after the other. How many an epoch of the mixture has of each task is the same in each
    epoch; their order is drawn from (seed, epoch) alone, and is the same in all processes.
    """

    def __init__(
        self, tasks: Sequence[Batches], features: Sequence[int], mixing: str | Sequence[float], *, run: int, seed: int
    ) -> None:
        """features: how many each task has. mixing: proportional, sqrt, uniform, or a weight for each task.

        run: how many micro-batches of a task follow each other; each task's number of them is a multiple of it.
        """
        self.tasks, self.run = tasks, run
        self.offsets = np.cumsum([0, *features[:-1]]).tolist()
        self.counts = shares([len(each) // run for each in tasks], mixing)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(self.counts) * self.run

    def __iter__(self) -> Iterator[list[int]]:
        order = np.repeat(np.arange(len(self.tasks)), self.counts)
        streams = [self._stream(*each) for each in zip(self.tasks, self.counts, strict=True)]
        for task in np.random.default_rng((self.seed, self.epoch)).permutation(order).tolist():
            for batch in islice(streams[task], self.run):
                yield [self.offsets[task] + index for index in batch]

    def _stream(self, batches: Batches, drawn: int) -> Iterator[list[int]]:
        """A task's micro-batches from the beginning of this epoch of the mixture on, without end.

        drawn: runs of it in each epoch of the mixture.
        """
        epoch, done = divmod(self.epoch * drawn * self.run, len(batches))
        for following in count(epoch):
            yield from islice(batches.in_epoch(following), done if following == epoch else 0, None)


def shares(sizes: Sequence[int], mixing: str | Sequence[float]) -> list[int]:
    """How often each task is drawn in as many draws as there are in one epoch of all; each at least once.

    sizes: draws in an epoch of each task. Fractions are rounded by the largest remainder.
    """
    weights = {"proportional": sizes, "sqrt": np.sqrt(sizes), "uniform": np.ones(len(sizes))}
    shares = np.asarray(weights[mixing] if isinstance(mixing, str) else mixing, dtype=np.float64)
    exact = shares / shares.sum() * sum(sizes)
    counts = np.floor(exact + 1e-9).astype(int)  # 3 of 3 may be computed as 2.9999999999999996
    for task in np.argsort(counts - exact, kind="stable")[: sum(sizes) - counts.sum()]:
        counts[task] += 1
    return np.maximum(counts, 1).tolist()  # type: ignore[no-any-return]


class MixedExamples(torch.utils.data.Dataset[Any]):
    """Features of several tasks that a DataLoader fetches as a batch, which is of one task and names it."""

    def __init__(self, tasks: Mapping[str, Task], features: Mapping[str, Dataset], batches: MixedBatches) -> None:
        self.tasks, self.features, self.batches = tasks, features, batches
        self.names = list(tasks)
        self.collate = {name: Collator.of(task.tokenizer, task.padding) for name, task in tasks.items()}

    def __len__(self) -> int:
        return sum(map(len, self.features.values()))

    def split(self, indices: Sequence[int]) -> dict[str, list[int]]:
        """Task -> the indices of its own features among these."""
        draws: dict[str, list[int]] = {}
        for index in indices:
            task = bisect_right(self.batches.offsets, index) - 1
            draws.setdefault(self.names[task], []).append(index - self.batches.offsets[task])
        return draws

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        ((name, own),) = self.split(indices).items()
        columns = self.tasks[name].examples(self.features[name], own, (self.batches.seed, self.batches.epoch))
        return {**self.collate[name](columns), TASK: name}
