"""What changes in a batch of pretraining in the course of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def fewer_masks(batch: Mapping[str, Tensor], mask_probability: float) -> dict[str, Tensor]:
    """The batch as if `Drawing` had drawn it at this lower `mask_probability`, without its column `mask_order`."""
    rest = dict(batch)
    order, labels, ids = rest.pop("mask_order"), batch["labels"], batch["input_ids"]  # (batch, length)
    budgets = (mask_probability * (order > 0).sum(1, keepdim=True).double()).round().clamp(min=1)  # (batch, 1)
    restored = (labels != -100) & (order > budgets)
    return {**rest, "input_ids": labels.where(restored, ids), "labels": labels.masked_fill(restored, -100)}
