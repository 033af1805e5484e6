"""Integrated gradients (Sundararajan et al. 2017) of a number that a model gives, by the word pieces that it read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.tasks.base import Batch, Task

FEWEST, MOST = 16, 256  # steps of the integral
TOLERANCE = 0.01  # of f(x) - f(baseline), and 0.01 itself where that is under 1


class Integrated(NamedTuple):
    """What each piece adds to f, `(pieces,)` fp32. Complete: within the tolerance, the sum is value - baseline."""

    pieces: Tensor
    value: float  # f(x)
    baseline: float  # f(baseline)
    steps: int

    @property
    def error(self) -> float:
        """How far the sum of the pieces is from value - baseline."""
        return abs(float(self.pieces.double().sum()) - (self.value - self.baseline))

    @property
    def complete(self) -> bool:
        """Is that within the tolerance?"""
        return self.error <= TOLERANCE * max(1.0, abs(self.value - self.baseline))


def integrated_gradients(
    task: Task, model: Any, batch: Batch, score: Callable[[Any], Tensor], *, batch_size: int = 32, most: int = MOST
) -> Integrated:
    """Attribute `score` of the outputs to the word embeddings of the one feature in `batch`, in fp32.

    The path goes from [MASK] at every piece ([PAD], where the tokenizer has no [MASK]) to the pieces as they are;
    special ones stay, and so get 0. Gauss-Legendre steps are doubled from 16 until the sum is complete, or there are
    `most`.
    """
    from captum.attr import IntegratedGradients

    layer, ids = model.get_input_embeddings(), batch["input_ids"]
    model.eval()

    def f(vectors: Tensor) -> Tensor:
        copies = {name: values.expand(len(vectors), *values.shape[1:]) for name, values in batch.items()}
        with _embedded(layer, vectors):
            return score(task.forward(model, copies))

    with torch.no_grad():
        x, start = layer(ids), layer(_blank(task, ids))
        value, baseline = f(x).item(), f(start).item()
    method, steps = IntegratedGradients(f), FEWEST
    while True:
        found = method.attribute(x, start, n_steps=steps, internal_batch_size=min(batch_size, steps))
        made = Integrated(found.sum(-1)[0].detach().float().cpu(), value, baseline, steps)
        if made.complete or 2 * steps > most:
            return made
        steps *= 2


def _blank(task: Task, ids: Tensor) -> Tensor:
    """The same with nothing in it but special pieces."""
    tokenizer = task.tokenizer
    nothing = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    special = torch.isin(ids, ids.new_tensor(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})))
    return ids.where(special, int(nothing or 0))


@contextmanager
def _embedded(layer: Any, vectors: Tensor) -> Iterator[None]:
    """Within the block the layer gives these vectors, whatever the pieces are."""
    hook = layer.register_forward_hook(lambda *_: vectors)
    try:
        yield
    finally:
        hook.remove()
