"""The paths that clients of other servers call: by task, what they send and what they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Discriminator, Tag

from bertkit.data.schema import Answer
from bertkit.serve import pipelines, tei
from bertkit.serve.answer_schemas import list_of
from bertkit.serve.request_rows import Row
from bertkit.tasks.base import Task


class Shape(NamedTuple):
    """A request as rows of the task, and their answers as its response. Both functions may raise Refused."""

    summary: str
    request: Any
    response: Any
    rows: Callable[[Task, Any], list[Row]]
    respond: Callable[[Task, Any, list[Answer]], Any]
    field: str = "inputs"  # that holds the rows
    tokenizes: bool = False  # does `respond` use the tokenizer?
    of_tokens: bool = False  # are the answers those of `token_states`?


def _kind(body: object) -> str:
    """The kind of a body of `/` for vectors, by its inputs."""
    inputs = body.get("inputs") if isinstance(body, Mapping) else None
    return "of sentences" if isinstance(inputs, Mapping) else "of texts"


_labels = list_of(tei.Prediction)
CLASSIFY = Shape(
    "Labels of texts or pairs, most probable first",
    tei.ClassifyRequest,
    _labels | list_of(_labels),
    tei.classify_rows,
    tei.classified,
)
EMBED = Shape(
    "Vectors of texts",
    tei.EmbedRequest,
    list[list[float]],
    lambda task, body: tei.embed_rows(task, tei.as_list(body.inputs), body.prompt_name),
    lambda task, body, answers: tei.vectors(answers, body.normalize, body.dimensions).tolist(),
)
EMBED_ALL = Shape(
    "Vectors of the tokens of texts",
    tei.EmbedAllRequest,
    list[list[list[float]]],
    lambda task, body: tei.embed_rows(task, tei.as_list(body.inputs), body.prompt_name),
    lambda task, body, answers: [answer["states"].tolist() for answer in answers],
    of_tokens=True,
)
COMPARE = Shape(
    "Cosines of a text and others",
    tei.SimilarityRequest,
    list[float],
    tei.compare_rows,
    lambda task, body, answers: tei.similarities(answers),
)
_BY_REQUEST = {shape.request: shape for shape in (EMBED, COMPARE)}
EMBED_OR_COMPARE = Shape(
    "Vectors of texts, or cosines of a text and others",
    Annotated[
        Annotated[EMBED.request, Tag("of texts")] | Annotated[COMPARE.request, Tag("of sentences")],
        Discriminator(_kind),
    ],
    EMBED.response | COMPARE.response,
    lambda task, body: _BY_REQUEST[type(body)].rows(task, body),
    lambda task, body, answers: _BY_REQUEST[type(body)].respond(task, body, answers),
)
RERANK = Shape(
    "Texts, best first",
    tei.RerankRequest,
    list_of(tei.Rank),
    lambda task, body: [{"query": body.query, "document": text} for text in body.texts],
    lambda task, body, answers: tei.ranks(answers, body, task.options.activation or "sigmoid"),
    field="texts",
)
TAG = Shape(
    "Entities of a text, or its words with their tags",
    pipelines.TokenRequest,
    list_of(pipelines.TokenOutput) | list_of(pipelines.EntityOutput),
    lambda task, body: [{"text": body.inputs}],
    pipelines.tokens,
)
ANSWER = Shape(
    "The answer to a question",
    pipelines.QuestionRequest,
    pipelines.AnswerOutput | list_of(pipelines.AnswerOutput),
    lambda task, body: [dict(body.inputs)],
    pipelines.spans,
)
FILL = Shape(
    "Tokens for the masks of a text",
    pipelines.MaskRequest,
    list_of(pipelines.MaskOutput) | list_of(list_of(pipelines.MaskOutput)),
    lambda task, body: [{"text": body.inputs}],
    pipelines.fills,
    tokenizes=True,
)
GENERATE = Shape(
    "A text generated from a text",
    pipelines.GenerationRequest,
    list_of(pipelines.GeneratedOutput),
    lambda task, body: [{"text": body.inputs}],
    pipelines.generated,
)


def _of_vectors(shape: Shape) -> dict[str, Shape]:
    return dict.fromkeys(("sentence-similarity", "retrieval"), shape)


SHAPES: Mapping[str, Mapping[str, Shape]] = {  # path -> task -> shape
    "/": {
        "text-classification": CLASSIFY,
        "token-classification": TAG,
        "question-answering": ANSWER,
        "text-ranking": RERANK,
        "text2text-generation": GENERATE,
        "pretraining": FILL,
        **_of_vectors(EMBED_OR_COMPARE),
    },
    "/embed_all": _of_vectors(EMBED_ALL),
    "/embed": _of_vectors(EMBED),
    "/similarity": _of_vectors(COMPARE),
    "/rerank": {"text-ranking": RERANK},
}
