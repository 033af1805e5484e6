"""brat's standoff files as rows: NAME.ann is one row, with the text of NAME.txt and its entities as spans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bertkit.data import OpenFile, Reader

_ENTITY = re.compile(r"T\d+\t(?P<label>\S+) (?P<places>\d+ \d+(?:;\d+ \d+)*)\t(?P<marked>.*)")


def rows(file: OpenFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """The row of a file: `id`, `text` and `spans`; relations, events, attributes and notes are left out."""
    text = file.beside("txt")
    spans = list[dict[str, Any]]()
    for number, line in file.lines():
        if not line.startswith("T"):
            continue
        entity = _ENTITY.fullmatch(line.rstrip("\r\n"))
        if entity is None:
            file.problems.add(number, "is not an entity", "expected T1<TAB>LABEL START END<TAB>TEXT")
            continue
        if ";" in entity["places"]:
            file.problems.add(
                number, "an entity of several parts cannot be read", "mark it as one, or remove it"
            )
            continue
        start, end = map(int, entity["places"].split())
        if re.sub(r"\s", " ", text[start:end]) != entity["marked"]:
            what = f"marks {entity['marked']!r} from {start} to {end}, where the text has {text[start:end]!r}"
            file.problems.add(number, what, "save the annotations again with this text")
        spans.append({"start": start, "end": end, "label": entity["label"]})
    yield 1, {"id": file.path.name.partition(".ann")[0], "text": text, "spans": spans}


READER = Reader("brat", rows, ["ann"], columns="fixed", beside=["txt"])
