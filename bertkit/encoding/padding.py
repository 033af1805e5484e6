"""Batches: columns of features as NumPy arrays of one width, which features go together, and the windows of
rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertkit.sections import Batching

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


BatchSize = int | Batching  # features, or slots
CPU_SLOTS = (
    2048  # whose states stay in a processor's caches: a fifth faster than 8,192 (benchmarks/encode.py)
)
Arrays = dict[str, np.ndarray]
T = TypeVar("T")


def fills(tokenizer: PreTrainedTokenizerBase, extra: Mapping[str, int | float]) -> dict[str, int | float]:
    """Token-level column -> its padding value: the tokenizer's columns, and those of a task."""
    return {"input_ids": int(tokenizer.pad_token_id or 0), "token_type_ids": 0, **extra}


def model_inputs(tokenizer: PreTrainedTokenizerBase, columns: Mapping[str, T]) -> dict[str, T]:
    """Those of the columns of features, or of a batch, that go to the model."""
    return {name: columns[name] for name in tokenizer.model_input_names if name in columns}


def pad(columns: Mapping[str, Sequence[Any]], fill: Mapping[str, int | float]) -> Arrays:
    """`input_ids`, `attention_mask` and other padded columns: (features, tokens); the rest: (features, …).

    Whole numbers are int64, others fp32; a padded column has the type of its padding value.
    """
    batch = {name: _padded(values, fill.get(name)) for name, values in columns.items()}
    sizes = np.array([len(ids) for ids in columns["input_ids"]])
    batch["attention_mask"] = (np.arange(sizes.max()) < sizes[:, None]).astype(np.int64)
    return batch


def unmasked(batch: Arrays) -> Arrays:
    """The batch without `attention_mask` where no row is padded, so that a model need not look for padding.

    transformers would wait for the device to do so, and flash attention takes no mask.
    """
    return {name: values for name, values in batch.items() if name != "attention_mask" or not values.all()}


def mask_of(batch: Mapping[str, Tensor]) -> Tensor:
    """The `attention_mask` of a batch, `(features, tokens)`: all 1 where it has none."""
    import torch

    return batch["attention_mask"] if "attention_mask" in batch else torch.ones_like(batch["input_ids"])


def _padded(values: Sequence[Any], fill: float | None) -> np.ndarray:
    if fill is None or not isinstance(values[0], list):
        plain = np.asarray(values)
        return plain.astype(np.float32) if plain.dtype == np.float64 else plain
    kind = np.float32 if isinstance(fill, float) else np.int64
    # onnxruntime's Scan fails on zero words
    table = np.full((len(values), max(1, *map(len, values))), fill, dtype=kind)
    for row, filled in zip(table, values, strict=True):
        row[: len(filled)] = filled
    return table


def batches_by_length(
    lengths: Sequence[int], batch_size: BatchSize, on_cpu: bool = False
) -> list[np.ndarray]:
    """Feature indices in batches of nearly one length, longest first, for prediction.

    on_cpu: a batch of several features has at most `CPU_SLOTS` slots, too.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    rows, slots = (
        (len(order), batch_size.tokens) if isinstance(batch_size, Batching) else (batch_size, math.inf)
    )
    if len(order) and rows < 1:
        raise ValueError(f"a batch of {rows} rows")
    slots = min(slots, CPU_SLOTS) if on_cpu else slots
    batches = []
    start = 0
    while start < len(order):
        end = start + max(int(min(rows, slots // max(lengths[order[start]], 1))), 1)
        batches.append(order[start:end])
        start = end
    return batches


SOFT = "soft"  # the column of the teacher's outputs for a feature, (numbers,)


@dataclass(frozen=True)
class Collator:
    """Columns of features -> a batch of tensors: padding, and nothing else; without padding no
    `attention_mask`.
    """

    padding: Mapping[str, int | float]  # column -> its padding value

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, extra: Mapping[str, int | float]) -> Collator:
        """The collator of a tokenizer's own inputs and a task's token-level columns."""
        return cls({**fills(tokenizer, extra), SOFT: 0.0})

    def __call__(self, columns: Any, device: Any = "cpu") -> dict[str, Tensor]:
        """The arrays of `pad`, as tensors on this device."""
        import torch

        return {
            name: torch.from_numpy(values).to(device)
            for name, values in unmasked(pad(columns, self.padding)).items()
        }


def row_windows(batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The first window of each row `(rows,)` and the row of each window `(windows,)`, as indices into this
    batch.
    """
    import torch

    row_of_window, counts = torch.unique_consecutive(batch["row"], return_inverse=True, return_counts=True)[
        1:
    ]
    return counts.cumsum(0) - counts, row_of_window


def first_windows(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """What the first window of each row has: `(windows, …)` -> `(rows, …)`."""
    return values[row_windows(batch)[0]]


def greatest_of_windows(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The greatest logit of each row's windows: `(windows,)` -> `(rows,)`."""
    first, windows = row_windows(batch)
    return logits.new_full((len(first),), -math.inf).scatter_reduce(0, windows, logits, "amax")


def mean_of_windows(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean of the logits of each row's windows: `(windows, labels)` -> `(rows, labels)` fp32."""
    import torch

    first, row_of_window = row_windows(batch)
    table = torch.zeros(len(first), logits.shape[-1], device=logits.device)
    return table.index_add(0, row_of_window, logits.float()) / torch.bincount(row_of_window)[:, None]
