"""Checks of a model with its tokenizer before training: it reads its inputs; padding does not change its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from bertkit.data.schema import Finding, warn
from bertkit.encoding.padding import Collator
from bertkit.encoding.texts import encode_texts
from bertkit.errors import ModelError, Problem
from bertkit.tasks.base import Task
from bertkit.text import first_line

LIMIT = 1e-3  # of the largest output; fp32, summed in another order, changes by far less
LONGEST = 1024  # tokens; BigBird's attention is sparse beyond 704


def check_token_types(model: Any, examples: Mapping[str, Sequence[Any]]) -> None:
    """Raises ModelError on token types, such as those of a pair's second text, for which there are no embeddings."""
    known = model.config.to_dict().get("type_vocab_size")
    highest = max(chain.from_iterable(examples.get("token_type_ids", ())), default=0)
    if isinstance(known, int) and 0 < known <= highest:  # 0: DeBERTa reads none
        what = f"its tokenizer gives token types 0 to {highest}, but the model has embeddings for only {known}"
        names = '"model_input_names": ["input_ids", "attention_mask"]'
        fix = f"Write {names} in its tokenizer_config.json: the tokenizer then gives no token types."
        raise ModelError(Problem("model.name", what, fix))


def padding_findings(task: Task, model: Any) -> Iterator[Finding]:
    """A warning where the padding of a batch changes the outputs for a text, as convolutions do."""
    change = _change_by_padding(task, model)
    if not change <= LIMIT:  # as NaN is not
        what = f"padding changes the outputs of this {model.config.model_type} by up to {change:.1%}, so that an answer"
        yield warn(f"{what} depends on the other texts of its batch", "Load it with batch_size=1 where that matters.")


def _change_by_padding(task: Task, model: Any) -> float:
    """The largest difference between a text alone and in a batch with a long one, as a share of the largest output."""
    tokenizer, longest = task.tokenizer, min(task.max_length, LONGEST)
    texts = ["a text", "a text " * longest]
    columns = encode_texts(tokenizer, [texts], max_length=longest, overflow="truncate", stride=0)
    inputs = {name: columns[name] for name in tokenizer.model_input_names if name in columns}
    collate = Collator.of(tokenizer, {})
    model.eval()
    try:
        with torch.inference_mode():
            alone, both = (model(**collate({name: v[:count] for name, v in inputs.items()})) for count in (1, 2))
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        what = f"this {model.config.model_type} cannot read its tokenizer's inputs: {problem}"
        fix = "Use the tokenizer saved with these weights. Architectures that need further inputs are not supported."
        raise ModelError(Problem("model.name", what, fix)) from error
    changes = [0.0]
    for name, values in alone.items():
        if isinstance(values, torch.Tensor) and values.ndim > 1:
            own, padded = values[0].float(), both[name][0][: values.shape[1]].float()
            changes.append(float((own - padded).abs().max() / own.abs().max().clamp(min=1e-12)))
    return float(np.max(changes))  # NaN where one of them is
