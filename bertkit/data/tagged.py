"""Rows with entities: tags in BIO, whatever the scheme of the data, and the offsets of each row's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Finding, note, warn
from bertkit.data.table import Problems, Table, locations
from bertkit.data.tagging import Scheme, find_scheme, to_bio
from bertkit.data.words import read_spans, spans_to_tags, words
from bertkit.errors import DataError, Problem

if TYPE_CHECKING:
    from datasets import Dataset

REPORTED = {  # what was done to spans -> its warning
    "trimmed": "spans had outer spaces, which were removed",
    "empty": "spans contain no word and were left out",
    "overlapping": "spans overlap a longer one (or an equal one before them) and were left out",
    "misaligned": "spans cut a word, and were moved to its boundaries",
    "lost": "spans contain no whole word and were left out",
}


def named_documents(table: Table, *, wanted: bool) -> Table:
    """The table with documents named by their file too: each CoNLL file counts its own; without them if not wanted."""
    values = dict(table.values)
    if not wanted:
        values.pop("document", None)
    elif "document" in values and len(table.origin.files) > 1:
        names = zip(table.origin.file, values["document"], strict=True)
        values["document"] = [None if name is None else f"{file}:{name}" for file, name in names]
    return Table(values, table.origin)


def tag_words(table: Table, split: str, scheme: Scheme | None) -> tuple[Table, list[Finding]]:
    """Rows with `tokens` and `tags` -> the same with tags in BIO. scheme: of the data; None: found from the tags.

    Raises DataError with the location and the number of every tag that its scheme does not allow.
    """
    values, problems = table.values["tags"], Problems()
    try:
        scheme = scheme or find_scheme(tags for tags in values if tags is not None)
    except ValueError as error:
        raise DataError(_unknown_scheme(table, str(error))) from error
    repaired = list[int]()

    def converted() -> Iterator[list[str] | None]:
        for row, (tags, tokens) in enumerate(zip(values, _texts(table), strict=True)):
            if tags is not None and len(tags) != len(tokens):
                problems.add(table.origin[row], f"{len(tokens)} words, but {len(tags)} tags")
                tags = None
            try:
                tags, count = (None, 0) if tags is None else to_bio(tags, scheme, repair=True)
            except ValueError as error:
                problems.add(table.origin[row], str(error))
                tags, count = None, 0
            repaired.extend([row] if count else [])
            yield tags

    bio = DiskList(converted())
    problems.raise_if_any()
    findings = [] if scheme == "BIO" else [note(f"{split}: its tags are {scheme}; read as BIO")]
    if repaired:
        what = f"{split}: {len(repaired):,} sentences have an entity that begins with I-; read as B-"
        findings.append(warn(f"{what}: {locations(table.origin, repaired)}"))
    return Table({**table.values, "tags": bio}, table.origin), findings


def tag_spans(table: Table, split: str, alignment: Any) -> tuple[Table, list[Finding]]:
    """Rows with `text` and `spans` -> the same with `tags`, in BIO, for the words of the text.

    Raises DataError with the locations of spans that are outside the text, or cut a word where that is not allowed.
    """
    if "text" not in table.values:
        what = "has `spans`, which need a `text`, but has `tokens`"
        fix = "map the text, e.g.  data: {columns: {text: …}}; or give `tags`"
        raise DataError(Problem(table.origin[0], what, fix))
    problems, counts = Problems(), Counter[str]()

    def converted() -> Iterator[list[str] | None]:
        for row, (text, value) in enumerate(zip(table.values["text"], table.values["spans"], strict=True)):
            if value is None:
                yield None
                continue
            try:
                aligned = spans_to_tags(text, read_spans(value), alignment)
            except ValueError as error:
                problems.add(table.origin[row], f"`spans` {error}")
                continue
            for what in aligned.problems:
                problems.add(table.origin[row], what)
            counts.update(aligned.counts)
            yield aligned.tags

    bio = DiskList(converted())
    problems.raise_if_any()
    findings = [warn(f"{split}: {counts[key]:,} {what}") for key, what in REPORTED.items() if counts[key]]
    rest: dict[str, Sequence[Any]] = {name: column for name, column in table.values.items() if name != "spans"}
    return Table({**rest, "tags": bio}, table.origin), findings


def sentences(rows: Dataset) -> tuple[list[str], list[list[tuple[int, int]]]]:
    """The text of each row, and the offsets of its words; tokens are joined by spaces."""
    if "text" in rows.column_names:
        texts = list(rows["text"])
        return texts, [words(text) for text in texts]
    tokens = rows["tokens"][:]
    ends = [list(accumulate((len(word) + 1 for word in row), initial=0)) for row in tokens]
    return [" ".join(row) for row in tokens], [[(a, b - 1) for a, b in pairwise(row)] for row in ends]


def words_of(rows: Dataset) -> list[list[str]]:
    """The words of each row."""
    return [[text[a:b] for a, b in offsets] for text, offsets in zip(*sentences(rows), strict=True)]


def _texts(table: Table) -> Iterable[Sequence[Any]]:
    return table.values["tokens"] if "tokens" in table.values else map(words, table.values["text"])


def _unknown_scheme(table: Table, what: str) -> list[Problem]:
    for row, tags in enumerate(table.values["tags"]):
        try:
            find_scheme([tags or []])
        except ValueError as error:
            return [Problem(table.origin[row], str(error), "Tags are O, or such as B-LOC.")]
    return [Problem("", what)]
