"""The output layer of a model of transformers: the linear layer of its head that gives the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Fp32Linear(nn.Linear):
    """A linear layer in fp32, under autocast too: the 8 bits of bf16 make many scores of a ranker equal."""

    def forward(self, input: Tensor) -> Tensor:
        device = "cpu" if input.is_meta else input.device.type  # `meta` has no autocast
        with torch.autocast(device, enabled=False):
            return F.linear(input.float(), self.weight, self.bias)


def output_layers(model: Any) -> dict[str, nn.Linear]:
    """The linear layers outside of the encoder with one output per label, by name: one, and the copies that
    peft makes.

    None of a model without a head, and of one whose outputs are not labels, such as a masked language model.
    """
    encoder = f"{model.base_model_prefix}."
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == model.config.num_labels
        if model.base_model is not model and not name.startswith(encoder)
    }


def compute_in_fp32(model: Any) -> None:
    """Let the output layer compute in fp32. Its name, its weights and the class of the model stay."""
    for layer in output_layers(model).values():
        layer.__class__ = Fp32Linear


def rescale(model: Any, factor: float, offset: float) -> None:
    """Change the weights of the output layer so that the model gives `factor` times its outputs, plus
    `offset`.
    """
    with torch.no_grad():
        for layer in output_layers(model).values():
            layer.weight.copy_(layer.weight.double() * factor)
            layer.bias.copy_(layer.bias.double() * factor + offset)
