"""YAML 1.2 text -> plain data, with the line of every key and every fault at once.

The data are read from the parser's events: nothing is constructed, so tags can not name objects, and
aliases are refused, so none can multiply. Numbers are those of the YAML 1.2 core schema: 2e-5 is a number,
`no` is text, a date is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.reader import ReaderError

from bertkit.text import KeyPath, dotted, short_repr

MAX_BYTES = 256 * 1024  # nobody writes so many settings, and the parser takes up to 20 microseconds a byte
MAX_DEPTH = 20
MAX_DIGITS = 100


# https://yaml.org/spec/1.2.2/#103-core-schema
_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCT_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN")
_UNUSABLE = re.compile(r"[\x00\ud800-\udfff]")  # no file name and no UTF-8 text can hold these


class Fault(NamedTuple):
    """Something wrong with the text itself. line: from 1."""

    line: int
    what: str
    fix: str = ""


class Document(NamedTuple):
    """What a text says. lines: key path -> line, from 1.

    With faults, data is what could be read, or null where nothing could; spoilt are the key paths whose
    values stand for nothing, because a fault is already reported there.
    """

    data: Any
    lines: dict[KeyPath, int]
    faults: list[Fault]
    spoilt: set[KeyPath]


def _short(name: str) -> str:
    return short_repr(name)[1:-1]


def parse(content: bytes | str) -> Document:
    """Read one YAML 1.2 document. Raises nothing: what is wrong is in `faults`."""
    size = len(content) if isinstance(content, bytes) else len(content.encode(errors="replace"))
    if size > MAX_BYTES:
        return Document(None, {}, [Fault(1, f"more than {MAX_BYTES // 1024} KB of text")], {()})
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            what = f"byte 0x{error.object[error.start]:02x} is not UTF-8 text"
            return Document(None, {}, [Fault(line, what, "save the file as UTF-8")], {()})
    builder = _Builder()
    try:
        data = builder.document(YAML(typ="safe", pure=True).parse(content))
    except _Stop:
        pass
    except ReaderError as error:
        line = content.count("\n", 0, error.position) + 1
        builder.faults.append(Fault(line, f"control character U+{ord(content[error.position]):04X}"))
    except (YAMLError, ValueError, OverflowError) as error:
        # ValueError, OverflowError: ruamel.yaml hands "\U00110000" and `%YAML 1.<5000 digits>` to Python unchecked
        builder.faults.append(_syntax_fault(error, builder.line))
    else:
        return Document(data, builder.lines, builder.faults, builder.spoilt)
    return Document(None, builder.lines, builder.faults, {()})


# what the parser says -> what a person says, and does
_PLAIN_WORDS = (
    ("'\\t'", "a tab in the indentation", "indent with blanks"),
    ("cannot start any token", "text can not start with this character", "put quotes around it"),
    ("could not find expected ':'", "a key without `:`", "write key: value"),
    ("unknown escape", "`\\` has a meaning between double quotes", "use single quotes"),
    ("<document start>", "this is no part of what stands above it", "look at the indentation"),
    ("<block", "this is no part of what stands above it", "look at quotes, brackets and the indentation"),
    (
        "mapping values are not allowed",
        "a `:` where no key can stand",
        "put quotes around text that holds `: `, or look for a missing `:` in the line above",
    ),
)


def _syntax_fault(error: Exception, line: int) -> Fault:
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return Fault(line, f"YAML syntax: {str(error)[:200]}")
    line = error.problem_mark.line + 1
    problem = " ".join(str(error.problem).split()).replace("'<stream end>'", "the end of the text")
    for said, what, fix in _PLAIN_WORDS:
        if said in problem:
            return Fault(line, f"YAML syntax: {what}", fix)
    began = error.context_mark.line + 1 if error.context_mark is not None else line
    return Fault(line, f"YAML syntax: {problem[:200]}" + (f" (it began in line {began})" if began != line else ""))


class _Stop(Exception):
    """The rest of the text is not worth reading."""


class _Builder:
    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[Fault] = []
        self.spoilt: set[KeyPath] = set()
        self.line = 1

    def document(self, events: Iterator[Event]) -> Any:
        data, documents = None, 0
        for event in events:
            self.line = event.start_mark.line + 1
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.stop("a second document", "a file holds one recipe: remove what follows `---`")
                if event.version not in (None, (1, 2)):
                    self.fault("%YAML: recipes are YAML 1.2", "remove the line")
            elif isinstance(event, NodeEvent):
                data = self.node(event, events, ())
        return data

    def fault(self, what: str, fix: str = "") -> None:
        self.faults.append(Fault(self.line, what, fix))
        if len(self.faults) >= 100:
            raise _Stop

    def stop(self, what: str, fix: str = "") -> None:
        self.fault(what, fix)
        raise _Stop

    def spoil(self, path: KeyPath, what: str, fix: str = "") -> None:
        self.spoilt.add(path)
        self.fault(what, fix)

    def node(self, event: NodeEvent, events: Iterator[Event], path: KeyPath) -> Any:
        self.line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            self.spoil(path, f"alias *{_short(event.anchor)}: recipes have no aliases", "write the value out")
            return None
        if event.anchor:
            self.fault(f"anchor &{_short(event.anchor)}: recipes have no aliases", "remove it")
        assert isinstance(event, ScalarEvent | CollectionStartEvent)
        if event.tag is not None:
            name = event.tag.replace("tag:yaml.org,2002:", "!!", 1)
            self.spoil(path, f"tag {_short(name)}: a recipe is data, and names no types", "remove the tag")
        if isinstance(event, ScalarEvent):
            return self.scalar(event, path)
        if len(path) >= MAX_DEPTH:
            self.stop(f"more than {MAX_DEPTH} levels deep")
        return self.mapping(events, path) if isinstance(event, MappingStartEvent) else self.sequence(events, path)

    def sequence(self, events: Iterator[Event], path: KeyPath) -> list[Any]:
        items: list[Any] = []
        for event in events:
            if isinstance(event, CollectionEndEvent):
                break
            assert isinstance(event, NodeEvent)
            here = (*path, len(items))
            self.lines[here] = event.start_mark.line + 1
            items.append(self.node(event, events, here))
        return items

    def mapping(self, events: Iterator[Event], path: KeyPath) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for event in events:
            if isinstance(event, CollectionEndEvent):
                break
            assert isinstance(event, NodeEvent)
            line = event.start_mark.line + 1
            key = self.key(event, events, path)
            here = (*path, key or "?")
            first = self.lines.get(here)
            if key in items:
                self.fault(f"{dotted(here)}: written twice, in lines {first} and {line}", "keep one")
            value_event = next(events)
            assert isinstance(value_event, NodeEvent)
            if key is None or key in items:
                # read for its own faults, and dropped: the first one stands, and so do its lines
                kept, self.lines = self.lines, {}
                self.node(value_event, events, here)
                self.lines = kept
            else:
                self.lines[here] = line
                items[key] = self.node(value_event, events, here)
        return items

    def key(self, event: NodeEvent, events: Iterator[Event], path: KeyPath) -> str | None:
        """The key's text as it stands in the file, as in {0: negative, true: positive}; null with a fault."""
        faults = len(self.faults)
        kept, self.lines = self.lines, {}
        self.node(event, events, (*path, "?"))
        self.lines = kept
        self.line = event.start_mark.line + 1
        if isinstance(event, ScalarEvent) and (event.value or not event.implicit[0]):
            return str(event.value) if len(self.faults) == faults else None
        if isinstance(event, ScalarEvent):
            self.fault("a key is empty", "write a word before the `:`")
        elif isinstance(event, CollectionStartEvent):
            self.fault("a key is a list or a mapping", "keys are words")
        return None

    def scalar(self, event: ScalarEvent, path: KeyPath) -> Any:
        text = str(event.value)
        if unusable := _UNUSABLE.search(text):
            self.spoil(path, f"control character U+{ord(unusable[0]):04X}")
            return None
        if not event.implicit[0]:
            return text
        if (_INT.fullmatch(text) or _OCT_HEX.fullmatch(text)) and len(text) > MAX_DIGITS:
            self.spoil(path, f"a number of {len(text)} digits")
            return None
        value = plain(text)
        if isinstance(value, float) and not math.isfinite(value):
            self.spoil(path, f"{short_repr(text)} is not a finite number")
            return None
        return value


def plain(text: str) -> Any:
    """What unquoted text means in the core schema of YAML 1.2."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _OCT_HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "").lower())
    return text
