"""Requests and responses of text-embeddings-inference, so that its clients can use this server.

As in its version 1.9, https://huggingface.github.io/text-embeddings-inference; docs/serve.md lists the
differences.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit, logit

from bertkit.data.schema import Answer
from bertkit.data.values import replace_surrogates
from bertkit.evaluation.similarity import unit
from bertkit.serving.limits import Refused
from bertkit.serving.pipelines import Request, TopK
from bertkit.serving.schemas import Row, described, list_of, schema
from bertkit.tasks.base import Task
from bertkit.text import Json

Strings = Annotated[list[str], Field(fail_fast=True)]  # one error for a list, however long
Texts = str | Strings
Pair = Annotated[list[str], Field(min_length=1, max_length=2)]
Pairs = Annotated[list[Pair], Field(fail_fast=True)]
Prompt = Annotated[Literal["query", "document"] | None, Field(description="prepend this prefix of the model")]
Dimensions = Annotated[
    int | None,
    Field(ge=1, description="keep the first numbers of each vector, before it is scaled to length 1"),
]
MAX_TOKENS = 500_000  # of a request to /tokenize: a token takes some 350 bytes
FUNCTIONS = {"single-label": "softmax", "multi-label": "sigmoid"}  # of a classifier's logits


class _Truncatable(Request):
    truncate: bool | None = True
    """false: a text beyond the maximum length is refused, not cut"""
    truncation_direction: Literal["right", "Right"] = "right"
    """the end that is cut"""


class EmbedRequest(_Truncatable):
    """Texts to embed."""

    inputs: Texts
    prompt_name: Prompt = None
    normalize: bool = True
    """scale vectors to length 1; false: the model's own vectors"""
    dimensions: Dimensions = None
    encoding_format: Literal["float"] | None = None


class OpenAIRequest(Request):
    """Texts to embed, as OpenAI's clients send them."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions = None
    model: str | None = None
    """which of several models; ignored where there is one"""
    user: str | None = None
    """ignored"""


class RerankRequest(_Truncatable):
    """Texts to sort by relevance to the query."""

    query: str
    texts: Strings
    raw_scores: bool = False
    """true: logits; false: their sigmoid"""
    return_text: bool = False


class TokenizeRequest(Request):
    """Texts to tokenize, as the model's tokenizer does; nothing is cut."""

    inputs: Texts
    add_special_tokens: bool = True


class LabelParameters(Request):
    """What InferenceClient sends with a text to classify."""

    top_k: TopK = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    """the model's own"""


class ClassifyRequest(_Truncatable):
    """One text, one pair of texts, or a list of lists of one or two texts."""

    inputs: str | Pair | Pairs
    raw_scores: Literal[False] = False
    """scores are calibrated probabilities; logits are not available"""
    parameters: LabelParameters | None = None
    """InferenceClient's; with them, always a list of lists"""


Prediction = schema(
    "Prediction",
    "A label and its probability; for a regression `score` and the value.",
    label=str,
    score=float,
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
Token = schema(
    "SimpleToken",
    "A token and its place in the text, in bytes of UTF-8; null for special tokens.",
    id=int,
    text=str,
    special=bool,
    **dict.fromkeys(("start", "stop"), int | None),
)
_usage = dict.fromkeys(("prompt_tokens", "total_tokens"), int)
Usage = schema("Usage", "Tokens that the model reads, including special tokens.", **_usage)
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


def embed_rows(task: Any, texts: Sequence[str], prompt: str | None) -> list[Row]:
    """Rows of texts, with the model's prefix for queries or documents. prompt: query, document, or None for
    neither.

    An empty text stays empty, so that it is refused.
    """
    prefix = task.prefix(prompt or "text")
    return [{"text": prefix + text if text else ""} for text in texts]


def vectors(answers: Sequence[Answer], normalize: bool, dimensions: int | None) -> Any:
    """`(texts, size)` fp32, of the first `dimensions` numbers. Raises Refused where there are not as many."""
    table = np.array([answer["vector"] for answer in answers], dtype=np.float32)
    if dimensions is not None and dimensions > table.shape[1]:
        raise Refused(422, f"dimensions: {dimensions}; the model's vectors have {table.shape[1]}")
    table = table[:, :dimensions]
    return unit(table) if normalize else table


def openai_response(answers: Sequence[Answer], request: OpenAIRequest, model: str, tokens: int) -> Json:
    """The response of /v1/embeddings. Like OpenAI's, its vectors have unit length."""
    table = vectors(answers, True, request.dimensions)
    in_base64 = request.encoding_format == "base64"
    encoded = (
        [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in table] if in_base64 else table.tolist()
    )
    data = [
        {"object": "embedding", "embedding": vector, "index": index} for index, vector in enumerate(encoded)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def ranks(answers: Sequence[Answer], request: RerankRequest, activation: str) -> list[Json]:
    """Texts by descending score; ties in the order of the request. activation: of the model, applied to its
    logits.
    """
    scores = [answer["score"] for answer in answers]
    if request.raw_scores and activation == "sigmoid":
        # 0 and 1 have no logit
        low = math.ulp(0.0)
        high = 1 - math.ulp(0.5)
        scores = [float(logit(min(max(score, low), high))) for score in scores]
    elif not request.raw_scores and activation != "sigmoid":
        scores = expit(scores).tolist()
    table = [{"index": index, "score": score} for index, score in enumerate(scores)]
    if request.return_text:
        table = [
            row | {"text": replace_surrogates(text)} for row, text in zip(table, request.texts, strict=True)
        ]
    # By the model's own scores: their sigmoid may be 1 for several texts.
    return sorted(table, key=lambda row: -answers[row["index"]]["score"])


def _is_batch(inputs: str | list[str] | list[list[str]]) -> bool:
    return not isinstance(inputs, str) and (not inputs or not isinstance(inputs[0], str))


def tokens(tokenizer: Any, texts: Sequence[str], add_special_tokens: bool) -> list[list[Json]]:
    """The tokens of each text: their ids and spans of the text; special tokens have no span."""
    encodings = tokenizer(list(texts), add_special_tokens=add_special_tokens, verbose=False).encodings
    if (count := sum(map(len, encodings))) > MAX_TOKENS:
        raise Refused(413, f"`inputs` has {count:,} tokens; {MAX_TOKENS:,} are allowed")
    return [_tokens_of(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]


def _tokens_of(text: str, encoding: Any) -> list[Json]:
    places = [0, *accumulate(len(character.encode()) for character in text)]
    columns = (encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask)
    return [
        {"id": number, "text": name, "special": True, "start": None, "stop": None}
        if special
        else {"id": number, "text": text[a:b], "special": False, "start": places[a], "stop": places[b]}
        for number, name, (a, b), special in zip(*columns, strict=True)
    ]


def classify_rows(task: Any, body: ClassifyRequest) -> list[Row]:
    """Rows of texts or pairs.

    Raises Refused for texts if the model reads pairs, and vice versa, and for another function than the
    model's own.
    """
    wanted = body.parameters and body.parameters.function_to_apply
    activation = FUNCTIONS.get(task.kind, "none")
    if wanted not in (None, activation):
        what = f"parameters.function_to_apply: this model's is {activation}; it cannot be changed"
        raise Refused(422, what)
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    items = inputs if _is_batch(inputs) else [inputs]
    size = 2 if task.options.pair else 1
    for number, item in enumerate(items, 1):
        if len(item) != size and (task.options.pair is not None or len(item) != len(items[0])):
            reads = (
                "pairs: [text, text], or [[text, text], …]"
                if size == 2
                else "single texts: text, or [[text], …]"
            )
            raise Refused(422, f"input {number} has {len(item)} texts; the model reads {reads}")
    return [{"text": i[0]} if len(i) == 1 else {"text_a": i[0], "text_b": i[1]} for i in items]


def classified(task: Task, body: ClassifyRequest, answers: Sequence[Answer]) -> list[Any]:
    """The labels of a single input, or a list of them: for a batch, and wherever there are parameters."""
    rows = [predictions(answer) for answer in answers]
    if body.parameters is not None:
        return [labels[: body.parameters.top_k] for labels in rows]
    return rows if _is_batch(body.inputs) else rows[0]


def predictions(answer: Answer) -> list[Json]:
    """All labels of an answer, most probable first."""
    scores = answer.get("scores", {"score": answer.get("score", 0.0)})
    return [
        {"label": name, "score": score} for name, score in sorted(scores.items(), key=lambda pair: -pair[1])
    ]


def refuse_truncated(answers: Sequence[Answer], request: Request | None, max_length: int) -> None:
    """Raises Refused where texts were cut, and the request forbids it."""
    cut = [number for number, answer in enumerate(answers, 1) if answer.get("truncated")]
    if cut and isinstance(request, _Truncatable) and request.truncate is False:
        numbers = ", ".join(map(str, cut[:10])) + (", …" if len(cut) > 10 else "")
        what = f'input {numbers}: longer than the model\'s {max_length} tokens, and "truncate" is false'
        raise Refused(413, what)


def model_type(task: Any) -> Json:
    """`model_type` in the response of /info; empty for tasks that text-embeddings-inference does not know."""
    if task.pipeline == "feature-extraction":
        return {"embedding": {"pooling": task.options.pooling}}
    kind = {"text-classification": "classifier", "text-ranking": "reranker"}.get(task.pipeline)
    names = (kind == "classifier" and task.names) or ["score"]
    labels = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
    return {kind: labels} if kind else {}
