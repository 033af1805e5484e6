"""Texts and pairs of texts to tokens: truncated, windowed or refused past the length limit, and always counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bertkit.data.table import MAX_PROBLEMS
from bertkit.errors import RowsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Overflow = Literal["truncate", "window", "error"]


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Sequence[str]],
    *,
    max_length: int,
    overflow: Overflow,
    stride: int,
) -> dict[str, list[Any]]:
    """Features of each text, or pair of texts, in order. texts: the first ones, and of pairs the second ones.

    Columns: the tokenizer's model inputs without padding, each `(tokens,)`; `row`, the index of the text;
    `length`, the tokens of this feature; `lost`, the tokens of the whole row that no feature holds.
    Raises RowsError under `overflow: error`, with the rows that are too long.
    """
    if max_length < 8:
        raise ValueError(f"max_length {max_length} leaves no room for words")
    encoded = _tokenize(tokenizer, texts)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    if overflow == "error" and max(lengths, default=0) > max_length:
        too_long = [(row, length) for row, length in enumerate(lengths) if length > max_length]
        limit, fix = f"{max_length} are allowed", "Raise model.max_length."
        raise RowsError((row, f"{length} tokens, {limit}", fix) for row, length in too_long[:MAX_PROBLEMS])
    columns: dict[str, list[Any]] = {name: [] for name in (*encoded, "row", "length", "lost")}
    for row, length in enumerate(lengths):
        lost, features = 0, {name: values[row : row + 1] for name, values in encoded.items()}
        if length > max_length:
            lost, features = _cut(tokenizer, [side[row] for side in texts], max_length, overflow, stride)
        for name, values in features.items():
            columns[name] += values
        sizes = [len(ids) for ids in features["input_ids"]]
        columns["row"] += [row] * len(sizes)
        columns["length"] += sizes
        columns["lost"] += [lost] * len(sizes)
    return columns


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[Sequence[str]], **limits: Any
) -> dict[str, list[list[int]]]:
    # verbose: lengths past the model's limit are reported by `encode_texts`.
    encoded = tokenizer(*map(list, texts), return_attention_mask=False, verbose=False, **limits)
    return {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}


def _cut(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], max_length: int, overflow: Overflow, stride: int
) -> tuple[int, dict[str, list[list[int]]]]:
    """The tokens lost of one row that is too long, and its features: one if truncated, several if windowed."""
    plain: dict[str, Any] = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    offsets = [tokenizer(text, **plain)["offset_mapping"] for text in texts]
    sizes = [len(tokens) for tokens in offsets]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=len(texts) > 1)
    longer, limits = sizes.index(max(sizes)), _shares(sizes, room)
    if overflow == "window":
        # Windows run over the longer text. The other is repeated in each, and may take half of the room.
        limits[longer] = sizes[longer]
    # Texts are cut before tokenization: the tokenizer's own truncation of a pair lists every pair of remainders.
    cut = [
        text if size <= limit else text[: tokens[limit - 1][1]] if limit else ""
        for text, size, tokens, limit in zip(texts, sizes, offsets, limits, strict=True)
    ]
    features = _tokenize(
        tokenizer,
        ([text] for text in cut),
        truncation="only_second" if longer else "only_first",
        max_length=max_length,
        stride=min(stride, max(room - sum(limits) + limits[longer] - 1, 0)) if overflow == "window" else 0,
        return_overflowing_tokens=overflow == "window",
    )
    return sum(max(size - limit, 0) for size, limit in zip(sizes, limits, strict=True)), features


def _shares(sizes: list[int], room: int) -> list[int]:
    """How many tokens of each text fit, cutting the longer one first."""
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    short = sizes.index(min(sizes))
    share = min(sizes[short], room // 2)
    return [share if side == short else min(size, room - share) for side, size in enumerate(sizes)]
