"""Several tasks that are learned together: their models share one encoder, and their losses are added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bertkit.engine.mixing import TASK
from bertkit.models.trained_parts import share_encoder
from bertkit.tasks.base import Batch, Task
from bertkit.text import Record

WEIGHTS = "model.safetensors"  # where Trainer looks for them


class SharedEncoder(nn.Module):
    """The models of several tasks whose encoders are one: the same modules, with the same weights and gradients."""

    def __init__(self, tasks: Mapping[str, Task], models: Record, *, lora: bool = False) -> None:
        """models: of each task, from the same pretrained weights. lora: whether they have adapters."""
        super().__init__()
        self.tasks = tasks
        self.models = nn.ModuleDict({_key(name): model for name, model in models.items()})
        inner = {name: model.get_base_model() if lora else model for name, model in models.items()}
        share_encoder((model, tasks[name].extra_modules(model).values()) for name, model in inner.items())

    def forward(self, name: str, batch: Batch) -> Any:
        """The outputs of this task's model."""
        return self.tasks[name].forward(self.of(name), batch)

    def of(self, name: str) -> Any:
        """The model of this task."""
        return self.models[_key(name)]

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding, which the models share. Raises NotImplementedError where they have none."""
        first: Any = next(iter(self.models.values()))
        return first.get_input_embeddings()  # type: ignore[no-any-return]

    def stored(self) -> dict[str, Tensor]:
        """Every tensor once, by its first name."""
        every: dict[str, Tensor] = {}
        for name, module in self.named_modules():  # a shared one only once, unlike `state_dict`
            module._save_to_state_dict(every, f"{name}." if name else "", keep_vars=False)
        return {name: every[name].contiguous() for name in self._once() if name in every}

    def _once(self) -> set[str]:
        """The first name of every parameter and buffer."""
        return {name for name, _ in chain(self.named_parameters(), self.named_buffers())}

    def save_pretrained(self, folder: str | Path, state_dict: Any = None, save_original_format: bool = False) -> None:
        """Write the tensors, as Trainer loads them in a checkpoint. state_dict: nothing else than `stored`."""
        save_file(self.stored(), Path(folder, WEIGHTS), {"format": "pt"})

    def load_state_dict(self, state_dict: Record, strict: bool = True, assign: bool = False) -> Any:
        """Load what is `stored`. Raises RuntimeError where a tensor is missing or not known."""
        loaded = super().load_state_dict(state_dict, strict=False, assign=assign)
        missing = [name for name in loaded.missing_keys if name in self._once()]
        if missing or loaded.unexpected_keys:
            raise RuntimeError(f"missing tensors: {missing}; unexpected tensors: {loaded.unexpected_keys}")
        return type(loaded)([], [])


def _key(name: str) -> str:
    """The name of a task among modules, where `keys`, `type` or `crf` would be taken for something else."""
    return f"task-{name}"


@dataclass(frozen=True)
class MultiTask:
    """Tasks as one: the loss is the sum of the tasks' losses, each divided by its own count and weighted."""

    tasks: Mapping[str, Task]
    weights: Mapping[str, float]

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Parts of a parameter's name, joined by dots -> factor on the learning rate; see `Task`."""
        return {
            f"{_key(name)}.{part}": factor
            for name, task in self.tasks.items()
            for part, factor in task.learning_rate_factors.items()
        }

    def scheduled(self, batch: Batch, progress: float) -> Batch:
        """The batch as its task schedules it."""
        return self.tasks[str(batch[TASK])].scheduled(batch, progress)

    def forward(self, model: Any, batch: Batch) -> Any:
        """The outputs of the batch's task."""
        return model(batch[TASK], batch)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The weighted sum of the losses of this batch, at the place of its task; elsewhere 0. `(tasks,)`."""
        name = str(batch[TASK])
        total = self.weights[name] * self.tasks[name].loss(outputs, batch, label_smoothing)
        return total * torch.tensor(self._at(name), device=total.device)

    def count(self, batch: Batch) -> tuple[float, ...]:
        """The number of terms in the loss of each task."""
        name = str(batch[TASK])
        counted = self.tasks[name].count(batch)
        assert isinstance(counted, float)
        return tuple(counted * place for place in self._at(name))

    def _at(self, name: str) -> list[float]:
        return [float(name == each) for each in self.tasks]
