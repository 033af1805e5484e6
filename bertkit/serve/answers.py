"""The answers of each task as pydantic models, for the OpenAPI schema. `Task.decode` makes the answers themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from bertkit.tasks.base import Task


def _answer(name: str, about: str, **fields: Any) -> Any:
    """A pydantic model. fields: name -> type, or (type, default)."""
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=about, **fields)


def _described(type: Any, about: str) -> Any:
    return Annotated[type, Field(description=about)]


def _list(item: Any) -> Any:
    return GenericAlias(list, item)


TRUNCATED = _described(bool, "the text was longer than the model's maximum length, and was cut")
SCORES = _described(dict[str, float], "label -> calibrated probability")
SPAN = {"start": int, "end": int, "score": float}
Word = _answer("Word", "A word of the text.", word=str, tag=str, score=_described(float, "posterior of the tag"))
Entity = _answer("Entity", "start and end are characters of the text, end exclusive.", text=str, label=str, **SPAN)
Span = _answer("Span", "start and end are characters of the context, end exclusive.", answer=str, **SPAN)
Hit = _answer("Hit", "A document of the request's rows.", id=str, score=float)
Token = _answer("Token", "A token for a mask.", token=str, score=float)
RANK = _described(int | None, "rank of the positive among those of the request's rows")
HITS = _described(_list(Hit) | None, "only in the answer to a query's first row: the best documents")

Label = _answer("Label", "The most probable label.", label=str, score=float, scores=SCORES, truncated=TRUNCATED)
Labels = _answer("Labels", "The labels above their thresholds.", labels=list[str], scores=SCORES, truncated=TRUNCATED)
Number = _answer("Number", "The value of a regression, or the score of a document.", score=float, truncated=TRUNCATED)
Entities = _answer("Entities", "Tagged words.", words=_list(Word), entities=_list(Entity), truncated=TRUNCATED)
BestSpan = _answer(
    "BestSpan",
    "The best answer; an empty text where the context has none.",
    answer=str,
    **SPAN,
    n_best=_list(Span),
    null_score=_described(float, "probability that the context has no answer"),
    truncated=TRUNCATED,
)
Vector = _answer("Vector", "The vector of a text.", vector=list[float], truncated=TRUNCATED)
Similarity = _answer(
    "Similarity",
    "The cosine of the vectors of a pair, or the probabilities of a classifier of pairs.",
    score=float,
    label=(str | None, None),
    scores=(dict[str, float] | None, None),
    rank=(RANK, None),
    negative_score=(float | None, None),
    truncated=TRUNCATED,
)
Ranked = _answer(
    "Ranked",
    "The rank of a row's document among all documents of the request, for the row's query.",
    score=(float | None, None),
    rank=(int | None, None),
    found=(HITS, None),
)
Filled = _answer("Filled", "A text with its masks filled.", filled=str, masks=_list(_list(Token)))
MaskedLoss = _answer(
    "MaskedLoss",
    "What was masked in a document and how much of it the model predicted; the loss is a sum in nats.",
    **dict.fromkeys(("masked", "right", "pairs", "pairs_right"), int),
    loss=float,
)


ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "text-classification": lambda task: {"single-label": Label, "multi-label": Labels}.get(task.kind, Number),
    "token-classification": lambda task: Entities,
    "question-answering": lambda task: BestSpan,
    "sentence-similarity": lambda task: Vector | Similarity,
    "retrieval": lambda task: Vector | Ranked,
    "text-ranking": lambda task: Number,
    "pretraining": lambda task: Filled | MaskedLoss,
}


def predict_types(row_list: Any, task: Task) -> tuple[type[BaseModel], type[BaseModel]]:
    """Request and response of /predict: rows and their answers, in order. row_list: the annotation of the rows."""
    answers = _described(_list(ANSWERS[task.name](task)), "one per row, in the order of the rows")
    return _answer("PredictRequest", "Rows.", rows=row_list), _answer("PredictResponse", "Answers.", answers=answers)
