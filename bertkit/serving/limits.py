"""Limits of the server, and the error of a request that it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Those of text-embeddings-inference, and Unauthorized.
Kind = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Empty", "Unauthorized"]
RETRY = {"Retry-After": "1"}  # seconds


@dataclass(frozen=True)
class Limits:
    """Named as in text-embeddings-inference, except `timeout`."""

    max_batch_tokens: int = (
        16_384  # tokens of a row, and in one call of the model, as `estimated_tokens` counts them
    )
    max_client_batch_size: int = 256  # rows in one request
    max_concurrent_requests: int = 256  # requests being read, queued or answered
    payload_limit: int = 2_000_000  # bytes of a body
    timeout: float = 30  # seconds to read a body, and again to answer it


class Refused(Exception):
    """A request that is answered with an error. headers: of the response."""

    def __init__(
        self, status: int, message: str, kind: Kind = "Validation", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.headers = headers
