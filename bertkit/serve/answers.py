"""The answers of each task as pydantic models, for the OpenAPI schema. `Task.decode` makes the answers themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Annotated, Any

from pydantic import ConfigDict, Field, create_model


def schema(name: str, about: str, **fields: Any) -> Any:
    """A pydantic model for the OpenAPI schema. fields: name -> type, or (type, default)."""
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=about, **fields)


def described(type: Any, about: str) -> Any:
    """The type with a description."""
    return Annotated[type, Field(description=about)]


def list_of(item: Any) -> Any:
    """`list[item]` for a model that is a variable."""
    return GenericAlias(list, item)


TRUNCATED = described(bool, "the text was longer than the model's maximum length, and was cut")
READ = {
    "truncated": TRUNCATED,
    "empty": described(bool, "a text of the row has no token"),
    "unreadable": described(bool, "all tokens of a text of the row are unknown to the tokenizer"),
}
SCORES = described(dict[str, float], "label -> calibrated probability")
SPAN = {"start": int, "end": int, "score": float}
TAG = described(str, "its tag or label; with `scheme: none`, an empty string for a word without a token")
Word = schema(
    "Word",
    "start and end are characters of the text, end exclusive.",
    word=str,
    tag=TAG,
    scores=(dict[str, float] | None, None),
    **SPAN,
)
Entity = schema("Entity", "start and end are characters of the text, end exclusive.", text=str, label=str, **SPAN)
Span = schema("Span", "start and end are characters of the context, end exclusive.", answer=str, **SPAN)
Hit = schema("Hit", "A document of the request's rows.", id=str, score=float)
Token = schema("Token", "A token for a mask.", token=str, id=described(int, "in the vocabulary"), score=float)
RANK = described(int | None, "rank of the positive among those of the request's rows")
HITS = described(list_of(Hit) | None, "only in the answer to a query's first row: the best documents")

Label = schema(
    "Label",
    "The most probable label, or that of least expected cost.",
    label=described(str | None, "null where its probability is below its threshold"),
    score=float,
    scores=SCORES,
    **READ,
)
Labels = schema("Labels", "The labels above their thresholds.", labels=list[str], scores=SCORES, **READ)
Number = schema(
    "Number",
    "The value of a regression, or the score of a document.",
    score=float,
    **READ,
)
Words = schema("Words", "Words, each with its label.", words=list_of(Word), **READ)
Entities = schema("Entities", "Tagged words.", words=list_of(Word), entities=list_of(Entity), **READ)
BestSpan = schema(
    "BestSpan",
    "The best answer; an empty text where the context has none.",
    answer=str,
    **SPAN,
    n_best=list_of(Span),
    null_score=described(float, "probability that the context has no answer"),
    **READ,
)
Vector = schema("Vector", "The vector of a text.", vector=list[float], **READ)
Similarity = schema(
    "Similarity",
    "The cosine of the vectors of a pair, or the probabilities of a classifier of pairs.",
    score=float,
    label=(str | None, None),
    scores=(dict[str, float] | None, None),
    rank=(RANK, None),
    negative_score=(float | None, None),
    **READ,
)
Ranked = schema(
    "Ranked",
    "The rank of a row's document among all documents of the request, for the row's query.",
    score=(float | None, None),
    rank=(int | None, None),
    found=(HITS, None),
)
Generated = schema(
    "Generated",
    "A text generated from the source.",
    generated_text=str,
    finished=described(bool, "it ended before the limit of generated tokens"),
    **READ,
)
Filled = schema("Filled", "A text with its masks filled.", filled=str, masks=list_of(list_of(Token)))
MaskedLoss = schema(
    "MaskedLoss",
    "What was masked in a document and how much of it the model predicted; the loss is a sum in nats.",
    **dict.fromkeys(("masked", "right", "pairs", "pairs_right"), int),
    loss=float,
)


ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "text-classification": lambda task: {"single-label": Label, "multi-label": Labels}.get(task.kind, Number),
    "token-classification": lambda task: Words if task.plain else Entities,
    "question-answering": lambda task: BestSpan,
    "sentence-similarity": lambda task: Vector | Similarity,
    "retrieval": lambda task: Vector | Ranked,
    "text-ranking": lambda task: Number,
    "text2text-generation": lambda task: Generated,
    "pretraining": lambda task: Filled | MaskedLoss,
}
