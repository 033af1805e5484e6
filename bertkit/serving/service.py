"""The handlers of the paths: rows of a request -> the batcher -> the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Discriminator, Tag

from bertkit.data.schema import Answer
from bertkit.data.values import replace_surrogates
from bertkit.inference.predictor import Predictor
from bertkit.serving import tei
from bertkit.serving.batcher import Batcher, estimated_tokens, in_time
from bertkit.serving.limits import Limits, Refused
from bertkit.serving.pipelines import Request
from bertkit.serving.prometheus import Metrics
from bertkit.serving.schemas import Row, RowReader, answer_type, described, list_of, schema
from bertkit.serving.shapes import CLASSIFY, SHAPES, SearchRequest, Shape
from bertkit.text import Json

if TYPE_CHECKING:
    from bertkit.retrieval.store import Store  # which imports pyarrow

T = TypeVar("T")
Build = Callable[[], Any]  # builds the response; may be slow
MAX_SEARCHES = 4  # at a time, late ones included, which end with their query: LanceDB uses all cores for one


class Service:
    """One predictor and its handlers, each of a validated body. They raise Refused and UserError."""

    def __init__(self, predictor: Predictor, model: str, limits: Limits, store: Store | None = None) -> None:
        """model: its name for clients. store: what /search searches, made with this model."""
        self.reader = RowReader(predictor.task, predictor.columns)
        predictor = replace(predictor, columns={})  # the reader maps them
        self.predictor = predictor
        self.task = predictor.task
        self.model = model
        self.started = int(time.time())
        self.limits = limits
        self.store = store
        self.metrics = Metrics()
        self.batcher = Batcher(lambda rows: list(predictor.stream(rows)), limits, self.metrics)
        self.search_threads = ThreadPoolExecutor(MAX_SEARCHES, thread_name_prefix="bertkit-search")

    def predict_types(self) -> tuple[Any, Any]:
        """Request and response of /predict. A text classifier also accepts text-embeddings-inference's
        `inputs`.
        """
        answers = described(list_of(answer_type(self.task)), "one per row, in the order of the rows")
        request = schema("PredictRequest", "Rows.", rows=self.reader.annotation)
        response = schema("PredictResponse", "Answers.", answers=answers)
        if SHAPES["/"].get(self.task.pipeline) is not CLASSIFY:
            return request, response
        rows: Any = Annotated[request, Tag("of rows")]
        body = Annotated[rows | Annotated[tei.ClassifyRequest, Tag("of inputs")], Discriminator(_kind)]
        return body, response | CLASSIFY.response

    @property
    def example(self) -> Json:
        """A body of /predict."""
        row = self.predictor.any_row(("text",))
        return {"rows": [{name: f"your {name}" if value == "a" else value for name, value in row.items()}]}

    async def predict(self, body: Any) -> Build:
        """/predict: rows of the task, or text-embeddings-inference's inputs."""
        if isinstance(body, tei.ClassifyRequest):
            return await self.handler(CLASSIFY)(body)
        answers = await self._answers(body.rows, "rows")
        return lambda: {"answers": answers}

    def handler(self, shape: Shape) -> Callable[[Any], Awaitable[Build]]:
        """The handler of a path with this shape."""

        async def handle(body: Any) -> Build:
            rows = shape.rows(self.task, body)
            answers = await self._answers(rows, shape.field, body)
            build = partial(shape.respond, self.task, body, answers)
            if not shape.tokenizes:
                return build
            response = await self.batcher.call(build)
            return lambda: response

        return handle

    async def openai(self, body: tei.OpenAIRequest) -> Build:
        """/v1/embeddings: the same in OpenAI's format, with the number of tokens."""
        texts = list(map(replace_surrogates, tei.as_list(body.input)))
        rows = tei.embed_rows(self.task, texts, None)
        self._require_limits(rows, "input")
        answers, encoded = await asyncio.gather(  # at once: the count waits for no other batch
            self._answers(rows, "input"),
            self.batcher.call(lambda: self.task.tokenizer(texts, verbose=False)),
        )
        read = sum(min(len(tokens), self.task.max_length) for tokens in encoded["input_ids"])
        return lambda: tei.openai_response(answers, body, self.model, read)

    async def search(self, body: SearchRequest) -> Build:
        """/search: the documents of the store that are nearest to the queries."""
        from bertkit.retrieval.filters import to_sql
        from bertkit.retrieval.search import search

        assert self.store is not None  # else the path is refused
        store = self.store
        texts = body.texts
        if wanted := body.filter:  # before a model is asked
            await self._searched(lambda: to_sql(wanted, store.columns))
        field = "queries" if body.query is None else "query"
        answers = await self._answers(tei.embed_rows(self.task, texts, "query"), field)
        options = {**body.model_dump(include={"top_k", "filter", "hybrid"}), "timeout": self.limits.timeout}
        end = time.monotonic() + self.limits.timeout

        def searches() -> Iterator[Any]:
            for text, answer in zip(texts, answers, strict=True):
                if time.monotonic() > end:  # nobody waits for the rest
                    raise Refused(504, "the search did not answer in time", "Backend")
                yield search(store, text, answer["vector"], **options)

        hits = await self._searched(lambda: list(searches()))
        return lambda: {"hits": hits if body.query is None else hits[0]}

    def _searched(self, find: Callable[[], T]) -> Awaitable[T]:
        """What the function returns in a thread for searches. Raises as `in_time`."""
        return in_time(self.limits.timeout, self.search_threads, find, "the search")

    async def tokenize(self, body: tei.TokenizeRequest) -> Build:
        """/tokenize: the tokens of each text."""
        texts = list(map(replace_surrogates, tei.as_list(body.inputs)))
        self._require_limits([{"text": text} for text in texts], "inputs")
        tokens = await self.batcher.call(
            lambda: tei.tokens(self.task.tokenizer, texts, body.add_special_tokens)
        )
        return lambda: tokens

    def _require_limits(self, rows: list[Row], name: str) -> None:
        """Raises Refused for no rows, too many, and too long or empty ones. name: of the field that holds
        them.

        Only answers to `rows` can say that a row was empty; elsewhere it is refused, as
        text-embeddings-inference does.
        """
        if not rows:
            raise Refused(400, f"`{name}` is empty", "Empty")
        if len(rows) > (most := self.limits.max_client_batch_size):
            raise Refused(413, f"`{name}` has {len(rows)} items; {most} are allowed")
        for number, row in enumerate(rows, 1):
            if (tokens := estimated_tokens(row)) > (most := self.limits.max_batch_tokens):
                what = f"`{name}`, item {number}: about {tokens:,} tokens; {most:,} are allowed"
                raise Refused(413, what)
            if name != "rows" and not any(row.values()):
                raise Refused(400, f"`{name}`, item {number}: an empty text", "Empty")

    async def _answers(self, rows: list[Row], name: str, request: Request | None = None) -> list[Answer]:
        """The answers. Raises Refused as `_require_limits`, and where texts are cut though the request
        forbids it.

        name: of the field that holds the rows. request: where it is one that may forbid to cut texts.
        """
        self._require_limits(rows, name)
        answers = await self.batcher.answers(rows, self.reader.key(rows))
        tei.refuse_truncated(answers, request, self.task.max_length)
        return answers

    def openai_model(self) -> Json:
        """This model in /v1/models, created when the server started."""
        return {"id": self.model, "object": "model", "created": self.started, "owned_by": "bertkit"}

    async def info(self) -> Json:
        """The response of /info: text-embeddings-inference's fields, and the task."""
        return {
            "model_id": self.model,
            "served_model_name": self.model,
            "model_dtype": self.predictor.precision,
            "model_type": tei.model_type(self.task),
            "task": self.task.name,
            "max_input_length": self.task.max_length,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": version("bertkit"),
            **asdict(self.limits),
        }


def _kind(body: object) -> str:
    """The kind of a body of /predict, by its key."""
    return "of inputs" if isinstance(body, Mapping) and "inputs" in body else "of rows"
