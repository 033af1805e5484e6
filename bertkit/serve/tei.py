"""Requests and responses of text-embeddings-inference, so that its clients can use this server.

As in its openapi.json (1.7), https://huggingface.github.io/text-embeddings-inference; docs/serve.md lists the
differences.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import expit, logit

from bertkit.data.schema import Answer
from bertkit.serve.answers import described, list_of, schema
from bertkit.serve.limits import Refused
from bertkit.tasks.base import Task

Strings: TypeAlias = Annotated[list[str], Field(fail_fast=True)]  # one error for a list, however long
Texts: TypeAlias = str | Strings
Pair: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=2)]
Pairs: TypeAlias = Annotated[list[Pair], Field(fail_fast=True)]
Row: TypeAlias = dict[str, Any]


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Truncatable(_Request):
    truncate: bool | None = Field(None, description="true: texts beyond the maximum length are cut; else refused")
    truncation_direction: Literal["right", "Right"] = Field("right", description="the end that is cut")


class EmbedRequest(_Truncatable):
    """Texts to embed."""

    inputs: Texts
    normalize: bool = Field(True, description="scale vectors to length 1; false: the model's own vectors")
    prompt_name: Literal["query", "document"] | None = Field(None, description="prepend this prefix of the model")


class OpenAIRequest(_Request):
    """Texts to embed, as OpenAI's clients send them."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    model: str | None = Field(None, description="ignored: the server has one model")
    user: str | None = Field(None, description="ignored")


class RerankRequest(_Truncatable):
    """Texts to sort by relevance to the query."""

    query: str
    texts: Strings
    raw_scores: bool = Field(False, description="true: logits; false: their sigmoid")
    return_text: bool = False


class ClassifyRequest(_Truncatable):
    """One text, one pair of texts, or a list of lists of one or two texts."""

    inputs: str | Pair | Pairs
    raw_scores: Literal[False] = Field(
        False, description="scores are calibrated probabilities; logits are not available"
    )


Prediction = schema(
    "Prediction", "A label and its probability; for a regression `score` and the value.", label=str, score=float
)
_text = described(str | None, "with return_text")
Rank = schema("Rank", "One of the request's texts, by its index.", index=int, score=float, text=(_text, None))
Embedding = schema(
    "Embedding",
    "One vector; in base64 as little-endian fp32.",
    object=Literal["embedding"],
    embedding=list[float] | str,
    index=int,
)
_usage = dict.fromkeys(("prompt_tokens", "total_tokens"), int)
Usage = schema("Usage", "Tokens, including prefixes and special tokens.", **_usage)
OpenAIResponse = schema(
    "OpenAIResponse",
    "Vectors in the order of the texts.",
    object=Literal["list"],
    data=list_of(Embedding),
    model=str,
    usage=Usage,
)


def as_list(texts: Texts) -> list[str]:
    """The texts of a request that may hold one or several."""
    return [texts] if isinstance(texts, str) else texts


def embed_rows(task: Task, texts: Sequence[str], prompt: str | None) -> list[Row]:
    """Rows of texts, with the model's prefix for queries or documents. prompt: query, document, or None for neither."""
    if prompt is None:
        return [{"text": text} for text in texts]
    prefix = task.options.query_prefix if prompt == "query" else task.options.document_prefix
    return [{"text": prefix + text} for text in texts]


def vectors(answers: Sequence[Answer], normalize: bool) -> Any:
    """`(texts, size)` fp32."""
    table = np.array([answer["vector"] for answer in answers], dtype=np.float32)
    return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12) if normalize else table


def openai_response(answers: Sequence[Answer], request: OpenAIRequest, model: str, tokens: int) -> dict[str, Any]:
    """The response of /v1/embeddings. Like OpenAI's, its vectors have unit length."""
    table = vectors(answers, normalize=True)
    in_base64 = request.encoding_format == "base64"
    encoded = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in table] if in_base64 else table.tolist()
    data = [{"object": "embedding", "embedding": each, "index": index} for index, each in enumerate(encoded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def ranks(answers: Sequence[Answer], request: RerankRequest, activation: str) -> list[dict[str, Any]]:
    """Texts by descending score; ties in the order of the request. activation: of the model, applied to its logits."""
    scores = [answer["score"] for answer in answers]
    if request.raw_scores and activation == "sigmoid":
        low, high = math.ulp(0.0), 1 - math.ulp(0.5)  # 0 and 1 have no logit
        scores = [float(logit(min(max(score, low), high))) for score in scores]
    elif not request.raw_scores and activation != "sigmoid":
        scores = expit(scores).tolist()
    table: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in enumerate(scores)]
    if request.return_text:
        table = [row | {"text": text} for row, text in zip(table, request.texts, strict=True)]
    # By the model's own scores: their sigmoid may be 1 for several texts.
    return sorted(table, key=lambda row: -answers[row["index"]]["score"])


def classify_rows(task: Task, inputs: str | list[str] | list[list[str]]) -> tuple[list[Row], bool]:
    """Rows, and whether the request is a batch. Raises Refused for texts if the model reads pairs, and vice versa."""
    batch = not isinstance(inputs, str) and (not inputs or not isinstance(inputs[0], str))
    items: Any = [[inputs]] if isinstance(inputs, str) else inputs if batch else [inputs]
    size = 2 if task.options.pair else 1
    for number, item in enumerate(items, 1):
        if len(item) != size and (task.options.pair is not None or len(item) != len(items[0])):
            reads = "pairs: [text, text], or [[text, text], …]" if size == 2 else "single texts: text, or [[text], …]"
            raise Refused(422, f"input {number} has {len(item)} texts; the model reads {reads}", "Validation")
    return [{"text": i[0]} if len(i) == 1 else {"text_a": i[0], "text_b": i[1]} for i in items], batch


def predictions(answer: Answer) -> list[dict[str, Any]]:
    """All labels of an answer, most probable first."""
    scores: Mapping[str, float] = answer.get("scores", {"score": answer.get("score", 0.0)})
    return [{"label": name, "score": score} for name, score in sorted(scores.items(), key=lambda pair: -pair[1])]


def refuse_truncated(answers: Sequence[Answer], request: BaseModel, max_length: int) -> None:
    """Raises Refused where texts were cut and the request did not allow it, as text-embeddings-inference does."""
    cut = [number for number, answer in enumerate(answers, 1) if answer.get("truncated")]
    if cut and not (isinstance(request, _Truncatable) and request.truncate):
        numbers = ", ".join(map(str, cut[:10])) + (", …" if len(cut) > 10 else "")
        hint = '; send "truncate": true to cut it' if isinstance(request, _Truncatable) else ""
        raise Refused(413, f"input {numbers}: longer than the model's {max_length} tokens{hint}", "Validation")


def _labels(names: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def _embedding(task: Any) -> dict[str, Any]:
    return {"embedding": {"pooling": task.options.pooling}}


MODEL_TYPES: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "text-classification": lambda task: {"classifier": _labels(task.names or ["score"])},
    "text-ranking": lambda task: {"reranker": _labels(["score"])},
    "sentence-similarity": _embedding,
    "retrieval": _embedding,
}


def model_type(task: Task) -> dict[str, Any]:
    """`model_type` in the response of /info; empty for tasks that text-embeddings-inference does not know."""
    return MODEL_TYPES[task.name](task) if task.name in MODEL_TYPES else {}
