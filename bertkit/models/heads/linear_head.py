"""A linear head on the vectors of an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from bertkit.models.encoder import Encoder, load_extra_module
from bertkit.models.heads.vector_head import (
    DENSE,
    Dense,
    Layout,
    files,
    head_folder,
    load_with_layout,
    read_layout,
)
from bertkit.text import Json

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LinearHead(Dense):
    """A linear function of vectors `(texts, size)` -> logits `(texts, labels)`; layout: what the vectors come
    from.
    """

    def __init__(self, size: int, labels: int, layout: Layout) -> None:
        super().__init__(size, Layout(dense=labels))
        self.layout = layout
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)


@dataclass
class VectorLogits(ModelOutput):
    """Outputs of an encoder with a LinearHead, in fp32."""

    logits: Tensor | None = None  # (texts, labels)
    vectors: Tensor | None = None  # (texts, size)


def linear_classifier(encoder: Encoder, settings: Json, *, new_head: bool, unit: bool) -> PreTrainedModel:
    """The encoder with the layout of its folder (a plain encoder's: mean, unit length), and a LinearHead
    behind it.

    unit: whether a new head reads vectors of unit length, whatever the folder says.
    """
    layout = read_layout(encoder.folder, head=not new_head)[0]
    if (new_head and unit) or not (encoder.folder / "modules.json").is_file():
        layout = layout._replace(normalize=True)
    model: Any = load_with_layout(encoder, settings, layout, new_head=new_head)
    model.classifier = LinearHead(layout.dense or model.config.hidden_size, model.config.num_labels, layout)
    if not new_head:
        load_extra_module(encoder, f"{head_folder(layout)}/model", model.classifier)
    model.register_forward_hook(_with_logits)
    return model  # type: ignore[no-any-return]


def _with_logits(model: Any, inputs: Any, outputs: Mapping[str, Tensor]) -> VectorLogits:
    vectors = outputs["vectors"]
    with torch.autocast(vectors.device.type, enabled=False):
        return VectorLogits(logits=model.classifier(vectors), vectors=vectors)


def linear_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Place in a model folder -> module, for those that a model of `linear_classifier` has behind its
    encoder.
    """
    parts = dict(model.named_children())
    if not isinstance(head := parts.get("classifier"), LinearHead):
        return {}
    dense = {f"{DENSE}/model": parts["vector_dense"]} if head.layout.dense else {}
    return {**dense, f"{head_folder(head.layout)}/model": head}


def linear_tensors(model: Any) -> dict[str, Tensor]:
    """For the model.safetensors of a model of `linear_classifier`: an empty tensor, named like the last one
    of the head that `…ForSequenceClassification` would draw at random for this encoder. By its shape that
    class refuses the file.

    AutoModel, which sentence-transformers loads the encoder with, reads no tensor of that name.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    classes: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if not linear_modules(model) or type(model.config) not in classes:
        return {}
    with torch.device("meta"):
        plain = classes[type(model.config)](model.config)
    names = [
        name for name, _ in plain.named_parameters() if not name.startswith(f"{plain.base_model_prefix}.")
    ]
    return {names[-1]: torch.zeros(0)}


def linear_files(model: Any, longest: int) -> Json:
    """`files` of a model of `linear_classifier`; none of another model."""
    heads = [module for module in linear_modules(model).values() if isinstance(module, LinearHead)]
    return files(heads[0].layout, model.config.hidden_size, longest, model.config.num_labels) if heads else {}
