"""Extractive questions: documents in the layout of SQuAD 1.1 and 2.0, and answers in all of their usual
layouts.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.data.problems import Problems
from bertkit.data.schema import Finding, note, warn
from bertkit.data.table import Checked, NumberedRows, Table
from bertkit.text import Json, counted, short_repr

_FORMS = (
    'text, a list of texts or of {"text": "…", "answer_start": 0}, or {"text": […], "answer_start": '
    "[…]} is expected"
)


def is_squad(document: object) -> bool:
    """Whether this JSON is in the layout of SQuAD: an object with a list `data` of articles that have
    `paragraphs`.
    """
    articles = document.get("data") if isinstance(document, dict) else None
    return isinstance(articles, list) and any(
        isinstance(article, dict) and "paragraphs" in article for article in articles
    )


def squad_rows(document: Any, problems: Problems) -> NumberedRows:
    """The questions of a SQuAD document as (number from 1, row), in the layout of the Hub's `squad`.

    A row has the texts `id`, `title`, `question` and `context`, and `answers`:
    {"text": [...], "answer_start": [...]}, both empty where `is_impossible` is true. `title` and `answers`
    are None where they are missing; `plausible_answers` are not read.

    document: the parsed JSON of version 1.1 or 2.0 (Rajpurkar et al. 2016, 2018).
    problems: gets the articles that are not in this layout; what their fields hold is checked like that of
    other rows.
    """
    number = 0
    for index, article in enumerate(document["data"]):
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    number += 1
                    items = [] if question.get("is_impossible") else question.get("answers")
                    answers = None
                    if items is not None:
                        texts = [answer["text"] for answer in items]
                        starts = [answer["answer_start"] for answer in items]
                        answers = {"text": texts, "answer_start": starts}
                    row = {"id": question["id"], "title": article.get("title")}
                    row |= {"question": question["question"], "context": paragraph["context"]}
                    yield number, {**row, "answers": answers}
        except (LookupError, TypeError, AttributeError) as error:
            what = f"is not in the layout of SQuAD: {error!r}"
            problems.add(f"{problems.name}, data[{index}]", what, "Write it as SQuAD's own files have it.")


def read_answers(value: object) -> list[tuple[str, int | None]]:
    """The answers to one question as (text, offset in the context or None), from any of their usual layouts.

    Known: {"text": [...], "answer_start": [...]} (the Hub's), [{"text", "answer_start"}] (SQuAD's), a list of
    texts, one text, or an empty one for none. `answer_start` may be missing or null. Raises ValueError:
    anything else.
    """
    if isinstance(value, str):
        return [(value, None)] if value.strip() else []
    if isinstance(value, dict):
        texts = value.get("text")
        starts = value.get("answer_start")
        if not isinstance(texts, list) or not (starts is None or isinstance(starts, list)):
            raise ValueError(f"`answers` holds {short_repr(value)}, where {_FORMS}")
        if starts is not None and len(starts) != len(texts):
            raise ValueError(
                f"`answers` holds {short_repr(value)}: {counted(len(texts), 'text')}, but {len(starts)} "
                "answer_start"
            )
        pairs = zip(texts, starts or [None] * len(texts), strict=True)
        value = [{"text": text, "answer_start": start} for text, start in pairs]
    if not isinstance(value, list):
        raise ValueError(f"`answers` holds {short_repr(value)}, where {_FORMS}")
    return [_read_answer(number, answer) for number, answer in enumerate(value, 1)]


def with_starts(answers: object, starts: list[int] | None) -> object:
    """Plain answers, a text or a list of texts, with their offsets in the context; all others as they are."""
    texts = [answers] if isinstance(answers, str) and answers.strip() else answers
    if starts is None or not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
        return answers
    return {"text": texts, "answer_start": starts}


def check_answers(context: str, answers: object) -> tuple[Json, int]:
    """The answers to one question as {text, answer_start}, and how many had a wrong `answer_start`.

    answers: as `read_answers` reads them; none: the question cannot be answered. An answer without
    `answer_start`, or with a wrong one, is searched for and used if it occurs exactly once.
    Raises ValueError like `read_answers`, and with each answer that is empty, does not occur or, where it is
    searched for, occurs more than once.
    """
    pairs = read_answers(answers)
    problems = list[str]()
    starts = []
    for number, (text, start) in enumerate(pairs, 1):
        located, fault = _locate(context, text, start)
        starts.append(located)
        if fault:
            problems.append(f"answer {number}, {short_repr(text)}, {fault}")
    if problems:
        raise ValueError(*problems)
    moved = sum(start not in (None, located) for (_, start), located in zip(pairs, starts, strict=True))
    return {"text": [text for text, _ in pairs], "answer_start": starts}, moved


def locate_answers(table: Table, split: str) -> Checked:
    """Answers as {text, answer_start}, and findings. Raises DataError on answers that their context lacks."""
    names = table.values.get("id", [None] * len(table))
    moved = 0

    def locate(context: str, answers: object) -> Json | None:
        nonlocal moved
        if answers is None:
            return None
        located, wrong = check_answers(context, answers)
        moved += wrong
        return located

    answers = DiskList(table.each_row(locate, table.values["context"], table.values["answers"]))
    return table.with_(answers=answers), list(_findings(split, names, answers, moved))


def _findings(split: str, names: Sequence[Any], located: Sequence[Any], moved: int) -> Iterator[Finding]:
    answered = Counter(len(answers["text"]) > 0 for answers in located if answers is not None)
    if answered:
        questions = counted(answered.total(), "question")
        yield note(f"{split}: {answered[False]:,} of {questions} without an answer in the context")
    if moved:
        what = (
            f"{split}: `answer_start` is wrong for {counted(moved, 'answer')}, found elsewhere in the context"
        )
        yield warn(what, "Correct `answer_start` where another place is meant.")
    ids = array("q", (hash(name) for name in names if name is not None))
    if len(set(ids)) < len(ids):
        what = f"{split}: {counted(len(ids) - len(set(ids)), 'id', 'occur')} more than once"
        yield warn(what, "Give each question an id of its own, by which messages and predictions name it.")


def _read_answer(number: int, answer: object) -> tuple[str, int | None]:
    if isinstance(answer, str):
        return answer, None
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        raise ValueError(
            f"answer {number} is {short_repr(answer)}, where text, or an object with a text, is expected"
        )
    start = answer.get("answer_start")
    if start is not None and type(start) is not int:
        raise ValueError(
            f"answer {number} has the answer_start {short_repr(start)}, where a whole number is expected"
        )
    return answer["text"], start


def _locate(context: str, text: str, start: int | None) -> tuple[int, str]:
    """(offset of an answer, "") or (0, why it cannot be located)."""
    if not text.strip():
        return 0, "is empty"
    if start is not None and start >= 0 and context.startswith(text, start):
        return start, ""
    place = context.find(text)
    where = "in the context" if start is None else f"at {start}, nor elsewhere in the context"
    if place < 0:
        return 0, f"does not stand {where}"
    if context.find(text, place + 1) >= 0:
        where = "has no answer_start" if start is None else f"does not stand at {start}"
        return 0, f"{where}, and the context has it more than once"
    return place, ""
