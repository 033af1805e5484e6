"""Answers of extractive question answering, each located in its context."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Finding, note, warn
from bertkit.data.squad import check_answers
from bertkit.data.table import Table, each_row
from bertkit.text import counted


def locate_answers(table: Table, split: str) -> tuple[Table, list[Finding]]:
    """Answers as {text, answer_start}, and findings. Raises DataError on answers that their context lacks."""
    names, moved = table.values.get("id", [None] * len(table)), 0

    def locate(context: str, given: object) -> dict[str, Any] | None:
        nonlocal moved
        if given is None:
            return None
        aligned = check_answers(context, given)
        if aligned.problems:
            raise ValueError(*aligned.problems)
        moved += aligned.moved
        return {"text": [context[a:b] for a, b in aligned.spans], "answer_start": [start for start, _ in aligned.spans]}

    answers = DiskList(each_row(locate, table.origin.__getitem__, table.values["context"], table.values["answers"]))
    return Table({**table.values, "answers": answers}, table.origin), list(_findings(split, names, answers, moved))


def _findings(split: str, names: Sequence[Any], located: Sequence[Any], moved: int) -> Iterator[Finding]:
    answered = Counter(len(answers["text"]) > 0 for answers in located if answers is not None)
    if answered:
        questions = counted(answered.total(), "question")
        yield note(f"{split}: {answered[False]:,} of {questions} without an answer in the context")
    if moved:
        what = f"{split}: `answer_start` is wrong for {counted(moved, 'answer')}, found elsewhere in the context"
        yield warn(what, "Correct `answer_start` where another place is meant.")
    known = array("q", (hash(name) for name in names if name is not None))
    if len(set(known)) < len(known):
        what = f"{split}: {counted(len(known) - len(set(known)), 'id', 'occur')} more than once"
        yield warn(what, "Give each question an id of its own, by which messages and predictions name it.")
