"""How the offsets of spans are counted: by Python in code points, by other tools in other units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from unicodedata import combining, normalize

from bertkit.data.schema import Finding, warn
from bertkit.data.word_spans import Span, spans_to_tags
from bertkit.text import Record, counted

UTF_16 = "counted in UTF-16, as JavaScript and Java do"
ONE_LINE_END = r"counted in a text that had \n where this one has \r\n"
UNITS: Mapping[
    str, Callable[[str], Iterable[int]]
] = {  # how offsets are counted -> what each character of a text counts
    UTF_16: lambda text: (1 + (letter > "\uffff") for letter in text),
    "counted in bytes of UTF-8": lambda text: (len(letter.encode(errors="surrogatepass")) for letter in text),
    ONE_LINE_END: lambda text: (not text.startswith("\r\n", place) for place in range(len(text))),
    r"counted in a text that had \r\n where this one has \n": lambda text: (
        1 + (letter == "\n") for letter in text
    ),
    "counted in the text's Unicode form NFC": lambda text: (not combining(letter) for letter in text),
    "counted in the text's Unicode form NFD": lambda text: (len(normalize("NFD", letter)) for letter in text),
}

SHIFTS: Mapping[str, tuple[int, int]] = {  # how offsets are counted -> what to add to start and end
    "to the last character, not to the one after it": (0, 1),
    "counted from 1": (-1, -1),
    "counted from 1, to the last character": (-1, 0),
}
LATIN = "\u024f"  # its last letter


def moved(text: str, spans: Sequence[Record], unit: str) -> list[Span] | None:
    """The spans with offsets in code points, from this unit; None where one of them is not between two
    characters.
    """
    place_of = {units: place for place, units in enumerate(accumulate(UNITS[unit](text), initial=0))}
    copies = list[Span]()
    for span in spans:
        ends = (span.get("start"), span.get("end"))
        start, end = (place_of.get(place) if type(place) is int else None for place in ends)
        if start is None or end is None:
            return None
        copies.append({**span, "start": start, "end": end})
    return copies


def find_utf_16(rows: Iterable[tuple[str, Sequence[Record]]], split: str) -> tuple[bool, list[Finding]]:
    """Whether spans are counted in UTF-16: where it makes a difference, all fit it, and not all fit code
    points.

    Spans fit that are in the text and cut no word.
    """
    total = 0
    fit_code_points = True
    for text, spans in rows:
        if text.isascii() or max(text) <= "\uffff":
            continue
        other = moved(text, spans, UTF_16)
        if other == [*spans]:
            continue
        if not other or not _fit(text, other):
            return False, []
        total += 1
        fit_code_points &= _fit(text, spans)
    if not total:
        return False, []
    texts = f"{split}: in {counted(total, 'text')} with characters such as emoji before a span, offsets"
    if fit_code_points:
        what = f"{texts} fit words both as Python counts and as JavaScript does; read as Python counts"
        return False, [warn(what, "Count each character as one, or give `tokens` and `tags`.")]
    return True, [warn(f"{texts} are {UTF_16}; converted", "Check the first of these rows.")]


def likely_unit(misfits: Sequence[tuple[str, Sequence[Record]]]) -> str:
    """The unit in which the spans of all these texts fit; "" for none."""
    if not misfits or not all(spans for _, spans in misfits):
        return ""
    for unit in UNITS:
        pairs = [(text, moved(text, spans, unit)) for text, spans in misfits]
        if pairs != [*misfits] and all(spans and _fit(text, spans) for text, spans in pairs):
            return unit
    for shift, (start, end) in SHIFTS.items():
        if all(_fit_shifted(text, spans, start, end) for text, spans in misfits):
            return shift
    return ""


def _fit(text: str, spans: Sequence[Record]) -> bool:
    aligned = spans_to_tags(text, spans, "strict", "characters" if _say_texts(spans) else "words")
    return not aligned.problems and not aligned.counts["other"]


def _say_texts(spans: Sequence[Record]) -> bool:
    """Whether all spans have a text of their own, by which their offsets are recognised in every script."""
    return all("text" in span for span in spans)


def _fit_shifted(text: str, spans: Sequence[Record], by_start: int, by_end: int) -> bool:
    """Whether they fit so, with no blank at an end: in Latin script, where no affixes of one letter are left
    out.
    """
    copies = list[Span]()
    for span in spans:
        start = span.get("start")
        end = span.get("end")
        if type(start) is not int or type(end) is not int:
            return False
        if max(text[start:end], default="") > LATIN and not _say_texts(spans):
            return False
        copies.append({**span, "start": start + by_start, "end": end + by_end})
    return _fit(text, copies) and not spans_to_tags(text, copies, "strict").counts["trimmed"]
