"""The examples in the docstrings of the public names run, on a model of a few thousand parameters."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit.training import classifier

NAMES = [name for name in bertkit.__all__ if not name.endswith("Error") or name == "UserError"]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(
    name: str, learned: bertkit.Run, tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(task: str, folder: str, **settings: Any) -> bertkit.Run:
        small = {"model": tiny_encoder, "max_length": 32, "explain": False, "verify": False}
        return real(task, folder, **{**settings, **small})

    real = bertkit.train
    shutil.copytree(learned.folder, tmp_path / "runs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(bertkit, name), name, globs={"bertkit": bertkit})
    assert example.examples
    monkeypatch.setattr(bertkit, "train", train)
    monkeypatch.setattr(classifier, "train", train)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert outcome.failed == 0
