"""Documents -> overlapping passages that an encoder reads whole, cut from the document's own text between words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertkit.encoding.pieces import Pieces, tokenize
from bertkit.errors import ModelError, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_ROOM = 8  # word pieces of the text in a passage


class Window(NamedTuple):
    """How much an encoder reads at once, in word pieces."""

    max_length: int  # with the special pieces, the prefix and the title
    stride: int  # what neighbouring passages share, at most
    prefix: str = ""  # what `encode` puts before every passage, such as "passage: "


@dataclass(frozen=True)
class Passage:
    """`text` is the document's text from `start` to `end`, in characters, end exclusive."""

    document: str
    number: int
    start: int
    end: int
    text: str
    title: str = ""  # the document's, or as much of it as leaves room

    @property
    def read(self) -> str:
        """What the encoder is given, but for the prefix."""
        return joined(self.title, self.text)


def joined(title: str, text: str) -> str:
    """Title and text with a blank between, as BEIR and sentence-transformers join them."""
    return f"{title} {text}".strip()


def passages(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[tuple[str, str, str]], window: Window
) -> list[list[Passage]]:
    """The passages of each document, given as id, title and text; together they hold every character of the text.

    A document that fits is one passage. A longer one is cut where a word begins; a word longer than half a passage,
    and text without blanks, between word pieces. Every passage has the title before it, shortened to a quarter of
    the window. Raises ModelError where the prefix leaves no room.
    """
    wholes = _lengths(tokenizer, [joined(title, text) for _, title, text in documents], window.prefix)
    made = []
    for (document, title, text), length in zip(documents, wholes, strict=True):
        spans = [(0, len(text))]
        if length > window.max_length:
            title = _shortened(tokenizer, title, window.max_length // 4)
            spans = _fitting(tokenizer, title, text, window)
        made.append([Passage(document, n, a, b, text[a:b], title) for n, (a, b) in enumerate(spans)])
    return made


def _lengths(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], prefix: str) -> list[int]:
    """Word pieces of each text with its prefix, special ones included."""
    if not texts:  # which transformers can not read
        return []
    encoded = tokenizer(
        [prefix + text for text in texts], return_attention_mask=False, return_token_type_ids=False, verbose=False
    )
    return [len(ids) for ids in encoded["input_ids"]]


def _shortened(tokenizer: PreTrainedTokenizerBase, title: str, room: int) -> str:
    pieces = tokenize(tokenizer, [title])[0]
    if len(pieces.ids) <= room:
        return title
    start, end = next(_spans(pieces, title, room, 0))
    return title[start:end].strip()


def _fitting(tokenizer: PreTrainedTokenizerBase, title: str, text: str, window: Window) -> list[tuple[int, int]]:
    """Spans of the text that are within the window once they are read with prefix and title."""
    pieces = tokenize(tokenizer, [text])[0]
    room = window.max_length - _lengths(tokenizer, [title], window.prefix)[0]
    while room >= LEAST_ROOM:
        spans = list(_spans(pieces, text, room, min(window.stride, room // 2)))
        read = [joined(title, text[start:end]) for start, end in spans]
        # A part of a word may be more pieces by itself than it was within its word.
        excess = max(_lengths(tokenizer, read, window.prefix)) - window.max_length
        if excess <= 0:
            return spans
        room -= excess
    what = f"the prefix {window.prefix!r} leaves no room for text in {window.max_length} word pieces"
    raise ModelError(Problem("max_length", what, "Raise it, or shorten the prefix."))


def _spans(pieces: Pieces, text: str, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Characters of passages of at most `room` pieces; each begins where the one before ends, or up to `stride` before.

    Blanks, and characters that no piece stands for, go with the piece before them.
    """
    length, starts = len(pieces.ids), pieces.starts.tolist()
    # Pieces of one character, as byte-level tokenizers make them of an emoji, stay together.
    borders = 1 + np.flatnonzero(pieces.starts[1:] >= pieces.ends[:-1])
    words = borders[[_begins_a_word(text, starts[i]) for i in borders]]
    low = reach = 0  # reach: where the passage before ends
    while low + room < length:
        high = _last(words, max(low + room // 2, reach + 1), low + room) or _last(borders, reach + 1, low + room)
        if high is None and low < reach:  # nothing new fits beside what is shared
            low = reach
            continue
        high = high or _first(borders, low + room, length)
        if high is None:  # the rest is one character
            break
        yield starts[low] if low else 0, starts[high]
        least = max(high - stride, low + 1)
        low, reach = _first(words, least, high) or _first(borders, least, high) or high, high
    yield starts[low] if low else 0, len(text)


def _begins_a_word(text: str, start: int) -> bool:
    return any(character.isspace() for character in text[max(start - 1, 0) : start + 1])


def _last(places: np.ndarray, low: int, high: int) -> int | None:
    """The greatest of the sorted places from `low` to `high`, both inclusive."""
    index = int(np.searchsorted(places, high, side="right")) - 1
    return int(places[index]) if index >= 0 and places[index] >= low else None


def _first(places: np.ndarray, low: int, high: int) -> int | None:
    """The least of the sorted places from `low` to `high`, both inclusive."""
    index = int(np.searchsorted(places, low))
    return int(places[index]) if index < len(places) and places[index] <= high else None
