"""The command shell: one process, with its model loaded, that answers each line of stdin as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertkit.cli.models import read_context
from bertkit.cli.shared import DECISIONS, JSON, REVISION, RUN, TASK, command, path
from bertkit.errors import DataError, Problem, UserError


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
    source: str, context: Path | None, threshold: float | None, coverage: float | None, class_conditional: bool,
    top_k: int | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    if sys.stdin is None:
        raise UserError("stdin is closed", "Write lines to it, or use predict.")
    from bertkit.inference.display import answer_line
    from bertkit.inference.predictor import load
    from bertkit.text import escape_controls

    passage = read_context(context) if context else None
    predictor = load(source, **options).with_decisions(
        threshold=threshold, coverage=coverage, class_conditional=class_conditional, top_k=top_k
    )
    as_json = as_json or not sys.stdout.isatty()
    try:
        for line in _lines():
            shown: dict[str, Any] = {}
            try:
                row = _row(line, passage, predictor.task)
                shown = row if passage is None else {"text": line.decode()}
                answer: Any = predictor(row)
            except UserError as error:
                problems = [str(problem._replace(where="")) for problem in error.problems]
                if as_json:  # a line for each line, for programs that wait for it
                    print(json.dumps({**shown, "error": "\n".join(problems)}, ensure_ascii=False), flush=True)
                else:
                    print(*(f"error: {problem}" for problem in problems), sep="\n", file=sys.stderr)
                continue
            if as_json:
                print(json.dumps({**shown, "answer": answer}, ensure_ascii=False), flush=True)
            else:
                print(escape_controls(answer_line(answer, str(shown.get("text", "")))), flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


def _lines() -> Iterator[bytes]:
    """The lines of stdin without their ends; on a terminal those that are not empty, after a prompt."""
    if not sys.stdin.isatty():
        yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return
    with suppress(ImportError):  # Windows
        import readline  # noqa: F401  # with it, `input` edits a line, and knows the ones before
    print("a text, or a row as JSON, on each line; Ctrl-D ends", file=sys.stderr)
    with suppress(EOFError):
        while True:
            if line := input("> ").strip():
                yield line.encode("utf-8", "surrogateescape")


def _row(line: bytes, passage: str | None, task: Any) -> dict[str, Any]:
    """What a line stands for. passage: what the questions are about. Raises DataError."""
    from bertkit.inference.display import example_row, read_together

    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(Problem("", f"not UTF-8: {error.reason} at byte {error.start + 1}")) from None
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
