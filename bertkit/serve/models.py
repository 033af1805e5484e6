"""Several models in one application, each under its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from bertkit.serve import tei
from bertkit.serve.app import add_path, model_app, new_app, protect
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.metrics import Metrics
from bertkit.serve.service import Service
from bertkit.tasks.vectors import VectorTask


def make_models_app(services: Mapping[str, Service], limits: Limits, api_key: str | None = None) -> FastAPI:
    """The application of several models, by name. api_key: what clients must send; None: nothing.

    /models/NAME/… has all the paths of `model_app`. /v1/embeddings is that of the model that a request names; /models
    and /info describe all of them; and those of `new_app`.
    """
    own, names = Metrics(), ", ".join(services)
    about = f"Models: {names}. The paths of each are under /models/NAME, and described by /models/NAME/docs"
    metrics = {"": own, **{name: service.metrics for name, service in services.items()}}
    app = new_app("bertkit", about, services, metrics)

    @app.get("/models", summary="The models, and the server's limits")
    @app.get("/info", summary="The models, and the server's limits")
    async def info() -> dict[str, Any]:
        return {"models": {name: await service.info() for name, service in services.items()}}

    def named(body: tei.OpenAIRequest) -> str | None:
        return body.model if body.model in services else None

    async def openai(body: tei.OpenAIRequest) -> Callable[[], Any]:
        if (service := services.get(body.model or "")) is None:
            raise Refused(404, f"no model {body.model!r}; there are {names}", "Validation")
        if not isinstance(service.task, VectorTask):
            raise Refused(424, f"a model for {service.task.name} does not answer /v1/embeddings", "Backend")
        return await service.openai(body)

    summary = "Vectors of texts, for OpenAI clients"
    add_path(app, "/v1/embeddings", openai, tei.OpenAIRequest, tei.OpenAIResponse, summary, named)

    @app.api_route("/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def unknown(path: str) -> None:
        raise Refused(404, f"nothing at /{path}: models are at /models/NAME; there are {names}", "Validation")

    protect(app, limits, own, api_key)
    app.add_middleware(ModelPaths, models={name: model_app(each, api_key) for name, each in services.items()})
    return app


class ModelPaths:
    """ASGI middleware: requests to /models/NAME/… go to that model's application, all others to `app`."""

    def __init__(self, app: ASGIApp, models: Mapping[str, ASGIApp]) -> None:
        self.app, self.models = app, models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = re.fullmatch("(/models/([^/]+))(/.*)?", scope.get("path", ""), re.DOTALL)
        if path and path[2] in self.models:
            scope = {**scope, "root_path": path[1], "path": path[3] or "/"}
            await self.models[path[2]](scope, receive, send)
        else:
            await self.app(scope, receive, send)
