"""Explanations for people: lines with bars for the terminal, and what an answer says in a few words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bertkit.inference.display import said
from bertkit.text import escape_controls

if TYPE_CHECKING:
    from bertkit.explain.explain import Attributed, Explanation

WIDEST = 24  # characters of the longest bar
MANY = 40  # words of a text that are listed, the weightiest
BLUE, ORANGE, PLAIN = "\x1b[34m", "\x1b[33m", "\x1b[0m"
EXPLAINED = "Each word's share of the difference to the same text with all its words masked (integrated gradients)."


def checked(each: Attributed) -> str:
    """Whether the shares add up, in a sentence."""
    total = each["value"] - each["baseline"]
    figures = f"{each['unit']} {each['value']:+.3f}, {each['baseline']:+.3f} without its words: {total:+.3f} to share"
    steps = f"{each['steps']} steps, {each['error']:.4f} off"
    return f"{figures} ({steps}{'' if each['complete'] else ': NOT COMPLETE, read it with care'})"


def lines(explanation: Explanation, colour: bool = False) -> Iterator[str]:
    """An explanation as text: each word with its share and a bar, blue and full for the answer, else orange."""
    yield escape_controls(said(explanation["answer"]))
    for each in explanation["attributed"]:
        yield ""
        yield f"{escape_controls(each['what'])}: {checked(each)}"
        for name, words in each["words"].items():
            yield f"  {name}"
            text = explanation["texts"][name]
            scored = [(text[start:end], score) for start, end, score in words if score is not None]
            strongest = sorted((abs(score) for _, score in scored), reverse=True)
            least = strongest[MANY] if len(strongest) > MANY else -1.0
            for word, score in scored:
                if abs(score) > least:
                    yield f"  {score:+8.3f} {_bar(score, strongest[0], colour)} {escape_controls(word)}"
            if least >= 0:
                yield f"  … and {sum(abs(score) <= least for _, score in scored):,} words with less"


def _bar(score: float, most: float, colour: bool) -> str:
    width = round(WIDEST * abs(score) / most) if most else 0
    bar = ("█" if score > 0 else "░") * width
    return (BLUE if score > 0 else ORANGE) + bar + PLAIN + " " * (WIDEST - width) if colour else bar.ljust(WIDEST)
