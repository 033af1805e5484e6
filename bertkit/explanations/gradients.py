"""Integrated gradients (Sundararajan et al. 2017) of a number that a model computes, by the tokens that it
read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertkit.tasks.base import Batch, Task

# of the integral
MIN_STEPS = 16
MAX_STEPS = 256
TOLERANCE = 0.01  # of f(x) - f(baseline), and 0.01 itself if that is under 1


class Integrated(NamedTuple):
    """The attribution of each token, `(tokens,)` fp32; their sum is value - baseline, except for `error`."""

    tokens: Tensor
    value: float  # f(x)
    baseline: float  # f(baseline)
    error: float
    complete: bool  # whether the error is within the tolerance
    steps: int


def integrated_gradients(
    task: Task,
    model: Any,
    batch: Batch,
    score: Callable[[Any], Tensor],
    *,
    batch_size: int = 32,
    max_steps: int = MAX_STEPS,
) -> Integrated:
    """Attribute `score` of the outputs to the word embeddings of the one feature in `batch`, in fp32.

    The path leads from [MASK] at every token ([PAD], for a tokenizer without [MASK]) to the tokens
    themselves; special tokens stay, so they get 0. Gauss-Legendre steps are doubled from 16 to at most
    `max_steps` until the error is within the tolerance.
    """
    from captum.attr import IntegratedGradients

    layer = model.get_input_embeddings()
    ids = batch["input_ids"]
    model.eval()

    def f(vectors: Tensor) -> Tensor:
        copies = {name: values.expand(len(vectors), *values.shape[1:]) for name, values in batch.items()}
        with layer.register_forward_hook(lambda *_: vectors):
            return score(task.forward(model, copies))

    tokenizer = task.tokenizer
    mask = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    special = torch.isin(
        ids, ids.new_tensor(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}))
    )
    with torch.no_grad():
        x = layer(ids)
        start = layer(ids.where(special, int(mask or 0)))
        value = f(x).item()
        baseline = f(start).item()
    method = IntegratedGradients(f)
    steps = MIN_STEPS
    while True:
        shares = method.attribute(x, start, n_steps=steps, internal_batch_size=min(batch_size, steps))
        tokens = shares.sum(-1)[0].detach().float().cpu()
        error = abs(float(tokens.double().sum()) - (value - baseline))
        complete = error <= TOLERANCE * max(1.0, abs(value - baseline))
        if complete or 2 * steps > max_steps:
            return Integrated(tokens, value, baseline, error, complete, steps)
        steps *= 2
