"""What rows are for: the task, and which column is what, by the names and values of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from bertkit.data.checks import SEPARATORS
from bertkit.data.origin import Origin
from bertkit.data.scripts import mostly_unspaced
from bertkit.data.values import MARKS, is_blank, marked
from bertkit.data.word_spans import read_spans
from bertkit.errors import UserError
from bertkit.text import beginning, counted, unique

NAMES = {  # what is chosen -> usual names; the first is the canonical one, which wins
    "text": "text body sentence review message comment content description tweet utterance question".split(),
    "label": "label labels target class category topic intent sentiment emotion rating stars score".split(),
}
ROLES = {  # task -> canonical column -> usual names; the last is the target
    "question-answering": {"question": "question", "context": "context passage", "answers": "answers answer"},
    "token-classification": {"tokens": "tokens words", "tags": "tags ner_tags labels upos"},
    "retrieval": {
        "query": "query question",
        "document": "document passage",
        "grade": "grade relevance label score",
    },
    "sentence-similarity": {"anchor": "anchor query question", "positive": "positive document passage"},
}
NO_TEXTS = ("tokens", "tags", "grade")
SCORES = ("similarity", "relatedness")  # also with few values
NEXT = {"1": "2", "a": "b"}  # last characters of names such as text1 and text2, text_a and text_b
PAIRED = {
    "premise": ["hypothesis"],
    "question": ["passage", "context", "document"],
    "query": ["passage", "document"],
}
MOST_LABELS = 200
MOST_NUMBERS = 10  # whole ones that are classes, in a column of another name
LONGER = 4  # times the words of the next column: the text
_NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_DATE = re.compile(r"(\d{4}[-./]\d\d?[-./]\d\d?|\d\d?[-./]\d\d?[-./]\d{2,4}).*")
_NO_LABEL = re.compile(r"(.*[\W_])?(id|idx|index|date|time|timestamp|year|url)|", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the table: its cells, None where one is missing."""

    name: str
    cells: Sequence[Any]
    names: Sequence[str] = ()  # of the columns of 0 and 1 whose labels it has

    @property
    def source(self) -> str | list[str]:
        """What `data.columns` maps."""
        return [*self.names] or self.name

    @cached_property
    def values(self) -> list[Any]:
        """Those that are not blank."""
        return [cell for cell in self.cells if not is_blank(cell)]

    @cached_property
    def words(self) -> float:
        """The median length of its texts; 0 of other values, and of numbers."""
        texts = all(isinstance(value, str) for value in self.values)
        return median(map(length, self.values)) if self.values and texts and not self.matches(_NUMBER) else 0

    @cached_property
    def holds(self) -> str:
        """The canonical column that has such values: `spans`, `labels`, `score` or `label`."""
        with suppress(ValueError):
            if any(map(read_spans, self.values)):
                return "spans"
        if self.matches(_NUMBER):
            classes = self.matches(_WHOLE) and len({*self.values}) <= self.most
            return "label" if classes and self.name.casefold() not in SCORES else "score"
        return "labels" if self.listed or self.separator else "label"

    @property
    def listed(self) -> bool:
        """Whether there are lists."""
        return any(isinstance(value, list) for value in self.values)

    @cached_property
    def separator(self) -> str | None:
        """What stands between the labels of a row; None where a row has one."""
        whole = set[str]() if self.listed else {*map(str, self.values)}
        for separator in f"|{SEPARATORS}":
            if not any(separator in value for value in whole):
                continue
            parts = {part.strip() for value in whole for part in value.split(separator)}
            recur = len(parts) < len(whole)
            if separator == "|" or (recur and not all(map(_NUMBER.fullmatch, parts))):
                return separator
        return None

    @property
    def most(self) -> float:
        """The greatest number of labels."""
        return max(2, min(MOST_LABELS, len(self.cells) / 2))

    @cached_property
    def labels(self) -> list[str]:
        """The label or labels of each row, one after another."""
        if self.holds != "labels":
            return [*map(str, self.values)]
        parts = (
            value if isinstance(value, list) else str(value).split(self.separator or "|")
            for value in self.values
        )
        return [str(part).strip() for part in chain.from_iterable(parts)]

    @property
    def is_text(self) -> bool:
        """Whether these are texts: mostly different, of a few words."""
        fewest = 1 if self.name.casefold() in NAMES["text"] else 3
        return self.holds != "spans" and self.words >= fewest and 2 * len({*self.values}) >= len(self.values)

    @property
    def is_class(self) -> bool:
        """Whether there are few values."""
        return 2 <= len({*self.labels}) <= self.most

    @property
    def is_label(self) -> bool:
        """Whether a model may learn to say these values."""
        if self.holds == "spans" or self.names:
            return True
        first = next(iter(self.values), None)
        vector = isinstance(first, list) and any(isinstance(item, float) for item in first)
        if vector or _NO_LABEL.fullmatch(self.name) or self.matches(_DATE):
            return False
        number = self.matches(_WHOLE) and self.name.casefold() not in NAMES["label"]
        if self.holds == "score":
            return not number
        return self.is_class and not (number and len({*self.labels}) > MOST_NUMBERS)

    @property
    def is_mark(self) -> bool:
        """Whether all of its values are 0 or 1."""
        return bool(self.values) and all(str(value).strip().casefold() in MARKS for value in self.values)

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether all values match."""
        return bool(self.values) and all(pattern.fullmatch(str(value)) for value in self.values)

    def line(self) -> str:
        """Its name and three of its values, for people."""
        examples = dict.fromkeys(beginning(str(value), 40) for value in self.values[:100])
        return f"\n    {beginning(self.name, 60)}: {', '.join([*examples][:3])}"


Table = Mapping[str, Column]


class Guess(NamedTuple):
    """What a table is for. columns: canonical column -> column; the last is the target."""

    task: str
    columns: dict[str, Column]

    @property
    def target(self) -> Column:
        """The column that is learned."""
        return [*self.columns.values()][-1]

    def lines(self) -> Iterator[str]:
        """What was guessed and why, for people."""
        yield f"task: {self.task}"
        for canonical, column in self.columns.items():
            what = f"{canonical}: {beginning(column.name, 60)}"
            if canonical in ("label", "labels"):
                what += f", {counted(len({*column.labels}), 'value')}"
            yield f"{what}, median {column.words:g} words" if column.is_text else what


def length(value: Any) -> int:
    """The words of a cell: in scripts without blanks, half of its characters."""
    if isinstance(value, str):
        return len(value) // 2 if mostly_unspaced([value]) else len(value.split())
    return len(value) if isinstance(value, list) else 0


def guess(table: Table, texts: Sequence[str], labels: Sequence[str], task: str | None) -> Guess:
    """The task of a table and its columns. texts, labels, task: those that a user names; several labels are
    columns of 0 and 1, also as `a,b`.

    Raises UserError, with the columns that could be meant, and the option that decides.
    """
    parts = ([name] if name in table else map(str.strip, name.split(",")) for name in labels)
    labels = unique(chain.from_iterable(parts))
    for name in (*texts, *labels):
        if name not in table:
            option = "text" if name in texts else "label"
            raise _unclear(f"no column {beginning(name, 60)}", table.values(), option)
    marks = [
        column for name, column in table.items() if column.is_mark and column.is_class and name not in texts
    ]
    usual = _by_roles(table, ROLES["retrieval"], texts, None) or any(
        column.name.casefold() in NAMES["label"] for column in marks
    )
    if labels or usual:
        marks = [table[name] for name in labels]
    if others := [column for column in marks if not column.is_mark] if len(marks) > 1 else []:
        raise _unclear("several labels are columns of 0 and 1, unlike these", others, "label")
    label = labels[0] if labels else None
    if len(marks) > 1:
        # as one column of lists of their names; None where one is blank
        names = [column.name for column in marks]
        rows = zip(*(column.cells for column in marks), strict=True)
        cells = [dict(zip(names, row, strict=True)) for row in rows]
        joined = Column(", ".join(names), marked(cells, names, Origin([])), names)
        table = {**{name: table[name] for name in table if table[name] not in marks}, joined.name: joined}
        label = label and joined.name
    if len(texts) > 2:
        raise _unclear("more than two columns of texts", table.values(), "text")
    for name, roles in ROLES.items():
        unlabelled = "positive" in roles
        if unlabelled and (texts or (label and not task)):
            continue
        if task not in (None, name) or (texts and not task):
            continue
        columns = _by_roles(table, roles, texts, label)
        if columns and (task or _agree(table, columns)):
            return Guess(name, columns)
    texts = texts or _pair(table, label) or [_choose(table, [label], "text").name]
    target = table[label] if label else _choose(table, texts, "label")
    possible = ["token-classification" if target.holds == "spans" else "text-classification"]
    names = ["text"]
    if len(texts) > 1:
        names = ["text_a", "text_b"]
        possible.insert(0 if target.holds == "score" else 1, "sentence-similarity")
    if task not in (None, *possible):
        raise _unclear(f"no columns of {task}, but of {possible[0]}", table.values(), "task")
    inputs = (table[name] for name in texts)
    return Guess(task or possible[0], {**dict(zip(names, inputs, strict=True)), target.holds: target})


def _by_roles(
    table: Table, roles: Mapping[str, str], texts: Sequence[str], label: str | None
) -> dict[str, Column]:
    """The columns of a task, by their names; none where one is not there, or has other values."""
    by_name = {name.casefold(): name for name in table}
    columns = dict[str, Column]()
    stated = {**dict(zip(roles, texts, strict=False)), **({[*roles][-1]: label} if label else {})}
    for canonical, usual in roles.items():
        names = [by_name[name] for name in usual.split() if name in by_name]
        column = table.get(stated.get(canonical) or [*names, " "][0])  # a name no column has
        if not column or column in columns.values():
            return {}
        if canonical in NO_TEXTS if column.words else canonical == "positive":
            return {}
        columns[canonical] = column
    return columns


def _agree(table: Table, columns: Table) -> bool:
    """Whether columns that were chosen by their names have values that agree with them."""
    names = {column.name.casefold() for column in columns.values()}
    if "answers" in columns:
        pairs = zip(columns["answers"].cells, columns["context"].cells, strict=True)
        located = [answer in str(context) for answer, context in pairs if answer and isinstance(answer, str)]
        return 2 * sum(located) >= len(located)
    if "grade" in columns:
        return "label" not in names or not names.isdisjoint({"query", "document"})
    if "positive" in columns and names.isdisjoint({"anchor", "positive"}):
        return not any(column.is_label for column in table.values() if column not in columns.values())
    return True


def _pair(table: Table, label: str | None) -> Sequence[str]:
    """The names of two columns of texts that go together."""
    texts = {name.casefold(): name for name, column in table.items() if column.words >= 2 and name != label}
    for name in texts:
        for other in PAIRED.get(name, [name[:-1] + NEXT.get(name[-1:], " ")]):
            if other in texts:
                return texts[name], texts[other]
    return ()


def _choose(table: Table, taken: Sequence[str | None], option: str) -> Column:
    """The text, or the label: by its values, its name, or its length. Raises UserError."""
    others = [column for name, column in table.items() if name not in taken]
    candidates = [column for column in others if (column.is_text if option == "text" else column.is_label)]
    candidates.sort(key=lambda column: -column.words)

    def rank(column: Column) -> tuple[bool, ...]:
        name = column.name.casefold()
        return option == "label" and column.holds == "spans", name == option, name in NAMES[option]

    first = [column for column in candidates if rank(column) == max(map(rank, candidates))]
    if len(first) == 1:
        return first[0]
    if option == "text" and candidates and candidates[0].words >= LONGER * candidates[1].words:
        return candidates[0]
    what = "several columns could be" if candidates else "no column looks like"
    raise _unclear(f"{what} the {option}", candidates or others, option)


def _unclear(what: str, columns: Iterable[Column], option: str) -> UserError:
    lines = "".join(column.line() for column in columns)
    twice = "; twice for a pair" if option == "text" else ""
    if not lines:
        return UserError("", what, "Add a column. For texts alone: bertkit copy domain-minilm my.yaml")
    return UserError("", f"{what}:{lines}", f"Name it: --{option} NAME{twice}")
