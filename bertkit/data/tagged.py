"""Rows with tags: entities in BIO, whatever the scheme of the data, or labels; and the offsets of each row's
words.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from bertkit.data import offsets
from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import column_values
from bertkit.data.origin import locations
from bertkit.data.schema import Finding, note, warn
from bertkit.data.table import Checked, Table
from bertkit.data.tagging import Scheme, check_prefixes, entities, find_scheme, to_bio, without_prefixes
from bertkit.data.units import MISFITS, places_of, python_spans
from bertkit.data.word_spans import Marked, Unit, gold_entities, read_spans, spans_to_tags, words
from bertkit.errors import DataError, Problem
from bertkit.text import Record, counted, listed

if TYPE_CHECKING:
    from datasets import Dataset

MISSED = "scores, which are against the spans as given, count them as missed"
REPORTED = {  # what was done to spans, or is wrong with them -> its warning
    "other": "whose own text is not what their offsets say",
    "trimmed": "with outer spaces or format characters, which were removed",
    "empty": "without a word, left out",
    "overlapping": f"that shared a word with a longer one (or an equal one before), left out; {MISSED}",
    "misaligned": f"that cut a word, moved to its boundaries; {MISSED}",
    "lost": f"without a whole word, left out; {MISSED}",
}


def named_documents(table: Table, *, wanted: bool) -> Table:
    """The table with documents named by their file too: each CoNLL file counts its own; without them if not
    wanted.
    """
    if not wanted:
        return table.without("document")
    if "document" not in table.values or len(table.origin.files) < 2:
        return table
    names = zip(table.origin.file, table.values["document"], strict=True)
    return table.with_(document=[None if name is None else f"{file}:{name}" for file, name in names])


def named_tags(table: Table, split: str, names: Sequence[str]) -> Checked:
    """Rows whose tags are numbers -> the same with the names of these numbers, which are indices; others as
    they are.

    Raises DataError with the rows that hold a number without a name.
    """
    values = table.values["tags"]
    tags = set(chain.from_iterable(value or () for value in values))
    if not tags or not all(tag.isdecimal() for tag in tags) or tags <= set(names):
        return table, []

    def named(numbers: Sequence[str] | None) -> list[str] | None:
        if wrong := [number for number in numbers or () if int(number) >= len(names)]:
            raise ValueError(f"tag {wrong[0]}, but task.labels names those from 0 to {len(names) - 1}")
        return None if numbers is None else [names[int(number)] for number in numbers]

    shown = listed([f"{number} {name}" for number, name in enumerate(names)])
    findings = [note(f"{split}: its tags are numbers; read as {shown}")]
    return table.with_(tags=DiskList(table.each_row(named, values))), findings


def tag_words(table: Table, split: str, scheme: Scheme | Literal["none"] | None) -> Checked:
    """Rows with `tokens` and `tags` -> the same with tags in BIO. scheme: of the data; None: found from the
    tags.

    In the scheme `none`, tags stay as they are. Raises DataError with the location and the number of every
    tag that its scheme does not allow.
    """
    repaired = array("q")
    stated = scheme if scheme == "none" else _scheme_of(table, scheme)

    def convert(number: int, row: Record) -> list[str] | None:
        tags = row["tags"]
        if tags is None:
            return None
        units = row.get("tokens") or (
            words(row["text"]) if stated == "none" and "text" in row else places_of(row)
        )
        if len(tags) != len(units):
            raise ValueError(f"{len(units)} words, but {len(tags)} tags")
        if stated == "none":
            if "" in tags:
                raise ValueError(f"tag {tags.index('') + 1} is empty")
            return list(tags)
        bio, count = to_bio(tags, stated)
        repaired.extend([number] if count else [])
        return bio

    bio = DiskList(table.each_row(convert, range(len(table)), table))
    findings = [] if stated in ("BIO", "none") else [note(f"{split}: its tags are {stated}; read as BIO")]
    if repaired:
        what = f"{split}: {counted(len(repaired), 'sentence')} with an entity that begins with I-; read as B-"
        fix = "Correct the tags where the entity begins earlier, or has another type."
        findings.append(warn(f"{what}: {locations(table.origin, repaired)}", fix))
    return table.with_(tags=bio), findings


def _scheme_of(table: Table, stated: Scheme | None) -> Scheme:
    """The scheme of its tags, as stated or found. Raises DataError where none or some of them have a
    prefix.
    """
    values = table.values["tags"]
    tags = set(chain.from_iterable(value or () for value in values))
    if tags and all(tag.isdecimal() for tag in tags):
        names = "PER, LOC" if stated == "IO" else "B-PER, I-PER"
        raise DataError(
            table.origin[0],
            f"its tags are numbers: {listed(sorted(tags, key=int))}",
            f"Name them, in the order of their numbers:  task: {{labels: [O, {names}, …]}}",
        )
    if stated:
        return stated
    if without_prefixes(tags):
        what = f"tags without prefixes such as B- and I-: {listed(sorted(tags))}"
        labels = "If each is the label of one word, such as a part of speech, write  task: {scheme: none}"
        entities = "If adjacent words with one tag are one entity, write  task: {data_scheme: IO}"
        raise DataError(table.origin[0], what, f"{labels}. {entities}.")

    def checked(tags: Sequence[str] | None) -> Sequence[str]:
        check_prefixes(tags or (), "BIOES")
        return tags or ()

    return find_scheme(table.each_row(checked, values))


def tag_spans(table: Table, split: str, alignment: Any, unit: Unit) -> Checked:
    """Rows with `text` and `spans` -> the same with `tags`, in BIO, for the words of the text, to learn from.

    unit: of these words. `spans`, trimmed, remain for the scores. Raises DataError with the locations of
    spans that are outside the text, or cut a word where that is not allowed, and where none of train is left.
    """
    counts = Counter[str]()
    occurrences = Counter[str]()
    kept = set[str]()
    misfits = list[Marked]()
    pairs, findings = python_spans(table, split)

    def convert(value: object, pair: Marked) -> tuple[Any, Any]:
        """Its tags and its spans."""
        if value is None:
            return None, None
        read_spans(value)  # which raises where `python_spans` has none
        text, spans = pair
        aligned = spans_to_tags(text, spans, alignment, unit)
        counts.update(aligned.counts)
        misfit = aligned.problems or aligned.counts["misaligned"] or aligned.counts["other"]
        if misfit and len(misfits) < MISFITS:
            misfits.append((text, spans))
        if aligned.problems:
            raise ValueError(*aligned.problems)
        occurrences.update(span["label"] for span in aligned.spans)
        kept.update(tag[2:] for tag in aligned.tags if tag != "O")
        return aligned.tags, aligned.spans

    def counted_otherwise() -> list[Problem]:
        unit = offsets.likely_unit(misfits)
        what = f"{split}: all spans that do not fit their text would fit it if their offsets were {unit}"
        return [Problem("", what, "Convert the offsets, or the texts, to those of Python.")] if unit else []

    try:
        aligned_rows = DiskList(table.each_row(convert, table.values["spans"], pairs()))
    except DataError as error:
        what = "spans that cut a word can be expanded to whole words, or contracted to them"
        cut = (
            [Problem("", what, "train with  task: {alignment: expand}, or contract")] if counts["cut"] else []
        )
        raise DataError([*error.problems, *(counted_otherwise() or cut)]) from None
    otherwise = counted_otherwise()
    if counts["other"] and (otherwise or 2 * counts["other"] > occurrences.total()):
        what = f"{split}: {counts['other']:,} of {counted(occurrences.total(), 'span')} {REPORTED['other']}"
        raise DataError(otherwise or [Problem("", what, "Correct the offsets.")])
    findings += [warn(problem.what, problem.fix) for problem in otherwise]
    fix = "Correct the offsets where they are wrong."
    if unit != "characters" and (counts["misaligned"] or counts["lost"]):
        fix += " Where words are too coarse for right ones, train with  task: {words: characters}."
    if split == "train" and occurrences and not kept:
        raise DataError(
            "task.alignment",
            f"with {alignment}, none of the {counted(occurrences.total(), 'span')} of train is left",
            fix,
        )
    findings += [
        warn(f"{split}: {counted(counts[key], 'span')} {what}", fix)
        for key, what in REPORTED.items()
        if counts[key]
    ]
    if lost := [f"{name} {number:,}" for name, number in occurrences.items() if name not in kept]:
        what = f"{split}: types of which no span is left: {listed(lost)}"
        findings.append(Finding("severe", f"{what}; {MISSED}", fix))
    tags = DiskList(row_tags for row_tags, _ in aligned_rows)
    spans = DiskList(row_spans for _, row_spans in aligned_rows)
    return table.with_(spans=spans, tags=tags), findings


def given_entities(rows: Dataset, unit: Unit) -> dict[int, list[tuple[Any, ...]]]:
    """The gold entities of rows whose spans are not what their tags say, by row; see `gold_entities`."""
    if not {"text", "spans"}.issubset(rows.column_names):
        return {}
    gold = dict[int, list[tuple[Any, ...]]]()
    columns = (column_values(rows, name) for name in ("text", "tags", "spans"))
    for row, (text, tags, spans) in enumerate(zip(*columns, strict=True)):
        if spans is None:
            continue
        as_given = gold_entities(words(text, unit), spans)
        if {*as_given} != {*entities(tags)}:
            gold[row] = as_given
    return gold
