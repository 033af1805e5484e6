"""The examples in the docstrings of the public names run, on a model of a few thousand parameters."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import Any

import pytest
import small

import bertkit

NAMES = [name for name in bertkit.__all__ if not name.endswith("Error") or name == "UserError"]


@pytest.fixture(scope="module")
def room(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with runs/quickstart."""
    folder = tmp_path_factory.mktemp("examples")
    bertkit.train(small.recipe(folder, tiny_encoder, "training.num_train_epochs=1"), folder / "runs/quickstart")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(
    name: str, room: Path, tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(task: str, folder: str, **settings: Any) -> bertkit.Run:
        return real(
            task, folder, **{**settings, "model": tiny_encoder, "max_length": 32, "explain": False, "verify": False}
        )

    real = bertkit.train
    shutil.copytree(room / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(bertkit, name), name, globs={"bertkit": bertkit})
    assert example.examples
    monkeypatch.setattr(bertkit, "train", train)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert outcome.failed == 0
