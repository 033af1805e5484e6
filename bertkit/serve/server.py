"""Run a predictor as an HTTP server; on SIGTERM and Ctrl-C it answers what it has accepted, then exits."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from bertkit.errors import Problem, UserError
from bertkit.inference.predictor import Predictor
from bertkit.serve.app import make_app
from bertkit.serve.limits import Limits

logger = logging.getLogger(__name__)


def serve(predictor: Predictor, model: str, *, host: str, port: int, limits: Limits) -> None:
    """Answer until SIGTERM or Ctrl-C, then all accepted requests, within the limits' timeout. port: 0 for any free one.

    Raises UserError where the address cannot be used, ModelError where the model cannot answer.
    """
    warm_up(predictor)
    listener = listen(host, port)
    address = f"[{host}]" if ":" in host else host
    logger.info("%s (%s) on http://%s:%d", model, predictor.task.name, address, listener.getsockname()[1])
    config = uvicorn.Config(
        make_app(predictor, model, limits),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=int(2 * limits.timeout) + 1,  # to read a body, and to answer it
    )
    server = uvicorn.Server(config)
    with listener, _stopped_by_signals(server):
        server.run(sockets=[listener])
    logger.info("all accepted requests are answered")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address. Raises UserError."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Accepted connections inherit this. asyncio does not know that they are TCP, and answers would wait 40 ms for
        # an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        what = f"cannot listen on this address: {getattr(error, 'strerror', None) or error}"
        raise UserError(Problem(f"{host}:{port}", what, "Try another --port; 0 takes any free one.")) from error


def warm_up(predictor: Predictor) -> None:
    """Answer one row: this loads libraries, and detects a damaged model before the first request."""
    task = predictor.task
    row = {name: ["a"] if task.schema.columns[name].holds == "words" else "a" for name in task.inputs[0]}
    list(predictor.stream([row]))


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Replace uvicorn's handling of signals: it ends by raising the signal again, and the exit code would not be 0.

    A signal before uvicorn has installed its own handlers stops the server too.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
