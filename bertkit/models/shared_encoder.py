"""One encoder for several models: the same modules in each, instead of a copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module, Parameter


def encoder_parts(model: Any, own: Collection[Module]) -> dict[str, Module | Parameter]:
    """The modules and parameters that a model's encoder consists of, by name.

    own: modules of the model that are not its encoder's, where the model is an encoder with others attached.
    """
    encoder = model.base_model
    parts = [*encoder.named_children(), *encoder.named_parameters(recurse=False)]
    return {name: part for name, part in parts if not any(part is each for each in own)}


def share_encoder(models: Iterable[tuple[Any, Collection[Module]]]) -> None:
    """Let these models, each with modules of its own as for `encoder_parts`, share the encoder of the first.

    A part that not all encoders have, such as BERT's pooler, is shared by those that have it.
    """
    shared: dict[str, Any] = {}
    for model, own in models:
        for name, part in encoder_parts(model, own).items():
            setattr(model.base_model, name, shared.setdefault(name, part))
