"""Texts and pairs of texts -> word pieces: cut, windowed or refused past the length limit, and always counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from bertkit.errors import DataError, Problem

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
    Raises DataError under `overflow: error`, naming the rows that are too long.
    """
    columns: dict[str, list[Any]] = dict(_tokenize(tokenizer, first, second))
    lengths = [len(ids) for ids in columns["input_ids"]]
    too_long = [row for row, length in enumerate(lengths) if length > max_length]
    columns |= {"row": list(range(len(first))), "length": lengths, "lost": [0] * len(first)}
    if not too_long:
        return columns
    if overflow == "error":
        problems = [
            Problem(
                f"row {row + 1}",
                f"{lengths[row]} word pieces, {max_length} are allowed",
                "Raise model.max_length.",
            )
            for row in too_long[:20]
        ]
        raise DataError(problems)
    replaced = {
        row: _cut(
            tokenizer, first[row], None if second is None else second[row], max_length, overflow, stride
        )
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
    tokenizer: PreTrainedTokenizerBase,
    first: str,
    second: str | None,
    max_length: int,
    overflow: Overflow,
    stride: int,
) -> dict[str, list[Any]]:
    """The features of one row that is too long: one when it is truncated, several when it is windowed."""
    texts = [first] if second is None else [first, second]
    pieces = [_pieces(tokenizer, text) for text in texts]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=second is not None)
    if overflow == "truncate":
        inputs = _tokenize(
            tokenizer, [first], None if second is None else [second], truncation=True, max_length=max_length
        )
        kept = len(inputs["input_ids"][0]) - (max_length - room)
        return inputs | {"lost": [sum(map(len, pieces)) - kept]}
    # Windows run over the longer text. The other one is repeated in each, and may take half of the room.
    longer = max(range(len(texts)), key=lambda side: len(pieces[side]))
    lost = 0
    if second is not None:
        other = 1 - longer
        limit = room // 2
        if len(pieces[other]) > limit:
            lost = len(pieces[other]) - limit
            texts[other] = texts[other][: pieces[other][limit - 1][1]]
            room -= limit
        else:
            room -= len(pieces[other])
    inputs = _tokenize(
        tokenizer,
        texts[:1],
        texts[1:] or None,
        truncation="only_second" if longer else "only_first",
        max_length=max_length,
        stride=min(stride, room - 1),
        return_overflowing_tokens=True,
    )
    return inputs | {"lost": [lost] * len(inputs["input_ids"])}


def _pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
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
