"""Checks of a model with its tokenizer before training: it reads its inputs; padding does not change its
outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from bertkit.data.schema import Finding, warn
from bertkit.encoding.padding import Collator, model_inputs
from bertkit.encoding.texts import encode_texts
from bertkit.errors import ModelError
from bertkit.models.trained_parts import halves
from bertkit.tasks.base import Task
from bertkit.text import first_line

LIMIT = 1e-3  # of the largest output; fp32, summed in another order, changes by far less
LONGEST = 512  # tokens


def check_token_types(model: Any, examples: Mapping[str, Sequence[Any]]) -> None:
    """Raises ModelError on token types, such as those of a pair's second text, for which there are no
    embeddings.
    """
    embeddings = model.config.to_dict().get("type_vocab_size")
    highest = max(chain.from_iterable(examples.get("token_type_ids", ())), default=0)
    if isinstance(embeddings, int) and 0 < embeddings <= highest:  # 0: DeBERTa reads none
        what = (
            f"its tokenizer gives token types 0 to {highest}, but the model has embeddings for only "
            f"{embeddings}"
        )
        names = '"model_input_names": ["input_ids", "attention_mask"]'
        raise ModelError(
            "model.name",
            what,
            f"Add {names} to its tokenizer_config.json, so that it gives no token types.",
        )


def padding_findings(task: Task, model: Any) -> Iterator[Finding]:
    """A warning where the padding of a batch changes the outputs for a text, as convolutions do. Raises
    ModelError.
    """
    if task.schema.corpus:  # a tied decoder trains the embedding of the padding too, which may be zero so far
        model.get_input_embeddings().weight.data[task.tokenizer.pad_token_id] += 1.0
    model = halves(model)[0]  # no token of a decoder sees padding, which comes after it
    change = change_by_padding(
        task.tokenizer, model, task.max_length, pairs="question" in task.schema.columns
    )
    if not change <= LIMIT:  # as NaN is not
        what = (
            f"padding changes the outputs of this {model.config.model_type} by up to {change:.1%}, so "
            "that an answer"
        )
        yield warn(
            f"{what} depends on the other texts of its batch", "Load it with batch_size=1 where that matters."
        )


def change_by_padding(
    tokenizer: PreTrainedTokenizerBase,
    model: Any,
    max_length: int,
    *,
    pairs: bool = False,
    layers: Sequence[int] = (),
) -> float:
    """The largest difference between a text alone and in a batch with a long one, as a share of the largest
    output.

    pairs: of texts, which Longformer's head for question answering insists on. layers: the hidden states to
    compare; by default the outputs. Raises ModelError where the model cannot read its tokenizer's inputs.
    """
    longest = min(max_length, LONGEST)
    texts = ["a text", "a text " * longest]
    sides = [["a"] * 2, texts] if pairs else [texts]
    columns = encode_texts(tokenizer, sides, max_length=longest)
    inputs = model_inputs(tokenizer, columns)
    collate = Collator.of(tokenizer, {})
    single = {name: values[:1] for name, values in inputs.items()}
    device = next(model.parameters()).device
    more = {"output_hidden_states": True} if layers else {}
    model.eval()
    states = []
    try:
        with torch.inference_mode():
            for part in (single, inputs):
                outputs = model(**collate(part, device), **more)
                hidden = [outputs.hidden_states[layer] for layer in layers] or outputs.values()
                states.append([s.float() for s in hidden if isinstance(s, torch.Tensor) and s.ndim > 1])
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        what = f"this {model.config.model_type} cannot read its tokenizer's inputs: {problem}"
        fix = (
            "Use an encoder that reads ids and mask of any text: further inputs and fixed lengths are "
            "not supported."
        )
        if isinstance(error, IndexError):  # an id without an embedding
            fix = "Use the tokenizer saved with these weights."
        raise ModelError("model.name", what, fix) from error
    changes = [
        (alone[0] - padded[0][: alone.shape[1]]).abs().max() / alone[0].abs().max().clamp(min=1e-12)
        for alone, padded in zip(*states, strict=True)
    ]
    return float(torch.stack(changes).max()) if changes else 0.0  # NaN where one of them is
