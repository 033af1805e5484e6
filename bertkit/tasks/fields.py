"""What a task declares of its answers: their fields, each with a role, and how labels follow from scores.

Answers are JSON. Their line on a terminal, the columns of tables, the schema of the server, options such as
`--top-k` and the formats of others are derived from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Role = Literal["label", "score", "span", "text", "vector", "number", "set", "mark"]


class Key(NamedTuple):
    """A key of an answer.

    role: label, a label's name or several; score, how certain the model is, or of each label; span, part of a
    text or several; text, which the model writes; vector; number, any other; set, several candidates, best
    first; mark, what a reader should know of the row. holds: a type; in brackets, a list of such. optional:
    some answers lack it.
    """

    name: str
    role: Role
    holds: Any  # a type, an AnswerForm, or [one of them]
    about: str = ""
    optional: bool = False


class AnswerForm(NamedTuple):
    """The fields of an answer, or of an item in its lists, in their order.

    line: how it is shown on one line, such as `{label}  {score}`; two spaces separate parts; empty ones are
    left out.
    """

    name: str
    about: str
    fields: Sequence[Key]
    line: str

    def always_has(self, name: str) -> bool:
        """Whether the field is never absent."""
        return any(field.name == name and not field.optional for field in self.fields)


def form(name: str, about: str, *fields: Key, line: str = "") -> AnswerForm:
    """An AnswerForm with these fields. line: by default its labels, texts, vectors and `score`."""
    shown = [field.name for field in fields if field.role in ("label", "text", "vector") or field == SCORE]
    line = line or "  ".join(f"{{{name}}}" for name in shown)
    return AnswerForm(name, about, fields, line)


class Decision(NamedTuple):
    """How an answer follows from scores."""

    kind: Literal["single-label", "multi-label", "by cosine", "regression", ""] = (
        ""  # by cosine: of two labels
    )
    threshold: str = ""  # the option that is its threshold


SCORE = Key("score", "score", float)
SPAN = (Key("start", "span", int), Key("end", "span", int), SCORE)
READ = (  # of rows that are texts; `with_input_flags` adds them
    Key("truncated", "mark", bool, "the text was longer than the model's maximum length, and was cut"),
    Key("empty", "mark", bool, "a text of the row has no token"),
    Key("unreadable", "mark", bool, "all tokens of a text of the row are unknown to the tokenizer"),
)
NUMBER = form("Number", "The value of a regression, or the score of a document.", SCORE, *READ)


class Usage(NamedTuple):
    """How the model card shows a task's models in use."""

    arguments: str  # what `load("PATH_OR_HUB_ID")(…)` is called with
    plain: str = ""  # code without bertkit, where there is any; PATH_OR_HUB_ID stands for the model
    adds: str = ""  # what bertkit's answers have that those of `plain` lack
    tag: str | None = None  # the Hub's pipeline tag; None: the Hub has none


PIPELINE = "from transformers import pipeline\n\n"
