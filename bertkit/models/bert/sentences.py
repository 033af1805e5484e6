"""Text -> sentences, and sentences -> chunks that fill a model's length."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

_ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof rev hon fr st sr jr gen col maj capt cpt lt cmdr sgt gov sen rep pres mt ft vs "
    "cf viz al messrs mme mlle bros approx esp incl resp".split()
)
_BEFORE_NUMBERS = frozenset(
    "no nos nr vol vols p pp fig figs ch chap sec sect art eq ca c op jan feb mar apr jun jul aug sep sept "
    "oct nov dec".split()
)
# Sentence_Terminal of Unicode 17 outside of Latin text, without Burmese, Javanese and Balinese commas: first
# the marks that a blank follows, then those of scripts that are written without blanks.
_SPACED = (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u1362\u1367\u1368\u166e\u1735"
    r"\u1736\u1803\u1809\u1944\u1945\u1c3b\u1c3c\u1c7e\u1c7f\u2cf9-\u2cfb\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce"
    r"\ua8cf\ua92f\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047"
    r"\U00011048\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238"
    r"\U00011239\U0001123b\U0001123c\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3"
    r"\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    r"\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37"
    r"\U00016b38\U00016b44\U00016d6e\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
_UNSPACED = (
    r"\u104b\u17d4\u17d5\u1aa8-\u1aab\u1b4f\u1b5a\u1b5b\u1b5f\u1b7d-\u1b7f\u3002\ua9c9\ufe12\ufe15\ufe16\ufe52\ufe56\ufe57"
    r"\uff01\uff1f\uff61"
)
# The look-behind starts a match only at the head of a run of marks: time stays linear in the text.
_END = re.compile(
    rf"""(?<![.!?…{_SPACED}])[.!?…{_SPACED}]++["'”’»)\]]*+(?=\s)|(?:[{_UNSPACED}]|．(?!\d))++["'”’」』）»)\]]*+"""
)
_LAST_WORD = re.compile(r"\w*$")
_LONGEST_WORD = 20  # characters before a full stop that are looked at


def sentences(text: str) -> list[str]:
    """Split a text at newlines and after sentences; joined, they are the text except for whitespace.

    A sentence ends at . ! ? … and closing quotes or brackets, but not after abbreviations and initials, in
    numbers, or before a lower-case letter: these rules are those of English. It ends too at the marks of
    other scripts: । ۔ ؟ ። ։ before a blank, 。 ！ ？ ။ ។ anywhere. Thai and Lao have no such mark: a line is
    one sentence. Time is linear in the text.
    """
    sentences = []
    for paragraph in text.splitlines():
        start = 0
        for end in _ends(paragraph):
            sentences.append(paragraph[start:end])
            start = end
        sentences.append(paragraph[start:])
    return list(filter(None, map(str.strip, sentences)))


def _ends(paragraph: str) -> Iterator[int]:
    for match in _END.finditer(paragraph):
        mark = match.group()
        end = match.end()
        following = paragraph[end + 1 : end + 4].lstrip(" \"'“‘«([")[:1]
        if mark[0] not in ".!?…" or not (
            following.islower() or (mark == "." and _inside(paragraph, match.start(), following))
        ):
            yield end


def _inside(paragraph: str, stop: int, following: str) -> bool:
    """Whether the full stop at `stop` belongs to the word before it."""
    before = _LAST_WORD.search(paragraph[max(stop - _LONGEST_WORD, 0) : stop])
    word = before.group().lower() if before else ""
    initial = len(word) == 1 and word.isalpha()
    return initial or word in _ABBREVIATIONS or (word in _BEFORE_NUMBERS and following.isdigit())


def pack(
    lengths: Sequence[int], limit: int, pairs: bool, short_sequences: float, seed: int
) -> list[list[int]]:
    """Sentences of these lengths -> chunks of consecutive ones, each of at most `limit` tokens; no token is
    lost.

    pairs: every chunk has at least two sentences; there must be two tokens. short_sequences: share of chunks
    with a limit of their own, drawn from [2, limit] with `seed`. Sentences that are too long for a chunk are
    split.
    """
    most, least = (limit // 2, 2) if pairs else (limit, 1)
    parts = [part for length in lengths for part in _split(length, -(-length // most))]
    if pairs and len(parts) == 1:
        parts = _split(parts[0], 2)
    rng = random.Random(seed)
    chunks = []
    start = 0
    while start < len(parts):
        short = rng.random() < short_sequences
        target = 2 + int(rng.random() * (limit - 1)) if short else limit
        end = start
        total = 0
        while end < len(parts) and (end - start < least or total + parts[end] <= target):
            total += parts[end]
            end += 1
        chunks.append(parts[start:end])
        start = end
    if pairs and len(chunks[-1]) == 1:
        chunks[-2:] = _not_alone(chunks[-2], chunks[-1][0], limit)
    return chunks


def _split(length: int, count: int) -> list[int]:
    bounds = [length * part // count for part in range(count + 1)]
    return [end - start for start, end in pairwise(bounds)]


def _not_alone(before: list[int], last: int, limit: int) -> list[list[int]]:
    """The last two chunks, where the last one had a single sentence."""
    if len(before) > 2:
        return [before[:-1], [before[-1], last]]
    if sum(before) + last <= limit:
        return [[*before, last]]
    if last > 1:
        return [before, _split(last, 2)]
    head, tail = _split(before[1], 2)  # two tokens at least, since three sentences exceed the limit
    return [[before[0], head], [tail, last]]
