"""The command serve."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import bertkit
from bertkit.cli.shared import REVISION, TASK, argument, command, path
from bertkit.serving.limits import Limits


def positive_number(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


_limit = partial(argument, type=positive_number)


@command(
    "serve predictions over HTTP",
    argument("source", "a run folder, a model folder or a Hub id", metavar="MODEL"),
    TASK,
    REVISION,
    argument("--host", "default: 127.0.0.1, reachable from this machine only", default="127.0.0.1"),
    argument("--port", "0: any free port; default: 8000", default=8000),
    argument("--store", "a vector store of `bertkit index`, for /search", metavar="STORE"),
    path("--api-key-file", "the key that clients must send; default: the variable BERTKIT_API_KEY"),
    _limit("--max-batch-tokens", "estimated tokens of a row, and of a call", default=Limits.max_batch_tokens),
    _limit("--max-client-batch-size", "rows per request", default=Limits.max_client_batch_size),
    _limit(
        "--max-concurrent-requests",
        "requests in progress, queued ones included; further ones get a 429",
        default=Limits.max_concurrent_requests,
    ),
    _limit("--payload-limit", "bytes of a request's body", default=Limits.payload_limit),
    _limit("--timeout", "seconds to read a body, and again to answer", default=Limits.timeout),
    example="bertkit serve runs/quickstart --port 8000",
    page="serve",
)
def serve(**options: Any) -> None:
    bertkit.serve(**options)
