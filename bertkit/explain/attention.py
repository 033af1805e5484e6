"""The attention of each token to each other one, in every layer and head."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from bertkit.encoding.padding import mask_of, model_inputs
from bertkit.errors import ModelError, Problem
from bertkit.inference.predictor import Predictor
from bertkit.models.bert.transformer import shift_right
from bertkit.tasks.base import Batch, Task

MAX_WEIGHTS = 500_000  # attention weights of a feature that are kept: 83 tokens of MiniLM, 58 of BERT base


class Attention(TypedDict):
    """Weights of a row's first feature. levels: base64 of bytes, 255 times `(layers, heads, tokens, attended)`."""

    pieces: list[str]  # its tokens
    attended: NotRequired[list[str]]  # the tokens that they attend to, where these are of another text
    shape: list[int]
    levels: str


class Maps(TypedDict):
    """The attention of an explained row; None where it has too many weights to show."""

    attention: Attention | None
    decoder_attention: NotRequired[Attention | None]  # of an encoder–decoder: of the generated text to itself
    cross_attention: NotRequired[Attention | None]  # and to the source


MAPS = frozenset(Maps.__annotations__)


def maps(predictor: Predictor, batch: Batch) -> Maps:
    """The attention weights of the one feature in `batch`, as they are written.

    batch: of an encoder–decoder with `labels`, the generated ids.
    """
    task, model = predictor.task, predictor.model
    source = task.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    if model.config.model_type != "encoder-decoder":
        config = model.config
        small = config.num_hidden_layers * config.num_attention_heads * len(source) ** 2 <= MAX_WEIGHTS
        return Maps(attention=_written(attentions(task, model, batch), source) if small else None)
    read = shift_right(batch["labels"], model.config)
    with torch.no_grad():
        found = model(batch["input_ids"], mask_of(batch), read, output_attentions=True)
    target = task.tokenizer.convert_ids_to_tokens(read[0].tolist())
    return Maps(
        attention=_written(_stacked(found.encoder_attentions), source),
        decoder_attention=_written(_stacked(found.decoder_attentions), target),
        cross_attention=_written(_stacked(found.cross_attentions), target, source),
    )


def _written(weights: Tensor, tokens: Sequence[str], attended: Sequence[str] = ()) -> Attention | None:
    if weights.numel() > MAX_WEIGHTS:
        return None
    levels = base64.b64encode((weights * 255).round().to(torch.uint8).numpy().tobytes()).decode()
    made = Attention(pieces=list(tokens), shape=list(weights.shape), levels=levels)
    return Attention(**made, attended=list(attended)) if attended else made


def attentions(task: Task, model: Any, batch: Batch) -> Tensor:
    """The attention weights of the one feature in `batch`, `(layers, heads, tokens, tokens)` fp32; rows sum to 1.

    They are those of the eager kernel: fused kernels do not return them. Raises ModelError for a model without them.
    """
    inputs, kernel = model_inputs(task.tokenizer, batch), model.config._attn_implementation
    model.eval().set_attn_implementation("eager")
    try:
        with torch.no_grad():
            # `forward` itself: hooks would make vectors or a chain of the outputs, and drop the weights.
            weights = model.forward(**inputs, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(kernel)
    if not weights or weights[0] is None:
        raise ModelError(Problem("the model", f"a {model.config.model_type} does not return its attention weights"))
    return _stacked(weights)


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    return torch.stack([layer[0].float().cpu() for layer in weights])
