"""brat's standoff annotations: a folder of NAME.txt with NAME.ann (Stenetorp et al. 2012)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.data.table import Export, NumberedRow, Problems
from bertkit.text import short_repr

_TEXT_BOUND = re.compile(r"T\S*\t(\S+) (\d+(?: \d+;\d+)*) (\d+)\t(.*)")


def is_brat(folder: Path) -> bool:
    """Whether this is a folder with annotations of brat."""
    return folder.is_dir() and any(folder.glob("*.ann"))


def brat_rows(folder: Path, problems: Problems) -> Iterator[NumberedRow]:
    """The texts in the order of their names, as (number from 1, {id, text, spans}); events and relations are not read.

    `annotated` is false where a text has no .ann. Nothing is yielded after the first problem. Raises DataError with
    file and line: a .ann without its text, text that is not UTF-8, spans that are discontinuous or not in the text.
    """
    problems.export = Export("brat's standoff annotations", "document")
    texts = sorted(folder.glob("*.txt"))
    for alone in sorted({path.stem for path in folder.glob("*.ann")} - {path.stem for path in texts}):
        problems.add(str(folder / f"{alone}.ann"), f"its text, {alone}.txt, is not in the same folder")
    for number, path in enumerate(texts, 1):
        text, marks = _read(path, problems), path.with_suffix(".ann")
        if not marks.exists():
            annotated: dict[str, Any] = {"annotated": False}
        else:
            lines = enumerate((_read(marks, problems) or "").split("\n"), 1)
            annotated = {"spans": [_span(line, text, f"{marks}:{n}", problems) for n, line in lines if line[:1] == "T"]}
        if not problems:
            yield number, {"id": path.stem, "text": text, **annotated}
    problems.raise_if_any()


def _read(path: Path, problems: Problems) -> str | None:
    """The text with its line breaks as they are: offsets count them."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        problems.add(str(path), f"is not UTF-8: {error.reason} at byte {error.start}", "save it as UTF-8")
        return None


def _span(line: str, text: str | None, where: str, problems: Problems) -> dict[str, Any]:
    found = _TEXT_BOUND.fullmatch(line.rstrip("\r"))
    if not found:
        problems.add(where, f"not brat's ID<tab>TYPE START END<tab>TEXT: {short_repr(line)}")
        return {}
    label, start, end, marked = found.groups()
    if ";" in start:
        fix = "make it one span, or several, in brat: a tag of words cannot leave words out"
        problems.add(where, f"the span {short_repr(marked)} is discontinuous ({start} {end})", fix)
        return {}
    if text is not None and (given := text[int(start) : int(end)]).split() != marked.split():
        there = f"from {start} to {end}, where the text has {short_repr(given)}"
        problems.add(where, f"the span {short_repr(marked)} is {there}")
    return {"start": int(start), "end": int(end), "label": label}
