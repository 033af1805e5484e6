"""Requests and responses of huggingface_hub's InferenceClient for tasks that text-embeddings-inference does
not have.

They are those of transformers' pipelines; InferenceClient posts them to `/`. docs/serve.md lists the
differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bertkit.data.schema import Answer
from bertkit.data.values import replace_surrogates
from bertkit.serving.limits import Refused
from bertkit.serving.schemas import schema
from bertkit.tasks import fields
from bertkit.tasks.base import Task
from bertkit.tasks.masks import GUESSES, inserted
from bertkit.text import Json

SPAN = {field.name: field.holds for field in fields.SPAN}
TopK = Annotated[int | None, Field(ge=1, description="as many of the best as this")]


class Request(BaseModel):
    """A request or its parameters: unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


class TokenParameters(Request):
    """`none` gives words; `simple` and `first` give entities."""

    aggregation_strategy: Literal["none", "simple", "first"] | None = None
    """null: simple; for labels of words, which form no entities, none"""
    ignore_labels: list[str] = ["O"]
    """labels that are left out"""


class TokenRequest(Request):
    """A text whose words are tagged."""

    inputs: str
    parameters: TokenParameters = TokenParameters()


class QuestionParameters(Request):
    """How many answers, and whether there may be none."""

    top_k: TopK = None
    handle_impossible_answer: bool | None = None
    """false: always a span; otherwise an empty answer where the model decides that there is none"""


class Question(Request):
    """A question about a context."""

    question: str
    context: str


class QuestionRequest(Request):
    """A question to answer."""

    inputs: Question
    parameters: QuestionParameters = QuestionParameters()


class MaskParameters(Request):
    """How many tokens for each mask."""

    top_k: int | None = Field(None, ge=1, le=GUESSES, description=f"null: {GUESSES}")


class MaskRequest(Request):
    """A text with masks."""

    inputs: str
    parameters: MaskParameters = MaskParameters()


class GenerationParameters(Request):
    """No parameters: texts are generated with the model's own settings."""


class GenerationRequest(Request):
    """A text from which another is generated."""

    inputs: str
    parameters: GenerationParameters = GenerationParameters()
    stream: Literal[False] | None = None


_generated = dict.fromkeys(("generated_text", "translation_text", "summary_text"), str)
GeneratedOutput = schema(
    "GeneratedOutput", "A generated text, by the name that each client's call reads.", **_generated
)
TokenOutput = schema("TokenOutput", "A word with its tag.", word=str, entity=str, **SPAN)
EntityOutput = schema("EntityOutput", "An entity with its type.", word=str, entity_group=str, **SPAN)
AnswerOutput = schema(
    "AnswerOutput", "An answer; an empty text where the context has none.", answer=str, **SPAN
)
_mask = {"token": int, "token_str": str, "sequence": str, "score": float}
MaskOutput = schema(
    "MaskOutput", "A token for a mask, by its id and as text; the sequence is the text with it.", **_mask
)


def generated(task: Task, body: GenerationRequest, answers: Sequence[Answer]) -> list[Json]:
    """The text under each of its names."""
    return [dict.fromkeys(_generated, answer["generated_text"]) for answer in answers]


def tokens(task: Task, body: TokenRequest, answers: Sequence[Answer]) -> list[Json]:
    """Entities, or words with their tags. Raises Refused where labels of words are to be grouped."""
    answer = answers[0]
    strategy = body.parameters.aggregation_strategy
    words = strategy == "none" or (strategy is None and "entities" not in answer)
    if not words and "entities" not in answer:
        what = "parameters.aggregation_strategy: this model's labels of words form no entities; send none"
        raise Refused(422, what)
    ignored = body.parameters.ignore_labels
    if words:
        return [
            {"entity": word["tag"], "word": word["word"], **_span(word)}
            for word in answer["words"]
            if word["tag"] not in ignored
        ]
    return [
        {"entity_group": entity["label"], "word": entity["text"], **_span(entity)}
        for entity in answer["entities"]
        if entity["label"] not in ignored
    ]


def _span(part: Answer) -> Json:
    return {name: part[name] for name in SPAN}


def spans(task: Task, body: QuestionRequest, answers: Sequence[Answer]) -> Any:
    """The best answer; a list of answers with `top_k` above 1."""
    best = {"answer": answers[0]["answer"], **_span(answers[0])}
    spans = answers[0]["n_best"]
    if not spans or (not best["answer"] and body.parameters.handle_impossible_answer is not False):
        spans = [best, *spans]
    count = body.parameters.top_k or 1
    return spans[0] if count == 1 else spans[:count]


def fills(task: Task, body: MaskRequest, answers: Sequence[Answer]) -> list[Any]:
    """The best tokens for a mask, best first; a list of such lists for several masks. Raises Refused without
    a mask.
    """
    mask = str(task.tokenizer.mask_token)
    parts = replace_surrogates(body.inputs).split(mask)
    if not (masks := answers[0].get("masks")):
        raise Refused(422, f"`inputs`: no {mask} within the model's {task.max_length} tokens")

    def filled(place: int, guess: Answer) -> Json:
        before = mask.join(parts[:place])
        after = mask.join(parts[place:])
        sequence = before + inserted(guess, before, task.tokenizer) + after
        return {
            "token": guess["id"],
            "token_str": guess["token"],
            "sequence": sequence,
            "score": guess["score"],
        }

    lists = []
    for place, guesses in enumerate(masks, 1):
        lists.append([filled(place, guess) for guess in guesses[: body.parameters.top_k]])
    return lists[0] if len(lists) == 1 else lists
