"""transformers' training arguments, with what a recipe's `training:` adds to them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from bertkit.sections import TrainingKeys, seconds

ENDLESS = sys.maxsize  # `max_steps` of a training that its budget of time ends


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments and the fields of `sections.TrainingKeys`, which say what they mean.

    `muon` is whether `optim` is muon, which transformers does not know; `optim` is then the optimizer of the
    weights that Muon does not train.
    """

    budget: str | None = None
    muon_learning_rate: float | None = None
    muon_momentum: float = TrainingKeys.model_fields["muon_momentum"].default
    used_embeddings: bool | None = None
    muon: bool = field(init=False, default=False)

    def __post_init__(self) -> Any:
        if self.budget is not None:
            self.max_steps = ENDLESS
        self.muon = self.optim == "muon"
        if self.muon:
            self.optim = self.default_optim
        super().__post_init__()  # type: ignore[no-untyped-call]

    @property
    def n_gpu(self) -> int:
        """At most one; torchrun uses several."""
        return int(super().n_gpu > 0)

    @property
    def seconds(self) -> float | None:
        """The budget."""
        return None if self.budget is None else seconds(self.budget)
