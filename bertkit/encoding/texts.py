"""Texts and pairs of texts -> word pieces: cut, windowed or refused past the length limit, and always counted.

And `encode_all`: rows of any number -> their features, on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from bertkit.data.table import MAX_PROBLEMS
from bertkit.errors import RowsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Overflow = Literal["truncate", "window", "error"]


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    first: Sequence[str],
    second: Sequence[str] | None,
    *,
    max_length: int,
    overflow: Overflow,
    stride: int,
) -> dict[str, list[Any]]:
    """Features of each text, or pair of texts, in order.

    Columns: the tokenizer's model inputs without padding, each `(pieces,)`; `row`, the index into `first`;
    `length`, the pieces of this feature; `lost`, the pieces of the whole row that no feature holds.
    Raises RowsError under `overflow: error`, with the rows that are too long.
    """
    if max_length < 8:
        raise ValueError(f"max_length {max_length} leaves no room for words")
    columns: dict[str, list[Any]] = dict(_tokenize(tokenizer, first, second))
    lengths = [len(ids) for ids in columns["input_ids"]]
    too_long = [row for row, length in enumerate(lengths) if length > max_length]
    columns |= {"row": list(range(len(first))), "length": lengths, "lost": [0] * len(first)}
    if not too_long:
        return columns
    if overflow == "error":
        found = [(row, f"{lengths[row]} word pieces, {max_length} are allowed") for row in too_long[:MAX_PROBLEMS]]
        raise RowsError((row, what, "Raise model.max_length.") for row, what in found)
    replaced = {
        row: _cut(tokenizer, first[row], None if second is None else second[row], max_length, overflow, stride)
        for row in too_long
    }
    return _splice(columns, replaced)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, first: Sequence[str], second: Sequence[str] | None, **limits: Any
) -> dict[str, list[list[int]]]:
    encoded = tokenizer(
        list(first),
        None if second is None else list(second),
        return_attention_mask=False,
        verbose=False,  # lengths past the model's limit are ours to report
        **limits,
    )
    return {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}


def _cut(
    tokenizer: PreTrainedTokenizerBase, first: str, second: str | None, max_length: int, overflow: Overflow, stride: int
) -> dict[str, list[Any]]:
    """The features of one row that is too long: one when it is truncated, several when it is windowed."""
    texts = [first] if second is None else [first, second]
    offsets = [_offsets(tokenizer, text) for text in texts]
    sizes = [len(pieces) for pieces in offsets]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=second is not None)
    longer = sizes.index(max(sizes))
    limits = _shares(sizes, room)
    if overflow == "window":
        # Windows run over the longer text. The other is repeated in each, and may take half of the room.
        limits[longer] = sizes[longer]
    # Texts are cut before they go in: the tokenizer's own truncation of a pair lists every pair of remainders.
    cut = [
        text if size <= limit else text[: pieces[limit - 1][1]] if limit else ""
        for text, size, pieces, limit in zip(texts, sizes, offsets, limits, strict=True)
    ]
    inputs = _tokenize(
        tokenizer,
        cut[:1],
        cut[1:] or None,
        truncation="only_second" if longer else "only_first",
        max_length=max_length,
        stride=min(stride, max(room - sum(limits) + limits[longer] - 1, 0)) if overflow == "window" else 0,
        return_overflowing_tokens=overflow == "window",
    )
    lost = sum(max(size - limit, 0) for size, limit in zip(sizes, limits, strict=True))
    return inputs | {"lost": [lost] * len(inputs["input_ids"])}


def _shares(sizes: list[int], room: int) -> list[int]:
    """How many pieces of each text fit, cutting the longer one first."""
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    short = sizes.index(min(sizes))
    kept = min(sizes[short], room // 2)
    return [kept if side == short else min(size, room - kept) for side, size in enumerate(sizes)]


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets: list[tuple[int, int]] = encoded["offset_mapping"]
    return offsets


def _splice(columns: dict[str, list[Any]], replaced: dict[int, dict[str, list[Any]]]) -> dict[str, list[Any]]:
    result: dict[str, list[Any]] = {name: [] for name in columns}
    for row in columns["row"]:
        new = replaced.get(row)
        count = 1 if new is None else len(new["input_ids"])
        for name, values in columns.items():
            if new is None:
                result[name].append(values[row])
            elif name == "row":
                result[name] += [row] * count
            elif name == "length":
                result[name] += [len(ids) for ids in new["input_ids"]]
            else:
                result[name] += new[name]
    return result
