"""Rows from CoNLL files: one word with its annotations per line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, islice, pairwise

from bertkit.data.decoding import Lines
from bertkit.data.problems import Problems, setting
from bertkit.data.reader import Reader, by_lines
from bertkit.data.schema import note
from bertkit.data.scripts import UNSPACED
from bertkit.data.table import NumberedRows
from bertkit.sections import DataSpec
from bertkit.text import counted

_CONLLU = "number tokens lemma tags xpos feats head deprel deps misc".split()
DOCUMENT = "-DOCSTART-"  # begins the first line of a document (CoNLL-2003)

# lines that are looked at before the others; tokens that decide
PEEK = 100
FEWEST_PLACED = 20
_COMMENT = re.compile("##? ")
_PLACED = re.compile(r"(.)(\d+)")
_WITHIN = re.compile(rf"(?<=[{UNSPACED}]) (?=[{UNSPACED}])")  # a blank in a word, as in Thai

_TABS = "if tabs separate the fields and fields contain spaces, " + setting("delimiter", '"\\t"')


def conll_rows(lines: Lines, spec: DataSpec, problems: Problems) -> NumberedRows:
    """Sentences as (line of the first word, {column: list of str}), from numbered lines.

    Columns are named by `spec.header` where it is a list, else by position: `tokens`, then `column2`,
    `column3` …, and the last `tags`. A file that begins with a -DOCSTART- line has a column `document` too:
    the number of the document, "1" for the first. Fields are separated by `spec.delimiter`; None: by tabs, or
    else by spaces. A token may be a blank. Comments are left out: lines before a sentence that begin with
    `# ` or `## `. Where all tokens at the beginning of the file are a character and its place in a word, such
    as 科0 and 技1, the places are left out. Memory is that of one sentence, and of the first PEEK lines.

    problems: gets missing, extra and empty fields, each with its line, and what was left out.
    """
    names = spec.header if isinstance(spec.header, list) else []
    lines = iter(lines)
    head = list(islice(lines, PEEK))
    split = [_fields(line.rstrip("\r\n"), spec.delimiter) for _, line in head]
    counts = [len(fields) for fields, (_, line) in zip(split, head, strict=True) if not line.startswith("#")]
    expected = len(names) or max(counts, key=counts.count, default=2)
    placed = _have_places(fields[0] for fields in split if fields)
    sentence: list[list[str]] = []
    first = document = comments = 0
    for number, line in chain(head, lines, [(0, "")]):
        text = line.rstrip("\r\n")
        if not sentence and _is_comment(text, expected):
            comments += 1
            continue
        if text.strip() and not text.startswith(DOCUMENT):
            fields = _fields(text, spec.delimiter, sentence)
            names = names or ["tokens", *(f"column{n}" for n in range(2, len(fields))), "tags"][: len(fields)]
            if fault := _fault(text, fields, len(names), spec.delimiter):
                problems.add(number, *fault)
                continue
            if placed:
                fields[0] = _PLACED.sub(r"\1", fields[0])
            if not sentence:
                first = number
            sentence.append(fields)
            continue
        if sentence:
            columns = zip(names, map(list, zip(*sentence, strict=True)), strict=True)
            yield first, {**dict(columns), **({"document": str(document)} if document else {})}
            sentence = []
        document += text.startswith(DOCUMENT)
    if comments:
        problems.findings.append(note(f"{problems.name}: {counted(comments, 'comment')} left out"))
    if placed:
        what = "tokens are a character and its place in a word, such as 科0; the places are left out"
        problems.findings.append(note(f"{problems.name}: {what}"))


def conllu_rows(lines: Lines, spec: DataSpec, problems: Problems) -> NumberedRows:
    """Sentences of CoNLL-U (Universal Dependencies) as `conll_rows` has them, with its fields as columns.

    `tokens` are the syntactic words: of a multiword token such as 1-2 its words; `tags` are UPOS. Comments
    and empty nodes such as 1.1 are left out.
    """
    words = ((number, line) for number, line in lines if not re.match(r"#|\d+[-.]\d", line))
    return conll_rows(words, spec.model_copy(update={"header": [*_CONLLU], "delimiter": "\t"}), problems)


def _fields(text: str, delimiter: str | None, before: Sequence[Sequence[str]] = ()) -> list[str]:
    """The fields of a line. before: those of the lines before it, after characters of which a token may be a
    blank.
    """
    if delimiter is None and "\t" not in text:
        fields = [field for field in text.split(" ") if field]
        if (
            before
            and text.startswith("  ")
            and len(fields) == 1
            and max(len(token) for token, *_ in before) == 1
        ):
            return [" ", *fields]
        return fields
    fields = text.split(delimiter or "\t")
    return [field.strip(" \t") or (field if number == 0 else "") for number, field in enumerate(fields)]


def _is_comment(text: str, expected: int) -> bool:
    """Whether a line before a sentence is a comment, not the token `#` and its other fields, the last in
    capitals.
    """
    if not _COMMENT.match(text):
        return False
    if "\t" in text:
        return " " in text.partition("\t")[0]
    fields = text.split()
    return len(fields) != expected or fields[-1] == fields[-1].lower()


def _have_places(tokens: Iterable[str]) -> bool:
    """Whether all tokens are a character and its place in a word: 0, or one more than that before."""
    matches = list(map(_PLACED.fullmatch, tokens))
    places = [int(match[2]) for match in matches if match]
    rising = all(place in (0, before + 1) for before, place in pairwise([0, *places]))
    return FEWEST_PLACED <= len(places) == len(matches) and rising


def _fault(text: str, fields: list[str], expected: int, delimiter: str | None) -> tuple[str, str] | None:
    """What is wrong with a line, and the fix."""
    tabs = _TABS if delimiter is None and "\t" in text else ""
    if "\r" in text:
        return "a carriage return inside the line", "save the file with Unix or Windows line endings"
    if tabs and (inner := [field for field in fields if " " in _WITHIN.sub("", field.strip())]):
        return f"a field of this tab-separated line contains a space: {inner[0]!r}", tabs
    if len(fields) != expected:
        fix = tabs or f"Write {counted(expected, 'field')} on each line."
        return f"expected {counted(expected, 'field')}, found {len(fields)}", fix
    if "" in fields:
        return f"field {fields.index('') + 1} is empty", tabs
    return None


CONLL = Reader("conll", by_lines(conll_rows), ("conll", "bio", "iob", "iob2", "bioes"), columns="header")
CONLLU = Reader("conllu", by_lines(conllu_rows), ("conllu",), columns="fixed")
