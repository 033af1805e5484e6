"""What the server takes at most, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]  # text-embeddings-inference's


@dataclass(frozen=True)
class Limits:
    """Names and meaning are those of text-embeddings-inference, but for `timeout`.

    max_batch_tokens: word pieces in one call of the model, as `tokens` estimates them. max_client_batch_size: rows
    in one request. max_concurrent_requests: requests that are read, wait or are answered at the same time.
    payload_limit: bytes of a body. timeout: seconds to read a body, and again seconds to answer it.
    """

    max_batch_tokens: int = 16_384
    max_client_batch_size: int = 256
    max_concurrent_requests: int = 256
    payload_limit: int = 2_000_000
    timeout: float = 30


class Refused(Exception):
    """A request that is answered with an error. retry_after: seconds until it is worth another try."""

    def __init__(self, status: int, message: str, kind: Kind, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after = status, message, kind, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
