"""Rows -> documents with an id, a text and metadata; each column of metadata has one type."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bertkit.data.problems import FirstSeen, Problems
from bertkit.data.values import read_name, refuse_pairs, replace_surrogates
from bertkit.text import Record, short_repr

HIDDEN = ("passage", "start", "end", "hash", "vector")  # columns of the store itself
RESERVED = ("id", "text", "title", *HIDDEN)
SCALARS = {
    pa.bool_(): "true or false",
    pa.int64(): "whole numbers",
    pa.float64(): "numbers",
    pa.string(): "text",
}
TYPE_NAMES = SCALARS | {pa.list_(kind): f"lists of {name}" for kind, name in SCALARS.items()}
_WIDER = {pa.int64(): pa.float64(), pa.list_(pa.int64()): pa.list_(pa.float64())}  # which holds both
_BATCH = 512  # pages that are encoded and written in one step
_PAGE = 2000  # characters


@dataclass(frozen=True)
class Document:
    """A row to index. hash: of title, text and metadata. empty: without title and text."""

    where: str
    id: str
    title: str
    text: str
    metadata: Record
    hash: str
    empty: bool


def read_documents(rows: Iterable[tuple[str, Record]], seen: FirstSeen) -> Iterator[list[Document]]:
    """Batches of documents, without repeated ones. rows: with their locations. seen: to fill with the ids.

    Nothing is yielded after the first bad row, but the rest is still checked.
    Raises DataError: no id, no text, values of unsupported types, an id with two contents.
    """
    problems = Problems()
    batch = list[Document]()
    pages = 0
    for where, row in rows:
        if (document := _document(where, row, problems)) is None:
            continue
        new, other = seen.add(document.id, document.hash, where)
        if other is not None:
            what = f"the id {short_repr(document.id)} has other contents at {other}"
            problems.add(where, what, "Use unique ids, or leave out the outdated document.")
        elif new and not problems:
            batch.append(document)
            pages += 1 + len(document.text) // _PAGE
        if pages >= _BATCH:
            yield batch
            batch = []
            pages = 0
    problems.raise_if_any()
    if batch:
        yield batch


def new_columns(batch: Sequence[Document], columns: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Column -> type, of the columns that this batch adds to these; whole and other numbers make numbers.

    Raises DataError with the rows that hold another type.
    """
    problems = Problems()
    new = dict[str, pa.DataType]()
    for document in batch:
        for name, value in document.metadata.items():
            kind = _type_of(value)
            expected = columns.get(name) or new.setdefault(name, kind)
            if name in new and kind == _WIDER.get(expected):
                new[name] = kind
            elif expected not in (kind, _WIDER.get(kind)):
                what = f"`{name}` holds {short_repr(value)}, but earlier rows hold {TYPE_NAMES[expected]}"
                problems.add(document.where, what, "Use one type per column, or rename it.")
    problems.raise_if_any()
    return new


def _document(where: str, row: Record, problems: Problems) -> Document | None:
    """None, and problems, for a bad row."""
    key = "id" if "id" in row else "_id"
    wrong = list[str]()
    identifier = row.get(key)
    title = row.get("title")
    text = row.get("text")
    name = ""
    try:
        name = read_name(None if isinstance(identifier, bool) else identifier) or ""
    except ValueError as error:
        wrong.append(f"its `id` {error}")
    if not wrong and not name.strip():
        wrong.append(f"`id`: expected text or a whole number, found {short_repr(identifier)}")
    if "text" not in row:
        wrong.append(f"has no column `text`; it has {', '.join(map(str, row)) or 'nothing'}")
    for column, value in (("title", title), ("text", text)):
        try:
            refuse_pairs([value or ""])
        except (TypeError, AttributeError):
            wrong.append(f"`{column}`: expected text, found {short_repr(value)}")
        except ValueError as error:
            wrong.append(f"`{column}` {error}")
    rest = {
        column: value for column, value in row.items() if column not in (key, "title", "text", "metadata")
    }
    nested = row.get("metadata")
    nested = nested if isinstance(nested, Mapping) else {"metadata": nested}  # BEIR nests them
    wrong += [f"has `{column}` twice, inside `metadata` and outside" for column in nested if column in rest]
    cells = {column: _clean(value) for column, value in {**rest, **nested}.items()}
    metadata = {
        column: value for column, value in cells.items() if value not in (None, []) and value == value
    }
    wrong += [what for column, value in metadata.items() for what in _wrong(column, value)]
    for what in wrong:
        problems.add(where, what, "Correct the row, or leave it out.")
    if wrong:
        return None
    title = _clean(title or "")
    text = _clean(text or "")
    content = json.dumps([title, text, sorted(metadata.items())])
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return Document(where, _clean(name), title, text, metadata, digest, not f"{title}{text}".strip())


def _wrong(name: Any, value: Any) -> Iterator[str]:
    # LanceDB reserves names with a leading _, and reads dots and quotes in names.
    plain = isinstance(name, str) and name.strip() and name[0] != "_" and not {".", "`", '"'} & set(name)
    if not plain or name.lower() in RESERVED or _clean(name) != name:
        yield f"the column name {short_repr(name)} is not available; rename it"
    if _type_of(value) not in TYPE_NAMES:
        scalars = "text, numbers of at most 64 bits, true or false"
        expected = (
            f"metadata are {scalars}, or lists of values of one of these types (dates as text: 2024-05-31)"
        )
        yield f"`{name}` holds {short_repr(value)}; {expected}"


def _type_of(value: Any) -> pa.DataType | None:
    try:
        return pa.scalar(value).type
    except (pa.ArrowException, OverflowError):
        return None


def _clean(value: Any) -> Any:
    """The value with lone surrogates in its texts as U+FFFD."""
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return replace_surrogates(value) if isinstance(value, str) else value
