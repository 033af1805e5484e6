"""The encoder–decoder of a recipe: new, from a BERT, or as it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
import transformers
from safetensors import safe_open
from torch import nn
from transformers import EncoderDecoderConfig

from bertkit.errors import ModelError
from bertkit.models.bert.bert import BertForMaskedLM
from bertkit.models.bert.transformer import EncoderDecoderModel, config
from bertkit.models.encoder import Encoder, load_config, load_model
from bertkit.models.new_config import BertConfig, read_config


def encoder_decoder(encoder: Encoder, *, start: int, end: int, new_head: bool) -> EncoderDecoderModel:
    """The model in the encoder's folder; or both halves from one BERT, whose layers get new attention to the
    source.

    Rothe et al. 2020 (arXiv 1907.12461) call the second one BERT2BERT. start, end: ids of the tokens around a
    target.
    Raises ModelError where the encoder is neither, and as `load_model` does.
    """
    ids = {"decoder_start_token_id": start, "eos_token_id": end}
    if encoder.model_type == EncoderDecoderConfig.model_type:
        return _saved(encoder, ids, new_head)
    if isinstance(encoder.config, BertConfig):
        return EncoderDecoderModel(config(encoder.config, **ids))
    if encoder.model_type != "bert":
        what = f"{encoder.name!r} is a {encoder.model_type}, but both halves must be BERTs"
        if encoder.config:
            raise ModelError("model.config", what, "Use a BERT's, such as config: mini.")
        raise ModelError("model.name", what, "Use a BERT, such as google-bert/bert-base-uncased.")
    if not new_head:
        raise ModelError(
            "model.name",
            f"{encoder.name!r} is a BERT alone: its decoder would be random",
            "Train it for this task, or use a model that was trained for it.",
        )
    own_config = read_config(encoder.folder)
    loaded = load_model(encoder, BertForMaskedLM, {}, new_head=new_head, own_config=own_config)
    model = EncoderDecoderModel(config(own_config, **ids))
    model.name_or_path = model.config.name_or_path = loaded.name_or_path  # the base model of adapters
    # All but the pooler, which `found` lacks, and the attention to the source.
    model.encoder.load_state_dict(loaded.get_submodule("bert").state_dict(), strict=False)
    _copy_pooler(encoder.folder, model.encoder.get_submodule("pooler"))
    model.decoder.load_state_dict(loaded.state_dict(), strict=False)
    return model


def _copy_pooler(folder: Path, pooler: nn.Module) -> None:
    """Copy the weights of a BERT's pooler, if its folder has one; nothing here reads it, but transformers'
    own may.
    """
    parameters = {
        f"{owner}pooler.{part}": parameter
        for part, parameter in pooler.named_parameters()
        for owner in ("", "bert.")
    }
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights, torch.no_grad():
            for name in (name for name in weights.keys() if name in parameters):  # noqa: SIM118
                if parameters[name].shape == (tensor := weights.get_tensor(name)).shape:
                    parameters[name].copy_(tensor)


def _saved(encoder: Encoder, ids: Mapping[str, int], new_head: bool) -> EncoderDecoderModel:
    """The encoder–decoder in the folder. ids: what its config has in place of those that it leaves out.

    Raises ModelError where its halves are not BERTs of one vocabulary.
    """
    saved = cast(EncoderDecoderConfig, load_config(encoder.folder))
    source, target = (cast(transformers.BertConfig, half) for half in (saved.encoder, saved.decoder))
    if other := {source.model_type, target.model_type} - {"bert"}:
        raise ModelError(
            "model.name",
            f"{encoder.name!r} contains a {other.pop()}, but both halves must be BERTs",
            "Use an encoder–decoder of two BERTs, or a BERT.",
        )
    if source.vocab_size != target.vocab_size:
        raise ModelError(
            "model.name",
            f"{encoder.name!r} reads {source.vocab_size:,} tokens and writes {target.vocab_size:,}",
            "Use a model with one tokenizer for source and target.",
        )
    model = load_model(encoder, EncoderDecoderModel, {}, new_head=new_head, own_config=saved)
    generation = model.generation_config
    # only the file's ids are kept
    model.generation_config = transformers.GenerationConfig()  # type: ignore[no-untyped-call]
    for name, value in {**ids, "pad_token_id": source.pad_token_id}.items():
        choices = (getattr(generation, name), getattr(saved, name, None), value)
        token = next((choice for choice in choices if choice is not None), None)
        if token is None:
            raise ModelError(encoder.folder / "config.json", f"has no {name}", "Use another model.")
        setattr(model.generation_config, name, token)
        setattr(model.config, name, token)
    return cast(EncoderDecoderModel, model)
