"""The command shell: each line is answered before the next, and an error is one line's alone."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from cases import CASES, encoder

from bertkit.cli.main import main
from bertkit.inference.predictor import Predictor
from bertkit.run import Run
from bertkit.training.train import train


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    room = tmp_path_factory.mktemp("shell")
    return train(small.recipe(room, tiny_encoder, *small.LEARN), room / "run")


@pytest.fixture
def shell(run: Run) -> Iterator[Any]:
    """A process, which stops with its test."""
    words = [sys.executable, "-m", "bertkit", "shell", str(run.folder), "--top-k", "1"]
    # A test suite in the background of a script ignores SIGINT, and so would its children.
    words = ["env", "--default-signal=INT", *words]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(process: Any, line: bytes) -> Any:
    """The answer to a line; it comes before another is written."""
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_a_line_is_answered_before_the_next_is_written(run: Run, shell: Any) -> None:
    predictor = run.load().with_decisions(top_k=1)
    assert asked(shell, b"the cat was good") == {"text": "the cat was good", "answer": predictor("the cat was good")}
    row = {"id": "7", "text": "the dog was bad"}
    assert asked(shell, json.dumps(row).encode()) == {**row, "answer": predictor("the dog was bad")}
    assert "begins with {, but is not JSON" in asked(shell, b"{smile} the cat")["error"]
    assert "not UTF-8: invalid start byte at byte 5" in asked(shell, b"the \xff")["error"]
    assert asked(shell, b'{"text": 5}')["error"] == "`text` holds 5, where text is expected"
    assert asked(shell, b"\r") == {"text": "", "answer": predictor("")}
    assert shell.communicate() == (b"", b"")
    assert shell.returncode == 0


def test_ctrl_c_ends_it_without_a_traceback(shell: Any) -> None:
    assert asked(shell, b"the cat was good")["text"] == "the cat was good"
    shell.send_signal(signal.SIGINT)
    assert shell.communicate() == (b"", b"\ninterrupted\n")
    assert shell.returncode == 130


def test_a_terminal_has_a_prompt_and_lines_for_people(run: Run) -> None:
    here, there = os.openpty()
    words = [sys.executable, "-m", "bertkit", "shell", str(run.folder)]
    with subprocess.Popen(
        words, stdin=there, stdout=there, stderr=there, env={**os.environ, "TERM": "dumb"}
    ) as process:
        os.close(there)
        seen = b""

        def read_to(what: bytes) -> None:
            nonlocal seen
            while what not in seen:
                seen += os.read(here, 1000)
            seen = seen.partition(what)[2]

        read_to(b"Ctrl-D ends")
        read_to(b"> ")
        os.write(here, b"\n{broken\n")
        read_to(b"error: begins with {")
        read_to(b"> ")
        os.write(here, b"the cat was good\n")
        read_to(b"good  0.")
        read_to(b"> ")  # before it, the terminal itself would read Ctrl-D
        os.write(here, b"\x04")
        assert process.wait(60) == 0
    os.close(here)


@pytest.fixture
def questions(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """What `load` returns: a predictor of answers in contexts, with an untrained head."""
    task = next(case for case in CASES if case.id == "qa").task(tiny_encoder)
    predictor = Predictor(task, task.model(encoder(tiny_encoder)).eval(), torch.device("cpu"), "fp32", 4, {})
    monkeypatch.setattr("bertkit.inference.predictor.load", lambda *_, **__: predictor)
    return predictor


def told(capsys: Any, monkeypatch: pytest.MonkeyPatch, lines: str, *words: str | Path) -> list[Any]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["shell", "RUN", *map(str, words)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_model_that_reads_several_columns_needs_rows_or_a_context(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, questions: Predictor, tmp_path: Path
) -> None:
    context = "the cat sat on the mat . a dog ran up and down ."
    (tmp_path / "context.txt").write_text(context)
    row = {"question": "one dog ?", "context": context}
    answer = questions(row)
    first, second = told(capsys, monkeypatch, f"one dog ?\n{json.dumps(row)}\n")
    what = "this model reads question and context together, not a single text"
    assert first["error"].startswith(f'{what}\n    Write a row: {{"question": "')
    assert second == {**row, "answer": answer}
    (only,) = told(capsys, monkeypatch, "one dog ?\n", "--context", tmp_path / "context.txt")
    assert only == {"text": "one dog ?", "answer": answer}
