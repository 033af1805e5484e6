"""Kernels that make a training step on the CPU about twice as fast: dropout and attention.

torch's CPU dropout draws one number of the Mersenne Twister and more for every element, and its attention
has no fast path with dropout or backwards. Both are replaced during a training step; the model
is unchanged. Measured by benchmarks/finetune.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

LEVELS = 1 << 16  # a probability is rounded to 16 bits, and the scale follows the rounded one


class FasterStep(TorchFunctionMode):
    """Within the block, dropout and attention with gradients run as `dropout` and `attention` of this file.

    Not for activation checkpointing, which computes them again during backward, where the mode is not active.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.dropout:
            return dropout(*args, **options)
        if func is F.scaled_dot_product_attention and torch.is_grad_enabled():
            return attention(*args, **options)
        return func(*args, **options)


def faster(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """`FasterStep` where the device is a CPU."""
    return FasterStep() if device.type == "cpu" else contextlib.nullcontext()


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.dropout`, from 16 random bits an element of torch's own generator."""
    dropped = round(p * LEVELS)
    if not training or inplace or not 0 < dropped < LEVELS:
        return F.dropout(x, p, training, inplace)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    scale = LEVELS / (LEVELS - dropped)
    # A mask in x's own type: multiplying by booleans takes four times as long.
    keep = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype)).mul_(scale)
    return x * keep


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, (..., queries, keys) written out.

    Its equation: softmax(q kᵀ / sqrt(d) + mask) v (Vaswani et al. 2017, section 3.2.1).
    """
    if is_causal or enable_gqa:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = query @ key.transpose(-1, -2)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The lowest number, not -inf: a text of padding alone gets finite weights.
        never = torch.finfo(scores.dtype).min
        attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill_(~attn_mask, never)
    if attn_mask is not None:
        scores = scores + attn_mask
    # Rounded once, after it: softmax of bf16 is computed in fp32.
    with torch.autocast("cpu", enabled=False):
        weights = scores.softmax(-1)
    return dropout(weights, dropout_p) @ value
