"""The command `serve`: a parser, and one call of the API."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from bertkit.cli.shared import MODEL, quiet_libraries
from bertkit.errors import Problem, UserError
from bertkit.serve.limits import Limits


def serve_command(commands: Any) -> None:
    """Add serve to the subparsers of `bertkit`."""
    command = commands.add_parser("serve", help="answer over HTTP")
    command.add_argument("source", metavar="MODEL", help=MODEL)
    command.add_argument("--task", help="what a model is for that bertkit did not make")
    command.add_argument("--revision", metavar="NAME", help="of a Hub id: commit, tag or branch")
    command.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which only this machine reaches")
    command.add_argument("--port", type=int, default=8000, help="0: any free one; default: 8000")
    about = {
        "max_batch_tokens": "word pieces that the model is given at a time",
        "max_client_batch_size": "rows of one request",
        "max_concurrent_requests": "requests that are read, wait or are answered; others get a 429",
        "payload_limit": "bytes of a request's body",
        "timeout": "seconds to read a request's body, and again to answer it",
    }
    for limit in fields(Limits):
        name, said = f"--{limit.name.replace('_', '-')}", f"{about[limit.name]}; default: {limit.default}"
        command.add_argument(name, type=positive_number, default=limit.default, metavar="N", help=said)
    command.set_defaults(run=_serve)


def positive_number(written: str) -> int:
    """A whole number from 1 on, as argparse reads it."""
    number = int(written)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _serve(args: argparse.Namespace) -> None:
    quiet_libraries()
    from bertkit.inference.predictor import load

    try:
        from bertkit.serve.server import serve
    except ModuleNotFoundError as error:
        raise UserError(Problem("", f"serve needs {error.name}", 'pip install "bertkit[serve]"')) from error
    limits = Limits(**{limit.name: getattr(args, limit.name) for limit in fields(Limits)})
    predictor = load(args.source, revision=args.revision, task=args.task)
    serve(predictor, args.source, host=args.host, port=args.port, limits=limits)
