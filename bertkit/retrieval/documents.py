"""Rows -> documents with an id, a text and metadata; each column of metadata has one type."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, TypeAlias

from bertkit.data.table import FirstSeen, Problems
from bertkit.data.values import refuse_pairs, replace_surrogates
from bertkit.text import short_repr

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | list[Any]  # a list holds scalars of one type
Kind: TypeAlias = type | GenericAlias  # of a column: such as `str`, or `list[str]`

RESERVED = ("id", "passage", "start", "end", "text", "title", "hash", "vector")  # columns of the store itself
BATCH_DOCUMENTS, BATCH_CHARACTERS = 512, 1_000_000  # limits of a batch, which is encoded and then written in one step
SCALARS: dict[Kind, str] = {bool: "true or false", int: "whole numbers", float: "numbers", str: "text"}
TYPE_NAMES = SCALARS | {GenericAlias(list, (kind,)): f"lists of {name}" for kind, name in SCALARS.items()}
WIDER: dict[Kind | None, Kind] = {int: float, list[int]: list[float]}  # columns of the second hold values of the first


@dataclass(frozen=True)
class Document:
    """A row to index. hash: of title, text and metadata."""

    where: str
    id: str
    title: str
    text: str
    metadata: Mapping[str, Value]
    hash: str

    @property
    def empty(self) -> bool:
        """True without title and text."""
        return not (self.title.strip() or self.text.strip())


def read_documents(rows: Iterable[tuple[str, Mapping[str, Any]]], seen: FirstSeen) -> Iterator[Document]:
    """The documents, without repeated ones. rows: with their locations. seen: to fill with the ids, 300 bytes each.

    Nothing is yielded after the first bad row, but the rest is still checked.
    Raises DataError: no id, no text, values of unsupported types, an id with two contents.
    """
    problems = Problems()
    for where, row in rows:
        document = _document(where, row, problems)
        if document is None:
            continue
        new, other = seen.add(document.id, document.hash, where)
        if other is not None:
            what = f"the id {short_repr(document.id)} has other contents at {other}"
            problems.add(where, what, "Give each document its own id, or leave out the outdated one.")
        elif new and not problems:
            yield document
    problems.raise_if_any()


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """In order, up to BATCH_DOCUMENTS and BATCH_CHARACTERS each; a longer document is a batch of its own."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        size = len(document.title) + len(document.text)
        if batch and (len(batch) == BATCH_DOCUMENTS or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(document)
        characters += size
    if batch:
        yield batch


def infer_column_types(batch: Sequence[Document], known: Mapping[str, Kind]) -> dict[str, Kind]:
    """Column -> type, of the columns that this batch adds to the known ones; int and float make float.

    Raises DataError with the rows that hold another type.
    """
    problems, new = Problems(), dict[str, Kind]()
    for document in batch:
        for name, value in document.metadata.items():
            kind = GenericAlias(list, (type(value[0]),)) if isinstance(value, list) else type(value)
            if kind == WIDER.get(new.get(name)):
                new[name] = kind
            expected = known.get(name) or new.setdefault(name, kind)
            if expected not in (kind, WIDER.get(kind)):
                what = f"`{name}` holds {short_repr(value)}, but earlier rows hold {TYPE_NAMES[expected]}"
                problems.add(document.where, what, "Write the column in one type, or rename it.")
    problems.raise_if_any()
    return new


def _document(where: str, row: Mapping[str, Any], problems: Problems) -> Document | None:
    """None, and problems, for a bad row."""
    wrong: list[str] = []
    id_column = "id" if "id" in row else "_id"
    name = _id(row.get(id_column), wrong)
    title, text = (_text(row, key, wrong) for key in ("title", "text"))
    if "text" not in row:
        wrong.append(f"has no column `text`; it has {', '.join(map(str, row)) or 'nothing'}")
    rest = {key: value for key, value in row.items() if key not in (id_column, "title", "text", "metadata")}
    nested = row.get("metadata")
    nested = nested if isinstance(nested, Mapping) else {"metadata": nested}  # BEIR nests them
    wrong += [f"has `{key}` twice, inside `metadata` and outside" for key in nested if key in rest]
    metadata = {k: v for k, value in {**rest, **nested}.items() if (v := _value(k, value, wrong)) is not None}
    for what in wrong:
        problems.add(where, what)
    if wrong:
        return None
    content = json.dumps([title, text, sorted(metadata.items())])
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return Document(where, name, title, text, metadata, digest)


def _id(value: Any, wrong: list[str]) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        wrong.append(f"its `id` is {short_repr(value)}, where a text or a whole number is expected")
        return ""
    return replace_surrogates(value)


def _text(row: Mapping[str, Any], name: str, wrong: list[str]) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        wrong.append(f"`{name}` holds {short_repr(value)}, where text is expected")
        return ""
    try:
        refuse_pairs([value or ""])
    except ValueError as error:
        wrong.append(f"`{name}` {error}")
    return replace_surrogates(value or "")


def _value(name: Any, value: Any, wrong: list[str]) -> Value | None:
    """None for a missing value, such as an empty list, and for a bad one. The values of a list get one type."""
    if not isinstance(value, list):
        return _scalar(name, value, wrong)
    bad = list[str]()
    items = [_scalar(name, each, bad) for each in value]
    kinds = set(map(type, items))
    if not bad and kinds == {int, float}:
        items = [float(each) for each in items if each is not None]
    elif not bad and (len(kinds) > 1 or None in items):
        bad = [f"`{name}` holds {short_repr(value)}; a list must hold values of one type, none of them missing"]
    wrong += bad[:1]
    return items or None


def _scalar(name: Any, value: Any, wrong: list[str]) -> Scalar | None:
    """None for a missing value, which pandas writes as NaN, and for a bad one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not _is_column_name(name):
        wrong.append(f"the column name {short_repr(name)} is not available; rename it")
    elif type(value) not in SCALARS:
        expected = "metadata are text, numbers, true or false, or lists of one of these (dates as text: 2024-05-31)"
        wrong.append(f"`{name}` holds {short_repr(value)}; {expected}")
    elif type(value) is int and not -(2**63) <= value < 2**63:
        wrong.append(f"`{name}` holds {short_repr(value)}, a number of more than 64 bits; write it as text")
    else:
        return replace_surrogates(value) if isinstance(value, str) else value
    return None


def _is_column_name(name: Any) -> bool:
    """LanceDB reserves names with a leading _; a dot and a backtick have a meaning in filters."""
    plain = isinstance(name, str) and name.strip() and not name.startswith("_") and not {".", "`"} & set(name)
    return bool(plain) and name.lower() not in RESERVED and replace_surrogates(name) == name
