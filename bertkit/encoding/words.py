"""Sentences of words -> windows of word pieces, in which every word is read exactly once, at its first piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.encoding.pieces import Pieces, cover, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    Ints = np.ndarray[Any, np.dtype[np.int64]]

Span = tuple[int, int]  # characters, end exclusive


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
    character, say) is in no window; the first window of its sentence counts it, in `mute`.
    """
    pieces = tokenize(tokenizer, texts)
    before, after = _special_tokens(tokenizer)
    room = max_length - len(before) - len(after)
    columns: dict[str, list[Any]] = {name: [] for name in ("input_ids", "row", "length", "words", "heads", "mute")}
    for row, (stream, start, end) in enumerate(_streams(pieces, documents)):
        read, heads = _heads(pieces[row], words[row])
        mute = len(words[row]) - len(read)
        for low, high, own in _windows(stream, start, end, heads + start, room, min(stride, room // 2)):
            ids = [*before, *stream[low:high], *after]
            columns["input_ids"].append(ids)
            columns["row"].append(row)
            columns["length"].append(len(ids))
            columns["words"].append(read[own].tolist())
            columns["heads"].append((heads[own] + start - low + len(before)).tolist())
            columns["mute"].append(mute)
            mute = 0
    if "token_type_ids" in tokenizer.model_input_names:
        columns["token_type_ids"] = [[0] * length for length in columns["length"]]
    return columns


def _heads(pieces: Pieces, words: Sequence[Span]) -> tuple[Ints, Ints]:
    """The words that have a piece, in order, and the first piece of each, `(read,)` both."""
    places = np.asarray(words, dtype=np.int64).reshape(-1, 2)
    # The first piece that reaches into the word: it may begin before it, where a piece spans two words.
    heads = np.searchsorted(pieces.ends, places[:, 0], side="right")
    there = heads < len(pieces.ids)
    there[there] = pieces.starts[heads[there]] < places[there, 1]
    return np.flatnonzero(there), heads[there]


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    inside = [position for position, flag in enumerate(special) if not flag]
    return ids[: inside[0]], ids[inside[-1] + 1 :]


def _streams(pieces: Sequence[Pieces], documents: Sequence[Any] | None) -> Iterator[tuple[list[int], int, int]]:
    """For each sentence: the pieces around it, and where in them it starts and ends."""
    if documents is None:
        yield from ((each.ids, 0, len(each.ids)) for each in pieces)
        return
    for _, members in groupby(zip(documents, pieces, strict=True), key=lambda pair: pair[0]):
        sentences = [each.ids for _, each in members]
        bounds = np.cumsum([0, *map(len, sentences)]).tolist()
        stream = list(chain.from_iterable(sentences))
        yield from ((stream, start, end) for start, end in pairwise(bounds))


def _windows(
    stream: Sequence[int], start: int, end: int, heads: Ints, room: int, stride: int
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
