"""Rows -> documents with an id, a text and metadata, each column of which holds one type."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bertkit.data.table import FirstSeen, Problems
from bertkit.data.values import replace_surrogates
from bertkit.text import short_repr

Scalar: TypeAlias = bool | int | float | str
Placed: TypeAlias = tuple[str, Mapping[str, Any]]  # where a row stands, such as "corpus.jsonl:12", and the row

OWN = ("id", "passage", "start", "end", "text", "title", "hash", "vector")  # columns of the store itself
MOST_DOCUMENTS, MOST_CHARACTERS = 512, 1_000_000  # of a batch: what is encoded, and then kept in one step
HOLDS = {bool: "true or false", int: "whole numbers", float: "numbers", str: "text"}


@dataclass(frozen=True)
class Document:
    """A row, read. `hash` is of all that it holds."""

    where: str
    id: str
    title: str
    text: str
    metadata: Mapping[str, Scalar]
    hash: str

    @property
    def empty(self) -> bool:
        """Is there nothing to search for?"""
        return not (self.title.strip() or self.text.strip())


@dataclass
class Reader:
    """Reads rows one by one; remembers every id, some 300 bytes each, so that none stands for two documents."""

    seen: FirstSeen = field(default_factory=FirstSeen)  # id -> hash

    @property
    def repeated(self) -> int:
        """Documents that were given again with the same contents."""
        return self.seen.repeats

    def read(self, rows: Iterable[Placed]) -> Iterator[Document]:
        """The documents, without repeated ones.

        Nothing more is yielded after the first bad row, but reading goes on to gather more of them.
        Raises DataError: no id, no text, fields of another kind, an id with two contents.
        """
        problems = Problems()
        for where, row in rows:
            document = _document(where, row, problems)
            if document is None:
                continue
            new, other = self.seen.add(document.id, document.hash, where)
            if other is not None:
                fix = "Give each document an id of its own, or leave the outdated one out."
                problems.add(where, f"the id {short_repr(document.id)} has other contents at {other}", fix)
            elif new and not problems:
                yield document
        problems.raise_if_any()


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """In order, at most MOST_DOCUMENTS or, but for one that is longer itself, MOST_CHARACTERS at a time."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        size = len(document.title) + len(document.text)
        if batch and (len(batch) == MOST_DOCUMENTS or characters + size > MOST_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(document)
        characters += size
    if batch:
        yield batch


def settle(batch: Sequence[Document], known: Mapping[str, type]) -> dict[str, type]:
    """Column -> type, of the columns that are new with this batch: whole numbers beside others are numbers.

    known: column -> type, settled before. Raises DataError with the rows that hold another type.
    """
    problems, new = Problems(), dict[str, type]()
    for document in batch:
        for name, value in document.metadata.items():
            if name not in known and {new.get(name), type(value)} == {int, float}:
                new[name] = float
            expected = known.get(name) or new.setdefault(name, type(value))
            if type(value) is not expected and (expected, type(value)) != (float, int):
                what = f"`{name}` holds {short_repr(value)}, where the rows before hold {HOLDS[expected]}"
                problems.add(document.where, what, "Write the column in one way, or name it otherwise.")
    problems.raise_if_any()
    return new


def _document(where: str, row: Mapping[str, Any], problems: Problems) -> Document | None:
    """None where something is wrong with the row."""
    found: list[str] = []
    own = "id" if "id" in row else "_id"
    name = _id(row.get(own), found)
    title, text = (_text(row, key, found) for key in ("title", "text"))
    if "text" not in row:
        found.append(f"has no column `text`; it has {', '.join(map(str, row)) or 'nothing'}")
    rest = {key: value for key, value in row.items() if key not in (own, "title", "text", "metadata")}
    nested = row.get("metadata")
    nested = nested if isinstance(nested, Mapping) else {"metadata": nested}  # BEIR nests them
    found += [f"`{key}` stands twice, inside of `metadata` and outside" for key in nested if key in rest]
    rest |= nested
    metadata = {k: read for k, v in rest.items() if (read := _scalar(k, v, found)) is not None}
    for what in found:
        problems.add(where, what)
    if found:
        return None
    content = json.dumps([title, text, sorted(metadata.items())])
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return Document(where, name, title, text, metadata, digest)


def _id(value: Any, found: list[str]) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        found.append(f"its `id` is {short_repr(value)}, where a text or a whole number is expected")
        return ""
    return replace_surrogates(value)


def _text(row: Mapping[str, Any], name: str, found: list[str]) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        found.append(f"`{name}` holds {short_repr(value)}, where text is expected")
        return ""
    return replace_surrogates(value or "")


def _scalar(name: Any, value: Any, found: list[str]) -> Scalar | None:
    """None where there is no value, as pandas writes it too, or a bad one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not _allowed(name, OWN):
        found.append(f"the column {short_repr(name)} can not be kept under this name; rename it")
    elif type(value) not in HOLDS:
        kept = "metadata are text, numbers, true or false (dates as text: 2024-05-31)"
        found.append(f"`{name}` holds {short_repr(value)}; {kept}")
    elif type(value) is int and not -(2**63) <= value < 2**63:
        found.append(f"`{name}` holds {short_repr(value)}, a number of more than 64 bits; write it as text")
    else:
        return replace_surrogates(value) if isinstance(value, str) else value
    return None


def _allowed(name: Any, own: Collection[str]) -> bool:
    """Names with a leading _ are the database's; a dot or a backtick has a meaning in filters."""
    plain = isinstance(name, str) and name.strip() and not name.startswith("_") and not {".", "`"} & set(name)
    return bool(plain) and name.lower() not in own and replace_surrogates(name) == name
