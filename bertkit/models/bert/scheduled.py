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


def shortened(batch: Mapping[str, Tensor], length: int, fill: Mapping[str, int]) -> dict[str, Tensor]:
    """The batch in rows of at most `length` tokens: longer ones are divided, and each part has its special tokens.

    batch: each row a text between two special tokens, as `Drawing` gives it without pairs. fill: column of tokens,
    `(batch, tokens)`, -> its padding. Other columns are repeated for each part.
    """
    import torch
    from torch.nn import functional as F

    longest = batch["input_ids"].shape[1]
    if longest <= length:
        return dict(batch)
    last = batch["attention_mask"].sum(1)[:, None, None] - 1  # (batch, 1, 1): where the second special token is
    before = torch.arange(0, longest - 2, length - 2, device=last.device)[:, None]  # (parts, 1): tokens before the part
    size = (last - 1 - before).clamp(0, length - 2)  # (batch, parts, 1)
    place = torch.arange(length, device=last.device)
    source = torch.where(place <= size, before + place, longest)  # (batch, parts, length); `longest` is padding
    source = torch.where(place == size + 1, last, source).masked_fill(place == 0, 0).flatten(1)
    kept = (size > 0).flatten()

    def divided(name: str, values: Tensor) -> Tensor:
        if name not in fill and name != "attention_mask":
            return values.repeat_interleave(len(before), 0)[kept]
        padded = F.pad(values, (0, 1), value=fill.get(name, 0))
        return padded.gather(1, source).view(-1, length)[kept]

    return {name: divided(name, values) for name, values in batch.items()}
