"""The average of the weights over the updates of a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bertkit.training.used_embeddings import UsedRows


class AveragedWeights:
    """The exponential moving average of a model's trained weights, beside the model."""

    def __init__(self, model: nn.Module, decay: float, used: UsedRows | None = None) -> None:
        """decay: of the average. It begins lower, min(decay, (1 + n) / (10 + n)) after n updates, so that the first
        weights, which are the worst, are soon forgotten. used: the only rows of the word embedding that are trained.
        """
        first = [used.others.decay, used.weight] if used else []  # in an order that `load` knows
        others = [p for p in model.parameters() if p.requires_grad and not (used and p is used.weight)]
        self.trained, self.used = nn.ParameterList([*first, *others]), used

        def average(averaged: Any, current: Any, updates: Tensor | int) -> None:
            now = min(decay, (1 + int(updates)) / (10 + int(updates)))
            get_ema_multi_avg_fn(now)(averaged, current, updates)  # type: ignore[no-untyped-call]

        self.model = AveragedModel(self.trained, multi_avg_fn=average)

    def update(self, *_: Any) -> None:
        """Include the model's current weights in the average: a hook that runs after each step of an optimizer."""
        self.model.update_parameters(self.trained)

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore `model.state_dict()`, from a checkpoint that may have fewer rows of the word embedding."""
        if self.used:
            state["module.1"] = self.used.extended(state["module.1"], state["module.0"])
        self.model.load_state_dict(state)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and their average."""
        for weight, averaged in zip(self.trained, self.model.parameters(), strict=True):
            weight.data, averaged.data = averaged.data, weight.data
