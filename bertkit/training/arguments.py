"""transformers' arguments of a training, with what a recipe's `training:` adds to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from bertkit.sections import TrainingKeys


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments and the fields of `sections.TrainingKeys`, which say what they mean.

    `muon` is whether `optim` is muon, which transformers does not know; `optim` is then the optimizer of the weights
    that Muon does not train.
    """

    muon_learning_rate: float | None = None
    muon_momentum: float = TrainingKeys.model_fields["muon_momentum"].default
    ema: float | None = None
    muon: bool = field(init=False, default=False)

    def __post_init__(self) -> Any:
        self.muon = self.optim == "muon"
        if self.muon:
            self.optim = self.default_optim
        super().__post_init__()  # type: ignore[no-untyped-call]
