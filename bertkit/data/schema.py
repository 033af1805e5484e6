"""The columns that a task declares (Schema), and what checks report about the data (Finding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bertkit.data.scripts import joined
from bertkit.sections import DataSpec
from bertkit.text import Record, part_of

Answer = dict[str, Any]  # one row's answer, as it is written to JSON


Source = str | Sequence[str]  # the column that a canonical one is read from; several texts become one
Mapped = Mapping[str, Source]  # canonical column -> column of the source


def columns_of(source: Source) -> Sequence[str]:
    """The columns that are read."""
    return [source] if isinstance(source, str) else source


def mapped_columns(spec: DataSpec) -> set[str]:
    """The columns of the source that the recipe maps."""
    return {name for source in spec.columns.values() for name in columns_of(source)}


def given_name(name: str, mapped: Mapped) -> str:
    """What the user calls a canonical column; of several columns that are read as one, the canonical name."""
    source = mapped.get(name, name)
    return source if isinstance(source, str) else name


def cell(row: Record, source: Source) -> Any:
    """The row's value; of several columns their texts, each on a line, or the first value that is not text.

    None: it is missing, or all of them are.
    """
    if isinstance(source, str):
        return row.get(source)
    values = [row[name] for name in source if row.get(name) is not None]
    joined = "\n".join(str(value) for value in values if value != "") if values else None
    return next((value for value in values if not isinstance(value, str)), joined)


class Column(NamedTuple):
    """What a canonical column must hold.

    text: a string. label: one class (text, whole number or bool). labels: several classes (a list, or `a|b`).
    number: a float. words: a list of strings. tags: one tag per word, such as B-LOC. word_labels: one class
    per word, such as NOUN. numbers: a float per word. spans: labelled stretches of a text, as annotation
    tools export them.
    answers: texts, and where each starts in its context. starts: where those of plain `answers` start, which
    `load` adds to them.
    name: what something is called, text or a whole number. value: text or any number, by which rows are
    grouped.

    >>> Column("text", "what is asked", side="query")  # doctest: +SKIP
    """

    holds: Literal[
        "text",
        "label",
        "labels",
        "number",
        "words",
        "tags",
        "word_labels",
        "numbers",
        "spans",
        "answers",
        "starts",
        "name",
        "value",
    ]
    about: str
    unchecked: bool = False  # may be empty, or the same in all rows of train
    # of labels: value in the data -> label name; a value that is not there is its name
    names: Mapping[str, str] = {}
    located: bool = False  # offsets count its characters as given
    unordered: bool = False  # rows that differ in the order of such columns' texts are the same
    verbatim: bool = False  # of a label: also a text with |, and any number, is the name of one class
    shown: bool = (
        True  # of text and words: whether reports, audits and explanations list it as what a row says
    )
    side: Literal["", "query", "document"] = ""  # whose prefix a task of vectors puts before its texts
    aliases: Sequence[str] = ()  # of a target: columns that are read where a source has none of its targets
    answered: str = ""  # of a target: the key of an answer by which an audit judges it; empty: it does not

    @property
    def tagged(self) -> bool:
        """Whether it has a text for each word."""
        return self.holds in ("tags", "word_labels")


LEVELS = ("fail", "severe", "warn", "note")  # of findings, the most severe first
LARGE_SHARE = 0.01  # of the rows: a share from which a finding is of its higher level
ID = Column("name", "a name for the row, kept in messages and predictions")  # optional, of every task
BY = Column("value", "what scores are also reported by")  # the column that `data.by` names


def texts_of(columns: Mapping[str, Column]) -> tuple[list[str], int]:
    """The columns of texts, the unordered ones first, and how many those are."""
    texts = [name for name, column in columns.items() if column.holds in ("text", "words")]
    return sorted(texts, key=lambda name: not columns[name].unordered), sum(
        columns[name].unordered for name in texts
    )


@dataclass(frozen=True)
class Schema:
    """The columns of a task's rows."""

    columns: Mapping[str, Column]  # canonical column -> what it must hold
    inputs: Sequence[frozenset[str]]  # alternatives: one of these sets of columns is required
    targets: Sequence[str] = ()  # alternatives: one of these columns is required to train and to score
    context: Sequence[str] = ()  # optional columns that an answer may depend on
    # column that rows share -> what sampling rows loses
    group_columns: Mapping[str, str] = field(default_factory=dict)
    corpus: bool = False  # rows are documents, too many to hold in memory
    together: bool = False  # an answer depends on all rows that are answered with it
    special_tokens: bool = (
        False  # whether a text may spell out special tokens, such as [MASK]; else they are text
    )

    @property
    def texts(self) -> list[str]:
        """The columns that hold a text, in order."""
        return [name for name, column in self.columns.items() if column.holds == "text"]

    def shown(self, row: Record) -> dict[str, str]:
        """The texts of a row that are shown, in order, by their columns; the joined words of a row without a
        text.
        """
        values = {
            name: row[name]
            for name, column in self.columns.items()
            if column.shown and row.get(name) is not None
        }
        texts = {name: str(values[name]) for name in self.texts if name in values}
        words = [joined(values[name])[0] for name in values if self.columns[name].holds == "words"]
        return texts or dict(zip(["text"], words, strict=False))


class Finding(NamedTuple):
    """What `check` reports about the data. A `fail` stops `train` before a model is built.

    >>> bertkit.Finding("warn", "12 rows are repeated", "Remove them.").title
    'Warning'
    """

    level: Literal["fail", "severe", "warn", "note"]
    what: str
    fix: str = ""
    inflates: str = ""  # the split whose scores are too high because train has some of its rows

    @property
    def severity(self) -> tuple[int, bool]:
        """What findings are sorted by: by level, the most severe first, and leaks before others of their
        level.
        """
        return LEVELS.index(self.level), not self.inflates

    @property
    def title(self) -> str:
        """The level as a word of text: Severe, Warning, Note."""
        return "Warning" if self.level == "warn" else self.level.capitalize()


def note(what: str) -> Finding:
    """Something worth knowing."""
    return Finding("note", what)


def warn(what: str, fix: str = "") -> Finding:
    """Something that may be a mistake."""
    return Finding("warn", what, fix)


def weighed(count: int, total: int, what: str, fix: str) -> Finding:
    """Something worth knowing; that may be a mistake for a large share of the rows."""
    return Finding("warn" if count >= LARGE_SHARE * total else "note", what, fix)


def severe(count: int, total: int, what: str, fix: str, inflates: str = "") -> Finding:
    """Scores or labels that cannot be trusted: severe for a large share of the rows, a warning for a small
    one.
    """
    return Finding("severe" if count >= LARGE_SHARE * total else "warn", what, fix, inflates)


def leak(split: str, count: int, total: int, what: str) -> Finding:
    """So many of the split's rows are in train too, so that its scores say less about new rows."""
    fix = f"Remove them from train or from {split}, whose scores are higher than on new rows."
    return severe(count, total, f"{split}: {what}", fix, split)


def in_train_too(split: str, count: int, total: int, noun: str, example: str) -> Finding:
    """So many of the split's rows are rows of train."""
    return leak(split, count, total, f"{part_of(count, total, noun)} in train too; e.g. {example}")
