"""Explanations for the terminal: lines with bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bertkit.text import counted, escape_controls

if TYPE_CHECKING:
    from bertkit.explanations.explain import Attributed, Explanation

MAX_BAR = 24  # characters
MAX_WORDS = 40  # of a text, those with the largest attributions
BLUE = "\x1b[34m"
ORANGE = "\x1b[33m"
PLAIN = "\x1b[0m"
LEGEND = (
    "Attribution of each word, relative to the same text with all its words masked (integrated gradients)."
)


def difference_line(part: Attributed) -> str:
    """The difference that was attributed, and whether the attributions add up to it."""
    total = part["value"] - part["baseline"]
    figures = (
        f"{part['unit']} {part['value']:+.3f}, {part['baseline']:+.3f} without its words: difference "
        f"{total:+.3f}"
    )
    steps = f"{part['steps']} steps, error {part['error']:.4f}"
    return f"{figures} ({steps}{'' if part['complete'] else ': NOT CONVERGED, interpret with care'})"


def lines(explanation: Explanation, colour: bool = False) -> Iterator[str]:
    """An explanation as text: each word with its attribution and a bar, full and blue if positive, else
    orange.
    """
    yield escape_controls(explanation["said"])
    for part in explanation["attributed"]:
        yield ""
        yield f"{escape_controls(part['what'])}: {difference_line(part)}"
        for name, words in part["words"].items():
            yield f"  {name}"
            text = explanation["texts"][name]
            scored = [(text[start:end], score) for start, end, score in words if score is not None]
            sizes = sorted((abs(score) for _, score in scored), reverse=True)
            least = sizes[MAX_WORDS] if len(sizes) > MAX_WORDS else -1.0
            for word, score in scored:
                if abs(score) > least:
                    yield f"  {score:+8.3f} {_bar(score, sizes[0], colour)} {escape_controls(word)}"
            if least >= 0:
                yield (
                    f"  … and {counted(sum(size <= least for size in sizes), 'word')} with smaller "
                    "attributions"
                )


def _bar(score: float, most: float, colour: bool) -> str:
    width = round(MAX_BAR * abs(score) / most) if most else 0
    bar = ("█" if score > 0 else "░") * width
    return (
        (BLUE if score > 0 else ORANGE) + bar + PLAIN + " " * (MAX_BAR - width)
        if colour
        else bar.ljust(MAX_BAR)
    )
