"""Files under a temporary name: what a killed process leaves, two writers at once, and a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small
import transformers

from bertkit.errors import ModelError
from bertkit.files import ABANDONED, written_aside
from bertkit.models.encoder import save_tokenizer

DIE = """
import os, signal, sys
from pathlib import Path
from bertkit.files import written_aside
with written_aside(Path(sys.argv[1])) as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "out[1].jsonl"
    assert subprocess.run([sys.executable, "-c", DIE, str(path)], check=False).returncode == -signal.SIGKILL
    (aside,) = tmp_path.iterdir()
    assert aside.read_text() == "half"
    os.utime(aside, (time.time() - ABANDONED - 1,) * 2)
    with written_aside(tmp_path / "other.jsonl") as file:
        file.write("of another file")
    assert len(list(tmp_path.iterdir())) == 2
    with written_aside(path) as file:
        file.write("whole")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "other.jsonl": "of another file",
        "out[1].jsonl": "whole",
    }


def test_a_writer_leaves_the_file_of_another_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with written_aside(path) as first:
        first.write("first")
        with written_aside(path) as second:
            second.write("second")
        assert path.read_text() == "second"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"out.jsonl": "first"}


def test_a_full_disk_names_the_file_or_the_folder_of_a_tokenizer(tmp_path: Path, tiny_encoder: Path) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(OSError, match="File too large") as error, small.largest_file(100), written_aside(path) as file:
        file.write("x" * 101)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_encoder)
    with pytest.raises(ModelError, match=f"{tmp_path}: cannot be written: File too large"), small.largest_file(1000):
        save_tokenizer(tokenizer, tmp_path)
