"""What clients send and what they get: by path and pipeline, as clients of other servers, and of /search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from bertkit.data.schema import Answer
from bertkit.serving import pipelines, tei
from bertkit.serving.limits import Refused
from bertkit.serving.schemas import Row, described, list_of, schema
from bertkit.tasks.base import Task
from bertkit.text import Json

MAX_HITS = 10_000  # documents of a store in a response: they are in memory at once


class Shape(NamedTuple):
    """A request as rows of the task, and their answers as its response. Both functions may raise Refused."""

    summary: str
    request: Any
    response: Any
    respond: Callable[[Task, Any, list[Answer]], Any]
    rows: Callable[[Task, Any], list[Row]] = lambda task, body: [{"text": body.inputs}]
    field: str = "inputs"  # that holds the rows
    tokenizes: bool = False  # does `respond` use the tokenizer?


_labels = list_of(tei.Prediction)
CLASSIFY = Shape(
    "Labels of texts or pairs, most probable first",
    tei.ClassifyRequest,
    _labels | list_of(_labels),
    tei.classified,
    tei.classify_rows,
)
EMBED = Shape(
    "Vectors of texts",
    tei.EmbedRequest,
    list[list[float]],
    lambda task, body, answers: tei.vectors(answers, body.normalize, body.dimensions).tolist(),
    lambda task, body: tei.embed_rows(task, tei.as_list(body.inputs), body.prompt_name),
)
RERANK = Shape(
    "Texts, best first",
    tei.RerankRequest,
    list_of(tei.Rank),
    lambda task, body, answers: tei.ranks(answers, body, task.options.activation or "sigmoid"),
    lambda task, body: [{"query": body.query, "document": text} for text in body.texts],
    field="texts",
)
TAG = Shape(
    "Entities of a text, or its words with their tags",
    pipelines.TokenRequest,
    list_of(pipelines.TokenOutput) | list_of(pipelines.EntityOutput),
    pipelines.tokens,
)
ANSWER = Shape(
    "The answer to a question",
    pipelines.QuestionRequest,
    pipelines.AnswerOutput | list_of(pipelines.AnswerOutput),
    pipelines.spans,
    lambda task, body: [dict(body.inputs)],
)
FILL = Shape(
    "Tokens for the masks of a text",
    pipelines.MaskRequest,
    list_of(pipelines.MaskOutput) | list_of(list_of(pipelines.MaskOutput)),
    pipelines.fills,
    tokenizes=True,
)
GENERATE = Shape(
    "A text generated from a text",
    pipelines.GenerationRequest,
    list_of(pipelines.GeneratedOutput),
    pipelines.generated,
)


SHAPES: Mapping[str, Mapping[str, Shape]] = {  # path -> pipeline of the task -> shape
    "/": {
        "text-classification": CLASSIFY,
        "token-classification": TAG,
        "question-answering": ANSWER,
        "text-ranking": RERANK,
        "text2text-generation": GENERATE,
        "fill-mask": FILL,
        "feature-extraction": EMBED,
    },
    "/embed": {"feature-extraction": EMBED},
    "/rerank": {"text-ranking": RERANK},
}


class SearchRequest(pipelines.Request):
    """One query or several, with the options of `bertkit search`."""

    query: str | None = None
    queries: tei.Strings | None = None
    top_k: int = Field(10, ge=1, le=1000, description="documents per query")
    filter: Json | None = None
    """such as `{"lang": "en", "year": {"gte": 2020}}`"""
    hybrid: bool = False
    """fuse the ranks with those of a full-text search"""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.query is None) == (self.queries is None):
            raise ValueError("expected either `query`, a text, or `queries`, a list of texts")
        return self

    @property
    def texts(self) -> Sequence[str]:
        """The queries. Raises Refused where their documents are too many."""
        texts = self.queries if self.query is None else [self.query]
        if len(texts or ()) * self.top_k > MAX_HITS:
            raise Refused(413, f"`top_k` documents for each query: more than {MAX_HITS:,} in all")
        return texts or []


SearchHit = schema(
    "SearchHit",
    "A document, by its best passage: `text`, from `start` to `end` of the document's text.",
    id=str,
    score=described(float, "the cosine of the query and the passage"),
    relevance=described(float, "the sort key: the cosine, or with `hybrid` the fused ranks"),
    **dict.fromkeys(("passage", "start", "end"), int),
    **dict.fromkeys(("text", "title"), str),
    metadata=described(Json, "its other columns"),
)
_hits = described(
    list_of(SearchHit) | list_of(list_of(SearchHit)), "best first; with `queries` a list per query"
)
SearchResponse = schema("SearchResponse", "Documents.", hits=_hits)
