"""Several tasks that are trained together: batches of one task, models that share an encoder, and their
losses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor, nn

from bertkit.encoding.padding import Collator
from bertkit.engine.batching import Batches, EpochSampler
from bertkit.models.trained_parts import share_encoder
from bertkit.tasks.base import Batch, Task
from bertkit.text import Json, Record

TASK = "task"  # of a batch: the name of its task
WEIGHTS = "model.safetensors"  # where Trainer looks for them


class MixedBatches(EpochSampler):
    """Batch sampler: this process's micro-batches of several tasks, each of one task, in the order of
    training.

    An index counts the features of the tasks, one task after the other. A task's micro-batches are those of
    its own `Batches`, one of its epochs after the other. How many an epoch of the mixture has of each task is
    the same in each epoch; their order is drawn from (seed, epoch) alone, and is the same in all processes.
    """

    def __init__(
        self,
        tasks: Sequence[Batches],
        features: Sequence[int],
        mixing: str | Sequence[float],
        *,
        run: int,
        seed: int,
    ) -> None:
        """features: how many each task has. mixing: proportional, sqrt, uniform, or a weight for each task.

        run: how many micro-batches of a task follow each other; each task's number of them is a multiple of
        it.
        """
        self.tasks = tasks
        self.run = run
        self.offsets = np.cumsum([0, *features[:-1]]).tolist()
        self.counts = shares([len(batches) // run for batches in tasks], mixing)
        self.seed = seed

    def __len__(self) -> int:
        return sum(self.counts) * self.run

    def __iter__(self) -> Iterator[list[int]]:
        order = np.repeat(np.arange(len(self.tasks)), self.counts)
        streams = [*map(self._stream, self.tasks, self.counts)]
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

    def __init__(
        self, tasks: Mapping[str, Task], features: Mapping[str, Dataset], batches: MixedBatches
    ) -> None:
        self.tasks = tasks
        self.features = features
        self.batches = batches
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

    def __getitems__(self, indices: list[int]) -> Json:
        ((name, rows),) = self.split(indices).items()
        draw = self.batches.seed, self.batches.epoch
        columns = self.tasks[name].examples(self.features[name], rows, draw)
        return {**self.collate[name](columns), TASK: name}


class SharedEncoder(nn.Module):
    """The models of several tasks whose encoders are one: the same modules, with the same weights and
    gradients.
    """

    def __init__(self, tasks: Mapping[str, Task], models: Record, *, lora: bool = False) -> None:
        """models: of each task, from the same pretrained weights. lora: whether they have adapters."""
        super().__init__()
        self.tasks = tasks
        self.models = nn.ModuleDict({_key(name): model for name, model in models.items()})
        inner = {name: model.get_base_model() if lora else model for name, model in models.items()}
        # bare encoders last: nothing of theirs trains the pooler
        joining = sorted(inner.items(), key=lambda pair: pair[1].base_model is pair[1])
        share_encoder((model, tasks[name].extra_modules(model).values()) for name, model in joining)

    def forward(self, name: str, batch: Batch) -> Any:
        """The outputs of this task's model."""
        return self.tasks[name].forward(self.of(name), batch)

    def of(self, name: str) -> Any:
        """The model of this task."""
        return self.models[_key(name)]

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding, which the models share. Raises NotImplementedError where they have none."""
        first: Any = next(iter(self.models.values()))
        return first.get_input_embeddings()  # type: ignore[no-any-return]

    def stored(self) -> dict[str, Tensor]:
        """Every tensor once, by its first name."""
        every: dict[str, Tensor] = {}
        for name, module in self.named_modules():  # a shared one only once, unlike `state_dict`
            module._save_to_state_dict(every, f"{name}." if name else "", keep_vars=False)
        return {name: every[name].contiguous() for name in self._once() if name in every}

    def _once(self) -> set[str]:
        """The first name of every parameter and buffer."""
        return {name for name, _ in chain(self.named_parameters(), self.named_buffers())}

    def save_pretrained(
        self, folder: str | Path, state_dict: Any = None, save_original_format: bool = False
    ) -> None:
        """Write the tensors, as Trainer loads them in a checkpoint. state_dict: nothing else than
        `stored`.
        """
        save_file(self.stored(), Path(folder, WEIGHTS), {"format": "pt"})

    def load_state_dict(self, state_dict: Record, strict: bool = True, assign: bool = False) -> Any:
        """Load what is `stored`. Raises RuntimeError where a tensor is missing or not known."""
        loaded = super().load_state_dict(state_dict, strict=False, assign=assign)
        missing = [name for name in loaded.missing_keys if name in self._once()]
        if missing or loaded.unexpected_keys:
            raise RuntimeError(f"missing tensors: {missing}; unexpected tensors: {loaded.unexpected_keys}")
        return type(loaded)([], [])


def _key(name: str) -> str:
    """The name of a task among modules, where `keys`, `type` or `crf` would be taken for something else."""
    return f"task-{name.encode().hex()}"  # transformers looks for `bias` and `norm` in names


@dataclass(frozen=True)
class MultiTask:
    """Tasks as one: the loss is the sum of the tasks' losses, each divided by its own count and weighted."""

    tasks: Mapping[str, Task]
    weights: Mapping[str, float]

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Parts of a parameter's name, joined by dots -> factor on the learning rate; see `Task`."""
        return {
            f"{_key(name)}.{part}": factor
            for name, task in self.tasks.items()
            for part, factor in task.learning_rate_factors.items()
        }

    def scheduled(self, batch: Batch, progress: float) -> Batch:
        """The batch as its task schedules it."""
        return self.tasks[str(batch[TASK])].scheduled(batch, progress)

    def forward(self, model: Any, batch: Batch) -> Any:
        """The outputs of the batch's task."""
        return model(batch[TASK], batch)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The weighted sum of the losses of this batch, at the place of its task; elsewhere 0. `(tasks,)`."""
        name = str(batch[TASK])
        total = self.weights[name] * self.tasks[name].loss(outputs, batch, label_smoothing)
        return total * torch.tensor(self._at(name), device=total.device)

    def count(self, batch: Batch) -> tuple[float, ...]:
        """The number of terms in the loss of each task."""
        name = str(batch[TASK])
        counted = self.tasks[name].count(batch)
        assert isinstance(counted, float)
        return tuple(counted * place for place in self._at(name))

    def _at(self, name: str) -> list[float]:
        return [float(name == task) for task in self.tasks]
