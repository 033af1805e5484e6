"""What changes in the course of a training: by its progress, which is read once per step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import multitask
import pytest
import torch
from cases import CASES
from steps import arguments, first_step, made

from bertkit.tasks.base import Batch
from bertkit.tasks.text_classification import TextClassification
from bertkit.training.shared_encoder import MultiTask
from bertkit.training.train import train

CASE = next(case for case in CASES if case.id == "single-label")


def test_each_micro_batch_of_a_step_is_scheduled_at_its_progress(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def scheduled(self: Any, batch: Batch, progress: float) -> Batch:
        seen.append(progress)
        return batch

    monkeypatch.setattr(TextClassification, "scheduled", scheduled)
    args = arguments(tmp_path, 2, 2, max_steps=4)  # two epochs
    made(CASE, tiny_encoder, args).train()
    assert seen == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


def test_the_scheduled_batch_is_what_is_counted_and_learned(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step on the first rows of four micro-batches of two is the step on these four rows alone."""

    def first_row(self: Any, batch: Batch, progress: float) -> Batch:
        return {name: values[:1] for name, values in batch.items()}

    plain = first_step(CASE, tiny_encoder, tmp_path / "plain", 2, 4)
    monkeypatch.setattr(TextClassification, "scheduled", first_row)
    loss, gradients = first_step(CASE, tiny_encoder, tmp_path / "some", 2, 4)
    monkeypatch.undo()
    micro = made(CASE, tiny_encoder, arguments(tmp_path / "loader", 2, 4)).get_train_dataloader().batch_sampler
    firsts = {name: [values[batch[0]] for batch in micro] for name, values in CASE.columns.items()}
    alone = first_step(replace(CASE, columns=firsts), tiny_encoder, tmp_path / "alone", 4, 1)
    assert loss == pytest.approx(alone[0], rel=1e-5)
    assert loss != pytest.approx(plain[0], rel=1e-4)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, alone[1][name], rtol=1e-3, atol=1e-6)


def test_each_of_several_tasks_schedules_its_own_batches(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, read = [], []

    def scheduled(self: Any, batch: Batch, progress: float) -> Batch:
        seen.append(progress)
        return batch

    def drawn(self: Any, batch: Any, progress: float, real: Any = MultiTask.scheduled) -> Any:
        read.append(batch["task"])
        return real(self, batch, progress)

    monkeypatch.setattr(MultiTask, "scheduled", drawn)
    monkeypatch.setattr(TextClassification, "scheduled", scheduled)
    train(multitask.recipe(tiny_encoder, "sentiment", "answers"), tmp_path / "run")
    assert read.count("sentiment") == len(seen) == len(read) // 2 > 0
    assert seen == sorted(seen)
    assert seen[-1] > 0.5
