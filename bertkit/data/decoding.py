"""Lines of text files in any encoding; where a byte does not belong to it, the encoding that it suggests."""

from __future__ import annotations

import codecs
import io
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, cast

from bertkit.data.problems import Problems, setting
from bertkit.data.schema import Finding, warn
from bertkit.errors import DataError

Lines = Iterator[tuple[int, str]]  # of a file, numbered from 1
MAX_LINE = 10_000_000  # characters of a line and of a quoted field: bounds an unclosed quote
SHOWN = 30  # characters shown on either side of a byte that cannot be decoded

AHEAD = 100_000  # characters after it that another encoding must decode too
_COMMON = {  # from and to which first byte the commonest letters are, such as level 1 of GB 2312
    "cp949": (0xB0, 0xC8),
    "gb18030": (0xB0, 0xD7),
    "cp932": (0x82, 0x97),
    "big5": (0xA4, 0xC6),
    "euc-jp": (0xA4, 0xCF),
    "cp1251": (0xC0, 0xFF),
}
_QUOTES = "‘’“”–—…€£°§«»¿¡"  # signs of western texts
_UTF8 = ("utf-8", "utf-8-sig")
_ESCAPED = re.compile("[\udc80-\udcff]")  # what the error handler `surrogateescape` makes of a byte
MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def text_lines(stream: IO[bytes], encoding: str, problems: Problems, longest: int = MAX_LINE) -> Lines:
    """Lines as (number from 1, text with its line end), without a byte order mark.

    problems: gets bytes that are not in this encoding, NUL and a line of over `longest` characters, which
    ends the lines; after the last line a finding where all of them are UTF-8 too. Raises DataError where the
    file begins with the mark of another encoding.
    """
    text = io.TextIOWrapper(cast(Any, stream), encoding, "surrogateescape", newline="\n")
    number = 0
    advised = False
    in_utf8 = codecs.lookup(encoding).name not in _UTF8
    other = ""
    ahead = deque[str]()
    try:
        while line := ahead.popleft() if ahead else text.readline(longest + 1):
            number += 1
            if number == 1:
                line = without_mark(line, encoding, problems.name)
            if len(line) > longest:
                what = f"the line is longer than {longest:,} characters"
                problems.add(number, what, f"If this is another format, {setting('format', 'parquet')}")
                return
            if match := _ESCAPED.search(line):
                what = (
                    f"byte 0x{ord(match[0]) & 0xFF:02X} at column {match.start() + 1} is not "
                    f"{encoding.upper()}"
                )
                if not advised:
                    while len(line) + sum(map(len, ahead)) < AHEAD and (more := text.readline(longest + 1)):
                        ahead.append(more)
                problems.add(number, what, "" if advised else _advice(line, "".join(ahead), encoding))
                line = _ESCAPED.sub("\ufffd", line)
                advised = True
            if "\0" in line:
                at = line.index("\0") + 1
                what = f"a NUL byte at column {at}; is this a text file in {encoding.upper()}?"
                wide = "utf-16-be" if at % 2 else "utf-16-le"
                problems.add(
                    number, what, f"if it is UTF-16, {setting('encoding', wide)}" if number == 1 else ""
                )
            if in_utf8 and not line.isascii():
                read = None
                with suppress(UnicodeError):
                    read = line.encode(encoding, "surrogateescape").decode()
                in_utf8 = read is not None
                # UTF-16 may have bytes of ASCII alone
                other = other or ("" if not read or read.isascii() else read)
            yield number, line
        if in_utf8 and other:
            problems.findings.append(_misread(problems.name, encoding, other))
    except UnicodeError:  # of encodings in which the next character cannot be found after a wrong byte
        what = f"invalid {encoding.upper()} after line {number:,}"
        problems.add(problems.name, what, f"If it has another encoding, {setting('encoding', 'cp1252')}")
    finally:
        with suppress(ValueError):  # the stream is closed already
            text.detach()


def _misread(name: str, encoding: str, text: str) -> Finding:
    """text: some of the file in UTF-8, with at least one letter that is not ASCII."""
    at = next(place for place, letter in enumerate(text) if not letter.isascii())
    shown = text[max(0, at - SHOWN) : at + SHOWN].strip()
    return warn(
        f"{name}: read as {encoding.upper()}, but it is UTF-8, in which it has {shown!r}",
        setting("encoding", "utf-8"),
    )


def without_mark(text: str, encoding: str, name: str) -> str:
    """The beginning of a file without its byte order mark; DataError where it is that of another encoding."""
    with suppress(UnicodeError):
        start = text[:4].encode(encoding, "surrogateescape")
        other = next((theirs for mark, theirs in MARKS.items() if start.startswith(mark)), "")
        if other and not codecs.lookup(encoding).name.startswith((other[:6], "utf-32")):
            raise DataError(name, f"the file is {other.upper()}", setting("encoding", other))
    return text.removeprefix("\ufeff")


def _advice(line: str, more: str, encoding: str) -> str:
    """The fix for a line that holds an escaped byte: the encodings in which it and all that follows are text.

    The first is the one in whose reading most letters are among the commonest of its language.
    """
    raw = line.rstrip("\r\n").encode(encoding, "surrogateescape")
    rest = more[: more.rfind("\n") + 1].encode(encoding, "surrogateescape")
    at = cast(re.Match[str], _ESCAPED.search(line)).start()
    readings = dict[str, str]()
    for other in likely_encodings(raw + b"\n" + rest):
        start = len(line[:at].encode(encoding, "surrogateescape").decode(other, "ignore"))
        readings[other] = raw.decode(other)[max(0, start - SHOWN) : start + SHOWN]
    if not readings:
        return f"save the file as UTF-8, or name its encoding, e.g. {setting('encoding', 'cp1250')}"
    shown = ", ".join(f"in {other} it reads {reading!r}" for other, reading in readings.items())
    which = "one of them" if len(readings) > 1 else "that"
    return f"{shown}; if {which} is right, {setting('encoding', next(iter(readings)))}"


def likely_encodings(content: bytes) -> list[str]:
    """The encodings in which the bytes are text, the most likely first: UTF-8 alone, or by `_commonness`."""
    runs = re.findall(rb"[\x80-\xff]+", content)
    letters = b"".join(runs).decode("cp1252", "replace")
    long_runs = sum(map(len, runs)) >= 2 * len(runs)  # not an accent here and there
    western = not long_runs and sum(letter.isalpha() or letter in _QUOTES for letter in letters) >= 0.7 * len(
        letters
    )
    others = () if western else list(_COMMON)[: None if long_runs else -1]
    common = dict[str, float]()
    for other in ("utf-8", *others, "cp1252"):
        with suppress(UnicodeError):
            common[other] = _commonness(content.decode(other), other)
            if other == "utf-8":
                break
    return sorted(common, key=lambda other: -common[other])


def _commonness(text: str, encoding: str) -> float:
    """The share of letters outside of ASCII that are common in the language of this encoding; 0 of other
    encodings.
    """
    low, high = _COMMON.get(encoding, (1, 0))
    first = [letter.encode(encoding)[0] for letter in text if letter.isalpha() and not letter.isascii()]
    return sum(low <= byte <= high for byte in first) / max(len(first), 1)
