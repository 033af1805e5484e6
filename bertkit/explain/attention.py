"""The attention of each token to each other one, in every layer and head."""

from __future__ import annotations

import base64
from typing import Any, TypedDict

import torch
from torch import Tensor

from bertkit.errors import ModelError, Problem
from bertkit.inference.predictor import Predictor
from bertkit.tasks.base import Batch, Task

MAX_WEIGHTS = 500_000  # attention weights of a feature that are kept: 83 tokens of MiniLM, 58 of BERT base


class Attention(TypedDict):
    """Weights of a row's first feature. levels: base64 of bytes, 255 times `(layers, heads, tokens, tokens)`."""

    pieces: list[str]  # its tokens
    shape: list[int]
    levels: str


def attention(predictor: Predictor, batch: Batch) -> Attention | None:
    """The attention weights of the one feature in `batch`, as they are written; None if they are too many to show."""
    config, tokens = predictor.model.config, batch["input_ids"].shape[1]
    if config.num_hidden_layers * config.num_attention_heads * tokens**2 > MAX_WEIGHTS:
        return None
    weights = attentions(predictor.task, predictor.model, batch)
    levels = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    names = predictor.task.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    return Attention(pieces=list(names), shape=list(weights.shape), levels=base64.b64encode(levels).decode())


def attentions(task: Task, model: Any, batch: Batch) -> Tensor:
    """The attention weights of the one feature in `batch`, `(layers, heads, tokens, tokens)` fp32; rows sum to 1.

    They are those of the eager kernel: fused kernels do not return them. Raises ModelError for a model without them.
    """
    inputs = {name: batch[name] for name in task.tokenizer.model_input_names if name in batch}
    kernel = model.config._attn_implementation
    model.eval().set_attn_implementation("eager")
    try:
        with torch.no_grad():
            # `forward` itself: hooks would make vectors or a chain of the outputs, and drop the weights.
            weights = model.forward(**inputs, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(kernel)
    if not weights or weights[0] is None:
        raise ModelError(Problem("the model", f"a {model.config.model_type} does not return its attention weights"))
    return torch.stack([layer[0].float().cpu() for layer in weights])
