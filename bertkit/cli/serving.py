"""The command serve."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.cli.shared import REVISION, TASK, argument, command, path
from bertkit.errors import Problem, UserError
from bertkit.serve.limits import Limits

NAMED = re.compile(r"(\w[\w.-]*)=(.+)", re.ASCII | re.DOTALL)


def positive_number(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


_limit = partial(argument, type=positive_number)


@command(
    "serve predictions over HTTP",
    argument("source", "a run folder, a model folder or a Hub id; several with names", metavar="[NAME=]MODEL"),
    argument("rest", "further models", nargs="*", metavar="NAME=MODEL"),
    TASK,
    REVISION,
    argument("--host", "default: 127.0.0.1, reachable from this machine only", default="127.0.0.1"),
    argument("--port", "0: any free port; default: 8000", default=8000),
    argument(
        "--store", "a vector store of `bertkit index`, for /search", action="append", default=[], metavar="[NAME=]STORE"
    ),
    argument("--log-format", "json: an object a line, also for each request", choices=("text", "json"), default="text"),
    path("--api-key-file", "the key that clients must send; default: the variable BERTKIT_API_KEY"),
    _limit("--max-batch-tokens", "estimated tokens of a row, and of a call", default=Limits.max_batch_tokens),
    _limit("--max-client-batch-size", "rows per request", default=Limits.max_client_batch_size),
    _limit(
        "--max-concurrent-requests",
        "requests in progress, queued ones included; further ones get a 429",
        default=Limits.max_concurrent_requests,
    ),
    _limit("--payload-limit", "bytes of a request's body", default=Limits.payload_limit),
    _limit("--timeout", "seconds to read headers, again to read a body, and again to answer", default=Limits.timeout),
)
def serve(
    source: str,
    rest: list[str],
    task: str | None,
    revision: str | None,
    host: str,
    port: int,
    store: list[str],
    log_format: str,
    api_key_file: Path | None,
    **limits: Any,
) -> None:
    models, stores = by_name([source, *rest]), by_name(store)
    if rest and (task or revision):
        raise UserError("--task and --revision work only with one model")
    if unknown := stores.keys() - models.keys():
        fix = "Write NAME=STORE with the name of a model; for a model without a name, STORE alone."
        raise UserError(Problem("--store", f"no model is named {', '.join(sorted(map(repr, unknown)))}", fix))
    from bertkit.inference.predictor import load
    from bertkit.serve.logs import log_as_json
    from bertkit.serve.server import Served, read_api_key, serve

    if log_format == "json":
        log_as_json()
    key, served, problems = read_api_key(api_key_file), {}, list[Problem]()
    for name, model in models.items():
        try:
            predictor = load(model, revision=revision, task=task)
            opened = None
            if name in stores:  # which imports pyarrow
                from bertkit.retrieval.models import model_identity
                from bertkit.retrieval.store import Store

                opened = Store.open(stores[name], model_identity(predictor, model, revision))
            served[name] = Served(predictor, model, opened)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(dict.fromkeys(problems))
    serve(served, host=host, port=port, limits=Limits(**limits), api_key=key)


def by_name(values: Sequence[str]) -> dict[str, str]:
    """Name -> value of arguments NAME=VALUE; "" -> value of a single one without a name. Raises UserError."""
    named: dict[str, str] = {}
    problems = []
    for value in values:
        match = None if Path(value).exists() else NAMED.fullmatch(value)
        name, rest = match.groups() if match else ("", value)
        if not name and len(values) > 1:
            problems.append(Problem(value, "has no name, but is one of several", f"Write NAME={value}"))
        elif name in named:
            problems.append(Problem(value, f"the name {name!r} is used twice", "Choose another."))
        named[name] = rest
    if problems:
        raise UserError(problems)
    return named
