"""Explanations as a page shows them, from those that `bertkit.explain` or explanations.json has."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.explain.text import difference_line
from bertkit.inference.display import answer_line
from bertkit.report import pictures
from bertkit.report.mistakes import Part, shortened
from bertkit.report.pictures import Picture

MIN_SHARE = 0.04  # of the largest attribution: smaller ones are not coloured
MAX_WORDS = 12  # in a table
MAX_CHARACTERS = 300  # of a neighbour
KINDS = {"mistake": "Mistake", "hit": "Right answer"}


class Attribution(NamedTuple):
    """One number behind an answer. texts: column -> the text in parts. table: the words with the largest ones."""

    what: str
    check: str
    texts: list[tuple[str, list[Part]]]
    table: list[tuple[str, str]]


class Explained(NamedTuple):
    """An explained answer. maps: of attention, with the tokens that their rows and columns stand for."""

    title: str
    answer: str
    gold: str
    attributions: list[Attribution]
    maps: Picture | None
    tokens: list[str]


def explained(explanations: Sequence[Mapping[str, Any]]) -> list[Explained]:
    """Explanations as `explain` returns them, or as explanations.json has them with `kind`, `row` and `gold`."""
    pages = []
    for number, each in enumerate(explanations, 1):
        title = f"{KINDS[each['kind']]}, row {each['row']}" if "kind" in each else f"Row {number}"
        attributions = [_attribution(each["texts"], one) for one in each["attributed"]]
        maps, tokens = None, list[str]()
        if attention := each["attention"]:
            levels = np.frombuffer(base64.b64decode(attention["levels"]), dtype=np.uint8)
            maps, tokens = pictures.attention(levels.reshape(attention["shape"])), attention["pieces"]
        pages.append(Explained(title, answer_line(each["answer"]), each.get("gold", ""), attributions, maps, tokens))
    return pages


def _attribution(texts: Mapping[str, str], one: Any) -> Attribution:
    scored = [(texts[name][a:b], s) for name, words in one["words"].items() for a, b, s in words if s is not None]
    most = max((abs(score) for _, score in scored), default=0.0) or 1.0
    parts = [(name, list(_parts(texts[name], words, most))) for name, words in one["words"].items()]
    largest = sorted(scored, key=lambda pair: -abs(pair[1]))[:MAX_WORDS]
    table = [("word", one["unit"]), *((word, f"{score:+.3f}") for word, score in largest)]
    return Attribution(one["what"], difference_line(one), parts, table)


def _parts(text: str, words: Sequence[Any], most: float) -> Iterator[Part]:
    """The text in parts, the words marked as for, against or unread."""
    done = 0
    for start, end, score in words:
        yield Part(text[done:start])
        share = abs(score or 0.0) / most
        mark = "unread" if score is None else "" if share < MIN_SHARE else "for" if score > 0 else "against"
        yield Part(text[start:end], mark, share=share)
        done = end
    yield Part(text[done:])


def nearest(neighbours: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Each text and its nearest neighbours, with their cosines; the first row is the header."""
    if not neighbours:
        return []
    rows = [["text", *(f"{place}." for place in range(1, len(neighbours[0]["near"]) + 1))]]
    for each in neighbours:
        near = [f"{shortened(one['text'], MAX_CHARACTERS)} ({one['cosine']:.3f})" for one in each["near"]]
        rows.append([shortened(each["text"], MAX_CHARACTERS), *near])
    return rows
