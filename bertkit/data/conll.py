"""Rows from CoNLL files: one word with its annotations per line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from bertkit.data.schema import note, warn
from bertkit.data.table import NumberedRow, Problems, setting
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import counted, short_repr

Lines: TypeAlias = Iterator[tuple[int, str]]  # of a file, numbered from 1
_CONLLU = ("form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # after ID
DOCUMENT = "-DOCSTART-"  # begins the first line of a document (CoNLL-2003)

_TABS = "if tabs separate the fields and fields contain spaces, " + setting("delimiter", '"\\t"')


def conll_rows(lines: Lines, spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    """Sentences as (line of the first word, {column: list of str}), from numbered lines.

    Columns are named by `spec.header` where it is a list, else by position: `tokens`, then `column2`, `column3`
    …, and the last `tags`. A file that begins with a -DOCSTART- line has a column `document` too: the number of
    the document, "1" for the first; a file with words before its first -DOCSTART- is one document. Fields are
    separated by `spec.delimiter`; None: by tabs, or else by spaces. Memory is that of one sentence. Comments are
    not recognised; see `conllu_rows`.

    problems: gets missing, extra and empty fields, each with its line, and words before -DOCSTART- as a finding.
    Raises DataError: invalid column names or delimiter.
    """
    names = _given_names(spec)
    sentence: list[list[str]] = []
    first = document = 0
    begun = late = False  # whether a word was read; whether that was before the first -DOCSTART-
    for number, line in chain(lines, [(0, "")]):
        text = line.rstrip("\r\n")
        if text.strip() and not text.startswith(DOCUMENT):
            begun = True
            fields = _fields(text, spec.delimiter)
            names = names or ["tokens", *(f"column{n}" for n in range(2, len(fields))), "tags"][: len(fields)]
            if fault := _fault(text, fields, len(names), spec.delimiter):
                problems.add(number, *fault)
                continue
            if not sentence:
                first = number
            sentence.append(fields)
            continue
        if sentence:
            columns = zip(names, map(list, zip(*sentence, strict=True)), strict=True)
            yield first, {**dict(columns), **({"document": str(document)} if document else {})}
            sentence = []
        if text.startswith(DOCUMENT):
            if begun and not document:
                if not late:
                    what = f"words precede its first {DOCUMENT}, in line {number:,}; read as one document"
                    problems.findings.append(warn(f"{problems.name}: {what}"))
                late = True
            elif "document" in names:
                what = f"names a column `document`, but {problems.name} has {DOCUMENT} lines"
                raise DataError(Problem("data.header", what))
            else:
                document += 1


def conllu_rows(lines: Lines, spec: DataSpec, problems: Problems) -> Iterator[NumberedRow]:
    """Sentences of CoNLL-U (Universal Dependencies) as (line of the first word, {column: list of str}).

    `tokens` are the syntactic words: of a multiword token such as 1-2 its words; empty nodes such as 1.1 are left out,
    and both are counted in a finding. `tags` are UPOS; the other fields have their names in lower case, such as `xpos`.
    `id` is the sentence's sent_id. problems: gets lines without ten fields or with another ID.
    """
    sentence: list[list[str]] = []
    first = count = ranges = empty = 0
    name: dict[str, str] = {}
    for number, line in chain(lines, [(0, "")]):
        text = line.rstrip("\r\n")
        if not text.strip():
            if sentence:
                count += 1
                columns = dict(zip(_CONLLU, map(list, zip(*sentence, strict=True)), strict=True))
                yield first, {"tokens": columns.pop("form"), **columns, "tags": columns["upos"], **name}
            sentence, name = [], {}
        elif text.startswith("#"):
            if match := re.fullmatch(r"#\s*sent_id\s*=\s*(.*)", text):
                name = {"id": match[1].strip()}
        else:
            place, *fields = text.split("\t")
            if len(fields) != len(_CONLLU) or not (kind := re.fullmatch(r"\d+([-.]\d+)?", place)):
                problems.add(number, f"not CoNLL-U's ten fields with tabs between them: {short_repr(text)}")
            elif not kind[1]:
                first = first if sentence else number
                sentence.append(fields)
            else:
                ranges, empty = ranges + (kind[1][0] == "-"), empty + (kind[1][0] == ".")
    what = f"{problems.name}: read as CoNLL-U: {counted(count, 'sentence')}, with UPOS as tags"
    what += f"; {counted(ranges, 'multiword token')} read as their words" * bool(ranges)
    problems.findings.append(note(what + f"; {counted(empty, 'empty node')} left out" * bool(empty)))


def _given_names(spec: DataSpec) -> list[str]:
    """The recipe's column names; none where columns are named by position."""
    if spec.delimiter and spec.delimiter in "\r\n":
        raise DataError(Problem("data.delimiter", f"{spec.delimiter!r} cannot separate fields"))
    if not isinstance(spec.header, list):
        return []
    twice = sorted({column for column in spec.header if spec.header.count(column) > 1})
    if twice or not spec.header:
        what = f"names a column twice: {', '.join(twice)}" if twice else "names no column"
        raise DataError(Problem("data.header", what, "name every column once, e.g.  data: {header: [tokens, tags]}"))
    return spec.header


def _fields(text: str, delimiter: str | None) -> list[str]:
    if delimiter is None and "\t" not in text:
        return [field for field in text.split(" ") if field]
    return [field.strip(" \t") for field in text.split(delimiter or "\t")]


def _fault(text: str, fields: list[str], expected: int, delimiter: str | None) -> tuple[str, str] | None:
    """What is wrong with a line, and the fix."""
    tabs = _TABS if delimiter is None and "\t" in text else ""
    if "\r" in text:
        return "a carriage return inside the line", "save the file with Unix or Windows line endings"
    if tabs and (inner := [field for field in fields if " " in field]):
        return f"a field of this tab-separated line contains a space: {inner[0]!r}", tabs
    if len(fields) != expected:
        return f"{counted(len(fields), 'field')} where {expected} are expected", tabs
    if "" in fields:
        return f"field {fields.index('') + 1} is empty", tabs
    return None
