"""How much each word piece looked at each other one, in every layer and head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from bertkit.errors import ModelError, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.tasks.base import Batch, Task


def attentions(task: Task, model: Any, batch: Batch) -> Tensor:
    """The attention weights of the one feature in `batch`, `(layers, heads, pieces, pieces)` fp32; rows sum to 1.

    They are those of the eager kernel: the fused ones do not give them. Raises ModelError where a model has none.
    """
    inputs = {name: batch[name] for name in task.tokenizer.model_input_names if name in batch}
    model.eval()
    with _eager(model), torch.no_grad():
        # `forward` itself: hooks would make vectors or a chain of the outputs, and drop the weights.
        found = model.forward(**inputs, output_attentions=True).attentions
    if not found or found[0] is None:
        raise ModelError(Problem("the model", f"a {model.config.model_type} does not tell its attention weights"))
    return torch.stack([layer[0].float().cpu() for layer in found])


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Within the block transformers' model attends by the kernel that keeps the weights."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
