"""Bodies of requests: their JSON, with reasons where it cannot be read, counted before it is validated."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bertkit.serve.limits import Limits
from bertkit.text import KeyPath, dotted

MAX_KEYS = 1_000  # of an object
GZIP = b"\x1f\x8b"


class CountedRequest(Request):
    """A request whose body is JSON of a limited shape. Raises HTTPException, which FastAPI passes on."""

    async def json(self) -> Any:
        """The body as JSON. Raises HTTPException for what is not text, and for too many rows, keys or words."""
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
    left: list[tuple[KeyPath, Any]] = [((), body)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            if len(value) > MAX_KEYS:
                where = f"`{dotted(path)}`" if path else "the body"
                raise HTTPException(413, f"{where} has {len(value)} keys; {MAX_KEYS} are allowed")
            left += (((*path, key), each) for key, each in value.items() if isinstance(each, dict | list))
        elif isinstance(value, list):
            most = limits.max_client_batch_size if len(path) <= 1 else limits.max_batch_tokens
            if len(value) > most:
                where = f"`{dotted(path)}`" if path else "the body"
                raise HTTPException(413, f"{where} has {len(value)} items; {most} are allowed")
            left += (((*path, index), each) for index, each in enumerate(value) if isinstance(each, dict | list))
