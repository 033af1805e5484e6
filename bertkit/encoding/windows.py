"""Batches in which a row may have several windows: those of one row stand next to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def row_windows(batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The first window of each row `(rows,)` and the row of each window `(windows,)`, as indices into this batch."""
    import torch

    _, row_of_window, counts = torch.unique_consecutive(batch["row"], return_inverse=True, return_counts=True)
    return counts.cumsum(0) - counts, row_of_window


def first_windows(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """What the first window of each row has: `(windows, …)` -> `(rows, …)`."""
    return values[row_windows(batch)[0]]


def mean_of_windows(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean of the logits of each row's windows: `(windows, labels)` -> `(rows, labels)` fp32."""
    import torch

    first, row_of_window = row_windows(batch)
    table = torch.zeros(len(first), logits.shape[-1], device=logits.device)
    return table.index_add(0, row_of_window, logits.float()) / torch.bincount(row_of_window)[:, None]
