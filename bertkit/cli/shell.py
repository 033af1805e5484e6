"""The command shell, and what it shares with search: a loaded model answers each line of stdin as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertkit.cli.models import read_context
from bertkit.cli.output import say
from bertkit.cli.shared import DECISIONS, JSON, REVISION, RUN, TASK, command, path
from bertkit.errors import DataError, Problem, UserError
from bertkit.text import json_line


@command(
    "answer each line of stdin at once: a text, or a row as a JSON object",
    RUN,
    path("--context", "the text that the questions are about"),
    *DECISIONS,
    TASK,
    REVISION,
    JSON,
)
def shell(
    source: str, context: Path | None, task: str | None, revision: str | None, as_json: bool, **decisions: Any
) -> None:
    from bertkit.inference.display import answer_line
    from bertkit.inference.predictor import load
    from bertkit.text import escape_controls

    passage = read_context(context) if context else None
    predictor = load(source, revision=revision, task=task).with_decisions(**decisions)

    def reply(line: str) -> tuple[dict[str, Any], str]:
        row = _row(line, passage, predictor.task)
        try:
            answer: Any = predictor(row)
        except UserError as error:  # whose rows are numbered, but a line is one row
            raise UserError(problem._replace(where="") for problem in error.problems) from None
        shown = row if passage is None else {"text": line}
        return {**shown, "answer": answer}, escape_controls(answer_line(answer, str(shown.get("text", ""))))

    converse(reply, "a text, or a row as JSON", as_json)


def converse(reply: Callable[[str], tuple[dict[str, Any], str]], expects: str, as_json: bool) -> None:
    """Print the reply to each line of stdin before the next is read.

    reply: a line -> its answer as JSON, and for people; a UserError is that line's alone. expects: what a line holds.
    as_json: also where stdout is not a terminal; then each line gets one line.
    """
    if sys.stdin is None:
        raise UserError("stdin is closed", "Write lines to it.")
    as_json = as_json or not sys.stdout.isatty()
    for line in _lines(expects):
        try:
            answer, shown = reply(_decoded(line))
            say(json_line(answer) if as_json else shown, flush=True)
        except UserError as error:
            if as_json:
                say(json_line({"error": str(error)}), flush=True)
            else:
                say(*(f"error: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)


def _lines(expects: str) -> Iterator[bytes]:
    """The lines of stdin without their ends; on a terminal those that are not empty, after a prompt."""
    if not sys.stdin.isatty():
        yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return
    with suppress(ImportError):  # Windows
        import readline  # noqa: F401  # with it, `input` edits a line, and knows the ones before
    say(f"{expects} on each line; Ctrl-D ends", file=sys.stderr)
    with suppress(EOFError):
        while True:
            if line := input("> ").strip():
                yield line.encode("utf-8", "surrogateescape")


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(Problem("", f"not UTF-8: {error.reason} at byte {error.start + 1}")) from None


def _row(text: str, passage: str | None, task: Any) -> dict[str, Any]:
    """What a line stands for. passage: what the questions are about. Raises DataError."""
    from bertkit.inference.display import example_row, read_together

    if passage is not None:
        return {"question": text, "context": passage}
    if text.lstrip().startswith("{"):
        try:
            row: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            fix = 'A text that begins with { is written as a row: {"text": "{…"}.'
            raise DataError(Problem("", f"begins with {{, but is not JSON: {error}", fix)) from None
        return row
    if {"text"} not in task.inputs:
        what = f"this model reads {read_together(task)} together, not a single text"
        raise DataError(Problem("", what, f"Write a row: {example_row(task, task.inputs)}"))
    return {"text": text}
