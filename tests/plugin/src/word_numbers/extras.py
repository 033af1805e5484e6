"""What `bertkit.train` takes from Python: a loss, an attachment and a metric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import bertkit


def huber(outputs: Tensor, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    """The Huber loss (1964), which outliers hardly move."""
    return F.huber_loss(outputs, labels, reduction="sum") / num_items_in_batch


class Noise(bertkit.Attachment):
    """Adds noise to the gradients, which decreases with the steps (Neelakantan et al. 2015), also after a
    resume.
    """

    def start(self, trainer: Any, checkpoint: Path | None) -> None:
        self.parameters = [*trainer.model.parameters()]
        self.steps = json.loads((checkpoint / "noise.json").read_text())["steps"] if checkpoint else 0

    def wrap_optimizer(self, optimizer: Any, trainer: Any) -> Any:
        optimizer.register_step_pre_hook(self.disturb)
        return optimizer

    def disturb(self, *_: Any) -> None:
        generator = torch.Generator().manual_seed(self.steps)
        self.steps += 1
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad += torch.randn(parameter.shape, generator=generator) * 0.01 / self.steps**0.55

    def save_files(self) -> Mapping[str, Any]:
        return {"noise.json": {"steps": self.steps}}


class Within:
    """The share of words whose number is off by at most a tenth."""

    def compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"within": float((abs(predictions - references) <= 0.1).mean())}
