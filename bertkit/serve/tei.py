"""Requests and responses in the shapes of text-embeddings-inference, so that its clients can use this server.

They are those of its openapi.json (1.7), https://huggingface.github.io/text-embeddings-inference. What differs is in
docs/serve.md.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from bertkit.data.schema import Answer
from bertkit.serve.limits import Refused
from bertkit.tasks.base import Task
from bertkit.tasks.text_classification import TextClassification
from bertkit.tasks.text_ranking import TextRanking
from bertkit.tasks.vectors import VectorOptions

Texts: TypeAlias = str | list[str]
Pair: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=2)]
Row: TypeAlias = dict[str, Any]


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Cut(_Request):
    truncate: bool | None = Field(None, description="true: texts longer than the model reads are cut; else refused")
    truncation_direction: Literal["right", "Right"] = Field("right", description="what is cut off")


class EmbedRequest(_Cut):
    """Texts to be given their vectors."""

    inputs: Texts
    normalize: bool = Field(True, description="bring vectors to length 1; false: as the model gives them")
    prompt_name: Literal["query", "document"] | None = Field(None, description="whose prefix is put before the texts")


class OpenAIRequest(_Request):
    """Texts to be given their vectors, as OpenAI's clients ask for them."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    model: str | None = Field(None, description="not read: there is one model")
    user: str | None = Field(None, description="not read")


class RerankRequest(_Cut):
    """Texts to be ordered by how well they answer the query."""

    query: str
    texts: list[str]
    raw_scores: bool = Field(False, description="true: logits; false: their sigmoid")
    return_text: bool = False


class ClassifyRequest(_Cut):
    """One text, one pair of texts, or a list of lists of one or two texts."""

    inputs: str | Pair | list[Pair]
    raw_scores: Literal[False] = Field(
        False, description="scores are calibrated probabilities; logits are not to be had"
    )


class Prediction(BaseModel):
    """A label and its probability; of a regression `score` and its number."""

    label: str
    score: float


class Rank(BaseModel):
    """One of the texts, by its place in the request."""

    index: int
    score: float
    text: str | None = Field(None, description="with return_text")


class Embedding(BaseModel):
    """One vector; in base64 as little-endian fp32."""

    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str
    index: int


class Usage(BaseModel):
    """Word pieces, prefixes and special tokens included."""

    prompt_tokens: int
    total_tokens: int


class OpenAIResponse(BaseModel):
    """Vectors in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


def as_list(texts: Texts) -> list[str]:
    """The texts of a request that may hold one or several."""
    return [texts] if isinstance(texts, str) else texts


def embed_rows(task: Task, texts: Sequence[str], prompt: str | None) -> list[Row]:
    """Rows whose vectors are those of the texts on this side. Raises Refused where the model has no such prompt."""
    if prompt is None:
        return [{"text": text} for text in texts]
    prefix = task.options.query_prefix if prompt == "query" else task.options.document_prefix
    return [{"text": prefix + text} for text in texts]


def vectors(answers: Sequence[Answer], normalize: bool) -> Any:
    """`(texts, size)` fp32."""
    import numpy as np

    table = np.array([answer["vector"] for answer in answers], dtype=np.float32)
    return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12) if normalize else table


def openai_response(answers: Sequence[Answer], wanted: OpenAIRequest, model: str, tokens: int) -> dict[str, Any]:
    """The response of /v1/embeddings; vectors are of unit length, as OpenAI's."""
    table = vectors(answers, normalize=True)
    coded = (
        [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in table]
        if wanted.encoding_format == "base64"
        else table.tolist()
    )
    data = [{"object": "embedding", "embedding": each, "index": index} for index, each in enumerate(coded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def ranks(answers: Sequence[Answer], wanted: RerankRequest, activation: str) -> list[dict[str, Any]]:
    """Texts in the order of their scores, equals in their own. activation: what made scores of logits."""
    from scipy.special import expit, logit

    scores = [answer["score"] for answer in answers]
    if wanted.raw_scores and activation == "sigmoid":
        low, high = math.ulp(0.0), 1 - math.ulp(0.5)  # 0 and 1 have no logit
        scores = [float(logit(min(max(score, low), high))) for score in scores]
    elif not wanted.raw_scores and activation != "sigmoid":
        scores = expit(scores).tolist()
    table: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in enumerate(scores)]
    if wanted.return_text:
        table = [row | {"text": text} for row, text in zip(table, wanted.texts, strict=True)]
    # By the model's own scores: their sigmoid may be 1 for several.
    return sorted(table, key=lambda row: -answers[row["index"]]["score"])


def classify_rows(task: Task, inputs: str | list[str] | list[list[str]]) -> tuple[list[Row], bool]:
    """Rows, and whether the request is a batch. Raises Refused where texts are given to a model of pairs, or pairs to
    one of texts."""
    batch = not isinstance(inputs, str) and (not inputs or not isinstance(inputs[0], str))
    items: Any = [[inputs]] if isinstance(inputs, str) else inputs if batch else [inputs]
    size = 2 if task.options.pair else 1
    for number, item in enumerate(items, 1):
        if len(item) != size and (task.options.pair is not None or len(item) != len(items[0])):
            reads = "pairs: [text, text], or [[text, text], …]" if size == 2 else "single texts: text, or [[text], …]"
            raise Refused(422, f"input {number} has {len(item)} texts; the model reads {reads}", "Validation")
    return [{"text": i[0]} if len(i) == 1 else {"text_a": i[0], "text_b": i[1]} for i in items], batch


def predictions(answer: Answer) -> list[dict[str, Any]]:
    """All labels of an answer, the most probable first."""
    scores: Mapping[str, float] = answer.get("scores", {"score": answer.get("score", 0.0)})
    return [{"label": name, "score": score} for name, score in sorted(scores.items(), key=lambda pair: -pair[1])]


def refuse_truncated(answers: Sequence[Answer], wanted: _Cut | OpenAIRequest, longest: int) -> None:
    """Raises Refused where texts were cut and the request did not allow it, as text-embeddings-inference does."""
    cut = [number for number, answer in enumerate(answers, 1) if answer.get("truncated")]
    if cut and not (isinstance(wanted, _Cut) and wanted.truncate):
        some = ", ".join(map(str, cut[:10])) + (", …" if len(cut) > 10 else "")
        what = f"input {some}: longer than the {longest} word pieces that the model reads"
        hint = '; with "truncate": true it is cut' if isinstance(wanted, _Cut) else ""
        raise Refused(413, what + hint, "Validation")


def info(task: Task, model: str, precision: str) -> dict[str, Any]:
    """What /info says of the model."""
    kind: dict[str, Any] = {}
    if isinstance(task, TextClassification):
        kind = {"classifier": _labels(task.names or ["score"])}
    elif isinstance(task, TextRanking):
        kind = {"reranker": _labels(["score"])}
    elif isinstance(task.options, VectorOptions):
        kind = {"embedding": {"pooling": task.options.pooling}}
    return {"model_id": model, "model_dtype": precision, "model_type": kind}


def _labels(names: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
