"""The answers of each task as schemas, for the OpenAPI page. Answers themselves are what `Task.decode` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from bertkit.tasks.base import Task


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Truncated(_Answer):
    truncated: bool = Field(description="was the text longer than the model reads, and cut?")


class Label(_Truncated):
    """The most probable of the labels."""

    label: str
    score: float = Field(description="its calibrated probability")
    scores: dict[str, float] = Field(description="label -> probability")


class Labels(_Truncated):
    """All labels whose probability is past their threshold."""

    labels: list[str]
    scores: dict[str, float] = Field(description="label -> calibrated probability")


class Number(_Truncated):
    """A number: what a regression says, or how well a document answers a query."""

    score: float


class Word(_Answer):
    """A word of the text."""

    word: str
    tag: str
    score: float = Field(description="posterior of the tag")


class Entity(_Answer):
    """An entity; start and end are characters of the text, end exclusive."""

    text: str
    label: str
    start: int
    end: int
    score: float


class Entities(_Truncated):
    """The entities of a text."""

    words: list[Word]
    entities: list[Entity]


class Span(_Answer):
    """A part of the context; start and end are characters, end exclusive."""

    answer: str
    start: int
    end: int
    score: float


class Found(Span):
    """The best answer; "" where there is none."""

    n_best: list[Span]
    null_score: float = Field(description="of there being no answer")
    truncated: bool


class Vector(_Truncated):
    """The vector of a text."""

    vector: list[float]


class Similar(_Truncated):
    """How near the texts of a pair are, by the cosine of their vectors or by a classifier."""

    score: float
    label: str | None = None
    scores: dict[str, float] | None = None
    rank: int | None = Field(None, description="of the positive among those of this request's rows")
    negative_score: float | None = None


class Hit(_Answer):
    """A document that was found."""

    id: str
    score: float


class Ranked(_Answer):
    """Where the document stands among all documents of this request's rows, for its query."""

    score: float | None = None
    rank: int | None = None
    found: list[Hit] | None = Field(None, description="of a query's first row: the best documents")


class Guess(_Answer):
    """A word piece for a mask."""

    token: str
    score: float


class Filled(_Answer):
    """A text with its masks filled."""

    filled: str
    masks: list[list[Guess]]


class Counted(_Answer):
    """What was drawn from a document, and how much of it the model knew; the loss is a sum in nats."""

    masked: int
    right: int
    loss: float
    pairs: int
    pairs_right: int


def _label(task: Any) -> Any:
    return {"single-label": Label, "multi-label": Labels}.get(task.kind, Number)


ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "text-classification": _label,
    "token-classification": lambda task: Entities,
    "question-answering": lambda task: Found,
    "sentence-similarity": lambda task: Vector | Similar,
    "retrieval": lambda task: Vector | Ranked,
    "text-ranking": lambda task: Number,
    "pretraining": lambda task: Filled | Counted,
}


def predict_types(row_list: Any, task: Task) -> tuple[type[BaseModel], type[BaseModel]]:
    """Request and response of /predict: rows and their answers, in order.

    row_list: the annotation of the rows.
    """
    config = ConfigDict(extra="forbid")
    request = create_model("PredictRequest", __config__=config, rows=(row_list, ...))
    answers: Any = list[ANSWERS[task.name](task)]  # type: ignore[misc]
    about = Field(description="one per row, in their order")
    return request, create_model("PredictResponse", __config__=config, answers=(answers, about))
