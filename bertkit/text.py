"""Text for people: numbers in sentences, tables, control characters escaped."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
Lines = list[list[str]]  # of a table, the first is the header; see `columns`
Record = Mapping[str, Any]  # values by their names: a row, results, settings
Json = dict[str, Any]  # a record that is made, and often written as JSON
_MOVES = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"  # a regular expression's set
_CONTROLS = f"[\t\n{_MOVES}]"


def counted(count: int, noun: str, verb: str = "") -> str:
    """A count with its noun, such as "1 row", "2 rows", "2 queries", "1 row repeats" and "2 rows repeat"."""
    one = count == 1
    ending = "es" if noun.endswith("ch") else "s"
    many = f"{noun[:-1]}ies" if noun.endswith("y") else noun + ending
    return f"{count:,} {noun if one else many}" + (f" {verb}{'s' if one else ''}" if verb else "")


def share(part: int, total: int) -> str:
    """A share in percent, such as "2.5%", or "under 0.1%" where rounding would give 0."""
    return "under 0.1%" if 0 < part < 0.0005 * total else f"{part / total:.1%}"


def part_of(part: int, total: int, noun: str) -> str:
    """A part of a whole, such as "1 of 2 rows (50.0%) is" and "2 of 3 rows (66.7%) are"."""
    return f"{part:,} of {counted(total, noun)} ({share(part, total)}) {'is' if part == 1 else 'are'}"


def listed(names: Sequence[str], most: int = 20, *, total: int | None = None) -> str:
    """The names, separated by commas; of more than `most`, the first ones and how many more there are.

    total: how many there are, where `names` are the first of them.
    """
    rest = (len(names) if total is None else total) - len(names[:most])
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest else "")


def unique(values: Iterable[T]) -> list[T]:
    """The values in their order, each once."""
    return list(dict.fromkeys(values))


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, each once."""
    return [name for name, count in Counter(names).items() if count > 1]


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as aligned columns, a line per row; the first row is the header."""
    rows = [[*map(escape_controls, row)] for row in rows]
    widths = [max(map(display_width, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = (
            f"{cell}{' ' * (width - display_width(cell))}" for cell, width in zip(row, widths, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def display_width(text: str) -> int:
    """The columns of a terminal that a text takes: 2 for wide characters and emoji, none for marks and
    joiners.

    >>> [display_width(text) for text in ("Seoul", "서울", "กรุงเทพ", "🇰🇷")]
    [5, 4, 6, 2]
    """
    if text.isascii():
        return len(text)
    import regex

    # U+FE0F makes an emoji of the character before it
    seen = r"[^\p{M}\p{Cf}]|\ufe0f"
    wide = r"[\p{EA=W}\p{EA=F}]"
    characters = regex.findall(r"\X", text)
    return sum(
        min(2, len(regex.findall(seen, character)) + len(regex.findall(wide, character)))
        for character in characters
    )


def character_start(text: str, place: int) -> int:
    """The start of the user-perceived character that holds `place`: an emoji or a letter with its marks is
    one.

    Characters are the extended grapheme clusters of Unicode Standard Annex 29, and of at most 64 code points
    here.
    """
    import regex

    low = max(0, place - 64)
    *_, character = regex.finditer(r"\X", text[low : place + 1])
    return low + int(character.start())


def short_repr(value: Any) -> str:
    """repr(value), shortened to 80 characters: always printable."""
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{text[: character_start(text, 60)]}...{text[character_start(text, len(text) - 15) :]}"


def first_line(error: object) -> str:
    """The first line of a library's error; the name of its class where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:800] if lines else type(error).__name__


def escape_controls(text: str) -> str:
    """The text with control characters, changes of direction and surrogates escaped: it must not move the
    cursor.
    """
    return re.sub(_CONTROLS, lambda match: repr(match[0])[1:-1], text)


def printable(text: str, kept: str = "") -> str:
    """Lines of text that are safe to print: control characters other than newline, tab and `kept` are
    escaped.
    """
    return re.sub(f"[{_MOVES}]", lambda match: match[0] if match[0] in kept else repr(match[0])[1:-1], text)


def plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, others as text."""
    return value.tolist() if type(value).__module__ == "numpy" else str(value)


def json_line(value: Any) -> str:
    """The value as JSON on one line, which is safe to print: control characters are escaped, as JSON does
    it.
    """
    text = json.dumps(value, ensure_ascii=False, default=plain)
    return re.sub(_CONTROLS, lambda match: f"\\u{ord(match[0]):04x}", text)


def beginning(text: str, most: int) -> str:
    """The first `most` characters for one line of a terminal: whitespace is one space, controls are
    escaped.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return escape_controls(line)
    return escape_controls(line[: character_start(line, most)]) + "…"


def dotted(path: KeyPath) -> str:
    """The key path in dotted notation: `data.source.train[0]`."""
    words = (
        key if isinstance(key, int) or (key.isprintable() and 0 < len(key) <= 80) else short_repr(key)
        for key in path
    )
    return "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in words).removeprefix(".")


def shell_word(value: object) -> str:
    """A path as one word of a command to type."""
    return shlex.quote(str(value))
