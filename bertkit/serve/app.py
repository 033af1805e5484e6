"""The server as an ASGI application: which paths there are, for which tasks, and what each does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from bertkit.errors import DataError, UserError
from bertkit.inference.predictor import Predictor
from bertkit.serve import tei
from bertkit.serve.batcher import Batcher
from bertkit.serve.gate import Gate, error_response, unless_gone
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.meters import Meters
from bertkit.serve.page import page
from bertkit.serve.service import Service

Handler = Callable[[Any], Awaitable[Callable[[], Any]]]  # body -> what makes the response of the answers

OWN_PATHS = ("/health", "/info", "/metrics", "/docs", "/openapi.json", "/predict")
TEI_PATHS = {"/embed": "gives no vectors", "/v1/embeddings": "gives no vectors", "/rerank": "ranks no texts"}


class Error(BaseModel):
    """What went wrong."""

    error: str
    error_type: str


def make_app(predictor: Predictor, model: str, limits: Limits) -> FastAPI:
    """The application that serves this predictor. model: what /info calls it.

    /predict for every task; /embed and /v1/embeddings, /rerank where the task has vectors or ranks; /health, /info,
    /metrics; /docs and /openapi.json.
    """
    meters = Meters()
    batcher = Batcher(lambda rows: list(predictor.stream(rows)), limits, meters)
    service = Service(predictor, model, limits, batcher)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with batcher:
            yield

    app = FastAPI(
        title=f"bertkit: {predictor.task.name}",
        description=predictor.task.describe(),
        version=version("bertkit"),
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages are drawn by scripts from the internet
        redoc_url=None,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
        responses={status: {"model": Error} for status in (400, 408, 413, 415, 422, 429, 500, 503, 504)},
    )
    for kind in (Refused, UserError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    _add_own(app, service, meters)
    _add_posts(app, service)
    app.add_middleware(Gate, limits=limits, meters=meters, paths=frozenset([*OWN_PATHS, *TEI_PATHS]))
    return app


def _add_own(app: FastAPI, service: Service, meters: Meters) -> None:
    @app.get("/health", summary="Is the model there?")
    async def health() -> dict[str, str]:
        if not service.batcher.alive:
            raise Refused(503, "the model does not answer any more", "Unhealthy")
        return {"status": "ok"}

    @app.get("/info", summary="The model, and the server's limits")
    async def info() -> dict[str, Any]:
        return service.info()

    @app.get("/metrics", summary="Counts, times and sizes, in Prometheus's text format")
    async def metrics() -> Response:
        return Response(meters.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))


def _add_posts(app: FastAPI, service: Service) -> None:
    name, vectors = service.task.name, service.task.gives_embeddings
    ranking = name == "text-ranking"
    request, response = service.predict_types()
    _add(app, "/predict", service.predict, request, response, "Answers for rows, in their order")
    if vectors:
        _add(app, "/embed", service.embed, tei.EmbedRequest, list[list[float]], "Vectors of texts")
        summary = "Vectors of texts, for OpenAI's clients"
        _add(app, "/v1/embeddings", service.openai, tei.OpenAIRequest, tei.OpenAIResponse, summary)
    if ranking:
        _add(app, "/rerank", service.rerank, tei.RerankRequest, list[tei.Rank], "Texts, best first")
    there = {"/rerank": ranking}
    for path in (path for path in TEI_PATHS if not there.get(path, vectors)):
        app.add_api_route(path, _absent(name, path), methods=["POST"], include_in_schema=False)


def _absent(name: str, path: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise Refused(424, f"a model for {name} {TEI_PATHS[path]}", "Backend")  # text-embeddings-inference's status

    return refuse


def _add(app: FastAPI, path: str, handler: Handler, request_type: Any, response_type: Any, summary: str) -> None:
    async def endpoint(body: Any, request: Request) -> Response:
        finish = await unless_gone(request, handler(body))
        content = await asyncio.to_thread(lambda: to_json(finish()))  # of many vectors it takes a while
        return Response(content, media_type="application/json")

    endpoint.__annotations__["body"] = request_type  # which only the task knows; FastAPI reads it here
    app.add_api_route(
        path, endpoint, methods=["POST"], response_model=response_type, summary=summary, operation_id=path.strip("/")
    )


def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Refused):
        return error_response(error)
    if isinstance(error, UserError):  # a DataError is about the rows, any other about the model
        data = isinstance(error, DataError)
        return error_response(Refused(422 if data else 500, str(error), "Validation" if data else "Backend"))
    if isinstance(error, RequestValidationError):
        return error_response(_validation(error))
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "failed")
    return error_response(Refused(status, str(detail), "Validation"))


def _validation(error: RequestValidationError) -> Refused:
    """What is wrong with a body: where, and what; never what stood there."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Refused(400, f"not JSON: {first['ctx']['error']} (character {first['loc'][-1]})", "Validation")
    said = dict.fromkeys(f"{'.'.join(map(str, e['loc'][1:])) or 'the body'}: {e['msg']}" for e in error.errors()[:10])
    return Refused(422, "\n".join(said), "Validation")
