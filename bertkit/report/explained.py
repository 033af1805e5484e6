"""Why did it say that, as a page shows it: explanations of `bertkit.explain`, as written, made ready to draw."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.explain.shown import checked
from bertkit.inference.display import said
from bertkit.report import pictures
from bertkit.report.mistakes import shortened
from bertkit.report.pictures import Picture

FAINTEST = 0.04  # of the weightiest word's share: less is not coloured
LISTED = 12  # words in a table
LONGEST = 300  # characters of a neighbour
KINDS = {"mistake": "Mistake", "hit": "Right answer"}


@dataclass(frozen=True)
class Stretch:
    """A stretch of text. mark: for, against, unread, or nothing. share: of the weightiest word's, in [0, 1]."""

    text: str
    mark: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class Shares:
    """One number behind an answer. texts: column -> the text in stretches. table: the weightiest words."""

    what: str
    check: str
    texts: tuple[tuple[str, tuple[Stretch, ...]], ...]
    table: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Explained:
    """An answer and why. maps: of attention, with the pieces that their rows and columns stand for."""

    title: str
    answer: str
    gold: str
    shares: tuple[Shares, ...]
    maps: Picture | None
    pieces: tuple[str, ...]


def explained(found: Sequence[Mapping[str, Any]]) -> list[Explained]:
    """Explanations as `explain` gives them, or as explanations.json has them with `kind`, `row` and `gold`."""
    made = []
    for number, each in enumerate(found, 1):
        title = f"{KINDS[each['kind']]}, row {each['row']}" if "kind" in each else f"Row {number}"
        attention = each["attention"]
        maps = _maps(attention) if attention else None
        pieces = tuple(attention["pieces"]) if attention else ()
        shares = tuple(_shares(each["texts"], one) for one in each["attributed"])
        made.append(Explained(title, said(each["answer"]), each.get("gold", ""), shares, maps, pieces))
    return made


def _shares(texts: Mapping[str, str], one: Any) -> Shares:
    words = [word for own in one["words"].values() for word in own if word[2] is not None]
    most = max((abs(score) for _, _, score in words), default=0.0) or 1.0
    drawn = tuple((name, tuple(_stretches(texts[name], own, most))) for name, own in one["words"].items())
    named = [(texts[name][a:b], s) for name, own in one["words"].items() for a, b, s in own if s is not None]
    table = [(word, f"{score:+.3f}") for word, score in sorted(named, key=lambda pair: -abs(pair[1]))[:LISTED]]
    return Shares(one["what"], checked(one), drawn, (("word", one["unit"]), *table))


def _stretches(text: str, words: Sequence[Any], most: float) -> Iterator[Stretch]:
    done = 0
    for start, end, score in words:
        yield Stretch(text[done:start])
        share = abs(score or 0.0) / most
        mark = "unread" if score is None else "" if share < FAINTEST else "for" if score > 0 else "against"
        yield Stretch(text[start:end], mark, share)
        done = end
    yield Stretch(text[done:])


def _maps(attention: Mapping[str, Any]) -> Picture:
    levels = np.frombuffer(base64.b64decode(attention["levels"]), dtype=np.uint8)
    return pictures.attention(levels.reshape(attention["shape"]))


def nearest(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Each text and the others nearest to it, with their cosines; the first line is the header."""
    if not found:
        return []
    header = ["text", *(f"{place}." for place in range(1, len(found[0]["near"]) + 1))]
    near = [[f"{shortened(n['text'], LONGEST)} ({n['cosine']:.3f})" for n in each["near"]] for each in found]
    return [header, *([shortened(each["text"], LONGEST), *own] for each, own in zip(found, near, strict=True))]
