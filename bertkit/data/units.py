"""What has a tag: the words of a text, its characters, or the tokens that the data have; decided once, from
train.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from bertkit.data import offsets
from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Finding, note, warn
from bertkit.data.scripts import LATIN, joined, mostly_unspaced
from bertkit.data.scripts import share as script_share
from bertkit.data.table import Table
from bertkit.data.tagging import entities
from bertkit.data.word_spans import Marked, Places, Span, Unit, read_spans, spans_to_tags, words
from bertkit.errors import RowsError
from bertkit.text import Record, counted, share

if TYPE_CHECKING:
    from datasets import Dataset

MISALIGNED = 0.001  # the share of spans that may cut a word where words have the tags
MISFITS = 100  # rows with spans that do not fit, by which units of offsets are recognised
_BLANKS = re.compile(r"\s*")
TEXT_UNITS: Sequence[Unit] = ("words", "characters")  # the coarsest first


def text_of(row: Record) -> str:
    """The text of a row: its own, or that of its tokens."""
    return joined(row["tokens"] or ())[0] if row.get("text") is None else str(row["text"])


def places_of(row: Record) -> Places:
    """The characters of everything that has a tag in a row: its tokens, or else the words or characters of
    its text.

    Raises ValueError where a token is not in the text.
    """
    text = row.get("text")
    tokens = row.get("tokens")
    tags = row.get("tags")
    if text is None:
        return joined(tokens or ())[1]
    if tokens is not None:
        return _located(tokens, text)
    places = words(text)
    if tags is None or len(places) == len(tags):
        return places
    characters = words(text, "characters")
    return characters if len(characters) == len(tags) else places


def spans_of(row: Record) -> list[Span] | None:
    """The entities of a row's tags in BIO as spans of characters; None where it has no tags."""
    if row["tags"] is None:
        return None
    places = places_of(row)
    return [
        {"start": places[first][0], "end": places[end - 1][1], "label": kind}
        for kind, first, end in entities(row["tags"])
    ]


def as_spans(table: Table) -> Table:
    """Rows with tokens or a text -> rows with a `text`, and the tags in BIO that they have as `spans`.

    Raises DataError with the rows whose tokens are not in their text.
    """
    texts = table.without("tokens", "tags").with_(text=DiskList(map(text_of, table)))
    return texts.with_(spans=DiskList(table.each_row(spans_of))) if "tags" in table.values else texts


def is_by_characters(table: Table) -> bool:
    """Whether tags of a text are of its characters, not of its words."""
    values = table.values
    if "text" not in values or "tags" not in values or "tokens" in values:
        return False
    pairs = zip(values["text"], values["tags"], strict=True)
    return any(tags is not None and len(tags) != len(words(text)) for text, tags in pairs)


def has_own_units(table: Table) -> bool:
    """Whether most rows have tokens that make a text by spaces alone, so that they are what has a tag."""
    if "tokens" not in table.values or "text" in table.values:
        return False
    by_spaces = sum(joined(tokens)[0] == " ".join(tokens) for tokens in table.values["tokens"])
    return 2 * by_spaces > len(table)


def sentences(rows: Dataset, unit: Unit = "given") -> tuple[list[str], list[Places]]:
    """The text of each row, and the offsets of what has a tag in it: of tokens themselves where `unit` is
    `given`.

    With `words` tokens that make a text by spaces alone have the tags, too.
    """
    texts = list[str]()
    places = list[Places]()
    names = [name for name in ("tokens", "text") if name in rows.column_names]
    tagged = "tags" in rows.column_names  # a tag per token, which `validate_rows` has checked
    for number, values in enumerate(zip(*(rows[name][:] for name in names), strict=True)):
        row = dict(zip(names, values, strict=True))
        text = text_of(row)
        by_spaces = tagged or ("text" not in row and text == " ".join(row["tokens"]))
        of_tokens = "tokens" in row and (unit == "given" or (unit == "words" and by_spaces))
        try:
            of_row = places_of(row) if "tokens" in row else []
        except ValueError as error:
            raise RowsError([(number, str(error), "")]) from None
        texts.append(text)
        places.append(of_row if of_tokens else words(text, unit))
    return texts, places


def words_of(rows: Dataset, unit: Unit) -> list[list[str]]:
    """What has a tag in each row, as text."""
    texts, places = sentences(rows, unit)
    return [_cut_out(text, row) for text, row in zip(texts, places, strict=True)]


def _cut_out(text: str, places: Places) -> list[str]:
    return [text[start:end] for start, end in places]


def find_unit(table: Table, *, plain: bool) -> tuple[Unit, bool, list[Finding]]:
    """The coarsest unit that cuts no entity of these rows of train, and whether a few are cut all the same.

    `given`: the tokens of the data, where raw text is divided otherwise. plain: tags are labels, not
    entities.
    """
    if "tokens" in table.values and (plain or has_own_units(table)):
        otherwise = sum(places_of(row) != words(text_of(row)) for row in table)
        if not otherwise:
            return "words", False, []
        what = (
            f"of {counted(len(table), 'sentence')} of train, {otherwise:,} would be divided otherwise "
            "as raw text"
        )
        return "given", False, [note(f"{what}: answers to a text have the flag `other_words`")]
    if plain or not {"tags", "spans"} & table.values.keys():
        return "words", False, []
    pairs = python_spans(table if "spans" in table.values else as_spans(table), "train")[0]
    unspaced = mostly_unspaced(text for text, _ in pairs())
    latin = script_share((text for text, _ in pairs()), LATIN) >= 0.5
    findings = list[Finding]()
    for unit in TEXT_UNITS:
        fit = _fit(pairs(), table.origin.__getitem__, unit)
        few = 0 < fit.cut <= MISALIGNED * fit.total and not (unspaced and unit == "words")
        if unit == "characters" or not fit.cut or few or offsets.likely_unit(fit.misfits):
            break
        what = (
            f"units: characters, since {share(fit.cut, fit.total)} of the entities of train begin or end "
            "inside a word"
        )
        fix = "If their offsets are wrong, correct them: with  task: {words: words}  such a span is an error."
        findings.append(warn(f"{what}; {fit.example}", fix) if latin else note(f"{what}; {fit.example}"))
    if few:
        cut = f"train: {fit.cut:,} of {counted(fit.total, 'span')} cut a word"
        what = f"{cut}, and are expanded to whole words"
        findings.append(warn(f"{what}; {fit.example}", "Correct the offsets where they are wrong."))
    return unit, few, findings


def python_spans(table: Table, split: str) -> tuple[Callable[[], Iterator[Marked]], list[Finding]]:
    """What gives the texts and spans of all rows, with offsets in code points; no spans where they cannot be
    read.
    """

    def readable() -> Iterator[Marked]:
        for text, value in zip(table.values["text"], table.values["spans"], strict=True):
            spans = list[Span]()
            with suppress(ValueError):
                spans = read_spans(value)
            yield text, spans

    in_utf_16, findings = offsets.find_utf_16(readable(), split)

    def moved() -> Iterator[Marked]:
        for text, spans in readable():
            yield text, offsets.moved(text, spans, offsets.UTF_16) or spans

    return (moved if in_utf_16 else readable), findings


class _Fit(NamedTuple):
    """How spans fit a unit."""

    total: int
    cut: int  # spans that cut a unit
    example: str  # the first of them
    misfits: list[Marked]  # rows whose spans do not fit


def _fit(pairs: Iterator[Marked], where: Callable[[int], str], unit: Unit) -> _Fit:
    total = 0
    cut = 0
    example = ""
    misfits = list[Marked]()
    for row, (text, spans) in enumerate(pairs):
        aligned = spans_to_tags(text, spans, "strict", unit)
        total += len(spans)
        cut += aligned.counts["cut"]
        if (aligned.problems or aligned.counts["other"]) and len(misfits) < MISFITS:
            misfits.append((text, spans))
        if aligned.counts["cut"] and not example:
            example = f"for example {where(row)}: {aligned.problems[0]}"
    return _Fit(total, cut, example, misfits)


def _located(tokens: Sequence[str], text: str) -> Places:
    """The characters of tokens in the text that they are of. Raises ValueError where it has others."""
    places = Places()
    end = 0
    for number, token in enumerate(tokens, 1):
        after_blanks = _BLANKS.match(text, end)
        start = end if text.startswith(token, end) or not after_blanks else after_blanks.end()
        if not text.startswith(token, start):
            what = (
                f"token {number}, {token!r}, is not in the text at character {start}: "
                f"{text[start : start + 20]!r}"
            )
            raise ValueError(f"{what}; data: {{columns: {{tokens: tokens}}}} reads the tokens alone")
        end = start + len(token)
        places.append((start, end))
    return places
