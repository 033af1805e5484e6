"""The server as an ASGI application: its paths, by task, and their handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route

from bertkit.errors import DataError, StoreError, UserError
from bertkit.serving import tei
from bertkit.serving.limits import Refused
from bertkit.serving.middleware import (
    OPEN,
    CountedRoute,
    LimitsMiddleware,
    cancel_on_disconnect,
    error_response,
)
from bertkit.serving.schemas import list_of, schema
from bertkit.serving.service import Service
from bertkit.serving.shapes import SHAPES, SearchRequest, SearchResponse
from bertkit.text import Json, Record, dotted
from bertkit.validation import did_you_mean, fields_at

Handler = Callable[[Any], Awaitable[Callable[[], Any]]]  # body -> a function that builds the response

RESPONSES = 4  # written at a time
NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)


def _errors(model: Any) -> dict[int | str, Json]:
    """Error responses of this schema, by status."""
    return {status: {"model": model} for status in (400, 401, 408, 413, 415, 422, 429, 500, 503, 504)}


Error = schema("Error", "An error response.", error=str, error_type=str)
ErrorObject = schema("ErrorObject", "What is wrong, and the kind of error.", message=str, type=str)
OpenAIError = schema("OpenAIError", "An error response for OpenAI clients.", error=ErrorObject)


def model_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application of a model. api_key: what clients must send; None: nothing.

    /predict for every task; those of SHAPES and /v1/embeddings that the task has; /search; /info, /health,
    /v1/models, /metrics, /docs and /openapi.json. It runs the service's batcher, `app.state.batcher`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.batcher:
            yield

    app = FastAPI(
        title=f"bertkit: {service.task.name}",
        description=service.task.describe() if api_key is None else service.task.name,  # it may name labels
        version=version("bertkit"),
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from the internet
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go to the host that the request names
        telemetry=NO_TELEMETRY,
        responses=_errors(Error),
        generate_unique_id_function=lambda route: route.path_format.strip("/") or "root",
    )
    app.state.batcher = service.batcher
    app.state.limits = service.limits
    app.state.threads = ThreadPoolExecutor(RESPONSES, thread_name_prefix="bertkit-response")
    app.router.route_class = CountedRoute
    for kind in (Refused, UserError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _error)
    _add_answer_paths(app, service)
    app.add_api_route("/info", service.info, summary="The model, and the server's limits")
    _add_service_paths(app, service)
    app.add_middleware(
        LimitsMiddleware,
        limits=service.limits,
        metrics=service.metrics,
        paths=frozenset(route.path for route in app.routes if isinstance(route, Route)),  # all: none follow
        api_key=api_key,
    )
    if api_key is not None:
        document = app.openapi()
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path in OPEN & document["paths"].keys():
            document["paths"][path]["get"]["security"] = []
    return app


def _add_service_paths(app: FastAPI, service: Service) -> None:
    pages = Environment(
        loader=PackageLoader("bertkit.serving", "."), autoescape=True, undefined=StrictUndefined
    )
    pages.filters["as_json"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)

    @app.get("/health", summary="Health check")
    async def health() -> dict[str, str]:
        if not service.batcher.alive:
            raise Refused(503, "the model no longer answers", "Unhealthy")
        return {"status": "ok"}

    @app.get("/v1/models", summary="The model, for OpenAI clients", responses=_errors(OpenAIError))
    async def models() -> Json:
        return {"object": "list", "data": [service.openai_model()]}

    @app.get(
        "/v1/models/{name:path}", summary="The model, for OpenAI clients", responses=_errors(OpenAIError)
    )
    async def model(name: str) -> Json:
        if name != service.model:
            what = "there is no model of this name; GET /v1/models names the one that answers"
            raise Refused(404, what)
        return service.openai_model()

    @app.get("/metrics", summary="Metrics in Prometheus's text format")
    async def metrics_text() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(pages.get_template("page.html").render(openapi=app.openapi()))


def _add_answer_paths(app: FastAPI, service: Service) -> None:
    absent = f"a model for {service.task.name} does not answer {{}}"
    summary = "Answers to rows, in their order"
    _add_path(app, "/predict", service.predict, *service.predict_types(), summary, service.example)
    _add_path(
        app,
        "/tokenize",
        service.tokenize,
        tei.TokenizeRequest,
        list_of(list_of(tei.Token)),
        "Tokens of texts",
    )
    for path, shapes in SHAPES.items():
        shape = shapes.get(service.task.pipeline)
        if shape is None:
            _refuse(app, path, absent.format(path))
        else:
            _add_path(app, path, service.handler(shape), shape.request, shape.response, shape.summary)
    if service.task.gives("vector"):
        summary = "Vectors of texts, for OpenAI clients"
        _add_path(app, "/v1/embeddings", service.openai, tei.OpenAIRequest, tei.OpenAIResponse, summary)
    else:
        _refuse(app, "/v1/embeddings", absent.format("/v1/embeddings"))
    if service.store is None:
        _refuse(app, "/search", "there is no store: start the server with one")
    else:
        _add_path(
            app, "/search", service.search, SearchRequest, SearchResponse, "Documents nearest to queries"
        )


def _refuse(app: FastAPI, path: str, why: str) -> None:
    @app.post(path, include_in_schema=False)
    async def refuse() -> None:
        raise Refused(424, why, "Backend")  # as text-embeddings-inference


def _add_path(
    app: FastAPI,
    path: str,
    handler: Handler,
    request_type: Any,
    response_type: Any,
    summary: str,
    example: Any = None,
) -> None:
    """Add a POST path whose handler gets the validated body. example: a body for the schema."""

    async def endpoint(body: Any, request: Request) -> Response:
        build = await cancel_on_disconnect(request, handler(body))
        threads = request.app.state.threads
        loop = asyncio.get_running_loop()
        # slow for many vectors
        content = await loop.run_in_executor(threads, lambda: to_json(build(), inf_nan_mode="null"))
        return Response(content, media_type="application/json")

    endpoint.__annotations__["body"] = request_type  # depends on the task; FastAPI reads it from here
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model=response_type,
        responses=_errors(OpenAIError) if path.startswith("/v1/") else None,
        summary=summary,
        openapi_extra=example and {"requestBody": {"content": {"application/json": {"example": example}}}},
    )


def _error(request: Request, error: Exception) -> JSONResponse:
    """The response to an exception. A DataError is about the rows, any other UserError about the model or the
    store.
    """
    if isinstance(error, RequestValidationError):
        error = _validation(error, request.scope["endpoint"].__annotations__["body"])
    elif isinstance(error, DataError) and not isinstance(error, StoreError):
        error = Refused(422, str(error))
    elif isinstance(error, UserError):
        error = Refused(500, str(error), "Backend")
    elif isinstance(error, HTTPException):
        error = Refused(error.status_code, str(error.detail), "Validation", error.headers)
    assert isinstance(error, Refused)  # now that all other kinds are translated
    return error_response(error, request.scope["path"])


def _validation(error: RequestValidationError, body_type: Any) -> Refused:
    """Where a body of this type is wrong, and how; without what it holds."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Refused(400, f"not JSON: {first['ctx']['error']} (character {first['loc'][-1]})")
    lines = dict.fromkeys(_line(detail, error.body, body_type) for detail in error.errors()[:10])
    return Refused(422, "\n".join(lines))


def _line(error: Record, body: Any, body_type: Any) -> str:
    """What is wrong under which key of the body.

    pydantic's location also names kinds of bodies and values: these are left out, being no keys of the body.
    So a Tag must not be the name of a field, and has a space: "of texts".
    """
    path = list[str | int]()
    location = error["loc"][1:]
    for key in location:
        if (isinstance(body, Mapping) and key in body) or (
            isinstance(body, list) and key in range(len(body))
        ):
            path = [*path, key]
            body = body[key]
    if error["type"] == "missing" and location:
        return f"`{dotted((*path, location[-1]))}` is missing"
    if error["type"] == "extra_forbidden":
        return (
            "unknown field "
            f"{dotted(tuple(path))}{did_you_mean(str(path[-1]), fields_at(body_type, tuple(path[:-1])))}"
        )
    return f"{dotted(tuple(path)) or 'the body'}: {error['msg']}"
