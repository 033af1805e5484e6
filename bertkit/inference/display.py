"""Answers and rows as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.data.schema import Answer
    from bertkit.tasks.base import Task


def said(answer: Mapping[str, Any]) -> str:
    """An answer in a few words, such as `positive 0.983`."""
    if "n_best" in answer:
        return f"{answer['answer'] or 'no answer'} {answer['score']:.3f}"
    if "entities" in answer:
        found = (f"{each['label']} {each['text']} {each['score']:.3f}" for each in answer["entities"])
        return "; ".join(found) or "no entities"
    if "masks" in answer:
        return "; ".join(", ".join(f"{g['token']} {g['score']:.3f}" for g in guesses) for guesses in answer["masks"])
    given = answer.get("label", ", ".join(answer.get("labels", ())))
    if "score" not in answer:
        return given or "none"
    return f"{given or 'score'} {answer['score']:.3f}"


def example(source: str | Path, task: type[Task] | Task, reads: Sequence[frozenset[str]], mask: str = "[MASK]") -> str:
    """A `bertkit predict` that works as it stands: a text, or a row on stdin where texts are read together.

    reads: the sets of columns that the model takes, as `Task.inputs`. mask: the tokenizer's mask token.
    """
    predict = f"bertkit predict {shlex.quote(str(source))}"
    if {"text"} in reads:
        text = f"A text with one {mask} in it." if task.name == "pretraining" else "a text of yours"
        return f"{predict} '{text}'"
    row = {name: column.about for name, column in task.schema.columns.items() if name in reads[0]}
    return f"echo {shlex.quote(json.dumps(row))} | {predict} --input -"


def shown(text: str, answer: Answer) -> str:
    """An answer for people, on one line, such as `positive  0.98  a text`."""
    text = " ".join(text.splitlines())
    if "n_best" in answer:
        return f"{answer['answer'] or 'no answer'}  {answer['score']:.3f}  {text}"
    if "entities" in answer:
        found = [f"{e['label']} {e['text']} ({e['score']:.3f})" for e in answer["entities"]]
        return f"{', '.join(found) or 'no entities'}  in: {text}"
    if "vector" in answer:
        numbers = ", ".join(f"{number:.4f}" for number in answer["vector"][:4])
        return f"{len(answer['vector'])} numbers: {numbers}, …  {text}"
    if "filled" in answer:
        best = (", ".join(f"{guess['token']} {guess['score']:.3f}" for guess in guesses) for guesses in answer["masks"])
        return f"{answer['filled']}  ({'; '.join(best)})"
    given = answer.get("label", answer.get("labels"))
    given = ", ".join(given) or "none" if isinstance(given, list) else given
    score = answer.get("score")
    parts = [
        given,
        None if score is None else f"{score:.3f}",
        text,
        "(cut)" if answer.get("truncated") else None,
    ]
    return "  ".join(part for part in parts if part)
