"""The words or characters of a text, and entities that are spans of characters as tags of them."""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from bertkit.data.scripts import UNSPACED, of_category
from bertkit.data.tagging import Entity, tags_of
from bertkit.text import Record, counted, short_repr

Alignment = Literal["strict", "expand", "contract"]
# what has a tag; given: tokens of the data, and words where a text is
Unit = Literal["words", "characters", "given"]

# of category Cf
ZERO_WIDTH_SPACE = "\u200b"
JOINER = "\u200d"
Span = dict[str, Any]  # start, end and label; perhaps the text that is there
Places = list[tuple[int, int]]  # characters, end exclusive
Marked = tuple[str, list[Span]]  # a text and its spans
_KEYS = ("start", "end", "label")
_NAMES = {  # of a span -> what it is called, the most usual first
    "start": "start begin offset start_offset startOffset".split(),
    "end": "end stop end_offset endOffset".split(),
    "label": "label type tag entity entity_group entity_type labels".split(),
    "text": "text name surface mention word".split(),
}


class Aligned(NamedTuple):
    """The tags of a text's words, and what was done to its spans."""

    tags: list[str]  # BIO, one per word
    spans: list[Span]  # start, end and label of every span that has a word, as given, but trimmed
    counts: dict[str, int]  # other, trimmed, empty, misaligned, cut, lost, overlapping: see `spans_to_tags`
    problems: list[str]  # spans that cannot be used, by their numbers from 1


def words(text: str, unit: Unit = "words") -> Places:
    r"""Offsets (start, end exclusive) of the words of a text, in order; only whitespace and format characters
    are between them. With the unit `characters`, of its characters.

    A word is a run of `\w` (letters, digits, _), or any other single character that is neither whitespace nor
    a format
    character: apostrophes, hyphens, control characters, each emoji. A letter of a script that is written
    without spaces (`scripts.UNSPACED`) is a word by itself, as ideographs are to BERT's tokenizer. Combining
    marks (Unicode category M: accents, vowel signs, variation selectors) belong to the letter before them. So
    do format characters (category Cf: joiners, soft hyphens, marks of direction) between the characters of
    one word, except the zero-width space, which divides words. A zero-width joiner joins what is around it.
    """
    return [match.span() for match in _pattern(unit == "characters").finditer(text)]


def spans_to_tags(text: str, spans: Sequence[Record], alignment: Alignment, unit: Unit = "words") -> Aligned:
    """BIO tags of a text's words from spans {start, end, label}: offsets in characters, end exclusive.

    unit: of `words`, which are called words here.

    Counted: `other`, has a text of its own that is another; `trimmed`, outer whitespace and format characters
    removed;
    `empty`, dropped: nothing else; `misaligned`, cut a word and was expanded or contracted to whole words;
    `cut`, with
    strict: cut a word, which is a problem; `lost`, dropped: contracted to nothing; `overlapping`, dropped:
    shares a word with a longer span, or with an earlier one of its length. In `problems`: offsets that are
    not whole numbers or not in the text, an end before the start, a missing key, a label that is not text,
    and with strict a span that cuts a word.
    """
    offsets = words(text, unit)
    starts = [start for start, _ in offsets]
    ends = [end for _, end in offsets]
    counts = dict.fromkeys("other trimmed empty misaligned cut lost overlapping".split(), 0)
    problems: list[str] = []
    trimmed: list[Span] = []
    aligned: list[tuple[int, Entity]] = []
    for number, span in enumerate(spans, 1):
        if fault := _fault(text, span):
            problems.append(f"span {number} {fault}")
            continue
        start = span["start"]
        end = span["end"]
        stated = span.get("text")
        counts["other"] += (  # whatever its case and whitespace
            isinstance(stated, str) and stated.casefold().split() != text[start:end].casefold().split()
        )
        touched = bisect_right(ends, start), bisect_left(starts, end)
        if start == end or touched[0] >= touched[1]:
            counts["empty"] += 1
            continue
        start = max(start, starts[touched[0]])
        end = min(end, ends[touched[1] - 1])
        counts["trimmed"] += (start, end) != (span["start"], span["end"])
        inside = bisect_left(starts, start), bisect_right(ends, end)
        if touched != inside and alignment == "strict":
            counts["cut"] += 1
            cut = text[starts[touched[0]] : ends[touched[1] - 1]]
            where = f"span {number}, {short_repr(text[start:end])} from {start} to {end}"
            problems.append(f"{where}, cuts a word; whole words are {short_repr(cut)}")
            continue
        trimmed.append({"start": start, "end": end, "label": span["label"]})
        first, stop = touched if alignment == "expand" else inside
        if first >= stop:
            counts["lost"] += 1
            continue
        counts["misaligned"] += touched != inside
        aligned.append((end - start, (span["label"], first, stop)))
    # the longest, then the longest that shares no word with it, and so on
    taken = set[int]()
    disjoint = list[Entity]()
    for _, entity in sorted(aligned, key=lambda item: -item[0]):
        if taken.isdisjoint(range(entity[1], entity[2])):
            taken.update(range(entity[1], entity[2]))
            disjoint.append(entity)
    counts["overlapping"] = len(aligned) - len(disjoint)
    return Aligned(tags_of(disjoint, len(offsets), "BIO"), trimmed, counts, problems)


def gold_entities(offsets: Places, spans: Iterable[Record]) -> list[tuple[Any, ...]]:
    """`Aligned.spans` as entities of words, in their order: type, first word, end.

    One that cuts a word has its characters in addition, so that it is equal to no entity of whole words.
    """
    starts = [start for start, _ in offsets]
    ends = [end for _, end in offsets]
    gold = dict[tuple[Any, ...], None]()
    for start, end, label in map(itemgetter(*_KEYS), spans):
        first = bisect_right(ends, start)
        stop = bisect_left(starts, end)
        whole = (starts[first], ends[stop - 1]) == (start, end)
        gold[label, first, stop, *(() if whole else (start, end))] = None
    return sorted(gold, key=lambda entity: entity[1:])


def read_spans(value: object) -> list[Span]:
    """The spans of one row as {start, end, label, text}; a key they lack is left out.

    Read are lists of [start, end, label] or objects, also as JSON text. An object may have the pair of
    offsets in `span` or `offsets`, or a `length` in place of an end, other names for its keys, and its one
    label in a list.
    Raises ValueError: anything else, or a span with several labels.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`spans` {short_repr(value)} is not JSON: {error}") from None
    if not isinstance(value, list | tuple):
        raise ValueError(f"`spans` {short_repr(value)}, where a list of spans is expected")
    return [_read_span(number, span) for number, span in enumerate(value, 1)]


@functools.cache
def _pattern(characters: bool) -> re.Pattern[str]:
    # `re` has no class for categories; the library `regex` has, but its whitespace is not that of str.strip.
    marks = of_category("M")
    formats = of_category("Cf").replace(ZERO_WIDTH_SPACE, "")
    other = rf"[^\s{formats}{ZERO_WIDTH_SPACE}][{marks}]*"
    joins = rf"(?:[{formats}]+[{marks}]+)*"
    word = f"{other}{joins}"
    if not characters:
        letters = rf"[^\W{UNSPACED}]+(?:[{marks}]+[^\W{UNSPACED}]*)*"
        spaced = rf"{letters}(?:[{formats}]+(?:[{marks}]+|{letters})+)*"
        word = rf"(?:{spaced}|[{UNSPACED}][{marks}]*{joins}|{other})"
    return re.compile(rf"{word}(?:{JOINER}{word})*")


def _fault(text: str, span: Record) -> str:
    """Why a span cannot be used; "" where it can."""
    if missing := [key for key in _KEYS if key not in span]:
        return f"has no {' and no '.join(missing)}"
    start = span["start"]
    end = span["end"]
    label = span["label"]
    if not all(isinstance(offset, int) and not isinstance(offset, bool) for offset in (start, end)):
        return f"is from {short_repr(start)} to {short_repr(end)}, where whole numbers are expected"
    if not isinstance(label, str) or not label.strip():
        return f"has the label {short_repr(label)}, where text is expected"
    if end < start:
        return f"ends at {end}, before it starts at {start}"
    if start < 0 or end > len(text):
        return f"is from {start} to {end}, but the text has {counted(len(text), 'character')}"
    return ""


def _read_span(number: int, value: object) -> Span:
    if isinstance(value, list | tuple) and len(value) == 3:  # polars makes texts of all three
        numbers = [int(n) if isinstance(n, str) and n.isdecimal() else n for n in value[:2]]
        return dict(zip(_KEYS, (*numbers, value[2]), strict=True))
    if not isinstance(value, dict):
        what = "where [start, end, label] or an object with start, end and label is expected"
        raise ValueError(f"span {number} is {short_repr(value)}, {what}")
    span = Span()
    for ours, names in _NAMES.items():
        present = [name for name in names if value.get(name) is not None]
        span |= {ours: value[present[0]]} if present else {}
    if isinstance(ends := value.get("span", value.get("offsets")), list | tuple) and len(ends) == 2:
        span["start"], span["end"] = ends
    if isinstance(span.get("start"), int) and "end" not in span and isinstance(value.get("length"), int):
        span["end"] = span["start"] + value["length"]
    labels = span.get("label")
    if isinstance(labels, list | tuple):
        if len(labels) != 1:
            raise ValueError(f"span {number} has the labels {short_repr(labels)}, where one is expected")
        span["label"] = labels[0]
    return span
