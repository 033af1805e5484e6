"""Documents -> overlapping passages that fit the encoder, split between words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from bertkit.encoding.pieces import Tokenized, tokenize
from bertkit.errors import ModelError

MIN_TOKENS = 8  # of the text in a passage


class Window(NamedTuple):
    """The size of a passage, in tokens."""

    max_length: int  # including special tokens, prefix and title
    stride: int  # maximum overlap of neighbouring passages
    prefix: str = ""  # which `encode` prepends to every passage, such as "passage: "


class Passage(NamedTuple):
    """`text` is the document's text from `start` to `end`, in characters, end exclusive."""

    start: int
    end: int
    text: str
    title: str = ""  # of the document, truncated where it would leave no room

    @property
    def read(self) -> str:
        """The input of the encoder without its prefix."""
        return joined(self.title, self.text)


def joined(title: str, text: str) -> str:
    """Title and text with a space between, as BEIR and sentence-transformers join them."""
    return f"{title} {text}".strip()


def passages(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[tuple[str, str]], window: Window
) -> list[list[Passage]]:
    """The passages of each document, a title and a text; together they cover every character of the text.

    A document that fits is one passage. A longer one is split where a word begins; a word longer than half a
    passage, and text without spaces, between tokens. Every passage begins with the title, truncated to a
    quarter of the window. Raises ModelError where the prefix leaves no room.
    """
    lengths = _lengths(tokenizer, [joined(title, text) for title, text in documents], window.prefix)
    result = []
    for (title, text), length in zip(documents, lengths, strict=True):
        spans = [(0, len(text))]
        if length > window.max_length:
            tokens = tokenize(tokenizer, [title])[0]
            room = window.max_length // 4
            if len(tokens.ids) > room:
                start, end = next(_spans(tokens, title, room, 0))
                title = title[start:end].strip()
            spans = _fitting(tokenizer, title, text, window)
        result.append([Passage(start, end, text[start:end], title) for start, end in spans])
    return result


def _lengths(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], prefix: str) -> list[int]:
    """Tokens of each text with the prefix, including special tokens."""
    if not texts:  # transformers cannot tokenize an empty list
        return []
    encoded = tokenizer([prefix + text for text in texts], return_attention_mask=False, verbose=False)
    return [len(ids) for ids in encoded["input_ids"]]


def _fitting(
    tokenizer: PreTrainedTokenizerBase, title: str, text: str, window: Window
) -> list[tuple[int, int]]:
    """Spans of the text that fit the window together with prefix and title."""
    tokens = tokenize(tokenizer, [text])[0]
    room = window.max_length - _lengths(tokenizer, [title], window.prefix)[0]
    while room >= MIN_TOKENS:
        spans = list(_spans(tokens, text, room, min(window.stride, room // 2)))
        read = [joined(title, text[start:end]) for start, end in spans]
        # A part of a word may have more tokens on its own than within its word.
        excess = max(_lengths(tokenizer, read, window.prefix)) - window.max_length
        if excess <= 0:
            return spans
        room -= excess
    raise ModelError(
        "max_length",
        f"the prefix {window.prefix!r} leaves no room for text in {window.max_length} tokens",
        "Raise it, or shorten the prefix.",
    )


def _spans(tokens: Tokenized, text: str, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Characters of passages of at most `room` tokens; each starts where the previous ends, or up to `stride`
    before.

    Spaces, and characters without a token, belong to the previous token.
    """
    length = len(tokens.ids)
    starts = tokens.starts.tolist()
    # Tokens of one character, such as those of an emoji in a byte-level tokenizer, stay together.
    borders = 1 + np.flatnonzero(tokens.starts[1:] >= tokens.ends[:-1])
    words = borders[[any(map(str.isspace, text[max(starts[i] - 1, 0) : starts[i] + 1])) for i in borders]]
    low = previous = 0  # previous: where the previous passage ends
    while low + room < length:
        ends = _between(words, max(low + room // 2, previous + 1), low + room)
        ends = ends or _between(borders, previous + 1, low + room)
        if not ends and low < previous:  # nothing new fits after the overlap
            low = previous
            continue
        ends = ends or _between(borders, low + room, length)[:1]
        if not ends:  # the rest is a single character
            break
        high = ends[-1]
        yield starts[low] if low else 0, starts[high]
        least = max(high - stride, low + 1)
        low = (_between(words, least, high) or _between(borders, least, high) or [high])[0]
        previous = high
    yield starts[low] if low else 0, len(text)


def _between(positions: np.ndarray, low: int, high: int) -> list[int]:
    """The sorted positions from `low` to `high`, both inclusive."""
    first, end = np.searchsorted(positions, [low, high + 1])
    inside: list[int] = positions[first:end].tolist()
    return inside
