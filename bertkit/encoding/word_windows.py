"""Sentences of words to windows of tokens, in which every word is read exactly once, at its first token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.encoding.pieces import Encoded, Ints, Tokenized, cover, template, tokenize, unread

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters, end exclusive


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]],
    *,
    max_length: int,
    stride: int,
    documents: Sequence[Any] | None = None,
) -> Encoded:
    """Features of each sentence, in order; one, or several windows where it is longer than the limit.

    words: the offsets of each text's words, in order. stride: tokens that adjacent windows share at least.
    documents: the document of each sentence; the sentences around it then fill its windows, as context. By
    default each sentence is a document of its own.

    Columns: the tokenizer's model inputs, each `(tokens,)`; `row`, the index into `texts`; `length` in
    tokens; `words`, the words that are read in this window, and `heads`, the position of the first token of
    each. A word belongs to the window in which it has most context. A word without any token (a zero-width
    character, for example) is in no window; the first window of its sentence counts it, in `mute`. `unread`:
    see there.
    """
    tokenized = tokenize(tokenizer, texts)
    (before, after), _ = template(tokenizer, 1)
    room = max_length - len(before) - len(after)
    space: Any = tokenizer.convert_tokens_to_ids("▁")
    columns: Encoded = {name: [] for name in "input_ids row length words heads mute unread".split()}
    for row, (stream, start, end) in enumerate(_streams(tokenized, documents or range(len(texts)))):
        read, heads = _heads(tokenized[row], words[row], space if space != tokenizer.unk_token_id else None)
        mute = len(words[row]) - len(read)
        little = unread([tokenized[row].ids], tokenizer.unk_token_id)
        for low, high, owned in _windows(stream, start, end, heads + start, room, min(stride, room // 2)):
            ids = [*before, *stream[low:high], *after]
            positions = (heads[owned] + start - low + len(before)).tolist()
            window = (ids, row, len(ids), read[owned].tolist(), positions, mute, little)
            for values, value in zip(columns.values(), window, strict=True):
                values.append(value)
            mute = 0
    if "token_type_ids" in tokenizer.model_input_names:
        columns["token_type_ids"] = [[0] * length for length in columns["length"]]
    return columns


def one_per_token(columns: Encoded, shared: Sequence[bool]) -> Encoded:
    """These features with words that begin in one token as a single one, by its first; `ends`: the word after
    each.

    shared: of each row, whether its words are joined so.
    """
    words = list[list[int]]()
    heads = list[list[int]]()
    ends = list[list[int]]()
    for row, read, places in zip(columns["row"], columns["words"], columns["heads"], strict=True):
        pairs = zip(read, places, strict=True)
        groups = [[*group] for _, group in groupby(pairs, key=itemgetter(1 if shared[row] else 0))]
        words.append([group[0][0] for group in groups])
        heads.append([group[0][1] for group in groups])
        ends.append([group[-1][0] + 1 for group in groups])
    return {**columns, "words": words, "heads": heads, "ends": ends}


def _heads(text: Tokenized, words: Sequence[Span], space: int | None) -> tuple[Ints, Ints]:
    """The words that have a token, in order, and the first token of each, `(read,)` both.

    space: the token of SentencePiece that is the space before a word and nothing else. It is the word's first
    token.
    """
    offsets = np.asarray(words, dtype=np.int64).reshape(-1, 2)
    # The first token that reaches into the word: it may begin before it, where a token spans two words.
    heads = np.searchsorted(text.ends, offsets[:, 0], side="right")
    is_read = heads < len(text.ids)
    is_read[is_read] = text.starts[heads[is_read]] < offsets[is_read, 1]
    heads = heads[is_read]
    starts = offsets[is_read, 0]
    if space is not None:
        after_space = (heads > 0) & (np.asarray(text.ids)[heads - 1] == space)
        heads = heads - (after_space & (text.starts[heads] == starts))
    return np.flatnonzero(is_read), heads


def _streams(
    tokenized: Sequence[Tokenized], documents: Sequence[Any]
) -> Iterator[tuple[list[int], int, int]]:
    """For each sentence: the tokens of its document, and where in them it starts and ends."""
    for _, members in groupby(zip(documents, tokenized, strict=True), key=lambda pair: pair[0]):
        sentences = [sentence.ids for _, sentence in members]
        stream = list(chain.from_iterable(sentences))
        for start, end in pairwise(accumulate(map(len, sentences), initial=0)):
            yield stream, start, end


def _windows(
    stream: Sequence[int], start: int, end: int, heads: Ints, room: int, stride: int
) -> Iterator[tuple[int, int, slice]]:
    """The windows of the sentence `stream[start:end]`: (first token, end, which of `heads` it owns)."""
    if end - start <= room:
        spare = room - (end - start)
        left = max(min(spare // 2, start), spare - (len(stream) - end))
        low = max(start - left, 0)
        yield low, min(low + room, len(stream)), slice(None)
        return
    for low, high, first, last in cover(end - start, room, stride):
        owned = np.searchsorted(heads, [start + first, start + last])
        yield start + low, start + high, slice(*owned.tolist())
