"""What rows are for: the task, and which column is what, by the names and values of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from bertkit.data.scripts import mostly_unspaced
from bertkit.data.tagging import without_prefixes
from bertkit.data.values import is_blank
from bertkit.data.word_spans import read_spans
from bertkit.errors import UserError
from bertkit.text import Json, beginning, counted, listed
from bertkit.validation import did_you_mean

TEXTS = (
    *("text", "body", "sentence", "review", "message", "comment", "content", "description", "tweet"),
    *("utterance", "question", "query", "document"),
)
LABELS = (
    *("label", "labels", "target", "class", "category", "topic", "intent", "sentiment", "tag", "tags"),
    *("emotion", "rating", "stars", "score"),
)
SCORES = ("score", "similarity", "relatedness")  # of pairs: also with few values
PAIRS = (("premise", "hypothesis"),)
NEXT = {"1": "2", "a": "b"}  # last characters of names such as text1 and text2, text_a and text_b
ROLES = (  # task -> canonical column -> its usual names; the last is the target
    (
        "question-answering",
        {"question": "question", "context": "context passage paragraph", "answers": "answers answer"},
    ),
    ("token-classification", {"tokens": "tokens words", "tags": "tags ner_tags labels upos"}),
    (
        "retrieval",
        {"query": "query question", "document": "document passage", "grade": "grade relevance label score"},
    ),
    (
        "text-ranking",
        {"query": "query question", "document": "document passage", "label": "label grade relevance score"},
    ),
    (
        "sentence-similarity",
        {"anchor": "anchor query question", "positive": "positive document passage"},
    ),
)
TASKS = ("text-classification", *(task for task, _ in ROLES))
MOST_LABELS = 200
MOST_NUMBERS = 10  # whole ones that are classes, in a column of another name
LONGER = 4  # times the words of the next column: the text
EXAMPLES = 3  # values in a message
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}")
_NO_LABEL = re.compile(r"(.*[\W_])?(id|idx|index|date|time|timestamp|year|url)", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """A column of the table: its cells, None where one is missing."""

    name: str
    cells: Sequence[Any]

    @cached_property
    def values(self) -> list[Any]:
        """Those that are not blank."""
        return [cell for cell in self.cells if not is_blank(cell)]

    @cached_property
    def distinct(self) -> int:
        """How many different values there are."""
        return len({str(value) for value in self.values})

    @cached_property
    def words(self) -> float:
        """The median length of its texts; 0 where it holds others."""
        if not self.values or not all(isinstance(value, str) for value in self.values):
            return 0
        return median(map(length, self.values))

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether all values match."""
        return bool(self.values) and all(pattern.fullmatch(str(value)) for value in self.values)

    @property
    def is_text(self) -> bool:
        """Whether these are texts: mostly different, of a few words."""
        return self.words >= 3 and 2 * self.distinct >= len(self.values)

    @cached_property
    def holds(self) -> str:
        """The canonical column that has such values: `spans`, `labels`, `score` or `label`."""
        if self.values and all(map(_is_list, self.values)):
            with suppress(ValueError):
                if any(map(read_spans, self.values)):
                    return "spans"
            return "labels"
        if self.matches(_NUMBER) and (not self.matches(_WHOLE) or self.distinct > self.most):
            return "score"
        return "labels" if self.words and any("|" in value for value in self.values) else "label"

    @property
    def most(self) -> float:
        """The greatest number of labels."""
        return max(2, min(MOST_LABELS, len(self.cells) / 2))

    @cached_property
    def labels(self) -> list[str]:
        """Each label of each row."""
        if self.holds == "labels":
            parts = (value.split("|") if isinstance(value, str) else value for value in self.values)
            return [str(label).strip() for label in chain.from_iterable(parts)]
        return [str(value) for value in self.values]

    @property
    def is_class(self) -> bool:
        """Whether there are few values."""
        return 2 <= len({*self.labels}) <= self.most

    @property
    def is_target(self) -> bool:
        """Whether a model may learn to say these values."""
        if self.holds == "spans":
            return True
        if _NO_LABEL.fullmatch(self.name) or self.matches(_DATE):
            return False
        usual = self.name.casefold() in LABELS
        if self.holds == "score":
            return self.distinct > 1 and (usual or not self.matches(_WHOLE))
        return self.is_class and (usual or not self.matches(_WHOLE) or self.distinct <= MOST_NUMBERS)

    def line(self) -> str:
        """Its name and some of its values, for people."""
        examples = dict.fromkeys(beginning(str(value), 40) for value in self.values[:100])
        return f"{beginning(self.name, 60)}: {listed([*examples][:EXAMPLES]) or 'no values'}"


class Guess(NamedTuple):
    """task: its section. columns: canonical column -> column of the table. target: the column that is
    learned. why: in words.
    """

    task: Json
    columns: dict[str, str]
    target: Column
    why: list[str]


def length(value: Any) -> int:
    """The words of a cell: in scripts without blanks, half of its characters."""
    if isinstance(value, str):
        return len(value) // 2 if mostly_unspaced([value]) else len(value.split())
    return len(value) if isinstance(value, list) else 0


def guess(
    table: Mapping[str, Column], texts: Sequence[str] = (), label: str | None = None, task: str | None = None
) -> Guess:
    """The task of a table and its columns. texts, label, task: those that a user names.

    Raises UserError, with the columns that could be meant, and the option that decides.
    """
    for name in (*texts, *filter(None, [label])):
        if name not in table:
            what = f"no column {name!r}{did_you_mean(name, table)}"
            raise UserError("", what, f"Columns: {listed([beginning(name, 60) for name in table])}.")
    if task not in (None, *TASKS):
        what = f"no recipe for {task} is written{did_you_mean(str(task), TASKS)}"
        raise UserError("--task", what, f"Known: {', '.join(TASKS)}; `bertkit copy` starts from others.")
    for name, roles in ROLES:
        if task in (None, name) and not (texts and task in (None, "sentence-similarity")):
            columns = _by_roles(table, roles, texts, label)
            if columns is not None:
                return _guess(name, columns, table)
    pair = texts if len(texts) == 2 else _pair(table, label)
    if not texts and pair:
        texts = pair
    if not texts:
        others = {name: column for name, column in table.items() if name != label}
        texts = [_choose(others, TEXTS, lambda column: column.is_text, "text").name]
    others = {name: column for name, column in table.items() if name not in texts}
    target = table[label] if label else _choose(others, LABELS, lambda column: column.is_target, "label")
    holds = target.holds
    if len(texts) == 2:
        columns = dict(zip(("text_a", "text_b"), texts, strict=True))
        if target.name.casefold() in SCORES and target.matches(_NUMBER):
            holds = "score"
        possible = ["sentence-similarity", "text-classification"]
        if holds != "score":
            possible.reverse()
    else:
        columns = {"text": texts[0]}
        possible = ["token-classification" if holds == "spans" else "text-classification"]
    if task not in (None, *possible):
        raise _unclear(f"the columns are of {possible[0]}, not of {task}", table, "text")
    return _guess(task or possible[0], {**columns, holds: target.name}, table)


def _guess(task: str, columns: dict[str, str], table: Mapping[str, Column]) -> Guess:
    target = table[[*columns.values()][-1]]
    options = {"name": task}
    if task == "text-classification" and "score" in columns:
        options["kind"] = "regression"
    if "tags" in columns:
        tags = set(chain.from_iterable(target.values))
        if without_prefixes(map(str, tags)):
            options |= {"data_scheme": "IO"} if "O" in tags else {"scheme": "none"}
    why = [task]
    for canonical, name in columns.items():
        what = f"{canonical}: {beginning(name, 60)}"
        if canonical in ("label", "labels") and task != "text-ranking":
            what += f", {counted(len({*target.labels}), 'value')}"
        why.append(what + (f", median {table[name].words:g} words" if table[name].is_text else ""))
    return Guess(options, columns, target, why)


def _by_roles(
    table: Mapping[str, Column], roles: Mapping[str, str], texts: Sequence[str], label: str | None
) -> dict[str, str] | None:
    """The columns of a task by their names; None where one of them is not there, or has other values."""
    by_name = {name.casefold(): name for name in table}
    columns = dict(zip(roles, texts, strict=False))
    for canonical in [*roles][len(columns) :]:
        names = [by_name[name] for name in roles[canonical].split() if name in by_name]
        names = [label] if label and canonical == [*roles][-1] else names
        if not names or names[0] in columns.values():
            return None
        columns[canonical] = names[0]
    for canonical, name in columns.items():
        lists = canonical in ("tokens", "tags")
        numbers = canonical in ("grade", "label")
        cells = table[name]
        if (lists and not all(map(_is_list, cells.values))) or (numbers and not cells.matches(_NUMBER)):
            return None
    return columns


def _pair(table: Mapping[str, Column], label: str | None) -> Sequence[str]:
    """The names of two columns of texts that go together."""
    by_name = {column.name.casefold(): column for column in table.values() if column.words >= 2}
    numbered = [(name, name[:-1] + NEXT[name[-1]]) for name in by_name if name[-1:] in NEXT]
    for names in (*PAIRS, *numbered):
        pair = [by_name[name].name for name in names if name in by_name]
        if len(pair) == 2 and label not in pair:
            return pair
    return ()


def _choose(
    table: Mapping[str, Column], names: Sequence[str], fits: Callable[[Column], bool], option: str
) -> Column:
    """The column that fits: by its values, its name, or its length. Raises UserError."""
    candidates = [column for column in table.values() if fits(column)]
    if option == "text" and not candidates:  # such as short queries
        candidates = [column for column in table.values() if column.words and column.name.casefold() in names]
    spans = [column for column in candidates if option == "label" and column.holds == "spans"]
    canonical = [column for column in candidates if column.name.casefold() == names[0]]
    named = [column for column in candidates if column.name.casefold() in names]
    for fitting in (candidates, spans, canonical, named):
        if len(fitting) == 1:
            return fitting[0]
    longest = sorted(candidates, key=lambda column: -column.words)
    if option == "text" and len(longest) > 1 and longest[0].words >= LONGER * longest[1].words:
        return longest[0]
    what = "several columns could be" if candidates else "no column looks like"
    raise _unclear(f"{what} the {option}", {c.name: c for c in candidates} or table, option)


def _unclear(what: str, table: Mapping[str, Column], option: str) -> UserError:
    lines = "".join(f"\n    {column.line()}" for column in table.values())
    fix = f"Name it: --{option} NAME"
    return UserError("", what + lines, fix + ("; twice for a pair of texts" if option == "text" else ""))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and value.startswith("[{"))
