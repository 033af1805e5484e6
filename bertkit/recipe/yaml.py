"""YAML 1.2 text -> plain data, with the line of every key and every fault at once; and plain data as such
text.

ruamel.yaml parses; the data are read from its events, because its loaders fail what a recipe needs: the
round-trip loader (whose `.lc` has lines) stops at the first duplicate key, resolves aliases, drops tags
silently, fails with RecursionError on deep nesting, turns 1_000 into a number, 2026-11-01 into a date, and
keys such as 007 into numbers. Here nothing is constructed, so no tag names an object, and aliases are
refused, so none can multiply.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

from bertkit.text import Json, KeyPath, dotted, short_repr

MAX_BYTES = 256 * 1024  # the parser takes up to 20 microseconds per byte
MAX_DEPTH = 20
MAX_DIGITS = 100
_UNUSABLE = re.compile(r"[\x00\ud800-\udfff]")  # neither a file name nor UTF-8 text can contain these
_DIGITS = re.compile(r"[-+]?[0-9]+|0[ox][0-9a-fA-F]+")

# unquoted text and its value: https://yaml.org/spec/1.2.2/#103-core-schema
_CORE_SCHEMA = (
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (
        re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN"),
        lambda text: float(text.replace(".", "").lower()),
    ),
)


class Document(NamedTuple):
    """The content of a text. lines: key path -> line, from 1. faults: the line, what is wrong and a fix of
    each.

    text: without a byte order mark. spans: key path -> where its scalar begins and ends in the text.

    With faults, data is what could be read, or None. spoilt: the key paths whose values are meaningless
    because of a fault that is already reported.
    """

    data: Any
    lines: dict[KeyPath, int]
    faults: list[tuple[int, str, str]]
    spoilt: set[KeyPath]
    text: str
    spans: dict[KeyPath, tuple[int, int]]

    def with_texts(self, texts: Mapping[KeyPath, str]) -> str:
        """The text with other texts as values; all else, comments too, stays as it is."""
        result = self.text
        for path, text in sorted(texts.items(), key=lambda item: self.spans[item[0]], reverse=True):
            start, end = self.spans[path]
            bare = re.fullmatch(r"[\w./-]+", text) and isinstance(plain(text), str)
            new = text if bare else json.dumps(text, ensure_ascii=not text.isprintable())
            newline = "\n" * result[:end].endswith("\n")  # of a block
            result = result[:start] + new + newline + result[end:]
        return result


def parse(content: bytes | str) -> Document:
    """Read one YAML 1.2 document. Raises nothing: what is wrong is in `faults`."""
    reader = _Reader()
    data = None
    try:
        data = reader.document(
            content.encode(errors="surrogatepass") if isinstance(content, str) else content
        )
    except _Stop:
        reader.spoilt.add(())
    return Document(data, reader.lines, reader.faults, reader.spoilt, reader.text, reader.spans)


def plain(text: str) -> Any:
    """The value of unquoted text."""
    return next((value(text) for pattern, value in _CORE_SCHEMA if pattern.fullmatch(text)), text)


def written(data: Any, *, flow: bool = False) -> str:
    """Plain data as YAML text: `parse` of it gives equal data. flow: on one line, in brackets."""
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Plain
    writer.default_flow_style = flow
    writer.representer.sort_base_mapping_type_on_output = False
    writer.width = 2**31
    text = io.StringIO()
    writer.dump(data, text)
    return text.getvalue()


class _Plain(SafeRepresenter):
    """Quotes text that would not be read as text, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> ScalarNode:
        style = None if data.isprintable() and isinstance(plain(data), str) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Plain.add_representer(str, _Plain.represent_str)


# message of the parser -> message for people, fix
_MESSAGES = (
    ("'\\t'", "a tab in the indentation", "Indent with spaces."),
    ("<document start>", "this does not belong to the lines above", "Check the indentation."),
    ("<block", "this does not belong to the lines above", "Check quotes, brackets and the indentation."),
    (
        "mapping values are not allowed",
        "a `:` where no key is possible",
        "Put quotes around text that contains `: `, or look for a missing `:` in the line above.",
    ),
)


_CHECK = "Check quotes, brackets and the indentation."


def _short(name: str) -> str:
    return short_repr(name)[1:-1]


class _Stop(Exception):
    """The rest of the text is not worth reading."""


class _Reader:
    """Builds data from the parser's events, and collects lines and faults. line: of the current event."""

    def __init__(self) -> None:
        self.events: Iterator[Any] = iter(())
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[tuple[int, str, str]] = []
        self.spoilt: set[KeyPath] = set()
        self.spans: dict[KeyPath, tuple[int, int]] = {}
        self.line = 1
        self.text = ""

    def document(self, content: bytes) -> Any:
        if len(content) > MAX_BYTES:
            self.stop(f"more than {MAX_BYTES // 1024} KB of text", "Check that the file is a recipe.")
        try:
            self.text = content.decode("utf-8-sig")
            self.events = self.numbered(YAML(typ="safe", pure=True).parse(self.text))
            return self.only_document()
        except UnicodeDecodeError as error:
            self.line = error.object.count(b"\n", 0, error.start) + 1
            self.stop(f"byte 0x{error.object[error.start]:02x} is not UTF-8 text", "Save the file as UTF-8.")
        except ReaderError as error:
            self.line = self.text.count("\n", 0, error.position) + 1
            self.stop(f"control character U+{ord(self.text[error.position]):04X}", "Remove it.")
        except (YAMLError, ValueError, OverflowError) as error:
            # ValueError, OverflowError: ruamel.yaml hands "\U00110000" and `%YAML 1.<5000 digits>` to Python
            # unchecked
            self.stop(*self.syntax_fault(error))

    def numbered(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self.line = event.start_mark.line + 1
            yield event

    def syntax_fault(self, error: Exception) -> tuple[str, str]:
        if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
            return f"YAML syntax: {str(error)[:200]}", _CHECK
        self.line = error.problem_mark.line + 1
        problem = " ".join(str(error.problem).split()).replace("'<stream end>'", "the end of the text")
        for message, what, fix in _MESSAGES:
            if message in problem:
                return f"YAML syntax: {what}", fix
        start = error.context_mark.line + 1 if error.context_mark is not None else self.line
        return f"YAML syntax: {problem[:200]}" + (
            f" (started in line {start})" if start != self.line else ""
        ), _CHECK

    def only_document(self) -> Any:
        data = None
        documents = 0
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.stop(
                        "a second document", "Remove everything from `---` on: a file holds one recipe."
                    )
                if event.version not in (None, (1, 2)):
                    self.fault("%YAML: recipes are YAML 1.2", "Remove the line.")
            elif isinstance(event, NodeEvent):
                data = self.node(event, ())
        return data

    def fault(self, what: str, fix: str = "") -> None:
        self.faults.append((self.line, what, fix))

    def stop(self, what: str, fix: str = "") -> NoReturn:
        self.fault(what, fix)
        raise _Stop

    def spoil(self, path: KeyPath, what: str, fix: str = "") -> None:
        self.spoilt.add(path)
        self.fault(what, fix)

    def children(self) -> Iterator[Any]:
        """The events of a collection whose start has been read; who takes one reads all of its node."""
        return takewhile(lambda event: not isinstance(event, CollectionEndEvent), self.events)

    def node(self, event: Any, path: KeyPath) -> Any:
        if isinstance(event, AliasEvent):
            return self.spoil(
                path, f"alias *{_short(event.anchor)}: recipes have no aliases", "Write the value itself."
            )
        if event.anchor:
            self.fault(f"anchor &{_short(event.anchor)}: recipes have no aliases", "Remove it.")
        if event.tag is not None:
            name = event.tag.replace("tag:yaml.org,2002:", "!!", 1)
            self.spoil(path, f"tag {_short(name)}: a recipe is data and names no types", "Remove the tag.")
        if isinstance(event, ScalarEvent):
            return self.scalar(event, path)
        if len(path) >= MAX_DEPTH:
            self.stop(f"more than {MAX_DEPTH} levels deep", "Use fewer levels.")
        return self.mapping(path) if isinstance(event, MappingStartEvent) else self.sequence(path)

    def sequence(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        for event in self.children():
            here = (*path, len(items))
            self.lines.setdefault(here, self.line)
            items.append(self.node(event, here))
        return items

    def mapping(self, path: KeyPath) -> Json:
        """The first value of a duplicate key is used, with its lines; the others are only read for their
        faults.
        """
        items: Json = {}
        children = self.children()
        for event in children:
            line = self.line
            key = self.key(event, path)
            here = (*path, "?" if key is None else key)
            if key in items:
                self.fault(
                    f"{dotted(here)}: written twice, in lines {self.lines[here]} and {line}", "Keep one."
                )
            self.lines.setdefault(here, line)
            value = self.node(next(children), here)
            if key is not None:
                items.setdefault(key, value)
        return items

    def key(self, event: Any, path: KeyPath) -> str | None:
        """The key as it is written, so that 0 and true are text; None with a fault."""
        faults = len(self.faults)
        line = self.line
        self.node(event, (*path, "?"))
        self.line = line
        if isinstance(event, CollectionStartEvent):
            self.fault("a key is a list or a mapping", "Write a word as key.")
        elif isinstance(event, ScalarEvent) and not event.value and event.implicit[0]:
            self.fault("a key is empty", "Write a word before the `:`.")
        return str(event.value) if len(self.faults) == faults else None

    def scalar(self, event: Any, path: KeyPath) -> Any:
        text = str(event.value)
        self.spans[path] = (event.start_mark.index, event.end_mark.index)
        if unusable := _UNUSABLE.search(text):
            return self.spoil(path, f"control character U+{ord(unusable[0]):04X}", "Remove it.")
        if not event.implicit[0]:
            return text
        if len(text) > MAX_DIGITS and _DIGITS.fullmatch(text):
            return self.spoil(
                path, f"a number of {len(text)} digits", "Put quotes around it, or write fewer."
            )
        value = plain(text)
        if isinstance(value, float) and not math.isfinite(value):
            return self.spoil(path, f"{short_repr(text)} is not a finite number", "Write a finite number.")
        return value
