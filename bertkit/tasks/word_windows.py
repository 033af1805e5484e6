"""Sentences of words -> windows of word pieces, in which every word is read exactly once, at its first piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    Ints = np.ndarray[Any, np.dtype[np.int64]]

Span = tuple[int, int]  # characters, end exclusive


@dataclass(frozen=True)
class _Pieces:
    """A sentence as word pieces."""

    ids: Ints  # (pieces,)
    words: Ints  # (read,): the words that have a piece, in order
    heads: Ints  # (read,): the first piece of each of them


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]],
    *,
    max_length: int,
    stride: int,
    documents: Sequence[Any] | None = None,
) -> dict[str, list[Any]]:
    """Features of each sentence, in order; one, or several windows where it is longer than the limit.

    words: where the words of each text stand, in order. stride: pieces that neighbouring windows share at least.
    documents: the document of each sentence; neighbours of the same document then fill the window on both sides.

    Columns: the tokenizer's model inputs, each `(pieces,)`; `row`, the index into `texts`; `length` in pieces;
    `words`, the words that are read in this window, and `heads`, the position of the first piece of each. A
    word belongs to the window in which it has most context. A word without any piece (a zero-width
    character, say) is in no window.
    """
    pieces = _tokenize(tokenizer, texts, words)
    before, after = _special_tokens(tokenizer)
    room = max_length - len(before) - len(after)
    columns: dict[str, list[Any]] = {name: [] for name in ("input_ids", "row", "length", "words", "heads")}
    for row, (stream, start, end) in enumerate(_streams(pieces, documents)):
        for low, high, own in _windows(stream, start, end, pieces[row].heads + start, room, min(stride, room // 2)):
            ids = [*before, *stream[low:high].tolist(), *after]
            columns["input_ids"].append(ids)
            columns["row"].append(row)
            columns["length"].append(len(ids))
            columns["words"].append(pieces[row].words[own].tolist())
            columns["heads"].append((pieces[row].heads[own] + start - low + len(before)).tolist())
    if "token_type_ids" in tokenizer.model_input_names:
        columns["token_type_ids"] = [[0] * length for length in columns["length"]]
    return columns


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], words: Sequence[Sequence[Span]]
) -> list[_Pieces]:
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,  # lengths past the model's limit are what windows are for
    )
    result = []
    for ids, offsets, places in zip(encoded["input_ids"], encoded["offset_mapping"], words, strict=True):
        ends = np.asarray([end for _, end in offsets], dtype=np.int64)
        starts = np.asarray([start for start, _ in offsets], dtype=np.int64)
        first = np.asarray([start for start, _ in places], dtype=np.int64)
        last = np.asarray([end for _, end in places], dtype=np.int64)
        # The first piece that reaches into the word: it may begin before it, where a piece spans two words.
        heads = np.searchsorted(ends, first, side="right")
        there = heads < len(ids)
        there[there] = starts[heads[there]] < last[there]
        result.append(_Pieces(np.asarray(ids, dtype=np.int64), np.flatnonzero(there), heads[there]))
    return result


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    inside = [position for position, flag in enumerate(special) if not flag]
    return ids[: inside[0]], ids[inside[-1] + 1 :]


def _streams(pieces: Sequence[_Pieces], documents: Sequence[Any] | None) -> Iterator[tuple[Ints, int, int]]:
    """For each sentence: the pieces around it, and where in them it starts and ends."""
    if documents is None:
        yield from ((each.ids, 0, len(each.ids)) for each in pieces)
        return
    for _, members in groupby(zip(documents, pieces, strict=True), key=lambda pair: pair[0]):
        sentences = [each.ids for _, each in members]
        bounds = np.cumsum([0, *map(len, sentences)]).tolist()
        stream = np.concatenate(sentences)
        yield from ((stream, start, end) for start, end in pairwise(bounds))


def _windows(
    stream: Ints, start: int, end: int, heads: Ints, room: int, stride: int
) -> Iterator[tuple[int, int, slice]]:
    """The windows of the sentence `stream[start:end]`: (first piece, end, which of `heads` it owns)."""
    if end - start <= room:
        spare = room - (end - start)
        left = max(min(spare // 2, start), spare - (len(stream) - end))
        low = max(start - left, 0)
        yield low, min(low + room, len(stream)), slice(None)
        return
    for low, high, first, last in cover(end - start, room, stride):
        own = np.searchsorted(heads, [start + first, start + last])
        yield start + low, start + high, slice(*own.tolist())


def cover(length: int, room: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Windows of at most `room` over `length` pieces, that share at least `stride`: (low, high, first, last).

    A window reads `low` to `high` and owns `first` to `last`, all ends exclusive. The border between two windows is
    the middle of what they share, so that every piece is owned where it has most context.
    """
    lows = [*range(0, length - room, room - stride), max(length - room, 0)]
    bounds = [0, *((here + room + following) // 2 for here, following in pairwise(lows)), length]
    return [(low, min(low + room, length), *own) for low, own in zip(lows, pairwise(bounds), strict=True)]
