"""Answers and rows as text."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertkit.tasks import OURS
from bertkit.tasks.base import Task
from bertkit.tasks.fields import AnswerForm, Key
from bertkit.text import Json, Record, json_line, shell_word

OUR_FORMS = [form for task in OURS.values() for form in task.forms]
NAMES = {"set", *(field.name for form in OUR_FORMS for field in form.fields if field.holds == list[str])}


def answer_line(answer: Record, text: str = "", forms: Sequence[AnswerForm] = ()) -> str:
    """An answer on one line, followed by its text, such as `positive  0.983  a text`.

    forms: those of the task; by default of all our tasks.
    """
    form = max(forms or OUR_FORMS, key=lambda form: sum(field.name in answer for field in form.fields))
    shown = _shown(form, answer)
    if "interval" in answer:
        shown["score"] += " [{:.3f}, {:.3f}]".format(*answer["interval"])
    if "set" in answer and answer["label"] is None:
        shown["label"] += f": {' or '.join(answer['set']) or 'empty set'}"
    parts = [part.format_map(shown) for part in form.line.split("  ")]
    marks = [f"({name})" for name in ("truncated", "empty", "unreadable", "other_words") if answer.get(name)]
    marks += ["(unfinished)"] if answer.get("finished") is False else []
    return "  ".join(filter(None, (*parts, " ".join(text.splitlines()), *marks)))


def _shown(form: AnswerForm, answer: Record) -> defaultdict[str, str]:
    """The fields of an answer, or of an item in its lists, as text; an empty text for those that it lacks."""
    shown = {
        field.name: _value(field, field.holds, answer[field.name])
        for field in form.fields
        if field.name in answer
    }
    return defaultdict(str, shown)


def _value(field: Key, holds: Any, value: Any) -> str:
    """holds: as in `Key`, of the field or of an item in its lists."""
    if isinstance(holds, AnswerForm):
        return holds.line.format_map(_shown(holds, value))
    if isinstance(holds, list):
        items = [_value(field, holds[0], item) for item in value]
        inside = "".join(items)
        separator = ", " if " " in inside else " "
        if ", " in inside:
            separator = "; "
        return separator.join(items) or f"no {field.name}"
    if field.role == "vector":
        return f"{len(value)} numbers: {', '.join(f'{number:.4f}' for number in value[:4])}, …"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.3f}"
    if value is None:
        return "unsure"
    if field.role == "text":
        return " ".join(value.splitlines())
    return str(value) or (f"no {field.name}" if field.role == "span" else "")


def flat(answer: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested answer as flat columns, such as `label` and `scores.positive`; names as `a|b`, other lists as
    JSON.
    """
    for key, value in answer.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            text = "|".join(map(str, value)) if key in NAMES else json_line(value)
            yield f"{prefix}{key}", text
        else:
            yield f"{prefix}{key}", value


EXAMPLES: Json = {"number": 0, "numbers": [0], "words": ["a"], "tags": ["a"], "labels": ["a"]}
"""What a column holds -> a value of it; text elsewhere."""


def example(
    source: str | Path, task: type[Task] | Task, reads: Sequence[frozenset[str]], mask: str = "[MASK]"
) -> str:
    """A `bertkit predict` that works as it stands: a text, or a row on stdin where texts are read together.

    reads: the sets of columns that the model takes, as `Task.inputs`. mask: the tokenizer's mask token.
    """
    predict = f"bertkit predict {shell_word(source)}"
    if {"text"} in reads:
        text = f"A text with one {mask} in it." if task.schema.special_tokens else "a text of yours"
        return f"{predict} '{text}'"
    columns = {name: column for name, column in task.schema.columns.items() if name in reads[0]}
    row = {name: EXAMPLES.get(column.holds, column.about) for name, column in columns.items()}
    return f"echo {shell_word(json.dumps(row))} | {predict} --input -"


def read_together(task: Task) -> str:
    """The columns of a model that reads several, such as `question and context`."""
    return " and ".join(name for name in task.schema.columns if name in task.inputs[0])
