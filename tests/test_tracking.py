"""`report_to`: where trackers write their logs, and the error for a missing library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bertkit.errors import RecipeError
from bertkit.run import Run
from bertkit.training.train import train

SHORT = ("training.max_steps=4", "training.logging_steps=1", "training.eval_strategy=steps", "training.eval_steps=2")


def logged(run: Run, seed: int, name: str) -> list[tuple[int, float]]:
    """The values of this name in metrics.jsonl, with their steps."""
    events = small.read_rows(run.folder / "metrics.jsonl")
    return [(e["step"], pytest.approx(e[name])) for e in events if e["seed"] == seed and name in e]


def test_tensorboard_writes_a_folder_for_each_seed_into_the_run(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    recipe = small.recipe(tmp_path, tiny_encoder, *SHORT, "training.report_to=tensorboard", "seeds=[1, 2]")
    run = train(recipe, tmp_path / "run")
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    assert sorted(path.name for path in (run.folder / "logs").iterdir()) == ["seed-1", "seed-2"]
    for seed in (1, 2):
        events = EventAccumulator(str(run.folder / "logs" / f"seed-{seed}")).Reload()
        for name, ours in (("train/loss", "loss"), ("eval/accuracy", "eval_accuracy")):
            there = [(event.step, event.value) for event in events.Scalars(name)]
            assert len(there) > 1
            assert there == logged(run, seed, ours)
    assert not list(run.checkpoints.rglob("*tfevents*"))


def test_the_environment_can_name_another_folder_for_tensorboard(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "mine"))
    run = train(small.recipe(tmp_path, tiny_encoder, *SHORT, "training.report_to=tensorboard"), tmp_path / "run")
    assert list((tmp_path / "mine").iterdir())
    assert not (run.folder / "logs").exists()


def test_an_integration_that_does_not_exist_is_named_before_training(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "training.report_to=[tensorbord]")
    with pytest.raises(RecipeError, match="no integration 'tensorbord'; did you mean 'tensorboard'"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
