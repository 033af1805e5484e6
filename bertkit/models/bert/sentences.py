"""Text -> sentences, and sentences -> chunks that fill a model's length."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

_ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof rev hon fr st sr jr gen col maj capt cpt lt cmdr sgt gov sen rep pres mt ft vs cf viz al "
    "messrs mme mlle bros approx esp incl resp".split()
)
_BEFORE_NUMBERS = frozenset(
    "no nos nr vol vols p pp fig figs ch chap sec sect art eq ca c op jan feb mar apr jun jul aug sep sept oct nov "
    "dec".split()
)
# The look-behind starts a match only at the head of a run of marks: time stays linear in the text.
_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’»)\]]*+(?=\s)|[。！？]++["'”’」』）]*+""")
_LAST_WORD = re.compile(r"\w*$")
_LONGEST_WORD = 20  # characters before a full stop that are looked at


def sentences(text: str) -> list[str]:
    """Split a text at newlines and after sentences; joined, they are the text except for whitespace.

    A sentence ends at . ! ? … 。 and closing quotes or brackets, but not after abbreviations and initials, in numbers,
    or before a lower-case letter. The rules are those of English; time is linear in the text.
    """
    sentences = []
    for paragraph in text.splitlines():
        start = 0
        for end in _ends(paragraph):
            sentences.append(paragraph[start:end])
            start = end
        sentences.append(paragraph[start:])
    return [sentence for part in sentences if (sentence := part.strip())]


def _ends(paragraph: str) -> Iterator[int]:
    for match in _END.finditer(paragraph):
        mark, end = match.group(), match.end()
        following = paragraph[end + 1 : end + 4].lstrip(" \"'“‘«([")[:1]
        if mark[0] in "。！？" or not (
            following.islower() or (mark == "." and _inside(paragraph, match.start(), following))
        ):
            yield end


def _inside(paragraph: str, stop: int, following: str) -> bool:
    """Whether the full stop at `stop` belongs to the word before it."""
    before = _LAST_WORD.search(paragraph[max(stop - _LONGEST_WORD, 0) : stop])
    word = before.group().lower() if before else ""
    initial = len(word) == 1 and word.isalpha()
    return initial or word in _ABBREVIATIONS or (word in _BEFORE_NUMBERS and following.isdigit())


def pack(lengths: Sequence[int], limit: int, pairs: bool, short_sequences: float, seed: int) -> list[list[int]]:
    """Sentences of these lengths -> chunks of consecutive ones, each of at most `limit` tokens; no token is lost.

    pairs: every chunk has at least two sentences; there must be two tokens. short_sequences: share of chunks with a
    limit of their own, drawn from [2, limit] with `seed`. Sentences that are too long for a chunk are split.
    """
    most, least = (limit // 2, 2) if pairs else (limit, 1)
    parts = [part for length in lengths for part in _split(length, -(-length // most))]
    if pairs and len(parts) == 1:
        parts = _split(parts[0], 2)
    rng = random.Random(seed)
    chunks: list[list[int]] = []
    start = 0
    while start < len(parts):
        short = rng.random() < short_sequences
        target = 2 + int(rng.random() * (limit - 1)) if short else limit
        end, total = start, 0
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
