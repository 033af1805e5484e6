"""Masked tokens: what is kept of their logits, and the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.data.schema import Answer, Finding, note, warn
from bertkit.data.table import numbers
from bertkit.encoding.padding import Arrays
from bertkit.errors import require_finite
from bertkit.evaluation.intervals import Floats
from bertkit.evaluation.pretraining_metrics import COUNTED
from bertkit.tasks.base import Batch
from bertkit.text import counted

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

GUESSES = 5  # tokens that an answer names for each mask of the user
SPACES = ("▁", "Ġ")  # the space before a word, as SentencePiece and byte-level BPE write it in a token


class MaskedItem(NamedTuple):
    """For one feature: sums as in COUNTED, and tokens with their probabilities for each mask of the user."""

    counts: Floats
    guesses: list[tuple[list[int], list[float]]]


def reduce(outputs: Any, batch: Batch, chosen: Tensor) -> dict[str, Tensor]:
    """On the device: `outputs.prediction_logits`, `(chosen, vocab)`, and the pairs', `(features, 2)` -> sums.

    chosen: `(features, tokens)`, true where there are logits; masks of the user have no label.
    """
    import torch
    from torch.nn import functional as F

    features = len(chosen)
    feature, labels = chosen.nonzero()[:, 0], batch["labels"][chosen]
    logits = outputs.prediction_logits.float()
    counts = torch.zeros(features, len(COUNTED), device=logits.device)
    sampled = labels != -100
    per_token = torch.stack(
        [sampled.float(), (logits.argmax(-1) == labels).float(), F.cross_entropy(logits, labels, reduction="none")], 1
    )
    counts[:, :3] = counts[:, :3].index_add(0, feature[sampled], per_token[sampled])
    next_sentence = batch.get("next_sentence_label")
    if next_sentence is not None and "seq_relationship_logits" in outputs:
        counts[:, 3] = (next_sentence != -100).float()
        counts[:, 4] = (outputs.seq_relationship_logits.argmax(-1) == next_sentence).float()
    best = logits[~sampled].softmax(-1).topk(min(GUESSES, logits.shape[-1]))
    user_masks = {"feature": feature[~sampled], "pieces": best.indices, "probabilities": best.values}
    return {"counts": counts, **user_masks}


def items(arrays: Arrays) -> list[MaskedItem]:
    """What `reduce` gave, feature by feature."""
    rows = [MaskedItem(row, []) for row in arrays["counts"]]
    user_masks = zip(*(arrays[name].tolist() for name in ("feature", "pieces", "probabilities")), strict=True)
    for index, pieces, probabilities in user_masks:
        rows[index].guesses.append((pieces, probabilities))
    return rows


def decode(
    items: Sequence[MaskedItem], features: Dataset, rows: Dataset, tokenizer: PreTrainedTokenizerBase
) -> list[Answer]:
    """One answer per row: the sums of its features; or the best tokens for the masks in its text."""
    sums, guesses = np.zeros((len(rows), len(COUNTED))), dict[int, list[tuple[list[int], list[float]]]]()
    for row, item in zip(features["row"][:], items, strict=True):
        sums[row] += item.counts
        if item.guesses:
            guesses[row] = item.guesses
    require_finite((np.isfinite(row).all() for row in sums), "documents")
    return [
        _filled(text, guesses[row], tokenizer) if row in guesses else _counts(sums[row])
        for row, text in enumerate(rows["text"])
    ]


def _counts(sums: Floats) -> Answer:
    return {name: float(s) if name == "loss" else int(s) for name, s in zip(COUNTED, sums, strict=True)}


def _filled(text: str, guesses: list[tuple[list[int], list[float]]], tokenizer: PreTrainedTokenizerBase) -> Answer:
    masks = [
        [
            {"token": token.strip(), "id": number, "score": p}
            for number, token, p in zip(ids, tokenizer.batch_decode([[i] for i in ids]), probabilities, strict=True)
        ]
        for ids, probabilities in guesses
    ]
    mask = str(tokenizer.mask_token)
    filled, *rest = text.split(mask)
    for place, part in enumerate(rest):
        word = inserted(masks[place][0], filled, tokenizer) if place < len(masks) else mask  # one beyond max_length
        filled += word + part
    return {"filled": filled, "masks": masks}


def inserted(guess: Mapping[str, Any], before: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """What replaces a mask after this text. guess: one of an answer's `masks`."""
    word = str(guess["token"]).removeprefix("##")
    piece = str(tokenizer.convert_ids_to_tokens(guess["id"]))
    return f" {word}" if piece.startswith(SPACES) and before[-1:].strip() else word


def length_findings(features: Dataset, split: str, max_length: int) -> Iterator[Finding]:
    """How many examples there are, and how full they are."""
    lengths, rows = numbers(features, "length"), numbers(features, "row")
    if not len(lengths):
        yield Finding("fail", f"{split}: no document has two tokens", "Give longer texts.")
        return
    full = lengths.mean() / max_length
    yield note(f"{split}: {counted(len(lengths), 'example')}, {counted(int(lengths.sum()), 'token')}, {full:.0%} full")
    if short := int(rows.max()) + 1 - len(np.unique(rows)):
        yield warn(f"{split}: no example from {counted(short, 'document')} of fewer than two tokens")
    if cut := int((numbers(features, "lost") > 0).sum()):
        yield warn(f"{split}: {counted(cut, 'text')} with given masks, truncated at {max_length} tokens")
