"""What each path does: rows of the request -> the batcher -> the shape of the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from bertkit.data.schema import Answer
from bertkit.inference.predictor import Predictor
from bertkit.serve import tei
from bertkit.serve.answers import predict_types
from bertkit.serve.batcher import Batcher
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.rows import Row, RowReader

Finish = Callable[[], Any]  # makes the response of the answers; it may take a while


class Service:
    """One predictor, and the paths that need it. Each takes a body that was checked; raises Refused, UserError."""

    def __init__(self, predictor: Predictor, model: str, limits: Limits, batcher: Batcher) -> None:
        self.predictor, self.model, self.limits, self.batcher = predictor, model, limits, batcher
        self.task = predictor.task
        self.reader = RowReader(predictor.task, predictor.columns)

    def predict_types(self) -> tuple[Any, Any]:
        """Request and response of /predict. A text classifier also takes text-embeddings-inference's `inputs`."""
        request, response = predict_types(self.reader.annotation, self.task)
        if self.task.name != "text-classification":
            return request, response
        ours: Any = Annotated[request, Tag("rows")]
        body = Annotated[ours | Annotated[tei.ClassifyRequest, Tag("inputs")], Discriminator(_form)]
        return body, response | list[tei.Prediction] | list[list[tei.Prediction]]

    async def predict(self, body: Any) -> Finish:
        """/predict: rows of this task, or text-embeddings-inference's inputs."""
        if isinstance(body, tei.ClassifyRequest):
            return await self._classify(body)
        answers = await self._answers(body.rows, "rows")
        return lambda: {"answers": answers}

    async def _classify(self, body: tei.ClassifyRequest) -> Finish:
        rows, batch = tei.classify_rows(self.task, body.inputs)
        answers = await self._answers(rows, "inputs", body)
        return lambda: [tei.predictions(a) for a in answers] if batch else tei.predictions(answers[0])

    async def embed(self, body: tei.EmbedRequest) -> Finish:
        """/embed: a vector for each text."""
        rows = tei.embed_rows(self.task, tei.as_list(body.inputs), body.prompt_name)
        answers = await self._answers(rows, "inputs", body)
        return lambda: tei.vectors(answers, body.normalize).tolist()

    async def openai(self, body: tei.OpenAIRequest) -> Finish:
        """/v1/embeddings: the same in OpenAI's shape, with the count of word pieces."""
        texts = tei.as_list(body.input)
        answers = await self._answers(tei.embed_rows(self.task, texts, None), "input", body)
        ids = (await self.batcher.call(lambda: self.task.tokenizer(texts, verbose=False)))["input_ids"]
        return lambda: tei.openai_response(answers, body, self.model, sum(map(len, ids)))

    async def rerank(self, body: tei.RerankRequest) -> Finish:
        """/rerank: the texts by how well they answer the query."""
        rows: list[Row] = [{"query": body.query, "document": text} for text in body.texts]
        answers = await self._answers(rows, "texts", body)
        return lambda: tei.ranks(answers, body, self.task.options.activation or "sigmoid")

    async def _answers(
        self,
        rows: list[Row],
        name: str,
        wanted: tei.EmbedRequest | tei.OpenAIRequest | tei.RerankRequest | tei.ClassifyRequest | None = None,
    ) -> list[Answer]:
        """The answers, where the request is neither empty nor too large, and no text was cut unasked."""
        if not rows:
            raise Refused(400, f"`{name}` is empty", "Empty")
        most = self.limits.max_client_batch_size
        if len(rows) > most:
            raise Refused(413, f"`{name}` has {len(rows)} items; {most} are allowed", "Validation")
        answers = await self.batcher.answers(rows, self.reader.key(rows))
        if wanted is not None:
            tei.refuse_truncated(answers, wanted, self.task.max_length)
        return answers

    def info(self) -> dict[str, Any]:
        """The response of /info: text-embeddings-inference's names, and the task."""
        limits = asdict(self.limits)
        said = tei.info(self.task, self.model, self.predictor.precision)
        return said | {
            "task": self.task.name,
            "max_input_length": self.task.max_length,
            "auto_truncate": False,
            "tokenization_workers": 1,
            "version": version("bertkit"),
            **limits,
        }


def _form(body: object) -> str:
    """Which of the two shapes of /predict a body has: by its key, so that nothing is guessed."""
    return "inputs" if isinstance(body, Mapping) and "inputs" in body else "rows"
