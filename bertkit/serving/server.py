"""Run a predictor as an HTTP server; on SIGTERM and Ctrl-C it answers what it has accepted, then exits."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
from contextlib import suppress
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from bertkit.errors import UserError, translated
from bertkit.inference.predictor import Predictor, load
from bertkit.processes import signals_handled
from bertkit.serving.app import model_app
from bertkit.serving.limits import Limits
from bertkit.serving.service import Service

if TYPE_CHECKING:
    from bertkit.retrieval.store import Store  # which imports pyarrow

logger = logging.getLogger(__name__)


def read_api_key(file: Path | None) -> str | None:
    """The key that clients must send: the text of this file, else the variable BERTKIT_API_KEY; None without
    either.

    Raises UserError.
    """
    where = str(file or "BERTKIT_API_KEY")
    try:
        text = file.read_text("ascii") if file else os.environ.get("BERTKIT_API_KEY")
    except OSError as error:
        raise UserError(where, f"cannot be read: {error.strerror}", "Check the path.") from error
    except UnicodeDecodeError:
        text = ""
    if text is not None and not re.fullmatch("[!-~]+", text := text.strip()):
        raise UserError(where, "not a valid API key", "Use visible ASCII characters, without spaces.")
    return text


def serve(
    source: str | Path,
    *,
    store: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    task: str | None = None,
    revision: str | None = None,
    api_key_file: Path | None = None,
    max_batch_tokens: int = Limits.max_batch_tokens,
    max_client_batch_size: int = Limits.max_client_batch_size,
    max_concurrent_requests: int = Limits.max_concurrent_requests,
    payload_limit: int = Limits.payload_limit,
    timeout: float = Limits.timeout,
) -> None:
    """Serve predictions over HTTP until SIGTERM or Ctrl-C, from the main thread.

    source, task, revision: as for `load`. store: a vector store of `index`, for /search. host: by default
    reachable from this machine only. port: 0 for any free one. api_key_file: the key that clients must send;
    by default the variable BERTKIT_API_KEY, or none. max_batch_tokens: estimated, of a row and of a call.
    max_client_batch_size: rows per request. max_concurrent_requests: further ones get a 429. payload_limit:
    bytes of a body. timeout: seconds to read a body, and again to answer. Raises UserError, ModelError or
    DataError.

    >>> bertkit.serve("runs/quickstart", port=8000)  # doctest: +SKIP
    """
    with suppress(RuntimeError):  # there is none
        asyncio.get_running_loop()
        what = "an event loop is running here, as in a notebook"
        raise UserError("", what, "Start it in a terminal: bertkit serve RUN")
    limits = Limits(max_batch_tokens, max_client_batch_size, max_concurrent_requests, payload_limit, timeout)
    name = fspath(source)
    api_key = read_api_key(api_key_file)
    opened = None
    if store is None:
        predictor = load(source, revision=revision, task=task)
    else:
        from bertkit.retrieval.store import Store  # which imports pyarrow
        from bertkit.retrieval.vector_models import dual_encoder, load_vectors

        opened = Store.open(store)
        predictor = load(source, revision=revision, task=task) if task else load_vectors(name, revision)
        opened.require(dual_encoder(name, revision, predictor).files)
    run(predictor, name, opened, host=host, port=port, limits=limits, api_key=api_key)


def run(
    predictor: Predictor,
    source: str,
    store: Store | None = None,
    *,
    host: str,
    port: int,
    limits: Limits,
    api_key: str | None = None,
) -> None:
    """Answer until SIGTERM or Ctrl-C, then all accepted requests, within the limits' timeout.

    source: where the model was loaded from. store: for /search. port: 0 for any free one. api_key: what
    clients must send; None: nothing. Raises UserError where the address cannot be used or requests are no
    longer answered, ModelError where the model cannot answer.
    """
    # This loads libraries, and detects a damaged model before the first request
    list(predictor.stream([predictor.any_row(())]))
    app = model_app(Service(predictor, name_for_clients(source), limits, store), api_key)
    server = make_server(app, limits)
    listener = listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    logger.info("%s (%s) on %s", source, predictor.task.name, url)

    def stop(number: int, _: object) -> None:
        server.should_exit = True

    # in place of uvicorn's handlers, which end by raising the signal again: the exit code would not be 0
    with listener, signals_handled((signal.SIGINT, signal.SIGTERM), stop):
        server.run(sockets=[listener])
    if failure := app.state.batcher.failure:
        raise UserError(
            "the server", f"it stopped answering requests ({failure})", "Restart it and report the log."
        )
    logger.info("all accepted requests are answered")


def name_for_clients(source: str) -> str:
    """The Hub's id, or the name of the folder: clients are not told where the model is on this machine."""
    folder = Path(source).expanduser()
    return folder.resolve().name if folder.exists() else source


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """uvicorn for an application of `model_app`. It stops when requests are no longer answered."""

    async def stop_after_failure() -> None:
        if app.state.batcher.failure:
            server.should_exit = True

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        callback_notify=stop_after_failure,
        timeout_notify=1,  # seconds
        timeout_graceful_shutdown=int(2 * limits.timeout) + 1,  # to read a body, and to answer it
    )
    server = uvicorn.Server(config)
    return server


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address. Raises UserError."""
    fix = "Try another port; 0 takes any free one."
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    failures = (OSError, OverflowError)
    with translated(failures, UserError, f"{host}:{port}", "cannot listen on this address", fix):
        listener = socket.create_server((host, port), family=family)
        # Accepted connections inherit this. asyncio does not know that they are TCP, and answers would wait
        # 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
