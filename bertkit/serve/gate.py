"""The door of the server: back-pressure, slow bodies, meters, and the last word on what went wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from bertkit.serve.batcher import failure
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.meters import Meters

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_LONGEST = 2000  # characters of a message, which may quote the request
T = TypeVar("T")


def error_response(refused: Refused) -> JSONResponse:
    """`{"error", "error_type"}`, as text-embeddings-inference writes it."""
    text = refused.message[:_LONGEST].encode("utf-8", "replace").decode()  # it may quote a lone surrogate
    return JSONResponse(
        {"error": text, "error_type": refused.kind}, status_code=refused.status, headers=refused.headers
    )


class Gate:
    """ASGI middleware. A POST is counted in before its body is read, so that bodies too are bounded."""

    def __init__(self, app: ASGIApp, limits: Limits, meters: Meters, paths: frozenset[str]) -> None:
        self.app, self.limits, self.meters, self.paths = app, limits, meters, paths
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await (self._work if scope["method"] == "POST" else self.app)(scope, receive, noted)
        except Exception as error:  # else uvicorn would write the message, which may hold a user's text, to the log
            logger.error("%s failed\n%s", scope["path"], failure(error))
            if not status:
                refused = Refused(500, "the server failed; its log has more", "Backend")
                await error_response(refused)(scope, receive, noted)
        finally:
            # Of unknown paths there is no end, and each would be a series of its own.
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.meters.requests.labels(path, status or "disconnected").inc()
            self.meters.seconds.labels(path).observe(time.perf_counter() - started)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope)
        if refused:
            await error_response(refused)(scope, receive, send)
            return
        self.active += 1
        self.meters.active.inc()
        try:
            await self.app(scope, self._limited(receive), send)
        finally:
            self.active -= 1
            self.meters.active.dec()

    def _refusal(self, scope: Scope) -> Refused | None:
        if self.active >= self.limits.max_concurrent_requests:
            return Refused(429, "the server has all the requests that it takes at a time", "Overloaded", retry_after=1)
        headers = Headers(scope=scope)
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refused(415, "send JSON, with the header Content-Type: application/json", "Validation")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.limits.payload_limit:
            return Refused(413, self._too_large, "Validation")
        return None

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.limits.payload_limit:,} bytes"

    def _limited(self, receive: Receive) -> Receive:
        """`receive`, for bodies within the limit that are all there before the timeout."""
        deadline = asyncio.get_running_loop().time() + self.limits.timeout
        size, whole = 0, False

        async def read() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not come within {self.limits.timeout:g} seconds") from None
            size += len(message.get("body", b""))
            if size > self.limits.payload_limit:
                raise HTTPException(413, self._too_large)
            whole = not message.get("more_body", False)
            return message

        return read


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is given up when the client goes away. Raises Refused then; nobody reads it.

    The request's body must have been read.
    """
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Refused(499, "the client went away", "Validation")
        return doing.result()
    finally:
        doing.cancel()
        gone.cancel()


async def _left(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
