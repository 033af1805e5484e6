"""Runs a model over features in batches: the one path from features to a task's items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.encoding.padding import Arrays, BatchSize, batches_by_length, fills, pad, unmasked
from bertkit.inference.progress import progress
from bertkit.models.device import ModelPrecision, attention_kernels, autocast
from bertkit.models.malloc import give_back
from bertkit.tasks.base import Batch, Task

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]

GIVEN_BACK_EVERY = 16  # batches, after which freed memory is given back to the system


@dataclass(frozen=True)
class Runner:
    """Features -> one item per feature, in the features' order.

    Features are batched by length, longest first, so that memory runs out at once or never.

    device: None where `model` is called with NumPy arrays and returns the task's reduced arrays, as
    `OnnxModel` does. mapper: applies a function to all batches, in their order; in a training by several
    processes, to a part of them; None: to one after the other. keep: (outputs, batch) -> an item per feature,
    in place of the task's own.
    """

    task: Task
    model: Any  # transformers' PreTrainedModel, or Arrays -> Arrays
    device: torch.device | None
    precision: ModelPrecision
    batch_size: BatchSize
    mapper: Mapper | None = None
    keep: Callable[[Any, Batch], Sequence[Any]] | None = None

    def __call__(self, features: Dataset) -> Sequence[Any]:
        items = [None] * len(features)
        inputs = features.select_columns([name for name in features.column_names if name != "labels"])
        fill = fills(self.task.tokenizer, self.task.padding)
        batches = self.batches(features["length"][:])
        results: Iterable[Any]

        def run(rows: Any) -> Any:
            return self.run(pad(self.task.examples(inputs, rows.tolist()), fill))

        with self.inference():
            if self.mapper is None and self.device is not None and self.device.type != "cpu":
                # All batches are queued before a result is copied, since a copy waits for the device.
                results = map(on_cpu, [run(rows) for rows in progress(batches, "batch", len(batches))])
            else:
                results = (self.mapper or map)(lambda rows: on_cpu(run(rows)), batches)
            pairs = zip(batches, results, strict=True)
            for number, (rows, result) in enumerate(progress(pairs, "batch", len(batches)), 1):
                for row, item in zip(rows, result if self.keep else self.task.items(result), strict=True):
                    items[row] = item
                if number % GIVEN_BACK_EVERY == 0:
                    give_back()
        return items

    def batches(self, lengths: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """The indices of features of these lengths, batch by batch."""
        return batches_by_length(
            lengths, self.batch_size, self.device is not None and self.device.type == "cpu"
        )

    def inference(self) -> AbstractContextManager[None]:
        """Within the block, the model predicts, in this precision and without gradients."""
        if self.device is None:
            return nullcontext()
        self.model.eval()
        return inference(self.device, self.precision)

    def run(self, arrays: Arrays) -> Any:
        """What the task reduces the outputs for a batch to, or what `keep` makes of them; within `inference`.

        Without `keep`, it stays on the device: `on_cpu` copies it.
        """
        if self.device is None:
            return self.model(arrays)
        import torch

        arrays = unmasked(arrays)
        free = self.device.type == "cuda"  # CUDA has read the arrays when `to` returns
        batch = {
            name: torch.from_numpy(values).to(self.device, non_blocking=free)
            for name, values in arrays.items()
        }
        reduce = self.keep or self.task.reduce
        return reduce(self.task.forward(self.model, batch), batch)


@contextmanager
def inference(device: torch.device, precision: ModelPrecision) -> Iterator[None]:
    """Within the block, models predict, in this precision and without gradients."""
    import torch

    with torch.inference_mode(), autocast(device, precision), attention_kernels(device):
        yield


def on_cpu(result: Any) -> Any:
    """What `Runner.run` returned, with NumPy arrays in place of tensors."""
    if not isinstance(result, Mapping):
        return result
    return {
        name: values if isinstance(values, np.ndarray) else values.cpu().numpy()
        for name, values in result.items()
    }
