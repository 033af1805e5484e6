"""The handlers of the paths: rows of a request -> the batcher -> the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Tag

from bertkit.data.schema import Answer
from bertkit.inference.predictor import Predictor
from bertkit.serve import tei
from bertkit.serve.answers import ANSWERS, described, list_of, schema
from bertkit.serve.batcher import Batcher, estimated_tokens
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.rows import Row, RowReader

Build = Callable[[], Any]  # builds the response; may be slow


class Service:
    """One predictor and its handlers, each of a validated body. They raise Refused and UserError."""

    def __init__(self, predictor: Predictor, model: str, limits: Limits, batcher: Batcher) -> None:
        self.predictor, self.model, self.limits, self.batcher = predictor, model, limits, batcher
        self.task = predictor.task
        self.reader = RowReader(predictor.task, predictor.columns, limits)

    def predict_types(self) -> tuple[Any, Any]:
        """Request and response of /predict. A text classifier also accepts text-embeddings-inference's `inputs`."""
        answers = described(list_of(ANSWERS[self.task.name](self.task)), "one per row, in the order of the rows")
        request = schema("PredictRequest", "Rows.", rows=self.reader.annotation)
        response = schema("PredictResponse", "Answers.", answers=answers)
        if self.task.name != "text-classification":
            return request, response
        rows: Any = Annotated[request, Tag("rows")]
        body = Annotated[rows | Annotated[tei.ClassifyRequest, Tag("inputs")], Discriminator(_kind)]
        labels = list_of(tei.Prediction)
        return body, response | labels | list_of(labels)

    async def predict(self, body: Any) -> Build:
        """/predict: rows of the task, or text-embeddings-inference's inputs."""
        if isinstance(body, tei.ClassifyRequest):
            return await self._classify(body)
        answers = await self._answers(body.rows, "rows")
        return lambda: {"answers": answers}

    async def _classify(self, body: tei.ClassifyRequest) -> Build:
        rows, batch = tei.classify_rows(self.task, body.inputs)
        answers = await self._answers(rows, "inputs", body)
        return lambda: [tei.predictions(a) for a in answers] if batch else tei.predictions(answers[0])

    async def embed(self, body: tei.EmbedRequest) -> Build:
        """/embed: a vector per text."""
        rows = tei.embed_rows(self.task, tei.as_list(body.inputs), body.prompt_name)
        answers = await self._answers(rows, "inputs", body)
        return lambda: tei.vectors(answers, body.normalize).tolist()

    async def openai(self, body: tei.OpenAIRequest) -> Build:
        """/v1/embeddings: the same in OpenAI's format, with the number of tokens."""
        texts = tei.as_list(body.input)
        answers = await self._answers(tei.embed_rows(self.task, texts, None), "input", body)
        ids = (await self.batcher.call(lambda: self.task.tokenizer(texts, verbose=False)))["input_ids"]
        return lambda: tei.openai_response(answers, body, self.model, sum(map(len, ids)))

    async def rerank(self, body: tei.RerankRequest) -> Build:
        """/rerank: the texts by relevance to the query."""
        rows: list[Row] = [{"query": body.query, "document": text} for text in body.texts]
        answers = await self._answers(rows, "texts", body)
        return lambda: tei.ranks(answers, body, self.task.options.activation or "sigmoid")

    async def _answers(self, rows: list[Row], name: str, request: BaseModel | None = None) -> list[Answer]:
        """The answers. Raises Refused for an empty request, too many or too long rows, and one of TEI that was cut.

        name: of the field that holds the rows. request: where it is one of text-embeddings-inference's.
        """
        if not rows:
            raise Refused(400, f"`{name}` is empty", "Empty")
        self.limits.require_count(len(rows), name)
        for number, row in enumerate(rows, 1):
            if (tokens := estimated_tokens(row)) > (most := self.limits.max_batch_tokens):
                what = f"`{name}`, item {number}: about {tokens:,} tokens; {most:,} are allowed"
                raise Refused(413, what, "Validation")
        answers = await self.batcher.answers(rows, self.reader.key(rows))
        if request is not None:
            tei.refuse_truncated(answers, request, self.task.max_length)
        return answers

    def info(self) -> dict[str, Any]:
        """The response of /info: text-embeddings-inference's fields, and the task."""
        return {
            "model_id": self.model,
            "model_dtype": self.predictor.precision,
            "model_type": tei.model_type(self.task),
            "task": self.task.name,
            "max_input_length": self.task.max_length,
            "auto_truncate": False,
            "tokenization_workers": 1,
            "version": version("bertkit"),
            **asdict(self.limits),
        }


def _kind(body: object) -> str:
    """The kind of a body of /predict, by its key."""
    return "inputs" if isinstance(body, Mapping) and "inputs" in body else "rows"
