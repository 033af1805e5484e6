"""What a task says of its rows (columns), and what checks say of the data (findings)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

Answer: TypeAlias = dict[str, Any]  # one row's answer, as it is written to JSON


class Column(NamedTuple):
    """What a canonical column must hold.

    text: a string. label: one class (text, whole number or bool). labels: several classes (a list, or
    `a|b`). number: a float. words: a list of strings. tags: one tag per word, such as B-LOC. spans: labelled
    stretches of a text, as annotation tools export them. answers: texts, and where each starts in its context.
    name: what something is called, text or a number.
    """

    holds: Literal["text", "label", "labels", "number", "words", "tags", "spans", "answers", "name"]
    about: str
    unchecked: bool = False  # may be empty, or the same in all rows of train


@dataclass(frozen=True)
class Schema:
    """The columns of a task's rows."""

    columns: Mapping[str, Column]  # canonical column -> what it must hold
    inputs: Sequence[frozenset[str]]  # alternatives: one of these sets of columns is required
    targets: Sequence[str] = ()  # alternatives: one of these columns is required to train and to score
    context: Sequence[str] = ()  # optional columns that an answer may depend on
    group_columns: Mapping[str, str] = field(default_factory=dict)  # column that rows share -> what sampling rows loses
    corpus: bool = False  # rows are documents, too many to hold in memory


class Finding(NamedTuple):
    """Something `check` has to say about the data. A `fail` stops `train` before a model is built."""

    level: Literal["note", "warn", "fail"]
    what: str
    fix: str = ""
