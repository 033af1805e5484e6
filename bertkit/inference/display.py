"""Answers and rows as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.tasks.base import Task


def answer_line(answer: Mapping[str, Any], text: str = "") -> str:
    """An answer on one line, followed by its text, such as `positive  0.983  a text`."""
    text = " ".join(text.splitlines())
    if "filled" in answer:
        best = (", ".join(f"{guess['token']} {guess['score']:.3f}" for guess in guesses) for guesses in answer["masks"])
        return f"{answer['filled']}  ({'; '.join(best)})" if text else "; ".join(best)
    if "vector" in answer:
        numbers = ", ".join(f"{number:.4f}" for number in answer["vector"][:4])
        return "  ".join(filter(None, (f"{len(answer['vector'])} numbers: {numbers}, …", text)))
    score = f"{answer['score']:.3f}" if "score" in answer else ""
    if "interval" in answer:
        score += " [{:.3f}, {:.3f}]".format(*answer["interval"])
    if "n_best" in answer:
        return "  ".join(filter(None, (answer["answer"] or "no answer", score, text)))
    if "entities" in answer:
        parts = [f"{each['label']} {each['text']} ({each['score']:.3f})" for each in answer["entities"]]
        return (", ".join(parts) or "no entities") + (f"  in: {text}" if text else "")
    if "words" in answer:
        return " ".join(f"{each['word']}/{each['tag']}" for each in answer["words"]) or "no words"
    label = answer.get("label", ", ".join(answer["labels"]) or "none" if "labels" in answer else "")
    if "generated_text" in answer:
        label = " ".join(answer["generated_text"].splitlines())
    if label is None:
        label = f"unsure: {' or '.join(answer['set']) or 'empty set'}" if "set" in answer else "unsure"
    marks = [f"({name})" for name in ("truncated", "empty", "unreadable") if answer.get(name)]
    marks += ["(unfinished)"] if answer.get("finished") is False else []
    return "  ".join(filter(None, (label, score, text, *marks)))


def flat(answer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested answer as flat columns, such as `label` and `scores.positive`; lists as text, `a|b` or JSON."""
    for key, value in answer.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            nested = key in ("words", "entities", "n_best", "vector")
            plain = isinstance(value, list) and not nested and all(isinstance(each, str) for each in value)
            joined = "|".join(value) if plain else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{key}", joined if isinstance(value, list) else value


def example(source: str | Path, task: type[Task] | Task, reads: Sequence[frozenset[str]], mask: str = "[MASK]") -> str:
    """A `bertkit predict` that works as it stands: a text, or a row on stdin where texts are read together.

    reads: the sets of columns that the model takes, as `Task.inputs`. mask: the tokenizer's mask token.
    """
    predict = f"bertkit predict {shlex.quote(str(source))}"
    if {"text"} in reads:
        text = f"A text with one {mask} in it." if task.schema.special_tokens else "a text of yours"
        return f"{predict} '{text}'"
    return f"echo {shlex.quote(example_row(task, reads))} | {predict} --input -"


def read_together(task: Task) -> str:
    """The columns of a model that reads several, such as `question and context`."""
    return " and ".join(name for name in task.schema.columns if name in task.inputs[0])


def example_row(task: type[Task] | Task, reads: Sequence[frozenset[str]]) -> str:
    """A row as JSON, whose values say what they are. reads: the sets of columns that the model takes."""
    return json.dumps({name: column.about for name, column in task.schema.columns.items() if name in reads[0]})
