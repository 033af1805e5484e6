"""What stands before the paths: limits on requests and bodies, timeouts, the API key, metrics, error
responses.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from secrets import compare_digest
from typing import Any, TypeVar
from uuid import uuid4

from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.serving.batcher import traceback_without_message
from bertkit.serving.limits import RETRY, Limits, Refused
from bertkit.serving.prometheus import Metrics
from bertkit.text import Json, KeyPath, dotted

logger = logging.getLogger(__name__)

# For probes, monitoring and browsers, which have no key; they hold no texts and no labels.
OPEN = frozenset(("/health", "/metrics", "/docs", "/openapi.json"))
REQUEST_ID = re.compile(r"[!-~]{1,128}")
MAX_MESSAGE = 2000  # characters of a message, which may quote the request
MAX_KEYS = 1_000  # of an object
GZIP = b"\x1f\x8b"
T = TypeVar("T")


def error_response(error: Refused, path: str) -> JSONResponse:
    """`{"error", "error_type"}`, as text-embeddings-inference writes it; under /v1/ as OpenAI's clients read
    it.
    """
    text = error.message[:MAX_MESSAGE].encode("utf-8", "replace").decode()  # it may quote a lone surrogate
    content: Json = {"error": text, "error_type": error.kind}
    if path.startswith("/v1/"):
        content = {"error": {"message": text, "type": error.kind}}
    return JSONResponse(content, status_code=error.status, headers=error.headers)


@dataclass(eq=False)
class LimitsMiddleware:
    """Enforces the limits and the API key, and gives each request an id.

    A POST counts as active before its body is read, so that bodies in memory are limited too.
    """

    app: ASGIApp
    limits: Limits
    metrics: Metrics
    paths: frozenset[str]  # those with their own metrics
    api_key: str | None = None  # what clients must send; None: nothing

    def __post_init__(self) -> None:
        self.free = asyncio.Semaphore(self.limits.max_concurrent_requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # answered like GET; uvicorn leaves the body out
            scope = {**scope, "method": "GET"}
        started = time.perf_counter()
        status = 0
        headers = Headers(scope=scope)
        identifier = headers.get("x-request-id", "")
        request_id = identifier if REQUEST_ID.fullmatch(identifier) else uuid4().hex

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        respond: ASGIApp = self._post if scope["method"] == "POST" else self.app
        if error := self._error(scope, headers):
            respond = error_response(error, scope["path"])
        try:
            await respond(scope, receive, send_and_note_status)
        except Exception as failure:  # uvicorn would log the message, which may quote a user's text
            logger.error(
                "%s failed, request %s\n%s", scope["path"], request_id, traceback_without_message(failure)
            )
            if not status:
                refused = Refused(500, "the server failed; see its log", "Backend")
                await error_response(refused, scope["path"])(scope, receive, send_and_note_status)
        finally:
            # One series for all unknown paths: there is no limit to their number.
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, status or "disconnected").inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)

    def _error(self, scope: Scope, headers: Headers) -> Refused | None:
        """Why a request is refused by its headers."""
        # RFC 9112, 6.3: maybe request smuggling; close
        if {"content-length", "transfer-encoding"}.issubset(headers):
            what = "Content-Length and Transfer-Encoding contradict each other: send one of them"
            return Refused(400, what, "Validation", {"Connection": "close"})
        if not self._authorized(scope, headers):
            what = "send the API key: Authorization: Bearer KEY"
            return Refused(401, what, "Unauthorized", {"WWW-Authenticate": "Bearer"})
        return self._post_error(headers) if scope["method"] == "POST" else None

    def _authorized(self, scope: Scope, headers: Headers) -> bool:
        if self.api_key is None or (scope["path"] in OPEN and scope["method"] == "GET"):
            return True
        parts = headers.get("authorization", "").partition(" ")
        key = parts[2].encode("latin-1")
        return parts[0].lower() == "bearer" and compare_digest(key, self.api_key.encode())

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.free:  # never waits: `_post_error` has refused the request instead
            with self.metrics.active.track_inprogress():
                await self.app(scope, self._limited(receive), send)

    def _post_error(self, headers: Headers) -> Refused | None:
        """Why a POST is refused before its body is read."""
        if self.free.locked():
            return Refused(429, "too many concurrent requests", "Overloaded", RETRY)
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refused(415, "send JSON, with the header Content-Type: application/json")
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            return Refused(415, "send the body as it is: compressed bodies are not accepted")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.limits.payload_limit:
            return Refused(413, self._too_large)
        return None

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.limits.payload_limit:,} bytes"

    def _limited(self, receive: Receive) -> Receive:
        """`receive` with a limit on the size of the body and on the time to read it."""
        deadline = asyncio.get_running_loop().time() + self.limits.timeout
        size = 0
        complete = False

        async def read() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                what = f"the body did not arrive within {self.limits.timeout:g} seconds"
                raise HTTPException(408, what, {"Connection": "close"}) from None
            size += len(message.get("body", b""))
            if size > self.limits.payload_limit:
                raise HTTPException(413, self._too_large)
            complete = not message.get("more_body", False)
            return message

        return read


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects; Refused is raised then.

    The request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(499, "the client disconnected")
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()


async def _disconnected(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class CountedRequest(Request):
    """A request whose body is JSON of a limited shape. Raises HTTPException, which FastAPI passes on."""

    async def json(self) -> Any:
        """The body as JSON. Raises HTTPException for what is not text, and for too many rows, keys or
        words.
        """
        raw = await self.body()
        try:
            body = json.loads(raw)
        except json.JSONDecodeError:
            raise  # FastAPI states where it is wrong
        except UnicodeDecodeError:
            what = "it is compressed" if raw.startswith(GZIP) else "it is not text in UTF-8"
            raise HTTPException(400, f"not JSON: {what}") from None
        except RecursionError:
            raise HTTPException(400, "the body's lists and objects are nested too deeply") from None
        except ValueError:  # Python's limit on the digits of an integer
            raise HTTPException(400, "a number of the body has too many digits") from None
        require_counts(body, self.app.state.limits)
        return body


class CountedRoute(APIRoute):
    """A route whose requests are CountedRequests, by `app.state.limits`."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """FastAPI's handler, called with a CountedRequest."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(CountedRequest(request.scope, request.receive))

        return handle


def require_counts(body: Any, limits: Limits) -> None:
    """Raises HTTPException for more rows, keys or words than any request may have.

    pydantic would take a second for 100,000 of them, in which the event loop answers nobody else.
    """
    left: list[tuple[KeyPath, Any]] = [((), body)] if isinstance(body, dict | list) else []
    while left:
        path, value = left.pop()
        rows = limits.max_client_batch_size if len(path) <= 1 else limits.max_batch_tokens
        most, what = (MAX_KEYS, "keys") if isinstance(value, dict) else (rows, "items")
        if len(value) > most:
            where = f"`{dotted(path)}`" if path else "the body"
            raise HTTPException(413, f"{where} has {len(value)} {what}; {most} are allowed")
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        left += (((*path, key), part) for key, part in parts if isinstance(part, dict | list))
